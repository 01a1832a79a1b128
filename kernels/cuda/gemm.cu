/* SPDX-License-Identifier: MIT */
/* gemm: products, by cuBLASLt.
 *
 * It sees matrices column by column, so ours are their transposes to it: for y = x W' it
 * is asked for y' = W x'.  The algorithm for a product is the first that its heuristics
 * name, or another of their list that tuned.h says: a function of sizes, types, library
 * and device.
 *
 * Products of NVFP4 with NVFP4 by the chip's own units: both operands are rows of codes,
 * which cuBLASLt takes as columns ("TN", the only way there is), with their block scales in
 * tiles; sizes are multiples of FP4_NATIVE_UNIT, so that every pointer and every leading
 * dimension is aligned.  They have never run: no chip that has them was at hand.
 *
 * A weight in the type of activations is an operand as it is.  NVFP4 becomes bf16 first,
 * code times scale, which is exact, and the tensor's multiplier is the product's alpha; a
 * weight of any other type is converted.  Both happen for some rows at a time. */
#include "kernels/cuda/cuda.h"

#include "kernels/cuda/tuned.h"

#define TILES_FN static inline
#include "lib/nvfp4/tiles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a product is chosen by. */
struct shape {
    size_t m, n, k, lda, ldb, ldc, ldd;
    int ta, tb; // cublasOperation_t
    int in, out; // cudaDataType_t
    int algorithm; // of the library's list; negative: by tuned.h
    int align;     // 0: as allocations are; else bytes that pointers are a multiple of
    // No gap: two are the same if their bytes are.
};

enum {
    MOST = 16,     // algorithms that are looked at
    NARROW = 2048, // rows of a weight
    CUT = 256,     // rows that a weight is cut into multiples of
};

#if CUDART_VERSION >= 12080
#define HAS_FP4 1
enum { FP4 = CUDA_R_4F_E2M1 };
#else
#define HAS_FP4 0
enum { FP4 = -1 };
#endif

struct plan {
    struct shape shape;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algo;
    char *name; // for times
};

/* What may be drawn for a product. */
struct drawn {
    char way[3]; // TN, NN, NT
    size_t m, n, k;
    int count, algorithm[MOST];
};

/* NIBBLE_CUDA_PRODUCTS, for kernels/lab/tuned.py: lines of way, m, n, k, how many algorithms
 * and which.  Each pass draws one of them for each product. */
static bool
read_drawn(struct cuda *c, const char *path)
{
    FILE *f = fopen(path, "r");
    struct drawn d = {};
    int fields = 0;
    while (f && (fields = fscanf(f, "%2s %zu %zu %zu %d", d.way, &d.m, &d.n, &d.k,
                                 &d.count)) == 5) {
        for (int i = 0; i < d.count && fields == 5; i++)
            if (d.count > MOST || fscanf(f, "%d", &d.algorithm[i]) != 1)
                fields = 0;
        struct drawn *more = (struct drawn *)realloc(
            c->drawn, (c->n_drawn + 1) * sizeof *more);
        if (more)
            c->drawn = more;
        if (fields != 5 || d.count < 1 || !more)
            break;
        c->drawn[c->n_drawn++] = d;
    }
    bool whole = f && fields == EOF;
    if (f)
        fclose(f);
    if (!whole)
        err_set(c->err, ERR_USAGE, "NIBBLE_CUDA_PRODUCTS: %s: cannot be read", path);
    return whole;
}

bool
cuda_gemm_open(struct cuda *c)
{
    const char *path = getenv("NIBBLE_CUDA_PRODUCTS");
    return cuda_check_blas(c, cublasLtCreate(&c->lt), "cublasLtCreate") &&
           (!path || read_drawn(c, path));
}

static void
forget(struct plan *p)
{
    if (p->op)
        cublasLtMatmulDescDestroy(p->op);
    const cublasLtMatrixLayout_t layouts[] = { p->a, p->b, p->c, p->d };
    for (int i = 0; i < 4; i++)
        if (layouts[i])
            cublasLtMatrixLayoutDestroy(layouts[i]);
    free(p->name);
}

