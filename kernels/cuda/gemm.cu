/* SPDX-License-Identifier: MIT */
/* gemm: products by cuBLASLt.
 *
 * cuBLASLt is column-major, so it sees our matrices transposed: for y = x W' it
 * computes y' = W x'.  The algorithm is the first of its heuristics, or another of
 * their list that tuned.h names: a function of sizes, types, library and device.
 *
 * NVFP4 times NVFP4 on 4-bit tensor cores: both operands are rows of codes, which
 * cuBLASLt takes as columns ("TN", the only layout it supports), with block scales in
 * tiles; sizes are multiples of FP4_NATIVE_UNIT, which aligns all pointers and leading
 * dimensions.  This code has never run: no such chip was available.
 *
 * FP8 is TN, too, so products that sum over rows take the transposed forms. The scales
 * of both operands are read from the device.  Only forward sums are of the tensor cores'
 * own, coarser kind, as is usual: gradients are smaller and summed over more.
 *
 * A weight in the type of activations is an operand as it is.  NVFP4 is expanded to
 * bf16 first, code times scale, which is exact, and the tensor scale is alpha; a weight
 * of any other type is converted.  Both are done for some rows at a time. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/tuned.h"

#define TILES_FN static inline
#include "lib/nvfp4/tiles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Key of a plan. */
struct shape {
    size_t m, n, k, lda, ldb, ldc, ldd;
    int ta, tb;  // cublasOperation_t
    int in, out; // cudaDataType_t
    int align;   // alignment of pointers in bytes; 0: that of allocations
    int fast;    // FP8: sums as the tensor cores have them
    int alike;   // a row of the result has the same bits whatever n is
    int unused;  // no padding: memcmp compares keys
};

enum {
    ALGORITHMS = 16, // algorithms requested from the heuristics
    NARROW = 2048,   // a weight with fewer rows is narrow
    CUT = 256,       // a weight is cut at multiples of so many rows
    MORE = 32,       // rows that choose_whole adds, again and again
    MOST_MORE = 128, // its maximum
    MANY = 128, // rows for which the algorithm is chosen that others are compared with
    FEW = 16,   // rows that they are compared by
    SETTLED = PARTIALS / 16, // max. number of results then: three of up to 4 bytes
};

#if CUDART_VERSION >= 12080
#define HAS_FP4 1
enum { FP4 = CUDA_R_4F_E2M1 };
#else
#define HAS_FP4 0
enum { FP4 = -1 };
#endif
enum { FP8 = CUDA_R_8F_E4M3 };

struct plan {
    struct shape shape;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algo;
    bool settled; // see settle
    char *name;   // for profiling
};

bool
cuda_gemm_open(struct cuda *c)
{
    return cuda_check_blas(c, cublasLtCreate(&c->lt), "cublasLtCreate");
}

static void
free_plan(struct plan *p)
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
        free_plan(&c->plans[i]);
    free(c->plans);
    if (c->lt)
        cublasLtDestroy(c->lt);
}

/* ---- plans ----------------------------------------------------------------------- */

/* Layout of a matrix, column-major. */
static bool
layout(struct cuda *c, cublasLtMatrixLayout_t *l, int type, size_t rows, size_t cols,
       size_t ld)
{
    return cuda_check_blas(
        c, cublasLtMatrixLayoutCreate(l, (cudaDataType_t)type, rows, cols, (int64_t)ld),
        "cublasLtMatrixLayoutCreate");
}

/* Set the block scales of both operands. */
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
    err_set(c->k.err, ERR_USAGE,
            "cuda: libnibble-cuda.so was built with CUDA %d.%d, and products of NVFP4 "
            "need 12.8 or later; --path dequant does without them",
            CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return false;
#endif
}

/* Set the scales of both operands of FP8, on the device. */
static bool
set_scales(struct cuda *c, cublasLtMatmulDesc_t op, const float *a, const float *b)
{
    return cuda_check_blas(c,
                           cublasLtMatmulDescSetAttribute(
                               op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &a, sizeof a),
                           "the scale of A") &&
           cuda_check_blas(c,
                           cublasLtMatmulDescSetAttribute(
                               op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &b, sizeof b),
                           "the scale of B");
}

