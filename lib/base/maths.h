/* SPDX-License-Identifier: MIT */
/* maths: exp, log, sine and cosine with the same bits everywhere.
 *
 * libm's last bit differs between versions and processors; these are made of additions,
 * multiplications and divisions alone, one rounding each, so they do not
 * differ.  Good to about 2e-16 of the result, sine and cosine of 1.
 */
#ifndef NIBBLE_BASE_MATHS_H
#define NIBBLE_BASE_MATHS_H

#include "lib/base/isa.h"

#include <stddef.h>

/* |x| < 700. */
double maths_exp(double x);
/* y = exp((x - most) / temperature) of n values, none above `most`; 0 of e^MATHS_LOWEST and less. */
void maths_shares(double *y, const float *x, size_t n, double most, double temperature);
enum { MATHS_LOWEST = -690 };
/* x > 0, finite, normal. */
double maths_log(double x);
/* |x| < 2^24. */
void maths_sincos(double x, double *sine, double *cosine);

/* ---- private to maths.c, maths_kernel.c and their test -------------------------------------- */

typedef void maths_shares_fn(double *y, const float *x, size_t n, double most,
                             double temperature);
extern maths_shares_fn maths_shares_scalar, maths_shares_avx2, maths_shares_avx512,
    maths_shares_neon;

#endif
