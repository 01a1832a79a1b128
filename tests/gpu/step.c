/* SPDX-License-Identifier: MIT */
/* step: what decoding is made of: a row of a product has the same bits alone and with any
 * others; operations that are several in one have the bits of the single ones; attention
 * of several sequences is the CPU's, and of each the same alone.
 *
 * --time: a step of layers of Qwen3-4B, for one sequence and several. */
#include "tests/gpu/pair.h"

#include "lib/base/os.h"
#include "lib/nvfp4/quant.h"

enum { MANY = 64 }; // GEMV_MAX of kernels/cuda, ATTEND_MAX

/* ---- products -------------------------------------------------------------------- */

/* A weight on the GPU: NVFP4 or plain. */
struct weight {
    struct matrix w;
    void *own[3];
};

static struct weight
make_weight(enum dtype dtype, size_t out, size_t in, uint32_t seed)
{
    size_t n = out * in, bad;
    float *x = pair_random(n, 0.05F, DT_BF16, seed);
    struct weight b = { .w = matrix_of(dtype, NULL, out, in) };
    if (dtype != DT_NVFP4) {
        b.w.data = b.own[0] = pair_put(x, dtype, n);
        free(x);
        return b;
    }
    uint8_t *codes = malloc(n / 2 + 1), *scales = malloc(n / NVFP4_BLOCK + 1);
    struct quant_spec spec = { .kind = QUANT_MAX, .isa = isa_best() };
    NEED(codes && scales);
    struct quant_scale t = nvfp4_scale(&spec, nvfp4_amax(DT_F32, x, n, &bad));
    nvfp4_quant(codes, scales, x, out, in, 0, &spec, &t, NULL);
    b.w.data = b.own[0] = pair_bytes(codes, n / 2);
    b.w.scales = b.own[1] = pair_bytes(scales, n / NVFP4_BLOCK);
    b.w.scale2 = b.own[2] = pair_bytes(&t.scale2, sizeof t.scale2);
    free(codes);
    free(scales);
    free(x);
    return b;
}

static void
drop_weight(struct weight *b)
{
    for (int i = 0; i < 3; i++)
        kernels_free(gpu, b->own[i]);
}

/* n bytes of the device's memory are the same. */
static void
check_bytes(const char *what, const void *a, const void *b, size_t bytes)
{
    char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    NEED(x && y);
    CHECK(kernels_download(gpu, x, a, bytes) == 0);
    CHECK(kernels_download(gpu, y, b, bytes) == 0);
    CHECK_SAY(memcmp(x, y, bytes) == 0, "%s", what);
    free(x);
    free(y);
}

/* Rows of a product alone, and with others before and behind them. */
static void
check_rows(enum dtype dtype, size_t out, size_t in, bool wide)
{
    static const size_t counts[] = { 2, 8, 9, 17, 33, 64 };
    enum dtype act = gpu->is.act, of_y = wide ? DT_F32 : act;
    struct weight b = make_weight(dtype, out, in, 3);
    size_t row = out * dtype_bits(of_y) / 8;
    float *x = pair_random(MANY * in, 1, act, 5),
          *c = pair_random(MANY * out, 1, act, 6);
    void *gx = pair_put(x, act, MANY * in), *gc = pair_put(c, act, MANY * out);
    void *of_one = pair_poisoned(MANY * row), *all = pair_poisoned(MANY * row);
    char *alone = of_one, name[128];
    snprintf(name, sizeof name, "%s x %s (%zu, %zu)%s: a row differs with others",
             dtype_name(act), dtype_name(dtype), out, in, wide ? ", f32" : "");
    pair_begins(name);
    for (size_t t = 0; t < MANY; t++) {
        void *at = dtype_at(act, gx, t * in);
        void *y = alone + t * row;
        wide ? pair_logits(gpu, y, at, &b.w, 1)
             : pair_linear(gpu, y, at, &b.w, 1, dtype_at(act, gc, t * out));
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        size_t n = counts[i], first = MANY - n;
        void *at = dtype_at(act, gx, first * in);
        wide ? pair_logits(gpu, all, at, &b.w, n)
             : pair_linear(gpu, all, at, &b.w, n, dtype_at(act, gc, first * out));
        check_bytes(name, all, alone + first * row, n * row);
    }
    kernels_free(gpu, gx);
    kernels_free(gpu, gc);
    kernels_free(gpu, alone);
    kernels_free(gpu, all);
    free(x);
    free(c);
    drop_weight(&b);
}

