/* SPDX-License-Identifier: MIT */
/* pair: the CPU and a GPU side by side.  The CPU's operations are the reference: they
 * get the GPU's inputs, rounded to the type of its activations, and results are
 * compared.
 *
 * Without a GPU a program says so and exits with 77: not run. */
#ifndef NIBBLE_TESTS_GPU_PAIR_H
#define NIBBLE_TESTS_GPU_PAIR_H

#include "kernels/kernels.h"
#include "lib/base/num.h"
#include "lib/base/os.h"
#include "tests/unit/check.h"

#include <math.h>

static struct kernels *cpu, *gpu;
static struct err pair_err;

enum {
    PAIR_NOT_RUN = 77,
    PAIR_SMALL = 1 << 19,
    PAIR_FEW = 8, // max. tokens for our own kernels: GEMV_MAX of kernels/cuda
};

/* --small: fewer and smaller cases, for tools that make a GPU a hundred times slower.
 * Cases check the same as without it. */
static bool pair_small;
/* --tiny: fewer still, for tests/emulate, which is ten thousand times slower. */
static bool pair_tiny;
/* --few: of these only those that racecheck can finish. */
static bool pair_few;

static inline bool
pair_option(int argc, char **argv, const char *word)
{
    return argc > 1 && strcmp(argv[1], word) == 0;
}

static inline void
pair_options(int argc, char **argv)
{
    pair_few = pair_option(argc, argv, "--few");
    pair_tiny = pair_few || pair_option(argc, argv, "--tiny");
    pair_small = pair_tiny || pair_option(argc, argv, "--small");
}

/* Print the name of each case as it starts, if NIBBLE_GPU_CASES is set: for slow
 * tools. */
static inline void
pair_begins(const char *name)
{
    if (getenv("NIBBLE_GPU_CASES"))
        fprintf(stderr, "%.1f s: %s\n", os_seconds(), name);
}

/* Whether to run a case of that many elements. */
static inline bool
pair_takes(size_t n)
{
    return !pair_small || n <= PAIR_SMALL;
}

/* Open both; act: type of the GPU's activations. */
static inline void
pair_open(enum dtype act)
{
    const struct device is = kernels_cuda_device(act, false);
    char why[512];
    if (kernels_cuda_count(why, sizeof why) == 0) {
        printf("not run: there is no GPU: %s\n", why);
        exit(PAIR_NOT_RUN);
    }
    const struct cpu_kind kind = { DT_F32, isa_best(), 8 };
    cpu = kernels_cpu(&kind, &pair_err);
    gpu = kernels_cuda(&is, 0, &pair_err);
    if (!cpu || !gpu)
        printf("%s\n", pair_err.msg);
    NEED(cpu && gpu);
}

static inline void
pair_close(void)
{
    CHECK_SAY(pair_err.kind == ERR_NONE, "%s", pair_err.msg);
    kernels_close(gpu);
    kernels_close(cpu);
    pair_err = (struct err){ 0 };
}

/* Upload f32 values as another type. */
static inline void *
pair_put(const float *x, enum dtype dtype, size_t n)
{
    void *p = kernels_alloc(gpu, MEMORY_WORK, n * dtype_bits(dtype) / 8);
    NEED(p);
    if (dtype == DT_F32) {
        kernels_upload(gpu, p, x, n * sizeof *x);
        return p;
    }
    uint16_t *half = malloc(n * sizeof *half + 1);
    NEED(half);
    for (size_t i = 0; i < n; i++)
        half[i] = dtype == DT_BF16 ? num_to_bf16(x[i]) : num_to_f16(x[i]);
    kernels_upload(gpu, p, half, n * sizeof *half);
    free(half);
    return p;
}

static inline void *
pair_bytes(const void *x, size_t bytes)
{
    void *p = kernels_alloc(gpu, MEMORY_WORK, bytes);
    NEED(p);
    kernels_upload(gpu, p, x, bytes);
    return p;
}

/* GPU memory filled with NaN of any float type, to find elements that are not
 * written. */
static inline void *
pair_poisoned(size_t bytes)
{
    uint8_t *host = malloc(bytes + 1);
    NEED(host);
    memset(host, 0xff, bytes);
    void *p = pair_bytes(host, bytes);
    free(host);
    return p;
}

/* Download n values as f32; the caller frees them. */
static inline float *
pair_get(const void *p, enum dtype dtype, size_t n)
{
    float *x = malloc(n * sizeof *x + 1);
    NEED(x);
    if (dtype == DT_F32) {
        CHECK(kernels_download(gpu, x, p, n * sizeof *x) == 0);
        return x;
    }
    uint16_t *half = malloc(n * sizeof *half + 1);
    NEED(half);
    CHECK(kernels_download(gpu, half, p, n * sizeof *half) == 0);
    for (size_t i = 0; i < n; i++)
        x[i] = dtype == DT_BF16 ? num_from_bf16(half[i]) : num_from_f16(half[i]);
    free(half);
    return x;
}

