/* SPDX-License-Identifier: MIT */
/* rows: loops over neighbouring floats, compiled once for each instruction set.
 *
 * Sums go over 16 lanes, element i to lane i % 16, and those are added as a tree: the
 * same bits on every path.  Nothing is fused.
 */
#ifndef NIBBLE_KERNELS_CPU_ROWS_H
#define NIBBLE_KERNELS_CPU_ROWS_H

#include "lib/core/isa.h"

#include <stdbool.h>
#include <stddef.h>

struct rows_isa {
    float (*dot)(const float *a, const float *b, size_t n);
    float (*max)(const float *a, size_t n);      // n > 0
    double (*squares)(const float *a, size_t n); // their sum
    /* y += a * x */
    void (*axpy)(float *y, float a, const float *x, size_t n);
    /* y = a * x */
    void (*scale)(float *y, float a, const float *x, size_t n);
    /* y *= a */
    void (*stretch)(float *y, float a, size_t n);
    /* y = exp(y - max), returns the sum. */
    float (*exp_sum)(float *y, float max, size_t n);
    /* dp = p * (dp - mean) */
    void (*softmax_dx)(float *dp, const float *p, float mean, size_t n);
    void (*swiglu)(float *y, const float *gate, const float *up, size_t n);
    void (*swiglu_dx)(float *dgate, float *dup, const float *gate, const float *up,
                      const float *dy, size_t n);
    /* y = x * scale * gain */
    void (*norm)(float *y, const float *x, float scale, const float *gain, size_t n);
    /* dx (+)= scale (dy gain - x share), share = scale^2 / n * sum(dy gain x); dx may be
     * dy. */
    void (*norm_dx)(float *dx, const float *dy, const float *x, float scale,
                    const float *gain, size_t n, bool add);
    /* dgain += dy * (x * scale) */
    void (*gain_dx)(float *dgain, const float *dy, const float *x, float scale,
                    size_t n);
    /* (a, b) turned by an angle: its cosines, and sign times its sines. */
    void (*rotate)(float *a, float *b, const float *cosine, const float *sine,
                   float sign, size_t n);
};

extern const struct rows_isa rows_scalar;
#if defined __x86_64__
extern const struct rows_isa rows_avx2, rows_avx512;
#elif defined __aarch64__
extern const struct rows_isa rows_neon;
#endif

#endif