/* Norm and products, norm and SwiGLU: one operation has the bits of the single ones. */
static void
check_fused_rows(const struct matrix w[2], const char *name, size_t rows)
{
    static const float eps = 1e-6F;
    enum dtype act = gpu->is.act;
    size_t in = w->cols, out = w->rows, bytes = rows * out * dtype_bits(act) / 8;
    float *host = pair_random(rows * in, 1, act, 5),
          *gains = pair_random(in, 1, DT_F32, 6), *gain = pair_put(gains, DT_F32, in),
          *rstd = pair_poisoned(rows * sizeof *rstd);
    void *x = pair_put(host, act, rows * in),
         *normed = pair_poisoned(rows * in * dtype_bits(act) / 8);
    struct matrix from = kernels_act(gpu, x, rows, in),
                  mid = kernels_act(gpu, normed, rows, in), y[2], want[2];
    for (int i = 0; i < 2; i++) {
        y[i] = kernels_act(gpu, pair_poisoned(bytes), rows, out);
        want[i] = kernels_act(gpu, pair_poisoned(bytes), rows, out);
    }
    op_norm(gpu, &mid, rstd, &from, gain, eps);
    op_linear(gpu, 2, want, &mid, w, NULL);
    bool fused = op_norm_linear(gpu, 2, y, &from, gain, eps, w);
    CHECK_SAY(fused ==
                  (act == DT_BF16 && w->dtype != DT_F32 && (rows == 1 || rows > 8)),
              "%s: in one: %d", name, fused);
    for (int i = 0; i < 2 && fused; i++)
        check_bytes(name, y[i].data, want[i].data, bytes);
    if (op_norm_swiglu(gpu, &y[0], &from, gain, eps, w)) {
        op_swiglu(gpu, &want[0], &want[0], &want[1]);
        check_bytes(name, y[0].data, want[0].data, bytes);
    }
    for (int i = 0; i < 2; i++) {
        kernels_free(gpu, y[i].data);
        kernels_free(gpu, want[i].data);
    }
    kernels_free(gpu, x);
    kernels_free(gpu, normed);
    kernels_free(gpu, gain);
    kernels_free(gpu, rstd);
    free(host);
    free(gains);
}

static void
check_fused(enum dtype dtype, size_t out, size_t in)
{
    static const size_t counts[] = { 1, 8, 13, 33 };
    struct weight b[2] = { make_weight(dtype, out, in, 3),
                           make_weight(dtype, out, in, 4) };
    const struct matrix w[2] = { b[0].w, b[1].w };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char name[128];
        snprintf(name, sizeof name,
                 "%zu tokens, norm and %s (%zu, %zu) in one: other bits", counts[i],
                 dtype_name(dtype), out, in);
        pair_begins(name);
        check_fused_rows(w, name, counts[i]);
    }
    drop_weight(&b[0]);
    drop_weight(&b[1]);
}

/* ---- attention ------------------------------------------------------------------- */

struct heads_of {
    size_t query, kv, dim;
};

/* Stages of heads of 128 take more shared memory than a block of RTX 50 may have. */
static bool
attends(size_t dim)
{
    return dim == 64 || !strstr(gpu->route, " sm_12");
}

/* Random caches of sequences, the same each time; each has room for one token more. */
static void
make_caches(void **cache, const size_t *past, size_t n, size_t row, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        size_t count = (past[i] + 1) * row;
        float *x = pair_random(count, 1, DT_BF16, seed + (uint32_t)i);
        for (size_t e = past[i] * row; e < count; e++)
            x[e] = NAN; // of the token that comes
        cache[i] = pair_put(x, DT_BF16, count);
        free(x);
    }
}

static void
drop_caches(void **cache, size_t n)
{
    for (size_t i = 0; i < n; i++)
        kernels_free(gpu, cache[i]);
}

/* What the CPU has for one of them, from single operations. */
static float *
attend_on_cpu(const struct attend *a, const struct heads_of *h, const float *q,
              const float *k, const float *v, const float *keys, const float *values,
              size_t past)
{
    size_t wide = h->query * h->dim, row = h->kv * h->dim, all = (past + 1) * row;
    float *turned = malloc(wide * 4), *key = malloc(all * 4), *value = malloc(all * 4);
    float *out = malloc(wide * 4), rstd[256], lse[256];
    int32_t position = (int32_t)past, first = 0;
    struct pair_rope r = { { a->table, &position, h->query, h->dim, a->eps }, 1, 0 };
    struct heads one = { 1, past, h->query, h->kv, h->dim, &first, 0 };
    NEED(turned && key && value && out);
    memcpy(key, keys, past * row * 4);
    memcpy(value, values, past * row * 4);
    memcpy(value + past * row, v, row * 4);
    pair_qk_norm_rope(cpu, turned, rstd, q, a->q_gain, &r);
    r.r.heads = h->kv;
    pair_qk_norm_rope(cpu, key + past * row, rstd, k, a->k_gain, &r);
    pair_attention(cpu, out, lse, turned, key, value, &one);
    free(turned);
    free(key);
    free(value);
    return out;
}

