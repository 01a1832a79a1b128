/* SPDX-License-Identifier: MIT */
/* rows: loops over neighbouring floats, compiled once for each instruction set.
 *
 * Sums go over 16 lanes, element i to lane i % 16, and those are added as a tree: the
 * same bits on every path.  Nothing is fused.
 */
#ifndef NIBBLE_KERNELS_CPU_ROWS_H
#define NIBBLE_KERNELS_CPU_ROWS_H

#include "lib/core/isa.h"

#include <stddef.h>

struct rows_isa {
    float (*dot)(const float *a, const float *b, size_t n);
    float (*most)(const float *a, size_t n);     // n > 0
    double (*squares)(const float *a, size_t n); // their sum
    /* y += a * x */
    void (*axpy)(float *y, float a, const float *x, size_t n);
    /* y = a * x */
    void (*scale)(float *y, float a, const float *x, size_t n);
    /* y = exp(x - most), returns the sum. */
    float (*exp_sum)(float *y, const float *x, float most, size_t n);
    /* dp = p * (dp - mean) */
    void (*softmax_dx)(float *dp, const float *p, float mean, size_t n);
    void (*swiglu)(float *y, const float *gate, const float *up, size_t n);
    void (*swiglu_dx)(float *gate, float *up, const float *dy, size_t n);
};

extern const struct rows_isa rows_scalar;
#if defined __x86_64__
extern const struct rows_isa rows_avx2, rows_avx512;
#elif defined __aarch64__
extern const struct rows_isa rows_neon;
#endif

#endif
