/* SPDX-License-Identifier: MIT */
/* codes: vectors of floats from NVFP4 codes and scales, multiply-adds that are fused on
 * every instruction set, and rounding to bf16.  Only for ISA_SRCS. */
#ifndef NIBBLE_KERNELS_CPU_CODES_H
#define NIBBLE_KERNELS_CPU_CODES_H

#include "lib/base/vec.h"

#include <math.h>
#include <stddef.h>

/* sum + a * b, rounded once, everywhere. */
static inline vf
fused(vf sum, vf a, vf b)
{
#if defined __AVX2__ || defined __aarch64__
    return plus_product(sum, a, b);
#else
    for (int i = 0; i < LANES; i++)
        sum[i] = fmaf(a[i], b[i], sum[i]);
    return sum;
#endif
}

/* x * factor as bf16 to nearest even, in the upper halves of words; NaN stays NaN. */
static inline vu
rounded(vf x, float factor)
{
    vf y = x * factor;
    vu bits = (vu)y, up = bits + 0x7fff + (bits >> 16 & 1);
    vi is_number = (vi)(bits & 0x7fffffff) <= 0x7f800000;
    return (vu)choose_i(is_number, (vi)up, (vi)(bits | 0x400000)) & 0xffff0000;
}

/* E2M1 of the lowest four bits. */
static inline vf
code_values(vu v)
{
#if defined __AVX512F__
    const __m512 table = _mm512_setr_ps(0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1,
                                        -1.5F, -2, -3, -4, -6);
    return (vf)_mm512_permutexvar_ps((__m512i)v, table);
#elif defined __AVX2__
    const __m256 table = _mm256_setr_ps(0, 0.5F, 1, 1.5F, 2, 3, 4, 6);
    vu sign = v << 28 & 0x80000000;
    return (vf)((vu)_mm256_permutevar8x32_ps(table, (__m256i)v) ^ sign);
#else
    // Exponent and mantissa are moved to those of f32, whose exponent's bias is 126 more.
    return (vf)((v & 7) << 22 | (v & 8) << 28) * 0x1p126F;
#endif
}

/* E4M3: exponent and mantissa are moved to those of f32, whose bias is 120 more. */
static inline vf
scale_values(vu v)
{
    vi bad = (v & 0x7f) == 0x7f;
    vf x = (vf)((v & 0x7f) << 20 | (v & 0x80) << 24) * 0x1p120F;
    return (vf)((vi)x | (bad & 0x7fc00000));
}

/* LANES of the 16 codes of a block, from code v * LANES on, in the low bits of lanes. */
static inline vu
block_codes(const uint8_t *codes, int v)
{
    uint32_t word[2];
    memcpy(word, codes, sizeof word);
#if defined __AVX512F__
    const vu high = { 0, 0, 0, 0, 0, 0, 0, 0, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U };
    const vu shift = { 0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28 };
    (void)v;
    return ((word[0] & ~high) | (word[1] & high)) >> shift;
#elif defined __AVX2__
    const vu shift = { 0, 4, 8, 12, 16, 20, 24, 28 };
    return ((vu){ 0 } + word[v]) >> shift;
#else
    const vu shift = { 0, 4, 8, 12 };
    return ((vu){ 0 } + (word[v / 2] >> v % 2 * 16)) >> shift;
#endif
}

#endif
