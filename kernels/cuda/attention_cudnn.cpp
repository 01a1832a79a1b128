/* SPDX-License-Identifier: MIT */
/* attention_cudnn: attention of whole documents by cuDNN.
 *
 * dQ is a sum over blocks of keys. cuDNN adds them in order of arrival, unless its
 * deterministic algorithm is requested: on Hopper that writes the gradients of all
 * scores as bf16, 2 length^2 bytes per document and head, and multiplies them by the
 * keys afterwards.  To bound this memory, the backward pass runs over some documents,
 * or some heads of one, at a time; the split depends on sizes only.  A device with
 * is.any_order takes the order of arrival, with all documents at once. */
#include "kernels/cuda/attention_cudnn.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#if __has_include(<cudnn_frontend.h>) && __has_include(<cudnn.h>)

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB

/* The frontend looks up each function by name, those of the CUDA runtime in a libcudart
 * that it opens.  We link the runtime statically and want no second one: these two
 * replacements shadow the loader's for the frontend, and resolve the few runtime
 * functions that it calls here. */
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
typedef std::unordered_map<int64_t, void *> places; // by the uid of their tensor

enum {
    MIN_VERSION = 91200, // the first that writes lse with our strides
    MIN_LENGTH = 256,    // shorter documents gain nothing
    UNIT = 128,          // of the length: up to 9.15 cuDNN pads others
};

/* Max. bytes of score gradients: for several documents or heads at once, and for the
 * query heads of one kv head. */
static size_t workspace_wanted = (size_t)1 << 30;
static const size_t workspace_max = (size_t)2 << 30;

/* ---- the libraries --------------------------------------------------------------- */

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

static char notes[512];
static size_t version_length; // length of the version at its start

static bool
refuse(const char *what, const char *why)
{
    snprintf(notes + version_length, sizeof notes - version_length, "%s%s: %s",
             version_length ? "; " : "", what, why ? why : "?");
    return false;
}

/* Opened once per process, never closed. */
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
    snprintf(notes, sizeof notes, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    version_length = strlen(notes);
    if (v < MIN_VERSION)
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
cudnn_status(void)
{
    open_library();
    return notes;
}

/* ---- graphs ---------------------------------------------------------------------- */

/* Key of a graph.  All fields have one type, so there is no padding and memcmp compares
 * keys. */
struct graph_key {
    int64_t bwd, any_order, length, dim, query, kv;
    int64_t q_row, kv_row;     // token strides of gradients
    int64_t docs, heads, keys; // documents, query heads and kv heads per run
};

struct built {
    struct graph_key key;
    graph_ref graph; // NULL: cuDNN does not support it
    int64_t bytes;   // size of its workspace
};

struct cudnn {
    cudnnHandle_t handle;
    bool ready; // false: opening failed, calls return false
    std::vector<struct built> graphs;
};

enum { Q = 1, KEY, VALUE, OUT, LSE, DOUT, DQ, DKEY, DVALUE };

/* Set the layout of `heads` heads; stride: token stride. */
static void
set_layout(const tensor_ref &t, int64_t uid, const struct graph_key *p, int64_t heads,
           int64_t stride)
{
    t->set_uid(uid)
        .set_dim({ p->docs, heads, p->length, p->dim })
        .set_stride({ p->length * stride, p->dim, stride, 1 });
}

/* The same in rows of `of` heads. */
static void
set_rows(const tensor_ref &t, int64_t uid, const struct graph_key *p, int64_t heads,
         int64_t of)
{
    set_layout(t, uid, p, heads, of * p->dim);
}

static tensor_ref
rows(const graph_ref &g, int64_t uid, const struct graph_key *p, int64_t heads,
     int64_t of)
{
    tensor_ref t = g->tensor(fe::graph::Tensor_attributes());
    set_rows(t, uid, p, heads, of);
    return t;
}

/* lse.  Forward: (query, tokens), as our kernels have it, so documents are apart.
 * Backward: a contiguous copy, since cuDNN before 9.26 reads no other layout. */
static void
as_lse(const tensor_ref &t, const struct graph_key *p)
{
    int64_t row = p->bwd ? p->length : p->docs * p->length;
    int64_t doc = p->bwd || p->docs == 1 ? p->heads * p->length : p->length;
    t->set_uid(LSE)
        .set_dim({ p->docs, p->heads, p->length, 1 })
        .set_stride({ doc, row, 1, 1 })
        .set_data_type(fe::DataType_t::FLOAT);
}

static void
add_forward(const graph_ref &g, const struct graph_key *p, float scale)
{
    // The unified implementation takes causal masks only from 9.21 on.
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
    set_rows(out, OUT, p, p->heads, p->query);
    lse->set_output(true);
    as_lse(lse, p);
}

static void
add_bwd(const graph_ref &g, const struct graph_key *p, float scale)
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
    set_layout(dq, DQ, p, p->heads, p->q_row);
    dkey->set_output(true);
    set_layout(dkey, DKEY, p, p->keys, p->kv_row);
    dvalue->set_output(true);
    set_layout(dvalue, DVALUE, p, p->keys, p->kv_row);
}