static bool
describe_fp8(struct cuda *c, struct plan *p)
{
    const int8_t fast = (int8_t)p->shape.fast;
    return set_scales(c, p->op, c->one_zero, c->one_zero) &&
           cuda_check_blas(
               c,
               cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                                              &fast, sizeof fast),
               "sums of FP8");
}

static bool
describe(struct cuda *c, struct plan *p)
{
    const struct shape *s = &p->shape;
    // FP8 has its scales on the device, and alpha and beta are constants.
    const cublasLtPointerMode_t mode =
        s->in == FP8 ? CUBLASLT_POINTER_MODE_HOST : CUBLASLT_POINTER_MODE_DEVICE;
    bool ta = s->ta == CUBLAS_OP_T, tb = s->tb == CUBLAS_OP_T;
    if (!cuda_check_blas(
            c, cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "cublasLtMatmulDescCreate"))
        return false;
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &s->ta,
                                   sizeof s->ta);
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &s->tb,
                                   sizeof s->tb);
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode,
                                   sizeof mode);
    // The heuristics need scale pointers; each product sets its own.
    if (s->in == FP4 && !set_tiles(c, p->op, c->q.workspace, c->q.workspace))
        return false;
    if (s->in == FP8 && !describe_fp8(c, p))
        return false;
    return layout(c, &p->a, s->in, ta ? s->k : s->m, ta ? s->m : s->k, s->lda) &&
           layout(c, &p->b, s->in, tb ? s->n : s->k, tb ? s->k : s->n, s->ldb) &&
           layout(c, &p->c, s->out, s->m, s->n, s->ldc) &&
           layout(c, &p->d, s->out, s->m, s->n, s->ldd);
}

/* Whether n tokens are close enough to the tuned number. */
static bool
is_near(size_t tuned, size_t n)
{
    return n > tuned * 3 / 4 && n <= tuned + tuned / 2;
}

/* Index in the heuristics' list of the algorithm that was fastest on such a device with
 * this version; 0 if not tuned. */
static int
tuned(const struct cuda *c, const struct shape *s)
{
    if (s->in == FP8 || c->major != TUNED_MAJOR || c->sms != TUNED_SMS ||
        c->k.is.act != DT_BF16 || cublasLtGetVersion() != TUNED_CUBLAS)
        return 0;
    enum trans trans = s->ta == CUBLAS_OP_T ? TN : s->tb == CUBLAS_OP_T ? NT : NN;
    for (size_t i = 0; i < sizeof tunings / sizeof *tunings; i++) {
        const struct tuning *t = &tunings[i];
        bool tokens = trans == NT ? t->n == s->n && is_near(t->k, s->k)
                                  : is_near(t->n, s->n) && t->k == s->k;
        if (t->trans == trans && t->wide == (s->out == CUDA_R_32F) && t->m == s->m &&
            tokens)
            return t->algorithm;
    }
    return 0;
}

static bool
supports(struct cuda *c, const struct plan *p, const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t found;
    return cublasLtMatmulAlgoCheck(c->lt, p->op, p->a, p->b, p->c, p->d, algo,
                                   &found) == CUBLAS_STATUS_SUCCESS &&
           found.workspaceSize <= WORKSPACE;
}

/* Algorithms for the operands of p, the fastest first by the heuristics; whole: only algorithms that
 * do not divide a sum among blocks.  0: an error. */
static int
list_algorithms(struct cuda *c, const struct plan *p, bool whole,
                cublasLtMatmulHeuristicResult_t *found)
{
    cublasLtMatmulPreference_t want;
    const size_t workspace = WORKSPACE;
    const uint32_t align = (uint32_t)p->shape.align,
                   none = CUBLASLT_REDUCTION_SCHEME_NONE;
    const cublasLtMatmulPreferenceAttributes_t of_pointers[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    int n = 0;
    if (!cuda_check_blas(c, cublasLtMatmulPreferenceCreate(&want),
                         "cublasLtMatmulPreferenceCreate"))
        return 0;
    cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace, sizeof workspace);
    if (whole)
        cublasLtMatmulPreferenceSetAttribute(
            want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none);
    for (int i = 0; i < 4 && align; i++)
        cublasLtMatmulPreferenceSetAttribute(want, of_pointers[i], &align,
                                             sizeof align);
    cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(
        c->lt, p->op, p->a, p->b, p->c, p->d, want, ALGORITHMS, found, &n);
    cublasLtMatmulPreferenceDestroy(want);
    if (s == CUBLAS_STATUS_SUCCESS && n == 0)
        s = CUBLAS_STATUS_NOT_SUPPORTED;
    return cuda_check_blas(c, s, "cublasLtMatmulAlgoGetHeuristic") ? n : 0;
}