static void
check_attend(const struct heads_of *h, const size_t *past, size_t n)
{
    enum { LONGEST = 2100 };
    size_t wide = h->query * h->dim, row = h->kv * h->dim, most = 0;
    void *key[MANY], *value[MANY];
    float *q = pair_random(n * wide, 1, DT_BF16, 1),
          *k = pair_random(n * row, 1, DT_BF16, 2),
          *v = pair_random(n * row, 1, DT_BF16, 3),
          *gain = pair_random(h->dim, 1, DT_F32, 4),
          *table = pair_random(LONGEST * h->dim, 1, DT_F32, 5);
    void *gq = pair_put(q, DT_BF16, n * wide), *gk = pair_put(k, DT_BF16, n * row),
         *gv = pair_put(v, DT_BF16, n * row), *ggain = pair_put(gain, DT_F32, h->dim),
         *gtable = pair_put(table, DT_F32, LONGEST * h->dim);
    char *all = pair_poisoned(n * wide * 2), *alone = pair_poisoned(n * wide * 2),
         name[128];
    snprintf(name, sizeof name, "attend, %zu sequences, %zu/%zu x %zu", n, h->query,
             h->kv, h->dim);
    pair_begins(name);
    int32_t position[MANY];
    for (size_t i = 0; i < n; i++)
        position[i] = (int32_t)past[i];
    int32_t *gposition = pair_bytes(position, n * sizeof *position);
    struct attend a = { n,     h->query, h->kv,     h->dim, gtable, ggain,
                        ggain, 1e-6F,    gposition, key,    value,  past };
    struct matrix out = kernels_act(gpu, all, n, wide),
                  from = kernels_act(gpu, gq, n, wide),
                  keys = kernels_act(gpu, gk, n, row),
                  values = kernels_act(gpu, gv, n, row);
    make_caches(key, past, n, row, 10);
    make_caches(value, past, n, row, 100);
    bool there = op_attend(gpu, &out, &from, &keys, &values, &a);
    CHECK_SAY(there == attends(h->dim), "%s: %d", name, there);
    const struct attend host = {
        .table = table, .q_gain = gain, .k_gain = gain, .eps = a.eps
    };
    for (size_t i = 0; i < n && there; i++) {
        float *was = pair_get(key[i], DT_BF16, (past[i] + 1) * row),
              *had = pair_get(value[i], DT_BF16, (past[i] + 1) * row),
              *got = pair_get(all + i * wide * 2, DT_BF16, wide),
              *want = attend_on_cpu(&host, h, q + i * wide, k + i * row, v + i * row,
                                    was, had, past[i]);
        PAIR_NEAR(name, got, want, wide, 1e-2);
        CHECK_SAY(memcmp(had + past[i] * row, v + i * row, row * 4) == 0,
                  "%s: the value is not in the cache", name);
        free(was);
        free(had);
        free(got);
        free(want);
        most = most > past[i] ? most : past[i];
    }
    CHECK(most < LONGEST);
    drop_caches(key, n);
    drop_caches(value, n);
    for (size_t i = 0; i < n && there; i++) {
        struct attend one = a;
        make_caches(key, past + i, 1, row, 10 + (uint32_t)i);
        make_caches(value, past + i, 1, row, 100 + (uint32_t)i);
        one.tokens = 1;
        one.past = past + i;
        one.position = gposition + i;
        struct matrix y = kernels_act(gpu, alone + i * wide * 2, 1, wide),
                      x = matrix_rows(&from, i, 1), k1 = matrix_rows(&keys, i, 1),
                      v1 = matrix_rows(&values, i, 1);
        CHECK(op_attend(gpu, &y, &x, &k1, &v1, &one));
        drop_caches(key, 1);
        drop_caches(value, 1);
    }
    check_bytes(name, all, alone, n * wide * 2);
    void *const device[] = { gq, gk, gv, ggain, gtable, gposition, all, alone };
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        kernels_free(gpu, device[i]);
    float *const here[] = { q, k, v, gain, table };
    for (size_t i = 0; i < sizeof here / sizeof *here; i++)
        free(here[i]);
}