void
cuda_gemm_close(struct cuda *c)
{
    for (size_t i = 0; i < c->n_plans; i++)
        forget(&c->plans[i]);
    free(c->plans);
    free(c->drawn);
    if (c->lt)
        cublasLtDestroy(c->lt);
}

/* ---- plans ------------------------------------------------------------------------------ */

/* A matrix of `rows` rows, as cuBLASLt sees it. */
static bool
layout(struct cuda *c, cublasLtMatrixLayout_t *l, int type, size_t rows, size_t cols,
       size_t ld)
{
    return cuda_check_blas(c,
                           cublasLtMatrixLayoutCreate(l, (cudaDataType_t)type, rows, cols,
                                                      (int64_t)ld),
                           "cublasLtMatrixLayoutCreate");
}

/* Where the scales of both operands are. */
static bool
set_tiles(struct cuda *c, cublasLtMatmulDesc_t op, const void *a, const void *b)
{
#if HAS_FP4
    const cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *value;
        size_t size;
    } set[] = { { CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode },
                { CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode },
                { CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &a, sizeof a },
                { CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &b, sizeof b } };
    for (const auto &s : set)
        if (!cuda_check_blas(
                c, cublasLtMatmulDescSetAttribute(op, s.attribute, s.value, s.size),
                "cublasLtMatmulDescSetAttribute of scales"))
            return false;
    return true;
#else
    (void)op, (void)a, (void)b;
    err_set(c->err, ERR_USAGE,
            "cuda: built with CUDA %d.%d, products of NVFP4 come with 12.8",
            CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return false;
#endif
}

static bool
describe(struct cuda *c, struct plan *p)
{
    const struct shape *s = &p->shape;
    const cublasLtPointerMode_t mode = CUBLASLT_POINTER_MODE_DEVICE;
    bool ta = s->ta == CUBLAS_OP_T, tb = s->tb == CUBLAS_OP_T;
    if (!cuda_check_blas(c,
                         cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                         "cublasLtMatmulDescCreate"))
        return false;
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &s->ta,
                                   sizeof s->ta);
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &s->tb,
                                   sizeof s->tb);
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode,
                                   sizeof mode);
    // The library chooses only where there are scales; those of a product come later.
    if (s->in == FP4 && !set_tiles(c, p->op, c->workspace, c->workspace))
        return false;
    return layout(c, &p->a, s->in, ta ? s->k : s->m, ta ? s->m : s->k, s->lda) &&
           layout(c, &p->b, s->in, tb ? s->n : s->k, tb ? s->k : s->n, s->ldb) &&
           layout(c, &p->c, s->out, s->m, s->n, s->ldc) &&
           layout(c, &p->d, s->out, s->m, s->n, s->ldd);
}

/* Sizes that count as the one that was tuned: the number of tokens may be any. */
static bool
is_near(size_t tuned, size_t n)
{
    return n > tuned * 3 / 4 && n <= tuned + tuned / 2;
}

/* The place of the fastest algorithm in the library's list, where a tuning run on such a
 * device with this version of it found one that is better than the first. */
static int
tuned(const struct cuda *c, const struct shape *s)
{
    if (c->major != TUNED_MAJOR || c->sms != TUNED_SMS || c->k.is.act != DT_BF16 ||
        cublasLtGetVersion() != TUNED_CUBLAS)
        return 0;
    enum way way = s->ta == CUBLAS_OP_T ? TN : s->tb == CUBLAS_OP_T ? NT : NN;
    for (size_t i = 0; i < sizeof tunings / sizeof *tunings; i++) {
        const struct tuning *t = &tunings[i];
        bool tokens = way == NT ? t->n == s->n && is_near(t->k, s->k)
                                : is_near(t->n, s->n) && t->k == s->k;
        if (t->way == way && t->wide == (s->out == CUDA_R_32F) && t->m == s->m && tokens)
            return t->algorithm;
    }
    return 0;
}

