/* SPDX-License-Identifier: MIT */
/* products: cublasLtMatmul for the emulation: f32, bf16, E4M3 and, if the emulated device
 * has them, NVFP4 operands; sums in f32. */
#include "tests/emulate/include/cublasLt.h"

#include "lib/base/num.h"
#include "lib/nvfp4/tiles.h"
#include "tests/emulate/emulate.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct emulate_blas {
    int unused;
};

struct emulate_preference {
    uint32_t align, reductions;
};

struct emulate_product {
    int trans[2];                   // cublasOperation_t
    int on_device, scaled[2], fast; // fast: coarser sums of E4M3, which ours are not
    const uint8_t *scales[2];
};

struct emulate_layout {
    cudaDataType_t type;
    size_t rows, cols, ld;
};

/* ---- handles --------------------------------------------------------------------- */

const char *
cublasLtGetStatusString(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : s == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : s == CUBLAS_STATUS_ALLOC_FAILED  ? "CUBLAS_STATUS_ALLOC_FAILED"
                                              : "CUBLAS_STATUS_INVALID_VALUE";
}

/* No real version, so tuned.h does not apply. */
size_t
cublasLtGetVersion(void)
{
    return 1;
}

static cublasStatus_t
created(const void *p)
{
    return p ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t
cublasLtCreate(cublasLtHandle_t *lt)
{
    *lt = calloc(1, sizeof **lt);
    return created(*lt);
}

cublasStatus_t
cublasLtDestroy(cublasLtHandle_t lt)
{
    free(lt);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *op, cublasComputeType_t compute,
                         cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *op = calloc(1, sizeof **op);
    return created(*op);
}

cublasStatus_t
cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t op)
{
    free(op);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t op,
                               cublasLtMatmulDescAttributes_t which, const void *value,
                               size_t size)
{
    if (which == CUBLASLT_MATMUL_DESC_FAST_ACCUM) {
        if (size != sizeof(int8_t))
            return CUBLAS_STATUS_INVALID_VALUE;
        op->fast = *(const char *)value != 0;
        return CUBLAS_STATUS_SUCCESS;
    }
    void *to = which == CUBLASLT_MATMUL_DESC_TRANSA            ? (void *)&op->trans[0]
               : which == CUBLASLT_MATMUL_DESC_TRANSB          ? (void *)&op->trans[1]
               : which == CUBLASLT_MATMUL_DESC_POINTER_MODE    ? (void *)&op->on_device
               : which == CUBLASLT_MATMUL_DESC_A_SCALE_MODE    ? (void *)&op->scaled[0]
               : which == CUBLASLT_MATMUL_DESC_B_SCALE_MODE    ? (void *)&op->scaled[1]
               : which == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER ? (void *)&op->scales[0]
               : which == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER ? (void *)&op->scales[1]
                                                               : NULL;
    bool pointer = which == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER ||
                   which == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER;
    if (!to || size != (pointer ? sizeof(void *) : sizeof(int)))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type,
                           uint64_t rows, uint64_t cols, int64_t ld)
{
    *l = calloc(1, sizeof **l);
    if (*l)
        **l = (struct emulate_layout){ type, rows, cols, (size_t)ld };
    return created(*l);
}

cublasStatus_t
cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    free(l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = calloc(1, sizeof **p);
    if (*p)
        **p = (struct emulate_preference){
            16, ~0U // the default is 256, but the library's kernels need 16
        };
    return created(*p);
}

cublasStatus_t
cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                     cublasLtMatmulPreferenceAttributes_t which,
                                     const void *value, size_t size)
{
    bool is_size = which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    uint32_t *to = which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ? &p->reductions
                                                                       : &p->align;
    if (size != (is_size ? sizeof(size_t) : sizeof *to))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_size)
        memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- supported products ---------------------------------------------------------- */

/* Sizes of d = op(a) op(b); false if they do not fit. */
struct sizes {
    size_t m, n, k;
};

