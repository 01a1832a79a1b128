/* SPDX-License-Identifier: MIT */
/* rows: loops over contiguous floats, compiled once for each instruction set.
 *
 * A sum has 16 lanes, element i is added to lane i % 16, and lanes are added as a tree, so
 * that every instruction set gives the same bits.  No multiply-add is fused.
 */
#ifndef NIBBLE_KERNELS_CPU_ROWS_H
#define NIBBLE_KERNELS_CPU_ROWS_H

#include "lib/base/isa.h"

#include <stdbool.h>
#include <stddef.h>

/* Of a row of logits z and a teacher's, t: e = exp(z - z_max), s = exp((z - z_max) / T), and
 * the same of t.  z becomes hard * e + soft * (s / s_sum - t's), and the result is the sum of
 * t's s / s_sum * ((t - z) / T - shift). */
struct rows_distill {
    float z_max, t_max, per_t; // per_t: 1 / T
    float z_share, t_share;    // 1 / s_sum
    float hard, soft, shift;
};

struct rows_isa {
    float (*dot)(const float *a, const float *b, size_t n);
    float (*max)(const float *x, size_t n); // n > 0
    /* Of a block, see op_sum_squares. */
    double (*sum_squares)(const float *x, size_t n);
    /* y += a * x */
    void (*axpy)(float *y, float a, const float *x, size_t n);
    /* y = a * x */
    void (*scale)(float *y, float a, const float *x, size_t n);
    /* y *= a */
    void (*scale_in_place)(float *y, float a, size_t n);
    /* y = exp(y - max), returns the sum. */
    float (*exp_sum)(float *y, float max, size_t n);
    /* The same sum, of exp((x - max) * factor), which is kept nowhere. */
    float (*exp_total)(const float *x, float max, float factor, size_t n);
    /* See rows_distill. */
    float (*distill)(float *z, const float *teacher, const struct rows_distill *d,
                     size_t n);
    /* dp = p * (dp - mean) */
    void (*softmax_bwd)(float *dp, const float *p, float mean, size_t n);
    void (*swiglu)(float *y, const float *gate, const float *up, size_t n);
    void (*swiglu_bwd)(float *dgate, float *dup, const float *gate, const float *up,
                       const float *dy, size_t n);
    /* y = x * rstd * gain */
    void (*norm)(float *y, const float *x, float rstd, const float *gain, size_t n);
    /* dx (+)= rstd * (dy * gain - x * c), c = rstd^2 / n * sum(dy * gain * x); dx may be
     * dy. */
    void (*norm_bwd)(float *dx, const float *dy, const float *x, float rstd,
                     const float *gain, size_t n, bool add);
    /* dgain += dy * (x * rstd) */
    void (*norm_bwd_gain)(float *dgain, const float *dy, const float *x, float rstd,
                          size_t n);
    /* Rotates each pair (a, b) by an angle, backwards with sign -1. */
    void (*rope)(float *a, float *b, const float *cosine, const float *sine, float sign,
                 size_t n);
};

/* Neighbours are added until one is left; v is used up.  0 of none. */
static inline double
rows_add_neighbours(double *v, size_t n)
{
    for (; n > 1; n = (n + 1) / 2) {
        for (size_t i = 0; i < n / 2; i++)
            v[i] = v[2 * i] + v[2 * i + 1];
        if (n % 2)
            v[n / 2] = v[n - 1];
    }
    return n ? v[0] : 0;
}

extern const struct rows_isa rows_scalar;
#if defined __x86_64__
extern const struct rows_isa rows_avx2, rows_avx512;
#elif defined __aarch64__
extern const struct rows_isa rows_neon;
#endif

#endif
