/* SPDX-License-Identifier: MIT */
/* codec: see codec.h. */
#include "lib/nvfp4/codec.h"

#include "lib/base/num.h"

#include <math.h>
#include <string.h>

static const float e2m1[16] = {
    0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
    -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F
};

float
e2m1_value(unsigned code)
{
    return e2m1[code & 15];
}

float
e4m3_value(uint8_t byte)
{
    int exp = byte >> 3 & 15;
    int man = byte & 7;
    float v;
    if (exp == 15 && man == 7)
        v = NAN;
    else if (exp)
        v = ldexpf((float)(8 + man), exp - 10);
    else
        v = ldexpf((float)man, -9);
    return byte & 0x80 ? -v : v;
}

uint8_t
e4m3_from(float x)
{
    if (isnan(x))
        return 0x7f;
    if (x >= 448.0F)
        return 0x7e;
    if (x <
        0x1p-6F) // subnormal: whole steps of 2^-9; adding 2^14 leaves just those bits
        return (uint8_t)(int)((x + 0x1p14F) * 0x1p9F - 0x1p23F);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits += 0x7ffff + (bits >> 20 & 1); // 20 mantissa bits go, ties to even
    return (uint8_t)((bits >> 20) - ((127 - 7) << 3));
}

float
e5m2_value(uint8_t byte)
{
    int exp = byte >> 2 & 31;
    int man = byte & 3;
    float v;
    if (exp == 31)
        v = man ? NAN : INFINITY;
    else if (exp)
        v = ldexpf((float)(4 + man), exp - 17);
    else
        v = ldexpf((float)man, -16);
    return byte & 0x80 ? -v : v;
}

static bool
is_even(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits % 2 == 0;
}

float
nvfp4_swap_scale(float f, bool to_divisor)
{
    const float bound = 6.0F * 448.0F; // the largest value of codes and block scales
    float amax = num_from_bf16(num_to_bf16(to_divisor ? bound * f : bound / f));
    float likely = to_divisor ? bound / amax : amax / bound;
    float nearest = 1 / f;
    if (1 / likely == f)
        return likely;
    if (is_even(nearest))
        return nearest;
    float below = nextafterf(nearest, 0), above = nextafterf(nearest, INFINITY);
    return 1 / below == f ? below : 1 / above == f ? above : nearest;
}

void
nvfp4_decode(float *out, const uint8_t *codes, const uint8_t *scales, float scale2,
             size_t n)
{
    for (size_t b = 0; b < n / NVFP4_BLOCK; b++) {
        float table[16];
        float s = e4m3_value(scales[b]);
        for (unsigned c = 0; c < 16; c++)
            table[c] = e2m1[c] * s * scale2;
        for (unsigned i = 0; i < NVFP4_BLOCK / 2; i++) {
            uint8_t two = codes[b * (NVFP4_BLOCK / 2) + i];
            *out++ = table[two & 15];
            *out++ = table[two >> 4];
        }
    }
}
