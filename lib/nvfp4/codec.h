/* SPDX-License-Identifier: MIT */
/* codec: the small float types: the scalar truth of decoding and rounding. */
#ifndef NIBBLE_NVFP4_CODEC_H
#define NIBBLE_NVFP4_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NVFP4_BLOCK = 16 };

/* E2M1: sign, 2 exponent bits, 1 mantissa bit; bits 0-3 of code count. */
float e2m1_value(unsigned code);
/* E4M3FN: NaN for 0x7f and 0xff, no infinity; exponent 15 with another mantissa is an
 * ordinary number, 256 to 448. */
float e4m3_value(uint8_t byte);
/* E5M2: IEEE-like, with infinities and NaNs. */
float e5m2_value(uint8_t byte);

/* The code of a magnitude a >= 0, saturating at 6: ties to the even code. */
static inline unsigned
e2m1_code_even(float a)
{
    return (unsigned)((a > 0.25F) + (a >= 0.75F) + (a > 1.25F) + (a >= 1.75F) +
                      (a > 2.5F) + (a >= 3.5F) + (a > 5.0F));
}

/* The same, ties away from zero. */
static inline unsigned
e2m1_code_away(float a)
{
    return (unsigned)((a >= 0.25F) + (a >= 0.75F) + (a >= 1.25F) + (a >= 1.75F) +
                      (a >= 2.5F) + (a >= 3.5F) + (a >= 5.0F));
}

/* The byte of x >= 0, ties to even, saturating: above 448 it is 0x7e.  NaN is 0x7f. */
uint8_t e4m3_from(float x);

/* A tensor scale of one program's dialect as another has it: the divisor of a
 * multiplier (to_divisor), or the multiplier of a divisor.  Up to two floats have f as
 * their reciprocal, so 1 / f does not always lead back to f.  Of those it is the one
 * that the other program computes from a largest magnitude in bf16, which is what
 * weights have; else one that ends in a zero bit, as round numbers do; else 1 / f. */
float nvfp4_swap_scale(float f, bool to_divisor);

/* out[i] = E2M1[code i] * E4M3[scale] * scale2, code i in the low nibble for even i;
 * the first product is exact.  n is a multiple of NVFP4_BLOCK, one scale for each block
 * of them; scales have no sign and are no NaN. */
void nvfp4_decode(float *out, const uint8_t *codes, const uint8_t *scales, float scale2,
                  size_t n);

#endif
