/* SPDX-License-Identifier: MIT */
/* gemm: C = A B or C + A B in f32, the same bits everywhere.
 *
 * Each element of C has one accumulator, which takes its products in the order of k with
 * one fused multiply-add each.  So neither the number of threads, nor the blocking, nor
 * the width of the vectors can change a bit, and machines with AVX2, AVX-512 and NEON
 * agree.  (OpenBLAS, oneDNN and MKL promise none of this.)
 *
 * Matrices are any f32, bf16 or f16 arrays with two strides, so all transposes are the
 * same call; they are brought into order, and to f32, as they are packed.
 */
#ifndef NIBBLE_KERNELS_CPU_GEMM_H
#define NIBBLE_KERNELS_CPU_GEMM_H

#include "lib/core/dtype.h"
#include "lib/core/err.h"
#include "lib/core/isa.h"

#include <stdbool.h>
#include <stddef.h>

/* Element (i, k) is at i * rows + k * cols, in elements. */
struct matrix {
    const void *p;
    enum dtype dtype;  // f32, bf16 or f16
    size_t rows, cols; // strides
};

struct gemm {
    size_t m, n, k;
    struct matrix a, b; // a: m x k; b: k x n
    float *c;           // (m, ldc)
    size_t ldc;
    bool add; // to what is in c, after it
};

/* 0, or -1 out of memory. */
int gemm_run(const struct gemm *g, enum isa isa, unsigned threads, struct err *err);

/* ---- private to gemm.c and gemm_kernel.c --------------------------------------------- */

/* c[i * ldc + j] (+)= sum of a[k * MR + i] * b[k * NR + j], i < MR, j < NR. */
typedef void gemm_micro_fn(size_t k, const float *a, const float *b, float *c,
                           size_t ldc, bool add);
/* out[s * unit + r] = x[r * line + s] for r < rows and s < k, 0 for rows <= r < unit;
 * may write a few floats behind. */
typedef void gemm_turn_fn(float *out, const float *x, size_t line, size_t rows,
                          size_t k, size_t unit);
struct gemm_isa {
    size_t mr, nr;
    gemm_micro_fn *micro;
    gemm_turn_fn *turn;
};
extern const struct gemm_isa gemm_scalar;
#if defined __x86_64__
extern const struct gemm_isa gemm_avx2, gemm_avx512;
#elif defined __aarch64__
extern const struct gemm_isa gemm_neon;
#endif

#endif