static bool
choose(struct cuda *c, struct plan *p)
{
    cublasLtMatmulPreference_t want;
    cublasLtMatmulHeuristicResult_t found[MOST];
    const size_t room = WORKSPACE;
    int n = 0, which = p->shape.algorithm < 0 ? tuned(c, &p->shape) : p->shape.algorithm;
    if (!cuda_check_blas(c, cublasLtMatmulPreferenceCreate(&want),
                         "cublasLtMatmulPreferenceCreate"))
        return false;
    cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &room, sizeof room);
    const uint32_t align = (uint32_t)p->shape.align;
    const cublasLtMatmulPreferenceAttributes_t of_pointers[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    for (int i = 0; i < 4 && align; i++)
        cublasLtMatmulPreferenceSetAttribute(want, of_pointers[i], &align, sizeof align);
    cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(c->lt, p->op, p->a, p->b, p->c,
                                                      p->d, want, MOST, found, &n);
    cublasLtMatmulPreferenceDestroy(want);
    if (s == CUBLAS_STATUS_SUCCESS && n == 0)
        s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!cuda_check_blas(c, s, "cublasLtMatmulAlgoGetHeuristic"))
        return false;
    p->algo = found[which < n ? which : 0].algo;
    return true;
}

static struct plan *
plan_for(struct cuda *c, const struct shape *s)
{
    for (size_t i = 0; i < c->n_plans; i++)
        if (memcmp(&c->plans[i].shape, s, sizeof *s) == 0)
            return &c->plans[i];
    if (c->n_plans == c->cap_plans) {
        size_t cap = c->cap_plans ? 2 * c->cap_plans : 64;
        struct plan *more = (struct plan *)realloc(c->plans, cap * sizeof *more);
        if (!more) {
            err_set(c->err, ERR_MEMORY, "out of memory for a product");
            return NULL;
        }
        c->plans = more;
        c->cap_plans = cap;
    }
    struct plan *p = &c->plans[c->n_plans];
    memset(p, 0, sizeof *p);
    p->shape = *s;
    if (c->trace && asprintf(&p->name, "product %c%c %s %zu %zu %zu, algorithm %d",
                             s->ta ? 'T' : 'N', s->tb ? 'T' : 'N',
                             s->out == CUDA_R_32F ? "f32" : "bf16", s->m, s->n, s->k,
                             s->algorithm) < 0)
        p->name = NULL;
    if (!describe(c, p) || !choose(c, p)) {
        forget(p);
        return NULL;
    }
    c->n_plans++;
    return p;
}

/* Of the list, at random by pass and line; negative: none is to be drawn. */
static int
draw(const struct cuda *c, const struct shape *s)
{
    for (size_t i = 0; i < c->n_drawn; i++) {
        const struct drawn *d = &c->drawn[i];
        uint32_t h = (uint32_t)(c->passes * 64 + i) * 2654435761U;
        bool ta = d->way[0] == 'T', tb = d->way[1] == 'T';
        if (d->m != s->m || d->n != s->n || d->k != s->k ||
            ta != (s->ta == CUBLAS_OP_T) || tb != (s->tb == CUBLAS_OP_T))
            continue;
        h = (h ^ h >> 15) * 2246822519U;
        h ^= h >> 13;
        return d->algorithm[h % (uint32_t)d->count];
    }
    return -1;
}

static void
run_plan(struct cuda *c, const struct plan *p, void *d, const void *a, const void *b,
         const void *add, const float *alpha)
{
    const float *one = c->numbers, *zero = c->numbers + 1;
    c->early = NOT_EARLY;
    cuda_check_blas(c,
                    cublasLtMatmul(c->lt, p->op, alpha ? alpha : one, a, p->a, b, p->b,
                                   add ? one : zero, add ? add : d, p->c, d, p->d,
                                   &p->algo, c->workspace, WORKSPACE, c->stream),
                    "cublasLtMatmul");
    if (c->trace)
        cuda_mark(c, p->name ? p->name : "product");
}

/* What vectors of 16 bytes do not find: columns may begin anywhere. */
static int
odd_align(const void *a, const void *b, const void *c, const void *d)
{
    uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
    return all % 16 ? (int)(all & -all) : 0;
}

/* d = alpha op(a) op(b) + c; alpha: on the device, NULL: 1; add: NULL: nothing. */
static void
multiply(struct cuda *c, const struct shape *s, void *d, const void *a, const void *b,
         const void *add, const float *alpha)
{
    struct shape mine = *s;
    mine.align = odd_align(a, b, add, d);
    mine.algorithm = draw(c, s);
    const struct plan *p = plan_for(c, &mine);
    if (!p)
        return;
    run_plan(c, p, d, a, b, add, alpha);
    c->k.ledger.flops += 2.0 * (double)s->m * (double)s->n * (double)s->k;
}

