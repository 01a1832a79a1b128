/* SPDX-License-Identifier: MIT */
/* maths: exp, log, sine and cosine with the same bits everywhere.
 *
 * libm's last bit differs between versions and processors; these are made of additions,
 * multiplications and divisions alone, one rounding each, so they do not
 * differ.  Good to about 2e-16 of the result, sine and cosine of 1.
 */
#ifndef NIBBLE_CORE_MATHS_H
#define NIBBLE_CORE_MATHS_H

#include "lib/core/isa.h"

#include <stddef.h>

/* |x| < 700. */
double maths_exp(double x);
/* Of n values, in less time: y may be x. */
void maths_exps(double *y, const double *x, size_t n);
/* x > 0, finite, normal. */
double maths_log(double x);
/* |x| < 2^24. */
void maths_sincos(double x, double *sine, double *cosine);

/* ---- private to maths.c and maths_kernel.c; the same on every instruction set ------------- */

typedef void maths_exps_fn(double *y, const double *x, size_t n);
extern maths_exps_fn maths_exps_scalar, maths_exps_avx2, maths_exps_avx512,
    maths_exps_neon;

#endif
