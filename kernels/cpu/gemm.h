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
 * gemv is the product of a few rows of x with a weight, whose codes are read once and
 * not packed; its sums have the same order, so a row of x gives the same bits alone, with
 * a few or with many.
 */
#ifndef NIBBLE_KERNELS_CPU_GEMM_H
#define NIBBLE_KERNELS_CPU_GEMM_H

#include "kernels/cpu/team.h"
#include "kernels/kernels.h"

/* Element (i, k) is at i * rows + k * cols, in elements. */
struct matrix {
    const void *p;
    enum dtype dtype;      // f32, bf16, f16 or nvfp4
    size_t rows, cols;     // strides
    const uint8_t *scales; // nvfp4
    float scale2;          // nvfp4
};

struct gemm {
    size_t m, n, k;
    struct matrix a, b; // a: m x k; b: k x n
    float *c;           // (m, ldc)
    size_t ldc;
    bool add; // to what is in c, after it
};

/* Bytes that gemm_run needs to work in. */
size_t gemm_room(const struct gemm *g, const struct team *team);
/* room: aligned to 64 bytes.  0, or -1 when the team is in error. */
int gemm_run(const struct gemm *g, enum isa isa, struct team *team, float *room,
             struct err *err);

/* Up to how many rows gemv is the faster way; never more than GEMV_MOST, which are the
 * most that it takes. */
enum { GEMV_MOST = 32 };
size_t gemv_most(enum isa isa);
/* y (+)= x W' */
int gemv_run(float *y, const float *x, const struct weight *w, size_t rows, bool add,
             enum isa isa, struct team *team, struct err *err);

/* ---- private to this folder -------------------------------------- */

/* c[i * ldc + j] (+)= sum of a[k * MR + i] * b[k * NR + j], i < MR, j < NR. */
typedef void gemm_micro_fn(size_t k, const float *a, const float *b, float *c,
                           size_t ldc, bool add);
/* out[s * unit + r] = x[r * line + s] for r < rows and s < k, 0 for rows <= r < unit;
 * may write a few floats behind. */
typedef void gemm_turn_fn(float *out, const float *x, size_t line, size_t rows,
                          size_t k, size_t unit);
/* out = elements at .. at + n - 1 of x, as floats; nvfp4: whole blocks. */
typedef void gemm_read_fn(float *out, const struct matrix *x, size_t at, size_t n);
struct gemm_isa {
    size_t mr, nr;
    gemm_micro_fn *micro;
    gemm_turn_fn *turn;
    gemm_read_fn *read;
};
const struct gemm_isa *gemm_of(enum isa isa);
/* c (+)= A B of panels: (m, k) in those of mr rows, (k, n) in those of nr columns. */
void gemm_panels(const struct gemm_isa *isa, const float *a, const float *b, float *c,
                 size_t ldc, size_t m, size_t n, size_t k, bool add);
extern const struct gemm_isa gemm_scalar;

struct gemv {
    float *y;       // (tokens, w->out)
    const float *x; // (tokens, w->in)
    const struct weight *w;
    size_t tokens;
    bool add;
};
/* For some of the weight's rows. */
typedef void gemv_fn(const struct gemv *g, size_t row, size_t rows);
extern gemv_fn gemv_scalar;

#if defined __x86_64__
extern const struct gemm_isa gemm_avx2, gemm_avx512;
extern gemv_fn gemv_avx2, gemv_avx512;
#elif defined __aarch64__
extern const struct gemm_isa gemm_neon;
extern gemv_fn gemv_neon;
#endif

#endif