/* ---- times --------------------------------------------------------------------------- */

/* Layers of Qwen3-4B's shape, each with weights in memory of its own: else they would come
 * out of a cache. */
enum { LAYERS = 36, DIM = 128, POSITIONS = 4352, WEIGHTS = 7 };

static struct {
    size_t layers, hidden, query, kv, ffn, vocab;
} size = { LAYERS, 2560, 32, 8, 9728, 151936 };

struct layer {
    struct weight w[WEIGHTS]; // q, k, v, o, gate, up, down
    void *key[MANY], *value[MANY];
};

struct model {
    struct layer layer[LAYERS];
    struct weight head;
    float *gain, *table, *rstd, *logits;
    void *x, *out, *qkv, *att, *mid, *normed, *gate, *up, *row;
    const void *from; // what layers begin with: x, or `row` for the token of `id`
    struct matrix embed[3];
    int32_t *position, *id, *best;
    size_t tokens;
};

/* Rows and columns of a layer's weight. */
static void
shape_of(size_t weight, size_t shape[2])
{
    const size_t q = size.query * DIM, kv = size.kv * DIM, c = size.hidden,
                 f = size.ffn;
    const size_t all[WEIGHTS][2] = { { q, c }, { kv, c }, { kv, c }, { c, q },
                                     { f, c }, { f, c },  { c, f } };
    memcpy(shape, all[weight], sizeof all[weight]);
}

/* Rows of gate again and again: logits that are equal, of which the first is the largest. */
static void
make_head(struct model *n)
{
    const struct weight *gate = &n->layer[0].w[4];
    size_t row = size.hidden / 2, scales = size.hidden / NVFP4_BLOCK, some;
    struct weight *w = &n->head;
    w->w = gate->w;
    w->w.rows = size.vocab;
    w->w.data = w->own[0] = kernels_alloc(gpu, MEMORY_WORK, size.vocab * row);
    w->w.scales = w->own[1] = kernels_alloc(gpu, MEMORY_WORK, size.vocab * scales);
    w->own[2] = NULL;
    NEED(w->own[0] && w->own[1]);
    for (size_t i = 0; i < size.vocab; i += some) {
        some = size.vocab - i < size.ffn ? size.vocab - i : size.ffn;
        op_copy(gpu, (char *)w->own[0] + i * row, gate->own[0], some * row);
        op_copy(gpu, (char *)w->own[1] + i * scales, gate->own[1], some * scales);
    }
}

static void
make_layers(struct model *n)
{
    static const enum dtype forms[] = { DT_BF16, DT_F16, DT_F32 };
    const size_t rows = size.ffn; // more than MANY, and than any id of make_head
    float *gain = pair_random(size.hidden, 1, DT_F32, 1),
          *table = pair_random((size_t)POSITIONS * DIM, 1, DT_F32, 2),
          *x = pair_random(rows * size.hidden, 1, DT_BF16, 3);
    n->gain = pair_put(gain, DT_F32, size.hidden);
    n->table = pair_put(table, DT_F32, (size_t)POSITIONS * DIM);
    n->x = pair_put(x, DT_BF16, (size_t)MANY * size.hidden);
    n->from = n->x;
    for (int i = 0; i < 3; i++)
        n->embed[i] = matrix_of(forms[i], pair_put(x, forms[i], rows * size.hidden),
                                rows, size.hidden);
    n->row = pair_poisoned(size.hidden * 2);
    n->out = pair_poisoned((size_t)MANY * size.hidden * 2);
    n->qkv = pair_poisoned((size_t)MANY * (size.query + 2 * size.kv) * DIM * 2);
    n->att = pair_poisoned((size_t)MANY * size.query * DIM * 2);
    n->mid = pair_poisoned((size_t)MANY * size.hidden * 2);
    n->normed = pair_poisoned((size_t)MANY * size.hidden * 2);
    n->gate = pair_poisoned((size_t)MANY * size.ffn * 2);
    n->up = pair_poisoned((size_t)MANY * size.ffn * 2);
    n->rstd = pair_poisoned(MANY * sizeof *n->rstd);
    n->position = pair_poisoned(MANY * sizeof *n->position);
    n->id = pair_poisoned(sizeof *n->id);
    n->best = pair_poisoned(2 * sizeof *n->best);
    n->logits = pair_poisoned(size.vocab * sizeof *n->logits);
    for (size_t i = 0; i < size.layers; i++)
        for (size_t k = 0; k < WEIGHTS; k++) {
            size_t shape[2];
            shape_of(k, shape);
            size_t out = shape[0], in = shape[1], count = out * in;
            struct weight *w = &n->layer[i].w[k];
            if (i == 0) {
                *w = make_weight(DT_NVFP4, out, in, (uint32_t)(10 + k));
                continue;
            }
            *w = n->layer[0].w[k];
            w->w.data = w->own[0] = kernels_alloc(gpu, MEMORY_WORK, count / 2);
            w->w.scales = w->own[1] =
                kernels_alloc(gpu, MEMORY_WORK, count / NVFP4_BLOCK);
            w->own[2] = NULL;
            NEED(w->own[0] && w->own[1]);
            op_copy(gpu, w->own[0], n->layer[0].w[k].own[0], count / 2);
            op_copy(gpu, w->own[1], n->layer[0].w[k].own[1], count / NVFP4_BLOCK);
        }
    make_head(n);
    free(gain);
    free(table);
    free(x);
}