static struct built
build(struct cudnn *s, const struct graph_key *p)
{
    graph_ref g = std::make_shared<fe::graph::Graph>();
    float scale = 1 / sqrtf((float)p->dim);
    int64_t bytes = 0;
    g->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (p->bwd)
        add_bwd(g, p, scale);
    else
        add_forward(g, p, scale);
    // The first plan of the heuristics that can be built; none is timed.
    auto status = g->build(s->handle, { fe::HeurMode_t::A });
    if (status.is_good())
        status = g->get_workspace_size(bytes);
    if (status.is_bad()) {
        refuse(p->bwd ? "attention_bwd" : "attention", status.get_message().c_str());
        g = NULL;
    }
    return { *p, g, bytes };
}

/* A graph that was built but fails is an error: a fallback would give other bits. */
static bool
run(struct cuda *c, struct cudnn *s, const struct graph_key *p, places *at)
{
    size_t i = 0;
    while (i < s->graphs.size() && memcmp(&s->graphs[i].key, p, sizeof *p) != 0)
        i++;
    if (i == s->graphs.size())
        s->graphs.push_back(build(s, p));
    const struct built *m = &s->graphs[i];
    void *workspace = m->graph && m->bytes ? cuda_scratch(c, (size_t)m->bytes) : NULL;
    if (!m->graph || (m->bytes && !workspace))
        return false;
    auto status = m->graph->execute(s->handle, *at, workspace);
    if (status.is_bad())
        err_set(c->k.err, ERR_IO, "cuda:%d: cuDNN %s: %s", c->device, notes,
                status.get_message().c_str());
    return status.is_good();
}

/* ---- the operations -------------------------------------------------------------- */

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
    return length >= MIN_LENGTH && length % UNIT == 0 && h->past == 0 &&
           h->tokens % length == 0 && (h->dim == 64 || h->dim == 128) &&
           h->query % h->kv == 0 && h->tokens * h->query * h->dim <= INT32_MAX &&
           h->tokens * stride <= INT32_MAX;
}

static size_t
greatest_divisor(size_t n, size_t max)
{
    while (max > 1 && n % max)
        max--;
    return max > 1 ? max : 1;
}

/* d: NULL for forward. */
static struct graph_key
key_of(const struct heads *h, const struct attention_grads *d, bool any_order)
{
    struct graph_key p = {};
    size_t length = h->length, docs = h->tokens / length, kv = h->kv;
    bool bwd = d;
    if (bwd && !any_order) {
        size_t one = 2 * length * length * h->query, of_kv = one / h->kv;
        if (workspace_wanted >= one)
            docs = greatest_divisor(docs, workspace_wanted / one);
        else {
            docs = 1;
            kv = greatest_divisor(kv, workspace_wanted / of_kv);
        }
    }
    p.bwd = bwd;
    p.any_order = bwd && any_order;
    p.length = (int64_t)length;
    p.dim = (int64_t)h->dim;
    p.query = (int64_t)h->query;
    p.kv = (int64_t)h->kv;
    p.q_row = bwd ? (int64_t)d->q_stride : 0;
    p.kv_row = bwd ? (int64_t)d->kv_stride : 0;
    p.docs = (int64_t)docs;
    p.heads = (int64_t)(kv * (h->query / h->kv));
    p.keys = (int64_t)kv;
    return p;
}