/* ---- weights as operands ------------------------------------------------------------------ */

template <typename T>
static __global__ void
narrow_kernel(__nv_bfloat16 *y, const T *x, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        y[i] = __float2bfloat16_rn(to_f32(x[i]));
}

static void
narrow(struct cuda *c, void *y, const void *x, enum dtype dtype, size_t n)
{
    __nv_bfloat16 *to = (__nv_bfloat16 *)y;
    unsigned blocks = (unsigned)c->sms * 16;
    if (dtype == DT_F16)
        narrow_kernel<<<blocks, 256, 0, c->stream>>>(to, (const __half *)x, n);
    else
        narrow_kernel<<<blocks, 256, 0, c->stream>>>(to, (const float *)x, n);
    cuda_launched(c, "narrow");
}

/* Some rows of a weight, in the type of activations. */
struct rows {
    const void *p;
    const float *alpha;
    size_t first, n;
};

static bool
as_it_is(const struct cuda *c, const struct weight *w)
{
    return w->dtype == c->k.is.act ||
           (w->dtype == DT_NVFP4 && w->expanded && c->k.is.act == DT_BF16);
}

/* The next rows, from `first` on.  NVFP4 is cut at the same rows in every form, so that it
 * changes no number which one there is memory for. */
static struct rows
take_rows(struct cuda *c, const struct weight *w, size_t first)
{
    size_t each = w->in * kernels_act(&c->k);
    struct rows r = { NULL, w->dtype == DT_NVFP4 ? w->scale2 : NULL, first,
                      w->out - first };
    // NVFP4 as f32 goes by way of bf16, behind it.
    bool twice = w->dtype == DT_NVFP4 && c->k.is.act == DT_F32;
    size_t most = EXPANDED / (twice ? each + each / 2 : each);
    most -= most > CUT ? most % CUT : 0;
    if (w->dtype == DT_NVFP4 || !as_it_is(c, w))
        r.n = r.n < most ? r.n : most ? most : 1;
    if (as_it_is(c, w)) {
        const char *all = (const char *)(w->dtype == DT_NVFP4 ? w->expanded : w->values);
        r.p = all + first * each;
        return r;
    }
    r.p = c->expanded;
    size_t at = first * w->in, n = r.n * w->in;
    char *half = (char *)c->expanded + (twice ? r.n * each : 0);
    if (most == 0) {
        err_set(c->err, ERR_USAGE, "cuda: rows of %zu numbers are too long", w->in);
    } else if (w->dtype == DT_NVFP4) {
        cuda_expand(c, half, (const uint8_t *)w->values + at / 2,
                    w->scales + at / NVFP4_BLOCK, n);
        if (twice)
            cuda_convert(&c->k, (float *)c->expanded, half, DT_BF16, n);
    } else {
        const char *from = (const char *)w->values + at * dtype_bits(w->dtype) / 8;
        if (c->k.is.act == DT_F32)
            cuda_convert(&c->k, (float *)c->expanded, from, w->dtype, n);
        else
            narrow(c, c->expanded, from, w->dtype, n);
    }
    return r;
}

/* ---- the operations ------------------------------------------------------------------------- */