static bool
sizes_of(struct sizes *s, const struct emulate_product *op,
         const struct emulate_layout *a, const struct emulate_layout *b,
         const struct emulate_layout *c, const struct emulate_layout *d)
{
    bool ta = op->trans[0] == CUBLAS_OP_T, tb = op->trans[1] == CUBLAS_OP_T;
    s->m = ta ? a->cols : a->rows;
    s->k = ta ? a->rows : a->cols;
    s->n = tb ? b->rows : b->cols;
    return s->k == (tb ? b->cols : b->rows) && d->rows == s->m && d->cols == s->n &&
           c->rows == s->m && c->cols == s->n && a->ld >= a->rows && b->ld >= b->rows &&
           c->ld >= c->rows && d->ld >= d->rows && c->type == d->type &&
           a->type == b->type;
}

/* Whether both operands are K-major, in multiples of n. */
static bool
is_tn(const struct emulate_product *op, const struct emulate_layout *a,
      const struct emulate_layout *b, size_t n)
{
    return op->trans[0] == CUBLAS_OP_T && op->trans[1] == CUBLAS_OP_N &&
           op->scales[0] && op->scales[1] && a->rows % n == 0 && a->ld % n == 0 &&
           b->ld % n == 0;
}

/* E4M3 and NVFP4 are in that form only. */
static bool
is_supported(const struct emulate_product *op, const struct emulate_layout *a,
             const struct emulate_layout *b, const struct emulate_layout *d)
{
    bool wide = a->type == CUDA_R_32F, half = a->type == CUDA_R_16BF;
    if (wide || half)
        return d->type == CUDA_R_32F || (half && d->type == CUDA_R_16BF);
    if (a->type == CUDA_R_8F_E4M3)
        return is_tn(op, a, b, 16) && d->rows % 16 == 0 &&
               ((uintptr_t)op->scales[0] | (uintptr_t)op->scales[1]) % 16 == 0;
    return a->type == CUDA_R_4F_E2M1 && emulate_device()->major >= 10 &&
           d->type == CUDA_R_32F && is_tn(op, a, b, 32) &&
           op->scaled[0] == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 &&
           op->scaled[1] == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
}

enum { DEEP = 256, WIDE = 16, MANY = 4, BLOCK = 256 }; // tile of k, m, n; buffered m

/* Columns that are added by themselves; 0: as many as `divided` says.  NIBBLE_EMULATE_UNLIKE:
 * another number for each third number of rows. */
static size_t
deep_of(const struct sizes *s, const struct emulate_preference *want)
{
    if (want->reductions && s->n <= 320)
        return 0;
    return getenv("NIBBLE_EMULATE_UNLIKE") ? DEEP - s->n % 3 * 80 : DEEP;
}

/* Of the family: for some numbers of rows there are only slow ones that do not divide sums. */
static int
id_of(const struct sizes *s, const struct emulate_preference *want)
{
    return !want->reductions && s->n % 48 == 16 ? 21 : 66;
}

