/* SPDX-License-Identifier: MIT */
/* attention_cudnn: attention of whole documents by cuDNN.
 *
 * A query's gradient is a sum over blocks of keys.  cuDNN adds them as they come, unless
 * it is asked for the same bits each time: then, on Hopper, it writes the gradients of
 * all scores as bf16, 2 length^2 bytes a document and head, and multiplies them by the
 * keys after.  So that this stays small the backward pass is done in parts, some documents or
 * some heads of one at a time; which they are depends on sizes alone.  A device whose
 * is.any_order says so has it as they come, all at once. */
#include "kernels/cuda/attention_cudnn.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#if __has_include(<cudnn_frontend.h>) && __has_include(<cudnn.h>)

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB

/* The frontend looks for each function by its name, those of the CUDA runtime in a
 * libcudart that it opens.  Ours is linked in, and a second one is not wanted: these two
 * are nearer to it than the loader's, and know the few that it calls here. */
namespace cudnn_frontend::detail
{
static void *dlopen(const char *name, int flags);
static void *dlsym(void *library, const char *name);
} // namespace cudnn_frontend::detail

#include <cudnn_frontend.h>

namespace cudnn_frontend
{
void *cudnn_dlhandle;
} // namespace cudnn_frontend

namespace fe = cudnn_frontend;
typedef std::shared_ptr<fe::graph::Graph> graph_ref;
typedef std::shared_ptr<fe::graph::Tensor_attributes> tensor_ref;
typedef std::unordered_map<int64_t, void *> places; // of tensors

enum {
    OLDEST = 91200, // the first that writes lse with strides of ours
    LEAST = 256,    // tokens of a document: shorter ones gain nothing
    UNIT = 128,     // of their number: up to 9.15 it pads the others
};

/* What the gradients of scores may take, if several documents or heads are done at once,
 * and what those of the heads of one kv head may. */
static size_t workspace_wanted = (size_t)1 << 30;
static const size_t workspace_max = (size_t)2 << 30;

/* ---- the libraries ------------------------------------------------------------------------ */

static const struct runtime_function {
    const char *name;
    void *p;
} runtime[] = {
    { "cudaDeviceGetAttribute", (void *)cudaDeviceGetAttribute },
    { "cudaGetDevice", (void *)cudaGetDevice },
    { "cudaGetDriverEntryPointByVersion", (void *)cudaGetDriverEntryPointByVersion },
    { "cudaGetErrorString", (void *)cudaGetErrorString },
    { "cudaGetLastError", (void *)cudaGetLastError },
    { "cudaMemcpyAsync", (void *)cudaMemcpyAsync },
    { "cudaMemsetAsync", (void *)cudaMemsetAsync },
    { "cudaRuntimeGetVersion", (void *)cudaRuntimeGetVersion },
    { "cudaStreamGetCaptureInfo", (void *)cudaStreamGetCaptureInfo },
    { "cudaStreamIsCapturing", (void *)cudaStreamIsCapturing },
    { "cudaThreadExchangeStreamCaptureMode",
      (void *)cudaThreadExchangeStreamCaptureMode },
};

static void *
fe::detail::dlopen(const char *name, int flags)
{
    if (strstr(name, "libcudart"))
        return strstr(name, ".13") ? (void *)runtime : NULL;
    return ::dlopen(name, flags);
}

static void *
fe::detail::dlsym(void *library, const char *name)
{
    if (library != (void *)runtime)
        return ::dlsym(library, name);
    for (const struct runtime_function &f : runtime)
        if (strcmp(f.name, name) == 0)
            return f.p;
    return NULL;
}

static char words[512];
static size_t words_of_version; // with which they begin

static bool
refuse(const char *what, const char *why)
{
    snprintf(words + words_of_version, sizeof words - words_of_version, "%s%s: %s",
             words_of_version ? "; " : "", what, why ? why : "?");
    return false;
}