enum { PAIR_PERIOD = (1 << 20) + 7 }; // of random values: more would only take time

/* Pseudo-random values, the same every time: about normal, times size; rounded to
 * dtype. */
static inline float *
pair_random(size_t n, float size, enum dtype dtype, uint32_t seed)
{
    float *x = calloc(n + 1, sizeof *x); // clang-tidy does not always follow both loops
    const uint32_t key[2] = { seed, 17 };
    NEED(x);
    for (size_t i = 0; i < n && i < PAIR_PERIOD; i++) {
        uint32_t c[4] = { (uint32_t)i, (uint32_t)(i >> 32), 0, 0 }, out[4];
        philox4x32(out, c, key);
        float sum = 0;
        for (int k = 0; k < 4; k++)
            sum += (float)(out[k] >> 8) * 0x1p-24F - 0.5F;
        x[i] = sum * 1.7320508F * size;
        if (dtype == DT_BF16)
            x[i] = num_from_bf16(num_to_bf16(x[i]));
    }
    for (size_t i = PAIR_PERIOD; i < n; i++)
        x[i] = x[i - PAIR_PERIOD];
    return x;
}

/* |found - want| / |want| over all elements; NaN gives infinity. */
static inline double
pair_off(const float *found, const float *want, size_t n)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)found[i] - (double)want[i];
        if (isnan(d))
            return INFINITY;
        off += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return size > 0 ? sqrt(off / size) : off > 0 ? INFINITY : 0;
}

#define PAIR_NEAR(what, found, want, n, limit)                                         \
    do {                                                                               \
        double off_ = pair_off(found, want, n);                                        \
        CHECK_SAY(off_ <= (limit), "%s: off by %g, at most %g is right", what, off_,   \
                  (double)(limit));                                                    \
    } while (0)

/* ---- operations by address: dense rows of activations ---------------------------- */

/* A matrix with the stride set; cases give type, address, rows and columns. */
static inline struct matrix
pair_dense(const struct matrix *m)
{
    struct matrix d = *m;
    d.stride = d.cols;
    return d;
}

static inline const struct matrix *
pair_or_null(const struct matrix *m, const void *p)
{
    return p ? m : NULL;
}

static inline void
pair_linear(struct kernels *k, void *y, const void *x, const struct matrix *w,
            size_t tokens, const void *c)
{
    struct matrix d = pair_dense(w), to = kernels_act(k, y, tokens, d.rows),
                  from = kernels_act(k, x, tokens, d.cols),
                  add = kernels_act(k, c, tokens, d.rows);
    op_linear(k, 1, &to, &from, &d, pair_or_null(&add, c));
}

/* As pair_linear, but y is f32. */
static inline void
pair_logits(struct kernels *k, float *y, const void *x, const struct matrix *w,
            size_t tokens)
{
    struct matrix d = pair_dense(w), to = matrix_of(DT_F32, y, tokens, d.rows),
                  from = kernels_act(k, x, tokens, d.cols);
    op_linear(k, 1, &to, &from, &d, NULL);
}

static inline void
pair_linear_many(struct kernels *k, void *const *y, const void *x,
                 const struct matrix *const *w, size_t n, size_t tokens)
{
    struct matrix d[LINEAR_MAX], to[LINEAR_MAX],
        from = kernels_act(k, x, tokens, w[0]->cols);
    for (size_t i = 0; i < n; i++) {
        d[i] = pair_dense(w[i]);
        to[i] = kernels_act(k, y[i], tokens, d[i].rows);
    }
    op_linear(k, n, to, &from, d, NULL);
}

static inline void
pair_linear_many_dx(struct kernels *k, void *dx, const void *dy,
                    const struct matrix *const *w, size_t n, size_t tokens,
                    const void *c)
{
    struct matrix d[LINEAR_MAX], to = kernels_act(k, dx, tokens, w[0]->cols), add = to;
    size_t rows = 0;
    for (size_t i = 0; i < n; i++) {
        d[i] = pair_dense(w[i]);
        rows += d[i].rows;
    }
    struct matrix from = kernels_act(k, dy, tokens, rows);
    add = kernels_act(k, c, tokens, to.cols);
    op_linear_dx(k, n, &to, &from, d, pair_or_null(&add, c));
}