/* Whether the score gradients of one kv head fit in workspace_max. */
static bool
fits_bwd(const struct heads *h, bool any_order)
{
    return fits(h) && (any_order ||
                       2 * h->length * h->length * (h->query / h->kv) <= workspace_max);
}

/* Score gradients, dkey and dvalue per query head, and row sums: to the byte what 9.14
 * and 9.19 request on Hopper.  On sm_100 there are no score gradients. any_order: dQ
 * sums in f32 in their place. */
size_t
cudnn_workspace(const struct heads *h, bool any_order)
{
    const struct attention_grads none = {};
    if (!fits_bwd(h, any_order))
        return 0;
    struct graph_key p = key_of(h, &none, any_order);
    size_t sums = any_order ? 4 * h->dim : 2 * h->length;
    return (size_t)(p.docs * p.heads * p.length) * (sums + 4 * h->dim + 4) + 256;
}

/* Address of a document and head; stride: token stride. */
static void *
at_stride(const void *rows, const struct graph_key *p, int64_t doc, int64_t head,
          int64_t stride)
{
    return (__nv_bfloat16 *)rows + doc * p->length * stride + head * p->dim;
}

static void *
at_heads(const void *rows, const struct graph_key *p, int64_t doc, int64_t head,
         int64_t of)
{
    return at_stride(rows, p, doc, head, of * p->dim);
}

/* Make lse of a run's documents and heads contiguous; with one document it already
 * is. */
static const float *
gather_lse(struct cuda *c, float *work, const float *lse, const struct graph_key *p,
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

/* Whether cuDNN can be used; *s: its state.  If false, the caller falls back. */
static bool
may_begin(struct cuda *c, struct cudnn **s)
{
    c->q.early = NOT_EARLY; // its kernels do not go through cuda_start
    if (c->major < 9 || c->k.is.act != DT_BF16 || !cuda_ready(c))
        return false;
    return (*s = cudnn_of(c));
}

/* Exceptions of the frontend count as unsupported; the runtime error that they may
 * leave is cleared, so that the next launch does not report it. */
template <typename F>
static bool
catch_errors(F f)
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
    return catch_errors([=] {
        struct graph_key p = key_of(h, NULL, false);
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
    if (!fits_bwd(h, any_order))
        return false;
    return catch_errors([=] {
        struct graph_key p = key_of(h, d, any_order);
        int64_t docs = (int64_t)(h->tokens / h->length), group = p.query / p.kv;
        struct cudnn *s;
        bool done = may_begin(c, &s);
        for (int64_t doc = 0; doc < docs && done; doc += p.docs)
            for (int64_t kv = 0; kv < p.kv && done; kv += p.keys) {
                int64_t head = kv * group, row = head * (int64_t)h->tokens;
                const float *sums =
                    gather_lse(c, work, lse + row + doc * p.length, &p, h->tokens);
                places at = { { Q, at_heads(q, &p, doc, head, p.query) },
                              { KEY, at_heads(key, &p, doc, kv, p.kv) },
                              { VALUE, at_heads(value, &p, doc, kv, p.kv) },
                              { OUT, at_heads(out, &p, doc, head, p.query) },
                              { LSE, (void *)sums },
                              { DOUT, at_heads(dout, &p, doc, head, p.query) },
                              { DQ, at_stride(d->dq, &p, doc, head, p.q_row) },
                              { DKEY, at_stride(d->dkey, &p, doc, kv, p.kv_row) },
                              { DVALUE, at_stride(d->dvalue, &p, doc, kv, p.kv_row) } };
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
    s->graphs.clear();
    if (s->handle)
        fe::detail::destroy_handle(s->handle);
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
cudnn_status(void)
{
    return none;
}

#endif
