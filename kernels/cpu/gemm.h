/* SPDX-License-Identifier: MIT */
/* gemm: C = A B or C + A B in f32, the same bits everywhere.
 *
 * Each element of C has one accumulator, which takes its products in the order of k with
 * one fused multiply-add each.  So neither the number of threads, nor the blocking, nor
 * the width of the vectors can change a bit, and machines with AVX2, AVX-512 and NEON
 * agree.  (OpenBLAS, oneDNN and MKL promise none of this.)
 *
 * Matrices are any f32, bf16 or f16 arrays with two strides, so all transposes are the
 * same call; they are brought into order, and to f32, as they are packed.  NVFP4 is the
 * same for rows or columns that follow each other, whole blocks long.
 *
 * Or the operands are rounded to bf16 (gemm_bf16_of): see there.
 *
 * gemv is the product of a few rows of x with a weight, whose codes are read once and
 * not packed; its sums have the same order, so a row of x gives the same bits alone, with
 * a few or with many.
 */
#ifndef NIBBLE_KERNELS_CPU_GEMM_H
#define NIBBLE_KERNELS_CPU_GEMM_H

#include "kernels/kernels.h"
#include "lib/core/par.h"

/* Element (i, k) is at i * rows + k * cols, in elements. */
struct operand {
    const void *p;
    enum dtype dtype;      // f32, bf16, f16 or nvfp4
    size_t rows, cols;     // strides
    const uint8_t *scales; // nvfp4
    float scale2;          // nvfp4
};

struct gemm {
    size_t m, n, k;
    struct operand a, b; // a: m x k; b: k x n
    float *c;            // (m, ldc)
    size_t ldc;
    bool add; // to what is in c, after it
};

/* The kernels of products: how panels look, and what multiplies them. */
struct gemm_isa;
/* Operands are f32. */
const struct gemm_isa *gemm_of(enum isa isa);
/* Operands are rounded to bf16, nearest even.  With a and b of bf16 a sum goes on by
 *
 *     sum = a * b + sum        in the order of k, each rounded once to f32,
 *
 * where denormals, operands as well as results, count as 0 of their sign.  The values of
 * NVFP4 are taken without their tensor scale, which makes them exact; the other operand is
 * multiplied by it, in f32, before it is rounded.
 *
 * That is what VDPBF16PS of AVX512_BF16 is defined to do with a pair of products, the one
 * in the upper halves first; there the earlier k is put.  Elsewhere, and where it is found
 * to do something else, panels are floats that were rounded, and the processor is told to
 * flush (flush.h).  Which result is a denormal is told after rounding; ARM tells before,
 * which can be seen in sums that are less than 2^-126 by less than 2^-150.  NaN is NaN,
 * whatever its bits. */
const struct gemm_isa *gemm_bf16_of(enum isa isa);
/* Whether those of `isa` have that instruction. */
bool gemm_has_pairs(enum isa isa);

/* Bytes that gemm_run needs to work in, by any number of threads. */
size_t gemm_workspace(size_t m, size_t n, size_t k);
/* room: aligned to 64 bytes.  0, or -1 with *err filled. */
int gemm_run(const struct gemm *g, const struct gemm_isa *isa, struct par *pool,
             float *room, struct err *err);

/* A few rows of x with a weight. */
struct gemv {
    float *y;       // (tokens, w->rows)
    const float *x; // (tokens, w->cols)
    const struct matrix *w;
    size_t tokens;
    bool add;  // to what is in y
    bool bf16; // as gemm_bf16_of; x is what gemv_narrow made
};

/* Up to how many tokens gemv is the faster way; never more than GEMV_MAX, which are the
 * most that it takes. */
enum { GEMV_MAX = 32 };
size_t gemv_max(enum isa isa, const struct matrix *w, bool bf16);
/* out = x as operands of w, rounded to bf16: for gemv. */
void gemv_narrow(float *out, const float *x, const struct matrix *w, size_t tokens,
                 enum isa isa);
int gemv_run(const struct gemv *g, enum isa isa, struct par *pool, struct err *err);

/* ---- private to this folder -------------------------------------- */

/* c[i * ldc + j] (+)= sum of a[k * MR + i] * b[k * NR + j], i < MR, j < NR. */
typedef void gemm_micro_fn(size_t k, const float *a, const float *b, float *c,
                           size_t ldc, bool add);
/* out[s * unit + r] = x[r * line + s] for r < rows and s < k, 0 for rows <= r < unit;
 * may write a few floats behind. */
typedef void gemm_turn_fn(float *out, const float *x, size_t line, size_t rows,
                          size_t k, size_t unit);
/* out = elements at .. at + n - 1 of x, as floats; nvfp4: whole blocks. */
typedef void gemm_read_fn(float *out, const struct operand *x, size_t at, size_t n);
/* out = x * factor, rounded to bf16; to be called while denormals are flushed. */
typedef void gemm_narrow_fn(float *out, const float *x, size_t n, float factor);
/* The same for a panel of k times `unit`, MR of them (left) or NR, in its place, and the
 * form that micro wants; may read a few floats behind. */
typedef void gemm_form_fn(float *panel, size_t k, bool left, float factor);
struct gemm_isa {
    size_t mr, nr;
    gemm_micro_fn *micro;
    gemm_turn_fn *turn;
    gemm_read_fn *read;
    gemm_narrow_fn *narrow;
    gemm_form_fn *form; // NULL: operands are f32, panels what turn made
};
/* A panel that turn made becomes what micro wants; nothing where that is the same. */
void gemm_form(const struct gemm_isa *isa, float *panel, size_t k, bool left,
               float factor);
/* c (+)= A B of panels: (m, k) in those of mr rows, (k, n) in those of nr columns. */
void gemm_panels(const struct gemm_isa *isa, const float *a, const float *b, float *c,
                 size_t ldc, size_t m, size_t n, size_t k, bool add);
extern const struct gemm_isa gemm_scalar, gemm_bf16_scalar;

/* For some of the weight's rows. */
typedef void gemv_fn(const struct gemv *g, size_t row, size_t rows);
extern gemv_fn gemv_scalar;

#if defined __x86_64__
extern const struct gemm_isa gemm_avx2, gemm_bf16_avx2, gemm_avx512, gemm_bf16_avx512,
    gemm_pairs_avx512;
extern gemv_fn gemv_avx2, gemv_avx512;
#elif defined __aarch64__
extern const struct gemm_isa gemm_neon, gemm_bf16_neon;
extern gemv_fn gemv_neon;
#endif

#endif