/* The family that an algorithm is of. */
static int
family(const cublasLtMatmulAlgo_t *a)
{
    int id = -1;
    size_t n;
    cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id,
                                         &n);
    return id;
}

static const struct plan *plan_for(struct cuda *c, const struct shape *s);

/* The family of what is fastest for MANY rows, sums divided or not; -1: an error. */
static int
best_family(struct cuda *c, const struct shape *s)
{
    struct shape of = *s;
    of.n = MANY;
    of.alike = 0;
    const struct plan *p = plan_for(c, &of);
    return p ? family(&p->algo) : -1;
}

/* An algorithm that does not divide sums.  Where the list has none of the best family, others
 * are ten times slower (H200, 80 and 128 rows of 9728 columns), so that of a few more rows is
 * taken. */
static bool
choose_whole(struct cuda *c, struct plan *p)
{
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
    int n = list_algorithms(c, p, true, found), which = tuned(c, &p->shape),
        best = n ? best_family(c, &p->shape) : -1;
    if (n)
        p->algo = found[which < n ? which : 0].algo;
    for (size_t more = MORE; more <= MOST_MORE && cuda_ready(c); more += MORE) {
        if (family(&p->algo) == best)
            break;
        struct plan larger = { p->shape };
        larger.shape.n += more;
        if (describe(c, &larger) && list_algorithms(c, &larger, true, found) &&
            family(&found->algo) == best && supports(c, p, &found->algo))
            p->algo = found->algo;
        free_plan(&larger);
    }
    return cuda_ready(c);
}

static bool
choose(struct cuda *c, struct plan *p)
{
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
    if (p->shape.alike)
        return choose_whole(c, p);
    int n = list_algorithms(c, p, false, found), which = tuned(c, &p->shape);
    if (n)
        p->algo = found[which < n ? which : 0].algo;
    return n > 0;
}

static struct plan *
find_plan(struct cuda *c, const struct shape *s)
{
    for (size_t i = 0; i < c->n_plans; i++)
        if (memcmp(&c->plans[i].shape, s, sizeof *s) == 0)
            return &c->plans[i];
    return NULL;
}

static bool
make_plan(struct cuda *c, struct plan *p, const struct shape *s)
{
    *p = (struct plan){ *s };
    if (c->trace &&
        asprintf(&p->name, "product %c%c %s%s %zu %zu %zu", s->ta ? 'T' : 'N',
                 s->tb ? 'T' : 'N', s->in == FP8 ? "fp8 " : "",
                 s->out == CUDA_R_32F ? "f32" : "bf16", s->m, s->n, s->k) < 0)
        p->name = NULL;
    return describe(c, p) && choose(c, p);
}

static bool
keep_plan(struct cuda *c, const struct plan *p)
{
    if (c->n_plans == c->cap_plans) {
        size_t cap = c->cap_plans ? 2 * c->cap_plans : 64;
        struct plan *more = (struct plan *)realloc(c->plans, cap * sizeof *more);
        if (!more) {
            err_set(c->k.err, ERR_MEMORY, "out of memory for a product");
            return false;
        }
        c->plans = more;
        c->cap_plans = cap;
    }
    c->plans[c->n_plans++] = *p;
    return true;
}

/* Until the next call; NULL: an error. */
static const struct plan *
plan_for(struct cuda *c, const struct shape *s)
{
    const struct plan *found = find_plan(c, s);
    struct plan p;
    if (found)
        return found;
    if (!make_plan(c, &p, s) || !keep_plan(c, &p)) {
        free_plan(&p);
        return NULL;
    }
    return &c->plans[c->n_plans - 1];
}