static void
drop_layers(struct model *n)
{
    void *const device[] = { n->gain,         n->table,         n->x,
                             n->out,          n->qkv,           n->att,
                             n->mid,          n->normed,        n->gate,
                             n->up,           n->position,      n->rstd,
                             n->id,           n->logits,        n->row,
                             n->best,         n->embed[0].data, n->embed[1].data,
                             n->embed[2].data };
    drop_weight(&n->head);
    for (size_t i = 0; i < size.layers * WEIGHTS; i++)
        drop_weight(&n->layer[i / WEIGHTS].w[i % WEIGHTS]);
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        kernels_free(gpu, device[i]);
}

/* Caches of as many tokens, zeros; the positions of the tokens that come. */
static void
set_caches(struct model *n, size_t tokens, size_t past)
{
    int32_t position[MANY];
    size_t bytes = (past + ATTEND_STEP) * size.kv * DIM * 2;
    for (size_t i = 0; i < size.layers; i++)
        for (size_t t = 0; t < tokens; t++) {
            struct layer *l = &n->layer[i];
            l->key[t] = kernels_alloc(gpu, MEMORY_WORK, bytes);
            l->value[t] = kernels_alloc(gpu, MEMORY_WORK, bytes);
            NEED(l->key[t] && l->value[t]);
            op_zero(gpu, l->key[t], bytes);
            op_zero(gpu, l->value[t], bytes);
        }
    for (size_t t = 0; t < tokens; t++)
        position[t] = (int32_t)past;
    kernels_upload(gpu, n->position, position, tokens * sizeof *position);
    n->tokens = tokens;
}

/* Values for the tokens before the one that comes. */
static void
fill_caches(struct model *n, size_t past)
{
    size_t count = past * size.kv * DIM;
    float *x = pair_random(count + 1, 1, DT_BF16, 7);
    void *at = pair_put(x, DT_BF16, count + 1);
    for (size_t i = 0; i < size.layers && count; i++) {
        op_copy(gpu, n->layer[i].key[0], at, count * 2);
        op_copy(gpu, n->layer[i].value[0], at, count * 2);
    }
    kernels_free(gpu, at);
    free(x);
}

static void
drop_caches_of(struct model *n)
{
    for (size_t i = 0; i < size.layers; i++) {
        drop_caches(n->layer[i].key, n->tokens);
        drop_caches(n->layer[i].value, n->tokens);
    }
}