static inline void
pair_linear_dx(struct kernels *k, void *dx, const void *dy, const struct matrix *w,
               size_t tokens, const void *c)
{
    pair_linear_many_dx(k, dx, dy, &w, 1, tokens, c);
}

static inline void
pair_linear_many_dw(struct kernels *k, const struct matrix *const *dw, const void *dy,
                    const void *x, const struct matrix *const *w, size_t n,
                    size_t tokens, bool add)
{
    struct matrix d[LINEAR_MAX], in = kernels_act(k, x, tokens, w[0]->cols);
    size_t rows = 0;
    for (size_t i = 0; i < n; i++) {
        d[i] = matrix_of(dw[i]->dtype, dw[i]->data, w[i]->rows, w[i]->cols);
        rows += d[i].rows;
    }
    struct matrix from = kernels_act(k, dy, tokens, rows);
    op_linear_dw(k, n, d, &from, &in, add);
}

static inline void
pair_linear_dw(struct kernels *k, const struct matrix *dw, const void *dy,
               const void *x, size_t out, size_t in, size_t tokens, bool add)
{
    struct matrix w = matrix_of(DT_F32, NULL, out, in);
    const struct matrix *of = &w;
    pair_linear_many_dw(k, &dw, dy, x, &of, 1, tokens, add);
}

/* x: activations in nvfp4, quantized per row. */
static inline void
pair_linear_fp4(struct kernels *k, void *y, const struct matrix *x,
                const struct matrix *w, const void *c)
{
    struct matrix d = pair_dense(w), in = pair_dense(x),
                  to = kernels_act(k, y, x->rows, d.rows),
                  add = kernels_act(k, c, x->rows, d.rows);
    in.dtype = DT_NVFP4;
    in.per_row = true;
    op_linear(k, 1, &to, &in, &d, pair_or_null(&add, c));
}

static inline void
pair_quantize_rows(struct kernels *k, const struct matrix *to, const void *x,
                   const struct quant_spec *spec)
{
    struct matrix rows = pair_dense(to), from = kernels_act(k, x, to->rows, to->cols);
    rows.dtype = DT_NVFP4;
    rows.per_row = true;
    op_quantize(k, &rows, &from, NULL, 0, spec);
}

static inline void
pair_unpack_rows(struct kernels *k, void *y, const struct matrix *x)
{
    struct matrix rows = pair_dense(x), to = kernels_act(k, y, x->rows, x->cols);
    rows.dtype = DT_NVFP4;
    rows.per_row = true;
    op_convert(k, &to, &rows);
}

static inline void
pair_quantize(struct kernels *k, const struct matrix *to, const void *x,
              enum dtype dtype, size_t rows, size_t cols, const float *amax, size_t n,
              const struct quant_spec *spec)
{
    struct matrix planes = *to, from = matrix_of(dtype, x, rows, cols);
    planes.dtype = DT_NVFP4;
    planes.rows = rows;
    planes.cols = planes.stride = cols;
    op_quantize(k, &planes, &from, amax, n, spec);
}

static inline void
pair_amax(struct kernels *k, float *out, const void *x, enum dtype dtype, size_t n)
{
    struct matrix m = matrix_of(dtype, x, 1, n);
    op_amax(k, out, &m);
}

static inline void
pair_argmax(struct kernels *k, int32_t *id, const float *logits, size_t rows, size_t n)
{
    struct matrix m = matrix_of(DT_F32, logits, rows, n);
    op_argmax(k, id, &m);
}

static inline void
pair_embed(struct kernels *k, void *y, const struct matrix *w, const int32_t *ids,
           size_t tokens)
{
    struct matrix d = pair_dense(w), to = kernels_act(k, y, tokens, d.cols);
    op_embed(k, &to, &d, ids);
}

/* dw has all rows named in ids. */
static inline void
pair_embed_dw(struct kernels *k, float *dw, const void *dy, const int32_t *ids,
              size_t tokens, size_t n)
{
    struct matrix to = matrix_of(DT_F32, dw, 1, n),
                  from = kernels_act(k, dy, tokens, n);
    op_embed_dw(k, &to, &from, ids);
}

static bool pair_times; // nothing is checked

/* The largest magnitude that an operation finds in what it writes is the one that op_amax
 * finds. */
static inline void
pair_want_amax(struct kernels *k, struct matrix *y)
{
    if (pair_times || y->rows * y->cols == 0)
        return;
    y->amax = kernels_alloc(k, MEMORY_OTHER, 2 * sizeof(float));
    op_zero(k, y->amax, sizeof(float));
}