static void
run_plan(struct cuda *c, const struct plan *p, void *d, const void *a, const void *b,
         const void *add, const float *alpha)
{
    static const float constants[] = { 1, 0 };
    const float *one = p->shape.in == FP8 ? constants : c->one_zero, *zero = one + 1;
    cuda_check_blas(c,
                    cublasLtMatmul(c->lt, p->op, alpha ? alpha : one, a, p->a, b, p->b,
                                   add ? one : zero, add ? add : d, p->c, d, p->d,
                                   &p->algo, c->q.workspace, WORKSPACE, c->q.stream),
                    "cublasLtMatmul");
    c->q.early = c->trace ? NOT_EARLY : EARLY_FORWARD; // it writes no weight
    if (c->trace)
        cuda_mark(c, p->name ? p->name : "product");
}

/* Common alignment of the pointers if below 16 bytes, else 0: column views may start
 * anywhere. */
static int
min_align(const void *a, const void *b, const void *c, const void *d)
{
    uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
    return all % 16 ? (int)(all & -all) : 0;
}

/* ---- rows that are alike --------------------------------------------------------- */

/* An algorithm that does not divide a sum among blocks gives a row of the result the same
 * bits, however many rows there are.  Two such algorithms have one order of sums as a rule:
 * all did that cuBLASLt 13.1 names for 65 to 4,096 rows of a 4B model (H200).  That is no
 * promise, so each is compared with one that is the same for all numbers of rows, and which
 * is taken if bits differ. */

/* *differs: set if x and y are not the same. */
static __global__ void
compare_kernel(int *differs, const uint32_t *x, const uint32_t *y, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        if (x[i] != y[i])
            *differs = 1;
}

/* signs: the bits of them. */
static __global__ void
negate_kernel(uint32_t *x, uint32_t signs, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        x[i] ^= signs;
}

/* Whether both algorithms have the same sums of a few rows.  Of bf16 results few show the
 * last bits of their sums, so sums are compared less what they are rounded to. */
static bool
same_sums(struct cuda *c, const struct plan *few, const cublasLtMatmulAlgo_t *one,
          const cublasLtMatmulAlgo_t *other, const void *a, const void *b,
          const float *alpha)
{
    const struct shape *s = &few->shape;
    const size_t words = s->m * s->n / (s->out == CUDA_R_32F ? 1 : 2),
                 room = (words + 3) / 4 * 4; // whole 16 bytes
    const uint32_t signs = s->out == CUDA_R_32F ? 0x80000000U : 0x80008000U;
    const unsigned blocks = blocks_of(words, 256);
    uint32_t *rounded = (uint32_t *)c->q.partials, *x = rounded + room, *y = x + room;
    int *differs = (int *)(y + room), found = 0;
    struct plan by_one = *few, by_other = *few;
    by_one.algo = *one;
    by_other.algo = *other;
    cuda_zero(&c->k, differs, sizeof *differs);
    run_plan(c, &by_one, rounded, a, b, NULL, alpha);
    negate_kernel<<<blocks, 256, 0, c->q.stream>>>(rounded, signs, words);
    run_plan(c, &by_one, x, a, b, rounded, alpha);
    run_plan(c, &by_other, y, a, b, rounded, alpha);
    compare_kernel<<<blocks, 256, 0, c->q.stream>>>(differs, x, y, words);
    cuda_launched(c, "products: compare");
    return kernels_download(&c->k, &found, differs, sizeof found) < 0 || !found;
}

/* Whether such a product, of any number of rows, was computed by that algorithm before. */
static bool
is_settled(const struct cuda *c, const struct plan *p)
{
    for (size_t i = 0; i < c->n_plans; i++) {
        const struct plan *q = &c->plans[i];
        struct shape of = q->shape;
        of.n = p->shape.n;
        if (q->settled && memcmp(&of, &p->shape, sizeof of) == 0 &&
            memcmp(&q->algo, &p->algo, sizeof p->algo) == 0)
            return true;
    }
    return false;
}

/* Before the first product by the plan of s: see that it has an algorithm with the bits of
 * the one that is chosen for MANY rows. */