/* Of an algorithm that divides sums as the number of rows is. */
static size_t
divided(size_t n)
{
    return 64 + n % 4 * 32;
}

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lt, cublasLtMatmulDesc_t op,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t want, int max_algos,
                               cublasLtMatmulHeuristicResult_t *found, int *n)
{
    struct sizes s;
    (void)lt;
    *n = 0;
    if (!sizes_of(&s, op, a, b, c, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_supported(op, a, b, d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (; *n < max_algos && *n < 3; ++*n)
        found[*n].algo = (cublasLtMatmulAlgo_t){ *n, id_of(&s, want), want->align,
                                                 deep_of(&s, want) };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                     cublasLtMatmulAlgoConfigAttributes_t which,
                                     void *to, size_t size, size_t *written)
{
    if (which != CUBLASLT_ALGO_CONFIG_ID || size != sizeof algo->id)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, &algo->id, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

/* What an algorithm does not support, another one would not either. */
cublasStatus_t
cublasLtMatmulAlgoCheck(cublasLtHandle_t lt, cublasLtMatmulDesc_t op,
                        cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                        const cublasLtMatmulAlgo_t *algo,
                        cublasLtMatmulHeuristicResult_t *found)
{
    struct sizes s;
    (void)lt;
    if (!sizes_of(&s, op, a, b, c, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    *found = (cublasLtMatmulHeuristicResult_t){ *algo, 0 };
    return is_supported(op, a, b, d) ? CUBLAS_STATUS_SUCCESS
                                     : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- element types --------------------------------------------------------------- */

static float
scale_value(unsigned byte)
{
    return num_from_bf16((uint16_t)((byte & 0x7f) << 4)) * 0x1p120F;
}

static float
get(const void *p, cudaDataType_t type, size_t at)
{
    if (type == CUDA_R_8F_E4M3) {
        unsigned byte = ((const uint8_t *)p)[at];
        return byte & 0x80 ? -scale_value(byte) : scale_value(byte);
    }
    if (type == CUDA_R_32F)
        return ((const float *)p)[at];
    return num_from_bf16(((const uint16_t *)p)[at]);
}

static void
put(void *p, cudaDataType_t type, size_t at, float x)
{
    if (type == CUDA_R_32F)
        ((float *)p)[at] = x;
    else
        ((uint16_t *)p)[at] = emulate_bf16(num_bits_f32(x));
}

/* Decode E2M1, and E4M3 without sign. */
static float
code_value(unsigned code)
{
    static const float values[] = { 0, 0.5F, 1, 1.5F, 2, 3, 4, 6 };
    return code & 8 ? -values[code & 7] : values[code & 7];
}

/* ---- products -------------------------------------------------------------------- */

/* An operand: `across` is its index in m or n, `along` its index in k. */
struct operand {
    const void *p;
    const uint8_t *scales;
    cudaDataType_t type;
    size_t across_stride, along_stride; // strides in elements
    size_t along;                       // k
};

static float
element(const struct operand *o, size_t across, size_t along)
{
    if (o->type != CUDA_R_4F_E2M1)
        return get(o->p, o->type, across * o->across_stride + along * o->along_stride);
    size_t at = across * o->across_stride + along;
    unsigned byte = ((const uint8_t *)o->p)[at / 2];
    size_t tile = tiles_at(across, along / 16, o->along / 16);
    return code_value(at % 2 ? byte >> 4 : byte & 15) * scale_value(o->scales[tile]);
}

/* Pack `each` rows interleaved along k; zeros past the last row. */
static void
pack(float *to, const struct operand *o, size_t across, size_t n, size_t along,
     size_t deep, size_t each)
{
    for (size_t from = 0; from < n; from += each)
        for (size_t i = 0; i < each; i++)
            for (size_t k = 0; k < deep; k++)
                to[from * deep + k * each + i] =
                    from + i < n ? element(o, across + from + i, along + k) : 0;
}

typedef float eight __attribute__((vector_size(32), aligned(4)));

/* Inner loop on packed operands; not sanitized, as it takes most of the time. */
__attribute__((no_sanitize_address, no_sanitize_undefined, optimize("O3"))) static void
add_products(float sum[MANY][WIDE], const float *a, const float *b, size_t deep)
{
    eight s[MANY][2], x[2];
    memcpy(s, sum, sizeof s);
    for (size_t k = 0; k < deep; k++) {
        memcpy(x, a + k * WIDE, sizeof x);
        for (size_t j = 0; j < MANY; j++) {
            s[j][0] += b[k * MANY + j] * x[0];
            s[j][1] += b[k * MANY + j] * x[1];
        }
    }
    memcpy(sum, s, sizeof s);
}

/* sums (n, m) = op(a) op(b) */
static void
multiply(float *sums, const struct operand *a, const struct operand *b,
         const struct sizes *s, size_t most, float *buffer)
{
    float *left = buffer, *right = buffer + BLOCK * DEEP;
    for (size_t k = 0; k < s->k; k += most) {
        size_t deep = s->k - k < most ? s->k - k : most;
        pack(right, b, 0, s->n, k, deep, MANY);
        for (size_t m = 0; m < s->m; m += BLOCK) {
            size_t tall = s->m - m < BLOCK ? s->m - m : BLOCK;
            pack(left, a, m, tall, k, deep, WIDE);
            for (size_t j = 0; j < s->n; j += MANY)
                for (size_t i = 0; i < tall; i += WIDE) {
                    float sum[MANY][WIDE] = { 0 };
                    size_t w = tall - i < WIDE ? tall - i : WIDE;
                    size_t h = s->n - j < MANY ? s->n - j : MANY;
                    add_products(sum, left + i * deep, right + j * deep, deep);
                    for (size_t y = 0; y < h; y++)
                        for (size_t x = 0; x < w; x++)
                            sums[(j + y) * s->m + m + i + x] += sum[y][x];
                }
        }
    }
}

/* A product as it was asked for. */
struct product {
    struct emulate_product op;
    struct emulate_layout la, lb, lc, ld;
    struct sizes s;
    size_t deep;
    const float *alpha, *beta;
    const void *a, *b, *c;
    void *d;
};

/* d = alpha op(a) op(b) + beta c */
static void
run(void *with)
{
    const struct product *p = with;
    const struct sizes *s = &p->s;
    bool ta = p->op.trans[0] == CUBLAS_OP_T, tb = p->op.trans[1] == CUBLAS_OP_T;
    struct operand x = {
        p->a, p->op.scales[0], p->la.type, ta ? p->la.ld : 1, ta ? 1 : p->la.ld, s->k
    };
    struct operand y = {
        p->b, p->op.scales[1], p->lb.type, tb ? 1 : p->lb.ld, tb ? p->lb.ld : 1, s->k
    };
    emulate_settle();
    float alpha = *p->alpha, beta = *p->beta;
    float *sums = calloc(s->m * s->n + 1, sizeof *sums);
    float *buffer = malloc((BLOCK + s->n + MANY) * DEEP * sizeof *buffer);
    if (!sums || !buffer)
        emulate_fail("out of memory for a product");
    multiply(sums, &x, &y, s, p->deep, buffer);
    for (int i = 0; i < 2 && p->la.type == CUDA_R_8F_E4M3; i++) {
        float scale;
        memcpy(&scale, p->op.scales[i], sizeof scale);
        alpha *= scale;
    }
    for (size_t j = 0; j < s->n; j++)
        for (size_t i = 0; i < s->m; i++) {
            float v = alpha * sums[j * s->m + i];
            if (beta != 0)
                v += beta * get(p->c, p->lc.type, j * p->lc.ld + i);
            put(p->d, p->ld.type, j * p->ld.ld + i, v);
        }
    free(sums);
    free(buffer);
}

cublasStatus_t
cublasLtMatmul(cublasLtHandle_t lt, cublasLtMatmulDesc_t op, const void *alpha,
               const void *a, cublasLtMatrixLayout_t la, const void *b,
               cublasLtMatrixLayout_t lb, const void *beta, const void *c,
               cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
               const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
               cudaStream_t stream)
{
    struct product p = { *op,   *la,  *lb, *lc, *ld, { 0 }, algo->deep,
                         alpha, beta, a,   b,   c,   d };
    uintptr_t places = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
    (void)lt, (void)workspace, (void)bytes;
    if (!sizes_of(&p.s, op, la, lb, lc, ld) ||
        op->on_device == (la->type == CUDA_R_8F_E4M3))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_supported(op, la, lb, ld))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (algo->align == 0 || places % algo->align)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (algo->deep == 0)
        p.deep = divided(p.s.n);
    emulate_put(stream, run, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}