static int
type_of(enum dtype d)
{
    return d == DT_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static void
run_linear(struct cuda *c, void *y, enum dtype out, const void *x,
           const struct weight *w, size_t tokens, const void *add)
{
    size_t size = dtype_bits(out) / 8;
    if (!cuda_ready(c) || tokens == 0)
        return;
    if (tokens <= GEMV_MOST) {
        cuda_gemv(c, y, out == DT_F32, x, w, tokens, add);
        c->k.ledger.flops += 2.0 * (double)tokens * (double)w->out * (double)w->in;
        return;
    }
    for (size_t first = 0; first < w->out && cuda_ready(c);) {
        struct rows r = take_rows(c, w, first);
        struct shape s = { r.n,      tokens, w->in, w->in, w->in, w->out, w->out,
                           CUBLAS_OP_T, CUBLAS_OP_N };
        s.in = type_of(c->k.is.act);
        s.out = type_of(out);
        multiply(c, &s, (char *)y + first * size, r.p, x,
                 add ? (const char *)add + first * size : NULL, r.alpha);
        first += r.n;
    }
}

void
cuda_linear(struct kernels *k, void *y, const void *x, const struct weight *w,
            size_t tokens, const void *add)
{
    run_linear(cuda_of(k), y, k->is.act, x, w, tokens, add);
}

void
cuda_linear_many(struct kernels *k, void *const *y, const void *x,
                 const struct weight *const *w, size_t n, size_t tokens)
{
    struct cuda *c = cuda_of(k);
    if (!cuda_ready(c) || tokens == 0)
        return;
    bool few = tokens <= GEMV_MOST && cuda_gemv_many(c, y, x, w, n, tokens);
    for (size_t i = 0; i < n; i++)
        if (few)
            k->ledger.flops += 2.0 * (double)tokens * (double)w[i]->out * (double)w[i]->in;
        else
            cuda_linear(k, y[i], x, w[i], tokens, NULL);
}

void
cuda_logits(struct kernels *k, float *y, const void *x, const struct weight *w,
            size_t tokens)
{
    run_linear(cuda_of(k), y, DT_F32, x, w, tokens, NULL);
}

/* row: of dy. */
static void
back_to_input(struct cuda *c, void *dx, const void *dy, size_t row,
              const struct weight *w, size_t tokens, const void *add)
{
    size_t size = kernels_act(&c->k);
    for (size_t first = 0; first < w->out && tokens && cuda_ready(c);) {
        struct rows r = take_rows(c, w, first);
        struct shape s = { w->in,       tokens, r.n, w->in, row, w->in, w->in,
                           CUBLAS_OP_N, CUBLAS_OP_N };
        s.in = s.out = type_of(c->k.is.act);
        multiply(c, &s, dx, r.p, (const char *)dy + first * size, first ? dx : add,
                 r.alpha);
        first += r.n;
    }
}

static void
back_to_weight(struct cuda *c, const struct grad *dw, const void *dy, size_t row,
               const void *x, size_t out, size_t in, size_t tokens, bool add)
{
    struct shape s = { in,          out, tokens, in, row, in, in,
                       CUBLAS_OP_N, CUBLAS_OP_T };
    s.in = type_of(c->k.is.act);
    s.out = type_of(dw->dtype);
    if (!cuda_ready(c))
        return;
    if (tokens == 0) {
        if (!add)
            c->k.zero(&c->k, dw->values, out * in * dtype_bits(dw->dtype) / 8);
        return;
    }
    multiply(c, &s, dw->values, x, dy, add ? dw->values : NULL, NULL);
}

void
cuda_linear_dx(struct kernels *k, void *dx, const void *dy, const struct weight *w,
               size_t tokens, const void *add)
{
    back_to_input(cuda_of(k), dx, dy, w->out, w, tokens, add);
}

void
cuda_linear_dw(struct kernels *k, const struct grad *dw, const void *dy, const void *x,
               size_t out, size_t in, size_t tokens, bool add)
{
    back_to_weight(cuda_of(k), dw, dy, out, x, out, in, tokens, add);
}

/* Whether n weights are taken as one: not if they lie one behind the other, which memory
 * decides, but by sizes and since they share a multiplier. */
static bool
are_one(const struct cuda *c, const struct weight *const *w, size_t n)
{
    bool one = c->k.is.act == DT_BF16 && kernels_outs(w, n) * w[0]->in <= EXPANDED / 2;
    for (size_t i = 0; i < n; i++)
        one = one && w[i]->dtype == DT_NVFP4 && w[i]->in == w[0]->in && w[i]->scale2 &&
              w[i]->scale2 == w[0]->scale2;
    return one;
}

/* Their expanded form as one matrix: where it is, or made. */
static const void *
all_rows(struct cuda *c, const struct weight *const *w, size_t n)
{
    const char *next = (const char *)w[0]->expanded;
    char *to = (char *)c->expanded;
    for (size_t i = 0; i < n && next; i++)
        next = w[i]->expanded == next ? next + w[i]->out * w[i]->in * 2 : NULL;
    if (next)
        return w[0]->expanded;
    for (size_t i = 0; i < n; to += w[i]->out * w[i]->in * 2, i++)
        if (w[i]->expanded)
            c->k.copy(&c->k, to, w[i]->expanded, w[i]->out * w[i]->in * 2);
        else
            cuda_expand(c, to, (const uint8_t *)w[i]->values, w[i]->scales,
                        w[i]->out * w[i]->in);
    return c->expanded;
}

void
cuda_linear_many_dx(struct kernels *k, void *dx, const void *dy,
                    const struct weight *const *w, size_t n, size_t tokens,
                    const void *add)
{
    struct cuda *c = cuda_of(k);
    size_t row = kernels_outs(w, n), in = w[0]->in;
    const char *from = (const char *)dy;
    if (!cuda_ready(c) || tokens == 0)
        return;
    if (are_one(c, w, n)) {
        struct shape s = { in,          tokens, row, in, row, in, in,
                           CUBLAS_OP_N, CUBLAS_OP_N };
        s.in = s.out = type_of(k->is.act);
        multiply(c, &s, dx, all_rows(c, w, n), dy, add, w[0]->scale2);
        return;
    }
    for (size_t i = 0; i < n; from += w[i]->out * kernels_act(k), i++)
        back_to_input(c, dx, from, row, w[i], tokens, i ? dx : add);
}

void
cuda_linear_many_dw(struct kernels *k, const struct grad *const *dw, const void *dy,
                    const void *x, const struct weight *const *w, size_t n,
                    size_t tokens, bool add)
{
    struct cuda *c = cuda_of(k);
    size_t row = kernels_outs(w, n), in = w[0]->in;
    const char *from = (const char *)dy;
    bool together = true, narrow = false; // what is wide fills the chip by itself
    for (size_t i = 0; i < n; i++)
        narrow = narrow || w[i]->out < NARROW;
    for (size_t i = 1; i < n; i++)
        together = together && dw[i]->dtype == dw[0]->dtype &&
                   (char *)dw[i - 1]->values +
                           w[i - 1]->out * in * dtype_bits(dw[0]->dtype) / 8 ==
                       dw[i]->values;
    if (together && narrow)
        back_to_weight(c, dw[0], dy, row, x, row, in, tokens, add);
    else
        for (size_t i = 0; i < n; from += w[i]->out * kernels_act(k), i++)
            back_to_weight(c, dw[i], from, row, x, w[i]->out, in, tokens, add);
}

/* ---- NVFP4 with NVFP4 ----------------------------------------------------------------------- */

static struct shape
shape_fp4(size_t out, size_t in, size_t rows)
{
    struct shape s = { out, tiles_rows(rows), in, in, in, out, out, CUBLAS_OP_T,
                       CUBLAS_OP_N };
    s.in = FP4;
    s.out = CUDA_R_32F;
    s.algorithm = -1;
    return s;
}

bool
cuda_gemm_has_fp4(struct cuda *c)
{
    struct shape s = shape_fp4(FP4_NATIVE_UNIT, FP4_NATIVE_UNIT, FP4_NATIVE_UNIT);
    return plan_for(c, &s) != NULL;
}

void
cuda_gemm_fp4(struct cuda *c, float *d, const uint8_t *codes, const uint8_t *tiles,
              const struct weight *w, size_t rows)
{
    struct shape s = shape_fp4(w->out, w->in, rows);
    if (w->out % FP4_NATIVE_UNIT || w->in % FP4_NATIVE_UNIT || !w->tiles || !w->values) {
        err_set(c->err, ERR_USAGE,
                "cuda: no native product of a weight of %zu x %zu%s", w->out, w->in,
                w->tiles ? "" : " without tiles");
        return;
    }
    const struct plan *p = plan_for(c, &s);
    if (!p || !set_tiles(c, p->op, w->tiles, tiles))
        return;
    run_plan(c, p, d, w->values, codes, NULL, w->scale2);
    c->k.ledger.flops += 2.0 * (double)rows * (double)w->out * (double)w->in;
}