static void
settle(struct cuda *c, const struct shape *s, const void *a, const void *b,
       const float *alpha)
{
    struct shape of = *s;
    of.n = MANY;
    const struct plan *many = plan_for(c, &of);
    if (!many)
        return;
    const cublasLtMatmulAlgo_t one = many->algo;
    of.n = FEW < SETTLED / of.m ? FEW : 2;
    of.alike = 0; // its own algorithm is not used
    of.ldc = of.ldd = of.m;
    const struct plan *few = plan_for(c, &of);
    struct plan *p = find_plan(c, s);
    if (!few || !p)
        return;
    bool same =
        memcmp(&p->algo, &one, sizeof one) == 0 || is_settled(c, p) ||
        (of.m * of.n <= SETTLED && supports(c, few, &one) &&
         supports(c, few, &p->algo) && same_sums(c, few, &one, &p->algo, a, b, alpha));
    if (!same && supports(c, p, &one))
        p->algo = one;
    else if (!same && cuda_ready(c))
        err_set(c->k.err, ERR_USAGE,
                "cuda: cuBLASLt names no algorithm for %zu rows that adds in the order "
                "of that for %d: --prefill-chunk 64 does without",
                s->n, (int)MANY);
    p->settled = true;
}

/* d = alpha op(a) op(b) + add; alpha: on the device, NULL: 1; add: NULL: 0. */
static void
multiply(struct cuda *c, const struct shape *s, void *d, const void *a, const void *b,
         const void *add, const float *alpha)
{
    struct shape mine = *s;
    mine.align = min_align(a, b, add, d);
    const struct plan *p = plan_for(c, &mine);
    if (p && mine.alike && !p->settled) {
        settle(c, &mine, a, b, alpha);
        p = plan_for(c, &mine);
    }
    if (p && cuda_ready(c))
        run_plan(c, p, d, a, b, add, alpha);
}

/* The same of FP8: the scales are those of x and y, of which a and b are forms. */
static void
multiply_fp8(struct cuda *c, const struct shape *s, void *d, const uint8_t *a,
             const uint8_t *b, const void *add, const struct matrix *x,
             const struct matrix *y)
{
    struct shape mine = *s;
    mine.align = min_align(a, b, add, d);
    const struct plan *p = plan_for(c, &mine);
    if (p && set_scales(c, p->op, x->scale2, y->scale2))
        run_plan(c, p, d, a, b, add, NULL);
}

/* ---- weights as operands --------------------------------------------------------- */

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
        narrow_kernel<<<blocks, 256, 0, c->q.stream>>>(to, (const __half *)x, n);
    else
        narrow_kernel<<<blocks, 256, 0, c->q.stream>>>(to, (const float *)x, n);
    cuda_launched(c, "narrow");
}

static size_t
act_bytes(const struct cuda *c)
{
    return dtype_bits(c->k.is.act) / 8;
}

/* Some rows of a weight as an operand, in the type of activations. */
struct rows {
    const void *p;
    const float *alpha;
    size_t first, n;
};

static bool
is_operand(const struct cuda *c, const struct matrix *w)
{
    return w->dtype == c->k.is.act ||
           (w->dtype == DT_NVFP4 && w->expanded && c->k.is.act == DT_BF16);
}

/* The next rows, from `first` on.  NVFP4 is cut at the same rows in every form, so that
 * results do not depend on which form memory allows. */
static struct rows
rows_from(struct cuda *c, const struct matrix *w, size_t first)
{
    size_t each = w->cols * act_bytes(c);
    struct rows r = { NULL, w->dtype == DT_NVFP4 ? w->scale2 : NULL, first,
                      w->rows - first };
    // NVFP4 is expanded to bf16, which is stored behind the f32.
    bool twice = w->dtype == DT_NVFP4 && c->k.is.act == DT_F32;
    size_t max = EXPANDED / (twice ? each + each / 2 : each);
    max -= max > CUT ? max % CUT : 0;
    if (w->dtype == DT_NVFP4 || !is_operand(c, w))
        r.n = r.n < max ? r.n : max ? max : 1;
    if (is_operand(c, w)) {
        const char *all = (const char *)(w->dtype == DT_NVFP4 ? w->expanded : w->data);
        r.p = all + first * each;
        return r;
    }
    r.p = c->q.expanded;
    size_t at = first * w->cols, n = r.n * w->cols;
    char *half = (char *)c->q.expanded + (twice ? r.n * each : 0);
    if (max == 0) {
        err_set(c->k.err, ERR_USAGE,
                "cuda: a weight has rows of %zu columns, too many for its buffer",
                w->cols);
    } else if (w->dtype == DT_NVFP4) {
        cuda_expand(c, half, (const uint8_t *)w->data + at / 2,
                    w->scales + at / NVFP4_BLOCK, n);
        if (twice)
            cuda_convert_plain(c, (float *)c->q.expanded, half, DT_BF16, n);
    } else {
        const void *from = dtype_at(w->dtype, w->data, at);
        if (c->k.is.act == DT_F32)
            cuda_convert_plain(c, (float *)c->q.expanded, from, w->dtype, n);
        else
            narrow(c, c->q.expanded, from, w->dtype, n);
    }
    return r;
}