static inline void
pair_check_amax(struct kernels *k, const char *what, const struct matrix *y)
{
    float found[2];
    struct matrix copy = *y; // op_amax wants whole packs, which y need not begin with
    size_t bytes = y->rows * y->cols * dtype_bits(y->dtype) / 8;
    if (!y->amax)
        return;
    char *host = malloc(bytes);
    copy.data = kernels_alloc(k, MEMORY_OTHER, bytes);
    NEED(host && copy.data);
    CHECK(kernels_download(k, host, y->data, bytes) == 0);
    kernels_upload(k, copy.data, host, bytes);
    op_amax(k, y->amax + 1, &copy);
    CHECK(kernels_download(k, found, y->amax, sizeof found) == 0);
    kernels_free(k, copy.data);
    free(host);
    CHECK_SAY(found[0] == found[1] || (isnan(found[0]) && isnan(found[1])),
              "%s on %s: amax of %zu x %zu is %a, found %a", what, k->is.name, y->rows,
              y->cols, (double)found[1], (double)found[0]);
    kernels_free(k, y->amax);
}

static inline void
pair_norm(struct kernels *k, void *y, float *rstd, const void *x, const float *gain,
          size_t rows, size_t n, float eps)
{
    struct matrix to = kernels_act(k, y, rows, n), from = kernels_act(k, x, rows, n);
    pair_want_amax(k, &to);
    op_norm(k, &to, rstd, &from, gain, eps);
    pair_check_amax(k, "norm", &to);
}

static inline void
pair_norm_bwd(struct kernels *k, void *dx, float *dgain, void *y, const void *dy,
              const void *x, const float *rstd, const float *gain, size_t rows,
              size_t n, const void *c)
{
    struct matrix to = kernels_act(k, dx, rows, n), again = kernels_act(k, y, rows, n),
                  from = kernels_act(k, dy, rows, n), in = kernels_act(k, x, rows, n),
                  add = kernels_act(k, c, rows, n);
    pair_want_amax(k, &to);
    op_norm_bwd(k, &to, dgain, pair_or_null(&again, y), &from, &in, rstd, gain,
                pair_or_null(&add, c));
    pair_check_amax(k, "norm_bwd", &to);
}

/* Rotary embedding of `tokens` tokens; stride: of gradients, 0: heads * dim. */
struct pair_rope {
    struct rope r;
    size_t tokens, stride;
};

static inline void
pair_qk_norm_rope(struct kernels *k, void *y, float *rstd, const void *x,
                  const float *gain, const struct pair_rope *t)
{
    size_t cols = t->r.heads * t->r.dim;
    struct matrix to = kernels_act(k, y, t->tokens, cols),
                  from = kernels_act(k, x, t->tokens, cols);
    op_qk_norm_rope(k, &to, rstd, &from, gain, &t->r);
}

static inline void
pair_qk_norm_rope_bwd(struct kernels *k, void *d, float *dgain, const void *x,
                      const float *rstd, const float *gain, const struct pair_rope *t)
{
    size_t cols = t->r.heads * t->r.dim;
    struct matrix to = kernels_act(k, d, t->tokens, cols),
                  in = kernels_act(k, x, t->tokens, cols);
    to.stride = t->stride ? t->stride : cols;
    op_qk_norm_rope_bwd(k, &to, dgain, &in, rstd, gain, &t->r);
}

static inline void
pair_attention(struct kernels *k, void *out, float *lse, const void *q, const void *key,
               const void *value, const struct heads *h)
{
    size_t n = h->tokens, all = h->past + n, wide = h->query * h->dim,
           thin = h->kv * h->dim;
    struct matrix to = kernels_act(k, out, n, wide), from = kernels_act(k, q, n, wide),
                  keys = kernels_act(k, key, all, thin),
                  values = kernels_act(k, value, all, thin);
    op_attention(k, &to, lse, &from, &keys, &values, h);
}

/* stride: of all gradients, 0: each is dense. */
static inline void
pair_attention_bwd(struct kernels *k, void *dq, void *dkey, void *dvalue,
                   const void *dout, const void *out, const float *lse, const void *q,
                   const void *key, const void *value, float *work,
                   const struct heads *h, size_t stride)
{
    size_t n = h->tokens, wide = h->query * h->dim, thin = h->kv * h->dim;
    struct matrix to_q = kernels_act(k, dq, n, wide),
                  to_k = kernels_act(k, dkey, n, thin),
                  to_v = kernels_act(k, dvalue, n, thin),
                  from = kernels_act(k, dout, n, wide),
                  y = kernels_act(k, out, n, wide),
                  queries = kernels_act(k, q, n, wide),
                  keys = kernels_act(k, key, n, thin),
                  values = kernels_act(k, value, n, thin);
    if (stride)
        to_q.stride = to_k.stride = to_v.stride = stride;
    op_attention_bwd(k, &to_q, &to_k, &to_v, &from, &y, lse, &queries, &keys, &values,
                     work, h);
}