/* What lib/model does for a token each of as many sequences. */
static void
all_layers(struct model *n, const size_t *past)
{
    static const float eps = 1e-6F;
    size_t t = n->tokens, q = size.query * DIM, kv = size.kv * DIM;
    struct matrix y[] = { kernels_act(gpu, n->qkv, t, q),
                          kernels_act(gpu, dtype_at(DT_BF16, n->qkv, t * q), t, kv),
                          kernels_act(gpu, dtype_at(DT_BF16, n->qkv, t * (q + kv)), t,
                                      kv) },
                  both[] = { kernels_act(gpu, n->gate, t, size.ffn),
                             kernels_act(gpu, n->up, t, size.ffn) },
                  x = kernels_act(gpu, n->from, t, size.hidden),
                  out = kernels_act(gpu, n->out, t, size.hidden),
                  normed = kernels_act(gpu, n->normed, t, size.hidden),
                  att = kernels_act(gpu, n->att, t, q),
                  mid = kernels_act(gpu, n->mid, t, size.hidden);
    for (size_t i = 0; i < size.layers; i++) {
        struct layer *l = &n->layer[i];
        struct matrix w[WEIGHTS];
        const struct attend a = { t,           size.query, size.kv,  DIM,
                                  n->table,    n->gain,    n->gain,  eps,
                                  n->position, l->key,     l->value, past };
        const struct matrix *from = i ? &out : &x;
        for (size_t k = 0; k < WEIGHTS; k++)
            w[k] = l->w[k].w;
        if (!op_norm_linear(gpu, 3, y, from, n->gain, eps, w)) {
            op_norm(gpu, &normed, n->rstd, from, n->gain, eps);
            op_linear(gpu, 3, y, &normed, w, NULL);
        }
        CHECK(op_attend(gpu, &att, &y[0], &y[1], &y[2], &a));
        op_linear(gpu, 1, &mid, &att, &w[3], from);
        if (!op_norm_swiglu(gpu, &both[0], &mid, n->gain, eps, &w[4])) {
            op_norm(gpu, &normed, n->rstd, &mid, n->gain, eps);
            op_linear(gpu, 2, both, &normed, &w[4], NULL);
            op_swiglu(gpu, &both[0], &both[0], &both[1]);
        }
        op_linear(gpu, 1, &out, &both[0], &w[6], &mid);
    }
}

static struct matrix
logits_of(const struct model *n)
{
    return matrix_of(DT_F32, n->logits, 1, size.vocab);
}

/* What it does for one token behind its layers. */
static void
separate_ends(struct model *n)
{
    struct matrix out = kernels_act(gpu, n->out, 1, size.hidden),
                  normed = kernels_act(gpu, n->normed, 1, size.hidden),
                  logits = logits_of(n);
    op_norm(gpu, &normed, n->rstd, &out, n->gain, 1e-6F);
    op_linear(gpu, 1, &logits, &normed, &n->head.w, NULL);
    op_argmax(gpu, n->id, &logits);
}

/* The same of one token, as one operation, if the device has it: its layers, or all of it, up
 * to its logits or the largest of them. */
enum one { NOT_ONE, LAYERS_AS_ONE, TOKEN_AS_ONE, BEST_AS_ONE };

static bool
as_one(struct model *n, size_t past, enum one one, const struct matrix *embed)
{
    static const float eps = 1e-6F;
    struct layer_step step[LAYERS];
    const struct matrix logits = logits_of(n);
    const struct token_ends ends = { n->id,   embed,
                                     n->gain, &n->head.w,
                                     &logits, one == BEST_AS_ONE ? n->best : NULL };
    struct matrix x = kernels_act(gpu, n->x, 1, size.hidden),
                  out = kernels_act(gpu, n->out, 1, size.hidden);
    for (size_t i = 0; i < size.layers; i++) {
        struct layer *l = &n->layer[i];
        struct layer_step *to = &step[i];
        for (size_t k = 0; k < WEIGHTS; k++)
            to->w[k] = l->w[k].w;
        to->input_gain = to->mid_gain = to->q_gain = to->k_gain = n->gain;
        to->key = l->key[0];
        to->value = l->value[0];
    }
    const struct layer_steps all = { step,     size.layers, size.query,  size.kv, DIM,
                                     n->table, eps,         n->position, past };
    return one == LAYERS_AS_ONE ? op_layers(gpu, &out, &x, &all)
                                : op_token(gpu, &all, &ends);
}

/* A step as lib/model makes it: one token's launches are recorded. */
static void
take_step(struct model *n, const size_t *past, size_t key, enum one one, bool ends)
{
    char byte;
    if (n->tokens > 1 || !kernels_replay(gpu, &key, sizeof key)) {
        if (one == NOT_ONE || !as_one(n, past[0], one, &n->embed[1]))
            all_layers(n, past);
        if (ends && one < TOKEN_AS_ONE)
            separate_ends(n);
        if (n->tokens == 1)
            kernels_recorded(gpu, true);
    }
    CHECK(kernels_download(gpu, &byte, one < TOKEN_AS_ONE ? n->out : n->logits, 1) ==
          0);
}

static void
put_token(struct model *n, int32_t id, size_t past)
{
    const int32_t position = (int32_t)past;
    kernels_upload(gpu, n->id, &id, sizeof id);
    kernels_upload(gpu, n->position, &position, sizeof position);
}

static void
check_token(const char *name, const struct model *n, int32_t id, size_t position)
{
    int32_t found[2];
    CHECK(kernels_download(gpu, &found[0], n->id, sizeof *found) == 0);
    CHECK(kernels_download(gpu, &found[1], n->position, sizeof *found) == 0);
    CHECK_SAY(found[0] == id && found[1] == (int32_t)position,
              "%s: token %d at %d, not %d at %zu", name, found[0], found[1], id,
              position);
}