/* ---- the operations -------------------------------------------------------------- */

static int
type_of(enum dtype d)
{
    return d == DT_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* Whether the products of n weights are those that read them as they are stored.  Sums of codes have
 * another order there than those of expanded weights, and which of them a training keeps depends on
 * memory and ranks. */
static bool
reads_stored(const struct cuda *c, const struct matrix *x, const struct matrix *w,
             size_t n)
{
    bool quantized = false;
    for (size_t i = 0; i < n; i++)
        quantized = quantized || w[i].dtype == DT_NVFP4;
    return x->rows <= GEMV_MAX && !(quantized && c->k.is.trains);
}

static void
linear(struct cuda *c, const struct matrix *y, const struct matrix *x,
       const struct matrix *w, const struct matrix *add)
{
    if (reads_stored(c, x, w, 1)) {
        cuda_gemv(c, y, x, w, add);
        return;
    }
    for (size_t first = 0; first < w->rows && cuda_ready(c);) {
        struct rows r = rows_from(c, w, first);
        struct shape s = { r.n,     x->rows,   w->cols,     w->cols,    x->stride,
                           w->rows, y->stride, CUBLAS_OP_T, CUBLAS_OP_N };
        s.in = type_of(x->dtype);
        s.out = type_of(y->dtype);
        s.alike = !c->k.is.trains;
        multiply(c, &s, dtype_at(y->dtype, y->data, first), r.p, x->data,
                 add ? dtype_at(y->dtype, add->data, first) : NULL, r.alpha);
        first += r.n;
    }
}

static void
linear_fp8(struct cuda *c, const struct matrix *y, const struct matrix *x,
           const struct matrix *w, const struct matrix *add)
{
    struct shape s = { w->rows, x->rows,   w->cols,     w->cols,    x->stride,
                       w->rows, y->stride, CUBLAS_OP_T, CUBLAS_OP_N };
    s.in = FP8;
    s.out = type_of(y->dtype);
    s.fast = 1;
    multiply_fp8(c, &s, y->data, (const uint8_t *)w->data, (const uint8_t *)x->data,
                 add ? add->data : NULL, w, x);
}

void
cuda_linear(struct kernels *k, size_t n, const struct matrix *y, const struct matrix *x,
            const struct matrix *w, const struct matrix *add)
{
    struct cuda *c = cuda_of(k);
    if (x->rows == 0)
        return;
    if (n > 1 && x->dtype == c->k.is.act && reads_stored(c, x, w, n) &&
        cuda_gemv_many(c, n, y, x, w))
        return;
    for (size_t i = 0; i < n; i++)
        if (x->dtype == DT_NVFP4)
            cuda_linear_fp4(c, &y[i], x, &w[i], add);
        else if (x->dtype == DT_F8_E4M3)
            linear_fp8(c, &y[i], x, &w[i], add);
        else
            linear(c, &y[i], x, &w[i], add);
}

static void
linear_dx(struct cuda *c, const struct matrix *dx, const struct matrix *dy,
          const struct matrix *w, const void *add)
{
    for (size_t first = 0; first < w->rows && cuda_ready(c);) {
        struct rows r = rows_from(c, w, first);
        struct shape s = { w->cols,    dx->rows,   r.n,         w->cols,    dy->stride,
                           dx->stride, dx->stride, CUBLAS_OP_N, CUBLAS_OP_N };
        s.in = s.out = type_of(dx->dtype);
        multiply(c, &s, dx->data, r.p, dtype_at(dy->dtype, dy->data, first),
                 first ? dx->data : add, r.alpha);
        first += r.n;
    }
}

/* w: its transposed form has dy's columns from those of w on. */
static void
linear_dx_fp8(struct cuda *c, const struct matrix *dx, const struct matrix *dy,
              const struct matrix *w, const void *add)
{
    struct shape s = { w->cols,    dx->rows,   dy->cols,   w->transposed_stride,
                       dy->stride, dx->stride, dx->stride, CUBLAS_OP_T,
                       CUBLAS_OP_N };
    s.in = FP8;
    s.out = type_of(dx->dtype);
    multiply_fp8(c, &s, dx->data, w->transposed, (const uint8_t *)dy->data, add, w, dy);
}

static void
linear_dw_fp8(struct cuda *c, const struct matrix *dw, const struct matrix *dy,
              const struct matrix *x, bool add)
{
    // Behind the last row both are zero.
    size_t rows = (x->rows + FP8_UNIT - 1) / FP8_UNIT * FP8_UNIT;
    struct shape s = { x->cols,
                       dw->rows,
                       rows,
                       x->transposed_stride,
                       dy->transposed_stride,
                       dw->stride,
                       dw->stride,
                       CUBLAS_OP_T,
                       CUBLAS_OP_N };
    s.in = FP8;
    s.out = type_of(dw->dtype);
    multiply_fp8(c, &s, dw->data, x->transposed, dy->transposed, add ? dw->data : NULL,
                 x, dy);
}

static void
linear_dw(struct cuda *c, const struct matrix *dw, const struct matrix *dy,
          const struct matrix *x, bool add)
{
    if (x->dtype == DT_F8_E4M3) {
        linear_dw_fp8(c, dw, dy, x, add);
        return;
    }
    struct shape s = { x->cols,    dw->rows,   x->rows,     x->stride,  dy->stride,
                       dw->stride, dw->stride, CUBLAS_OP_N, CUBLAS_OP_T };
    s.in = type_of(x->dtype);
    s.out = type_of(dw->dtype);
    if (cuda_ready(c))
        multiply(c, &s, dw->data, x->data, dy->data, add ? dw->data : NULL, NULL);
}

static size_t
sum_of_rows(const struct matrix *w, size_t n)
{
    size_t rows = 0;
    for (size_t i = 0; i < n; i++)
        rows += w[i].rows;
    return rows;
}

/* Whether n weights are multiplied as one matrix: decided by sizes and a shared tensor
 * scale, not by whether they are contiguous, which depends on memory. */
static bool
can_fuse(const struct cuda *c, const struct matrix *w, size_t n)
{
    bool one =
        n > 1 && c->k.is.act == DT_BF16 && sum_of_rows(w, n) * w->cols <= EXPANDED / 2;
    for (size_t i = 0; i < n; i++)
        one = one && w[i].dtype == DT_NVFP4 && w[i].scale2 && w[i].scale2 == w->scale2;
    return one;
}

/* Whether the transposed forms of FP8 weights are columns of one matrix, of one scale. */
static bool
are_columns(const struct matrix *w, size_t n)
{
    size_t rows = 0;
    bool one = true;
    for (size_t i = 0; i < n; rows += w[i].rows, i++)
        one = one && w[i].scale2 == w->scale2 &&
              w[i].transposed == w->transposed + rows &&
              w[i].transposed_stride == w->transposed_stride;
    return one;
}

/* Their expanded form as one matrix: in place if contiguous, else copied. */
static const void *
fuse_rows(struct cuda *c, const struct matrix *w, size_t n)
{
    const char *next = (const char *)w->expanded;
    char *to = (char *)c->q.expanded;
    for (size_t i = 0; i < n && next; i++)
        next = w[i].expanded == next ? next + w[i].rows * w[i].cols * 2 : NULL;
    if (next)
        return w->expanded;
    for (size_t i = 0; i < n; to += w[i].rows * w[i].cols * 2, i++)
        if (w[i].expanded)
            cuda_copy(&c->k, to, w[i].expanded, w[i].rows * w[i].cols * 2);
        else
            cuda_expand(c, to, (const uint8_t *)w[i].data, w[i].scales,
                        w[i].rows * w[i].cols);
    return c->q.expanded;
}

void
cuda_linear_dx(struct kernels *k, size_t n, const struct matrix *dx,
               const struct matrix *dy, const struct matrix *w,
               const struct matrix *add)
{
    struct cuda *c = cuda_of(k);
    bool fp8 = dy->dtype == DT_F8_E4M3;
    if (dx->rows == 0)
        return;
    if (fp8 && are_columns(w, n)) {
        linear_dx_fp8(c, dx, dy, w, add ? add->data : NULL);
        return;
    }
    if (can_fuse(c, w, n)) {
        struct shape s = { dx->cols,   dx->rows,   dy->cols,    dx->cols,   dy->stride,
                           dx->stride, dx->stride, CUBLAS_OP_N, CUBLAS_OP_N };
        s.in = s.out = type_of(dx->dtype);
        multiply(c, &s, dx->data, fuse_rows(c, w, n), dy->data, add ? add->data : NULL,
                 w->scale2);
        return;
    }
    const void *sum = add ? add->data : NULL;
    for (size_t i = 0, first = 0; i < n; first += w[i].rows, i++) {
        struct matrix part = matrix_cols(dy, first, w[i].rows);
        (fp8 ? linear_dx_fp8 : linear_dx)(c, dx, &part, &w[i], sum);
        sum = dx->data;
    }
}

/* Whether the gradients are contiguous. */
static bool
contiguous(const struct matrix *dw, size_t n)
{
    bool together = true;
    for (size_t i = 1; i < n; i++)
        together = together && dw[i].dtype == dw->dtype &&
                   dw[i].data == dtype_at(dw->dtype, dw[i - 1].data,
                                          dw[i - 1].rows * dw[i - 1].cols);
    return together;
}

void
cuda_linear_dw(struct kernels *k, size_t n, const struct matrix *dw,
               const struct matrix *dy, const struct matrix *x, bool add)
{
    struct cuda *c = cuda_of(k);
    bool narrow = false; // wide ones fill the chip alone
    for (size_t i = 0; i < n; i++) {
        narrow = narrow || dw[i].rows < NARROW;
        if (x->rows == 0 && !add)
            cuda_zero(k, dw[i].data,
                      dw[i].rows * dw[i].cols * dtype_bits(dw[i].dtype) / 8);
    }
    if (x->rows == 0)
        return;
    if (n > 1 && narrow && contiguous(dw, n)) {
        struct matrix all = *dw;
        all.rows = dy->cols;
        linear_dw(c, &all, dy, x, add);
        return;
    }
    for (size_t i = 0, first = 0; i < n; first += dw[i].rows, i++) {
        struct matrix part = matrix_cols(dy, first, dw[i].rows);
        linear_dw(c, &dw[i], &part, x, add);
    }
}

/* ---- NVFP4 with NVFP4 ------------------------------------------------------------ */

static struct shape
shape_fp4(size_t out, size_t in, size_t rows)
{
    struct shape s = { out, tiles_rows(rows), in,         in, in, out,
                       out, CUBLAS_OP_T,      CUBLAS_OP_N };
    s.in = FP4;
    s.out = CUDA_R_32F;
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
              const struct matrix *w, size_t rows)
{
    struct shape s = shape_fp4(w->rows, w->cols, rows);
    if (w->rows % FP4_NATIVE_UNIT || w->cols % FP4_NATIVE_UNIT || !w->tiles ||
        !w->data) {
        err_set(c->k.err, ERR_USAGE,
                "cuda: no native NVFP4 product of a weight of %zu x %zu%s: expected "
                "multiples of %d; --path dequant takes it",
                w->rows, w->cols, w->tiles ? "" : " without tiles",
                (int)FP4_NATIVE_UNIT);
        return;
    }
    const struct plan *p = plan_for(c, &s);
    if (!p || !set_tiles(c, p->op, w->tiles, tiles))
        return;
    run_plan(c, p, d, w->data, codes, NULL, w->scale2);
}