static inline void
pair_swiglu(struct kernels *k, void *y, const void *gate, const void *up, size_t n)
{
    struct matrix to = kernels_act(k, y, 1, n), g = kernels_act(k, gate, 1, n),
                  u = kernels_act(k, up, 1, n);
    pair_want_amax(k, &to);
    op_swiglu(k, &to, &g, &u);
    pair_check_amax(k, "swiglu", &to);
}

static inline void
pair_swiglu_bwd(struct kernels *k, void *d_gate_up, void *d, const void *gate,
                const void *up, size_t rows, size_t n)
{
    struct matrix to = kernels_act(k, d_gate_up, rows, 2 * n),
                  dy = kernels_act(k, d, rows, n), g = kernels_act(k, gate, rows, n),
                  u = kernels_act(k, up, rows, n);
    pair_want_amax(k, &to);
    op_swiglu_bwd(k, &to, &dy, &g, &u);
    pair_check_amax(k, "swiglu_bwd", &to);
}

static inline void
pair_gather(struct kernels *k, void *y, const void *x, const int32_t *index,
            size_t rows, size_t n)
{
    struct matrix to = kernels_act(k, y, rows, n), from = kernels_act(k, x, rows, n);
    op_gather(k, &to, &from, index);
}

static inline void
pair_column_stats(struct kernels *k, double *squares, float *peak, const void *x,
                  size_t rows, size_t n)
{
    struct matrix from = kernels_act(k, x, rows, n);
    op_column_stats(k, squares, peak, &from);
}

static inline void
pair_block_gram(struct kernels *k, double *gram, size_t width, const void *x,
                size_t rows, size_t n)
{
    struct matrix from = kernels_act(k, x, rows, n);
    op_block_gram(k, gram, width, &from);
}

static inline void
pair_scatter(struct kernels *k, void *y, const void *x, const int32_t *index,
             size_t rows, size_t n)
{
    struct matrix to = kernels_act(k, y, rows, n), from = kernels_act(k, x, rows, n);
    op_scatter(k, &to, &from, index);
}

static inline void
pair_convert(struct kernels *k, float *y, const void *x, enum dtype dtype, size_t n)
{
    struct matrix to = matrix_of(DT_F32, y, 1, n), from = matrix_of(dtype, x, 1, n);
    op_convert(k, &to, &from);
}

static inline void
pair_cross_entropy(struct kernels *k, float *loss, void *logits, const int32_t *label,
                   size_t rows, size_t n, float scale)
{
    struct matrix m = kernels_act(k, logits, rows, n);
    op_cross_entropy(k, loss, &m, label, scale);
}

static inline void
pair_distill(struct kernels *k, float *ce, float *kl, void *logits, const void *teacher,
             const int32_t *label, size_t rows, size_t n, const struct distill *how,
             float scale)
{
    struct matrix m = kernels_act(k, logits, rows, n),
                  t = kernels_act(k, teacher, rows, n);
    op_distill(k, ce, kl, &m, &t, label, how, scale);
}

static inline void
pair_l1(struct kernels *k, float *loss, void *dx, float *dw, const void *x,
        const struct matrix *w, const int32_t *label, size_t rows, float scale)
{
    struct matrix d = pair_dense(w), to = kernels_act(k, dx, rows, d.cols),
                  grad = matrix_of(DT_F32, dw, d.rows, d.cols),
                  from = kernels_act(k, x, rows, d.cols);
    op_l1(k, loss, pair_or_null(&to, dx), pair_or_null(&grad, dw), &from, &d, label,
          scale);
}

static inline void
pair_sum_squares(struct kernels *k, double *out, const struct matrix *g,
                 const size_t *n, size_t count)
{
    struct matrix *m = calloc(count, sizeof *m);
    NEED(m);
    for (size_t i = 0; i < count; i++)
        m[i] = matrix_of(g[i].dtype, g[i].data, 1, n[i]);
    op_sum_squares(k, out, m, count);
    free(m);
}

/* n: elements of the tensor. */
static inline void
pair_adamw(struct kernels *k, const struct adam_state *s, const struct matrix *grad,
           uint64_t first, size_t n, const struct adam_step *a)
{
    struct adam_update u = { *s, *grad, first, n, *a };
    u.grad = matrix_of(grad->dtype, grad->data, 1, (size_t)first + n);
    op_adamw(k, &u, 1);
}

#endif