/* Logits, the largest of them, and the next token's position, of the operation for a whole token
 * and of the separate ones; once each for three ids. */
static void
check_ends(const char *name, struct model *n, size_t past, bool expected)
{
    size_t bytes = size.vocab * sizeof *n->logits;
    struct matrix row = kernels_act(gpu, n->row, 1, size.hidden);
    void *want = pair_poisoned(bytes);
    for (int i = 0; i < 3; i++) {
        int32_t best, id = (int32_t)(past % 100) + 7 * i;
        enum one one = i == 1 ? TOKEN_AS_ONE : BEST_AS_ONE;
        put_token(n, id, past);
        op_embed(gpu, &row, &n->embed[i], n->id);
        n->from = n->row;
        all_layers(n, &past);
        separate_ends(n);
        n->from = n->x;
        CHECK(kernels_download(gpu, &best, n->id, sizeof best) == 0);
        CHECK_SAY(best >= 0, "%s: the largest is %d", name, best);
        op_copy(gpu, want, n->logits, bytes);
        op_zero(gpu, n->logits, bytes);
        put_token(n, id, past);
        bool there = as_one(n, past, one, &n->embed[i]);
        CHECK_SAY(there == expected, "%s, with its ends: %d", name, there);
        if (!there)
            break;
        check_bytes(name, n->logits, want, bytes);
        one == BEST_AS_ONE ? check_token(name, n, best, past + 1)
                           : check_token(name, n, id, past);
        if (one == BEST_AS_ONE)
            check_bytes(name, n->best + past % 2, n->id, sizeof *n->id);
    }
    put_token(n, 0, past);
    kernels_free(gpu, want);
}

/* Outputs and caches of the operation for all layers, and of the separate ones. */
static void
check_layers_of_size(void)
{
    static const size_t pasts[] = { 0, 1, 127, 128, 255, 256, 1000, 4095, 100 };
    const size_t n_pasts = pair_tiny ? 6 : sizeof pasts / sizeof *pasts;
    static struct model n;
    size_t row = (size_t)size.kv * DIM * 2, bytes = size.hidden * 2;
    make_layers(&n);
    void *want = pair_poisoned(bytes), *cell = pair_poisoned(2 * size.layers * row);
    for (size_t i = 0; i < n_pasts; i++) {
        char name[64];
        size_t past = pasts[i];
        bool there = true;
        // With few multiprocessors there is no block for each of two slices.
        const char *sms = getenv("NIBBLE_EMULATE_SMS");
        bool expected = strstr(gpu->route, " sm_9") &&
                        (past < 256 || !sms || strtoul(sms, NULL, 10) >= 2 * size.kv);
        snprintf(name, sizeof name, "%zu layers at %zu", size.layers, past);
        pair_begins(name);
        set_caches(&n, 1, past);
        fill_caches(&n, past);
        all_layers(&n, &past);
        op_copy(gpu, want, n.out, bytes);
        for (size_t l = 0; l < size.layers; l++) {
            char *key = (char *)n.layer[l].key[0] + past * row,
                 *value = (char *)n.layer[l].value[0] + past * row;
            op_copy(gpu, (char *)cell + 2 * l * row, key, row);
            op_copy(gpu, (char *)cell + (2 * l + 1) * row, value, row);
            op_zero(gpu, key, row);
            op_zero(gpu, value, row);
        }
        for (int again = 0; again < 3 && there; again++) {
            op_zero(gpu, n.out, bytes);
            there = as_one(&n, past, LAYERS_AS_ONE, NULL);
            if (there)
                check_bytes(name, n.out, want, bytes);
        }
        CHECK_SAY(there == expected, "%s: %d", name, there);
        for (size_t l = 0; l < size.layers && there; l++) {
            check_bytes(name, (char *)n.layer[l].key[0] + past * row,
                        (char *)cell + 2 * l * row, row);
            check_bytes(name, (char *)n.layer[l].value[0] + past * row,
                        (char *)cell + (2 * l + 1) * row, row);
        }
        check_ends(name, &n, past, expected);
        drop_caches_of(&n);
    }
    kernels_free(gpu, want);
    kernels_free(gpu, cell);
    drop_layers(&n);
}

