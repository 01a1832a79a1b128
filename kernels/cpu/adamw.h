/* SPDX-License-Identifier: MIT */
/* adamw: the inner loop of the optimizer, numerics.md 7.3 and 7.5, compiled once for each
 * instruction set.
 *
 * Every operation is one f32 rounding, in the order of 7.3.  Moments are stored as (q: a
 * code; s: the scale of its group of 32; r: 16 random bits):
 *
 *   8-bit m    m = s q / (254 - |q|)          s q is exact, so this is rounded once
 *              q = floor((RNE(2^16 254 m / (s + |m|)) + r) / 2^16)
 *   8-bit v    v = (q (s / 255))^2, at least the smallest float if q > 0
 *              q = RNE(sqrt(v) (255 / s)) in 1..255 if v > 0, else 0
 *   bf16       the upper half of bits + r; the upper half of the bits if that would be
 *              infinite; every NaN becomes 0x7fc0
 *
 * which is 7.5 with n = m / s and y = 2 n / (1 + |n|) combined.  A group with a value that
 * is not finite gets scale NaN and codes 0, and is read as NaN.
 */
#ifndef NIBBLE_KERNELS_CPU_ADAMW_H
#define NIBBLE_KERNELS_CPU_ADAMW_H

#include "kernels/kernels.h"

/* As op_adamw.  n is a multiple of 32, too, except at the end of the tensor. */
typedef void adamw_fn(const struct adam_state *s, const float *grad, uint64_t first,
                      size_t n, const struct adam_step *a);

extern adamw_fn adamw_scalar;
#if defined __x86_64__
extern adamw_fn adamw_avx2, adamw_avx512;
#elif defined __aarch64__
extern adamw_fn adamw_neon;
#endif

#endif