/* Once in a program; not closed again. */
static bool
open_library(void)
{
    static bool asked, usable;
    if (asked)
        return usable;
    asked = true;
    void *library = ::dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return refuse("none", dlerror());
    size_t (*version)(void) = (size_t(*)(void))::dlsym(library, "cudnnGetVersion");
    size_t v = version ? version() : 0;
    snprintf(words, sizeof words, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    words_of_version = strlen(words);
    if (v < OLDEST)
        return refuse("too old", "9.12.0 is needed");
    fe::cudnn_dlhandle = library;
    return usable = true;
}

size_t
cudnn_version(void)
{
    return open_library() ? fe::detail::get_backend_version() : 0;
}

const char *
cudnn_words(void)
{
    open_library();
    return words;
}

/* ---- graphs ------------------------------------------------------------------------------- */

/* What a graph does at once of documents whose rows have `query` and `kv` heads.  Numbers
 * of one type: two are the same if their bytes are. */
struct share {
    int64_t back, any_order, length, dim, query, kv;
    int64_t q_row, kv_row;     // of gradients, from a token to the next
    int64_t docs, heads, keys; // at once: documents, and of their heads how many
};

struct made {
    struct share is;
    graph_ref graph; // none: cuDNN does not do it
    int64_t bytes;   // of workspace
};

struct cudnn {
    cudnnHandle_t handle;
    bool ready; // else it is of no use, and this says so each time
    std::vector<struct made> made;
    void *workspace; // of the graph that runs
    size_t bytes;
};

enum { Q = 1, KEY, VALUE, OUT, LSE, DOUT, DQ, DKEY, DVALUE };

/* Rows of which a token has `line` numbers, and `heads` heads are meant. */
static void
as_lines(const tensor_ref &t, int64_t uid, const struct share *p, int64_t heads,
         int64_t line)
{
    t->set_uid(uid)
        .set_dim({ p->docs, heads, p->length, p->dim })
        .set_stride({ p->length * line, p->dim, line, 1 });
}

/* Rows of `of` heads. */
static void
as_rows(const tensor_ref &t, int64_t uid, const struct share *p, int64_t heads,
        int64_t of)
{
    as_lines(t, uid, p, heads, of * p->dim);
}

static tensor_ref
rows(const graph_ref &g, int64_t uid, const struct share *p, int64_t heads, int64_t of)
{
    tensor_ref t = g->tensor(fe::graph::Tensor_attributes());
    as_rows(t, uid, p, heads, of);
    return t;
}

/* Forward as kernels have it, (query, tokens), where a document's rows lie apart.  Back
 * together: cuDNN before 9.26 reads them in no other order. */
static void
as_lse(const tensor_ref &t, const struct share *p)
{
    int64_t row = p->back ? p->length : p->docs * p->length;
    int64_t doc = p->back || p->docs == 1 ? p->heads * p->length : p->length;
    t->set_uid(LSE)
        .set_dim({ p->docs, p->heads, p->length, 1 })
        .set_stride({ doc, row, 1, 1 })
        .set_data_type(fe::DataType_t::FLOAT);
}

static void
add_forward(const graph_ref &g, const struct share *p, float scale)
{
    // One operation for all of it takes causal masks only from 9.21 on.
    auto is = fe::graph::SDPA_attributes()
                  .set_name("attention")
                  .set_generate_stats(true)
                  .set_attn_scale(scale)
                  .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                  .set_diagonal_band_right_bound(0)
                  .set_implementation(fe::AttentionImplementation_t::COMPOSITE);
    auto [out, lse] =
        g->sdpa(rows(g, Q, p, p->heads, p->query), rows(g, KEY, p, p->keys, p->kv),
                rows(g, VALUE, p, p->keys, p->kv), is);
    out->set_output(true);
    as_rows(out, OUT, p, p->heads, p->query);
    lse->set_output(true);
    as_lse(lse, p);
}

static void
add_back(const graph_ref &g, const struct share *p, float scale)
{
    tensor_ref lse = g->tensor(fe::graph::Tensor_attributes());
    as_lse(lse, p);
    auto is = fe::graph::SDPA_backward_attributes()
                  .set_name("attention_bwd")
                  .set_attn_scale(scale)
                  .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                  .set_diagonal_band_right_bound(0)
                  .set_deterministic_algorithm(!p->any_order);
    auto [dq, dkey, dvalue] = g->sdpa_backward(
        rows(g, Q, p, p->heads, p->query), rows(g, KEY, p, p->keys, p->kv),
        rows(g, VALUE, p, p->keys, p->kv), rows(g, OUT, p, p->heads, p->query),
        rows(g, DOUT, p, p->heads, p->query), lse, is);
    dq->set_output(true);
    as_lines(dq, DQ, p, p->heads, p->q_row);
    dkey->set_output(true);
    as_lines(dkey, DKEY, p, p->keys, p->kv_row);
    dvalue->set_output(true);
    as_lines(dvalue, DVALUE, p, p->keys, p->kv_row);
}

static struct made
make(struct cudnn *s, const struct share *p)
{
    graph_ref g = std::make_shared<fe::graph::Graph>();
    float scale = 1 / sqrtf((float)p->dim);
    int64_t bytes = 0;
    g->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (p->back)
        add_back(g, p, scale);
    else
        add_forward(g, p, scale);
    // The first plan in the order of its heuristics that can be: none is timed.
    auto status = g->build(s->handle, { fe::HeurMode_t::A });
    if (status.is_good())
        status = g->get_workspace_size(bytes);
    if (status.is_bad()) {
        refuse(p->back ? "attention_bwd" : "attention", status.get_message().c_str());
        g = NULL;
    }
    return { *p, g, bytes };
}

/* A workspace of at least `bytes`, of which one graph after the other has all. */
static bool
has_workspace(struct cuda *c, struct cudnn *s, size_t bytes)
{
    if (bytes <= s->bytes)
        return true;
    kernels_free(&c->k, s->workspace);
    s->workspace = cuda_alloc(&c->k, MEMORY_WORK, bytes);
    s->bytes = s->workspace ? bytes : 0;
    return s->workspace;
}

/* What could be made and then fails is an error: another way would give other bits. */
static bool
run(struct cuda *c, struct cudnn *s, const struct share *p, places *at)
{
    size_t i = 0;
    while (i < s->made.size() && memcmp(&s->made[i].is, p, sizeof *p) != 0)
        i++;
    if (i == s->made.size())
        s->made.push_back(make(s, p));
    const struct made *m = &s->made[i];
    if (!m->graph || !has_workspace(c, s, (size_t)m->bytes))
        return false;
    auto status = m->graph->execute(s->handle, *at, s->workspace);
    if (status.is_bad())
        err_set(c->k.err, ERR_IO, "cuda:%d: cuDNN %s: %s", c->device, words,
                status.get_message().c_str());
    return status.is_good();
}

/* ---- the operations ----------------------------------------------------------------------- */

static struct cudnn *
cudnn_of(struct cuda *c)
{
    if (!c->cudnn && open_library()) {
        struct cudnn *s = new struct cudnn();
        c->cudnn = s;
        cudnnStatus_t e = fe::detail::create_handle(&s->handle);
        if (e != CUDNN_STATUS_SUCCESS)
            s->handle = NULL;
        else
            e = fe::detail::set_stream(s->handle, c->q.stream);
        s->ready = e == CUDNN_STATUS_SUCCESS;
        if (!s->ready)
            refuse("cudnnCreate", fe::detail::get_error_string(e));
    }
    struct cudnn *s = (struct cudnn *)c->cudnn;
    return s && s->ready ? s : NULL;
}

static bool
fits(const struct heads *h)
{
    size_t length = h->length, stride = (h->query + 2 * h->kv) * h->dim; // of gradients
    return length >= LEAST && length % UNIT == 0 && h->past == 0 &&
           h->tokens % length == 0 && (h->dim == 64 || h->dim == 128) &&
           h->query % h->kv == 0 && h->tokens * h->query * h->dim <= INT32_MAX &&
           h->tokens * stride <= INT32_MAX;
}

static size_t
greatest_divisor(size_t n, size_t most)
{
    while (most > 1 && n % most)
        most--;
    return most > 1 ? most : 1;
}

/* d: NULL forward. */
static struct share
share_of(const struct heads *h, const struct attention_grads *d, bool any_order)
{
    struct share p = {};
    size_t length = h->length, docs = h->tokens / length, kv = h->kv;
    bool back = d;
    if (back && !any_order) {
        size_t one = 2 * length * length * h->query, of_kv = one / h->kv;
        if (workspace_wanted >= one)
            docs = greatest_divisor(docs, workspace_wanted / one);
        else {
            docs = 1;
            kv = greatest_divisor(kv, workspace_wanted / of_kv);
        }
    }
    p.back = back;
    p.any_order = back && any_order;
    p.length = (int64_t)length;
    p.dim = (int64_t)h->dim;
    p.query = (int64_t)h->query;
    p.kv = (int64_t)h->kv;
    p.q_row = back ? (int64_t)d->q_stride : 0;
    p.kv_row = back ? (int64_t)d->kv_stride : 0;
    p.docs = (int64_t)docs;
    p.heads = (int64_t)(kv * (h->query / h->kv));
    p.keys = (int64_t)kv;
    return p;
}

/* Whether the gradients of scores of a kv head's heads are not too much. */
static bool
fits_back(const struct heads *h, bool any_order)
{
    return fits(h) && (any_order ||
                       2 * h->length * h->length * (h->query / h->kv) <= workspace_max);
}

/* Of the gradients of scores, of each query head's dkey and dvalue, and of its sums: what
 * 9.14 and 9.19 ask for on Hopper, to the byte.  On sm_100 the first are not there.  In any
 * order: sums of queries' gradients in f32 in their place. */
size_t
cudnn_workspace(const struct heads *h, bool any_order)
{
    const struct attention_grads none = {};
    if (!fits_back(h, any_order))
        return 0;
    struct share p = share_of(h, &none, any_order);
    size_t sums = any_order ? 4 * h->dim : 2 * h->length;
    return (size_t)(p.docs * p.heads * p.length) * (sums + 4 * h->dim + 4) + 256;
}

/* Where a document and a head begin, in rows of `line` numbers, and of `of` heads. */
static void *
in_lines(const void *rows, const struct share *p, int64_t doc, int64_t head,
         int64_t line)
{
    return (__nv_bfloat16 *)rows + doc * p->length * line + head * p->dim;
}

static void *
place(const void *rows, const struct share *p, int64_t doc, int64_t head, int64_t of)
{
    return in_lines(rows, p, doc, head, of * p->dim);
}

/* Rows of lse of a part's documents and heads, together; they are already, if there is
 * one document. */
static const float *
gather_lse(struct cuda *c, float *work, const float *lse, const struct share *p,
           size_t tokens)
{
    size_t row = (size_t)p->length * sizeof *lse;
    if (tokens == (size_t)p->length)
        return lse;
    for (int64_t i = 0; i < p->docs; i++)
        if (cudaMemcpy2DAsync(work + i * p->heads * p->length, row, lse + i * p->length,
                              tokens * sizeof *lse, row, (size_t)p->heads,
                              cudaMemcpyDeviceToDevice, c->q.stream) != cudaSuccess)
            return NULL;
    return work;
}

/* Whether there is something to do it with; else the caller says no. */
static bool
may_begin(struct cuda *c, struct cudnn **s)
{
    c->q.early = NOT_EARLY; // its kernels are not cuda_start's
    if (c->major < 9 || c->k.is.act != DT_BF16 || !cuda_ready(c))
        return false;
    return (*s = cudnn_of(c));
}

/* What the frontend throws is a no as well; an error of the runtime that it met is not for
 * the caller's next launch to find. */
template <typename F>
static bool
try_it(F f)
{
    bool done = false;
    try {
        done = f();
    } catch (const std::exception &e) {
        refuse("attention", e.what());
    }
    if (!done)
        cudaGetLastError();
    return done;
}

bool
cudnn_attention(struct cuda *c, void *out, float *lse, const void *q, const void *key,
                const void *value, const struct heads *h)
{
    if (!fits(h))
        return false;
    return try_it([=] {
        struct share p = share_of(h, NULL, false);
        places at = { { Q, (void *)q },
                      { KEY, (void *)key },
                      { VALUE, (void *)value },
                      { OUT, out },
                      { LSE, lse } };
        struct cudnn *s;
        return may_begin(c, &s) && run(c, s, &p, &at);
    });
}

bool
cudnn_attention_bwd(struct cuda *c, const struct attention_grads *d, const void *dout,
                    const void *out, const float *lse, const void *q, const void *key,
                    const void *value, float *work, const struct heads *h)
{
    bool any_order = c->k.is.any_order;
    if (!fits_back(h, any_order))
        return false;
    return try_it([=] {
        struct share p = share_of(h, d, any_order);
        int64_t docs = (int64_t)(h->tokens / h->length), group = p.query / p.kv;
        struct cudnn *s;
        bool done = may_begin(c, &s);
        for (int64_t doc = 0; doc < docs && done; doc += p.docs)
            for (int64_t kv = 0; kv < p.kv && done; kv += p.keys) {
                int64_t head = kv * group, row = head * (int64_t)h->tokens;
                const float *sums =
                    gather_lse(c, work, lse + row + doc * p.length, &p, h->tokens);
                places at = { { Q, place(q, &p, doc, head, p.query) },
                              { KEY, place(key, &p, doc, kv, p.kv) },
                              { VALUE, place(value, &p, doc, kv, p.kv) },
                              { OUT, place(out, &p, doc, head, p.query) },
                              { LSE, (void *)sums },
                              { DOUT, place(dout, &p, doc, head, p.query) },
                              { DQ, in_lines(d->dq, &p, doc, head, p.q_row) },
                              { DKEY, in_lines(d->dkey, &p, doc, kv, p.kv_row) },
                              { DVALUE, in_lines(d->dvalue, &p, doc, kv, p.kv_row) } };
                done = sums && run(c, s, &p, &at);
            }
        return done;
    });
}

void
cudnn_close(struct cuda *c)
{
    struct cudnn *s = (struct cudnn *)c->cudnn;
    if (!s)
        return;
    s->made.clear();
    if (s->handle)
        fe::detail::destroy_handle(s->handle);
    kernels_free(&c->k, s->workspace);
    delete s;
    c->cudnn = NULL;
}

#else

static const char none[] = "not built in: tools/cudnn-frontend.sh gets its headers";

bool
cudnn_attention(struct cuda *, void *, float *, const void *, const void *,
                const void *, const struct heads *)
{
    return false;
}

bool
cudnn_attention_bwd(struct cuda *, const struct attention_grads *, const void *,
                    const void *, const float *, const void *, const void *,
                    const void *, float *, const struct heads *)
{
    return false;
}

size_t
cudnn_workspace(const struct heads *, bool)
{
    return 0;
}

void
cudnn_close(struct cuda *)
{
}

size_t
cudnn_version(void)
{
    return 0;
}

const char *
cudnn_words(void)
{
    return none;
}

#endif