/* Of one shape after the other. */
static void
check_layers(void)
{
    pair_open(DT_BF16);
    if (attends(DIM)) { // else neither has it all layers in one
        if (!pair_tiny)
            check_layers_of_size();
        size.layers = 1;
        size.hidden = 256;
        size.query = 4;
        size.kv = 4;
        size.ffn = 768;
        size.vocab = 16;
        check_layers_of_size();
        size.layers = 3;
        size.hidden = 512;
        size.query = 8;
        size.vocab = 22 * 16 * 132;
        check_layers_of_size();
    }
    pair_close();
}

static void
print_times(void)
{
    enum { TIMES = 40, WARM = 5 };
    static struct model n;
    static const struct {
        size_t tokens, past;
        enum one one;
        bool ends; // from the id to the largest logit
    } cases[] = { { 1, 128, NOT_ONE, false },       { 1, 128, LAYERS_AS_ONE, false },
                  { 1, 128, LAYERS_AS_ONE, true },  { 1, 128, BEST_AS_ONE, true },
                  { 1, 4096, NOT_ONE, false },      { 1, 4096, LAYERS_AS_ONE, false },
                  { 1, 4096, LAYERS_AS_ONE, true }, { 1, 4096, BEST_AS_ONE, true },
                  { 8, 128, NOT_ONE, false },       { 16, 128, NOT_ONE, false },
                  { 32, 128, NOT_ONE, false },      { 64, 128, NOT_ONE, false } };
    static const char *const names[] = { "none", "layers", "all", "all" };
    double bytes = 0, head = (double)(size.vocab * size.hidden) * 9 / 16;
    pair_open(DT_BF16);
    make_layers(&n);
    put_token(&n, 0, 0);
    for (size_t k = 0; k < WEIGHTS; k++) {
        size_t shape[2];
        shape_of(k, shape);
        bytes += (double)(shape[0] * shape[1] * size.layers) * 9 / 16;
    }
    puts("tokens\tpast\tin_one\tends\tus\tgb_s_of_weights");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t past[MANY];
        double from = 0;
        set_caches(&n, cases[i].tokens, cases[i].past);
        for (size_t t = 0; t < n.tokens; t++)
            past[t] = cases[i].past;
        for (int step = -WARM; step < TIMES; step++) {
            if (step == 0)
                from = os_seconds();
            take_step(&n, past, i + 1, cases[i].one, cases[i].ends);
        }
        double us = 1e6 * (os_seconds() - from) / TIMES;
        printf("%zu\t%zu\t%s\t%d\t%.0f\t%.0f\n", cases[i].tokens, cases[i].past,
               names[cases[i].one], cases[i].ends, us,
               1e-3 * (bytes + (cases[i].ends ? head : 0)) / us);
        fflush(stdout);
        drop_caches_of(&n);
    }
    drop_layers(&n);
    pair_close();
}

/* ---- all --------------------------------------------------------------------------- */

static void
check_products(enum dtype act)
{
    // Every way to divide columns: by their number, and few rows.
    static const size_t shapes[][2] = {
        { 48, 64 },     { 200, 96 },    { 3264, 640 },  { 24, 2048 },  { 16, 4128 },
        { 3232, 2560 }, { 3232, 2592 }, { 3216, 4096 }, { 3216, 4224 }
    };
    static const enum dtype forms[] = { DT_NVFP4, DT_BF16, DT_F32 };
    pair_open(act);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            size_t out = shapes[s][0], in = shapes[s][1];
            if (!pair_takes(out * in) ||
                (pair_tiny && f > 0 && out * in > PAIR_SMALL / 8))
                continue;
            check_rows(forms[f], out, in, false);
            check_rows(forms[f], out, in, true);
            check_fused(forms[f], out / 16 * 16, in);
        }
    pair_close();
}

int
main(int argc, char **argv)
{
    static const struct heads_of heads[] = { { 8, 2, 64 },
                                             { 4, 4, 128 },
                                             { 32, 2, 64 } };
    static const size_t past[] = { 0, 1, 15, 16, 255, 256, 300, 511, 2000 };
    pair_options(argc, argv);
    if (pair_option(argc, argv, "--time")) {
        print_times();
        return check_end();
    }
    check_products(DT_BF16);
    check_products(DT_F32);
    pair_open(DT_BF16);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        check_attend(&heads[i], past, sizeof past / sizeof *past);
        check_attend(&heads[i], past + 2, 3);
    }
    size_t same[MANY];
    for (size_t i = 0; i < MANY; i++)
        same[i] = 250 + i;
    check_attend(&heads[0], same, MANY);
    pair_close();
    check_layers();
    return check_end();
}
