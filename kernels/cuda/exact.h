/* SPDX-License-Identifier: MIT */
/* exact: f32 operations that round once, on the device and, for unit tests, as C on the
 * host.  Nothing is fused except by name (fma).  Also Philox random numbers. */
#ifndef NIBBLE_KERNELS_CUDA_EXACT_H
#define NIBBLE_KERNELS_CUDA_EXACT_H

#include "lib/base/philox.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#include "kernels/cuda/ptx.h"

#define EXACT        static __device__ __forceinline__
#define EXACT_UNROLL _Pragma("unroll")

#define f_mul  __fmul_rn
#define f_add  __fadd_rn
#define f_sub  __fsub_rn
#define f_div  __fdiv_rn
#define f_sqrt __fsqrt_rn
#define f_fma  __fmaf_rn
#define f_min  fminf
#define f_max  fmaxf
#define f_abs  fabsf
#define f_bits __float_as_uint
#define f_from __uint_as_float
/* x clamped to [0, 1]; NaN becomes 0. */
#define f_sat __saturatef
/* Four bytes picked by the nibbles of `which`: 0 .. 3 from a, 4 .. 7 from b. */
#define u_bytes  __byte_perm
#define u_select select_bits
/* max(a + b, c) of each 16-bit half. */
#define u_add_max2 __viaddmax_u16x2
/* Minimum of three, of words and of 16-bit halves; maximum of three words. */
#define u_min3   __vimin3_u32
#define u_min3_2 __vimin3_u16x2
#define u_max3   __vimax3_u32
/* Minimum of three positive finite values. */
#define f_min3(a, b, c)                                                                \
    f_from((uint32_t)__vimin3_s32((int)f_bits(a), (int)f_bits(b), (int)f_bits(c)))
/* Dot products plus c: a's bytes with b's; a's halves with b's two low bytes.  With a
 * single 1 in b they extract a byte or half in one instruction, on another pipe than
 * integer adds. */
#define u_dot4(a, b, c) __dp4a((uint32_t)(a), (uint32_t)(b), (uint32_t)(c))
#define u_dot2(a, b, c) __dp2a_lo((uint32_t)(a), (uint32_t)(b), (uint32_t)(c))

/* 1 / x to a relative error of 2^-23, for normal x. */
EXACT float
rough_inverse(float x)
{
    return inverse_fast(x);
}

/* sqrt(x), the same error; also for 0. */
EXACT float
rough_root(float x)
{
    return sqrt_fast(x);
}

#else
#include <math.h>
#include <string.h>

#define EXACT static inline
#define EXACT_UNROLL

EXACT float
f_mul(float a, float b)
{
    return a * b;
}

EXACT float
f_add(float a, float b)
{
    return a + b;
}

EXACT float
f_sub(float a, float b)
{
    return a - b;
}

EXACT float
f_div(float a, float b)
{
    return a / b;
}

#define f_sqrt sqrtf
#define f_fma  fmaf
#define f_abs  fabsf

EXACT float
f_min(float a, float b)
{
    return a < b ? a : b;
}

EXACT float
f_max(float a, float b)
{
    return a > b ? a : b;
}

EXACT uint32_t
f_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

EXACT float
f_from(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

EXACT float
f_min3(float a, float b, float c)
{
    return f_min(f_min(a, b), c);
}

EXACT float
f_sat(float x)
{
    return x > 0 ? f_min(x, 1) : 0;
}

EXACT uint32_t
u_bytes(uint32_t a, uint32_t b, uint32_t which)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (unsigned i = 0; i < 4; i++)
        out |= (uint32_t)(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}

EXACT uint32_t
u_add_max2(uint32_t a, uint32_t b, uint32_t c)
{
    uint16_t low = (uint16_t)(a + b), high = (uint16_t)((a >> 16) + (b >> 16));
    low = low > (uint16_t)c ? low : (uint16_t)c;
    high = high > c >> 16 ? high : (uint16_t)(c >> 16);
    return (uint32_t)high << 16 | low;
}

EXACT uint32_t
u_select(uint32_t mask, uint32_t a, uint32_t b)
{
    return (mask & a) | (~mask & b);
}

EXACT uint32_t
u_min3(uint32_t a, uint32_t b, uint32_t c)
{
    a = a < b ? a : b;
    return a < c ? a : c;
}

EXACT uint32_t
u_max3(uint32_t a, uint32_t b, uint32_t c)
{
    a = a > b ? a : b;
    return a > c ? a : c;
}

EXACT uint32_t
u_min3_2(uint32_t a, uint32_t b, uint32_t c)
{
    return u_min3(a >> 16, b >> 16, c >> 16) << 16 |
           u_min3(a & 0xffff, b & 0xffff, c & 0xffff);
}

EXACT uint32_t
u_dot4(uint32_t a, uint32_t b, uint32_t c)
{
    for (unsigned i = 0; i < 32; i += 8)
        c += (a >> i & 0xff) * (b >> i & 0xff);
    return c;
}

EXACT uint32_t
u_dot2(uint32_t a, uint32_t b, uint32_t c)
{
    return c + (a & 0xffff) * (b & 0xff) + (a >> 16) * (b >> 8 & 0xff);
}

/* Pseudo-random direction of an approximation's error: 1 up, 2 down, else none. */
EXACT uint32_t
error_direction(float x)
{
    return f_bits(x) * 2654435761U >> 30;
}

/* Off by 1 ulp, as a GPU's may be; 0 for infinity. */
EXACT float
rough_inverse(float x)
{
    float y = 1 / x;
    uint32_t bits = f_bits(y), direction = error_direction(x);
    return isnormal(y) ? f_from(bits + (direction == 1) - (direction == 2)) : y;
}

/* sqrt(x) with a relative error of 2^-23, up (1), down (2) or none: at most 1.5 ulp
 * from the rounded root.  Subnormals are flushed to 0. */
EXACT float
root_off(float x, uint32_t direction)
{
    double root = sqrt((double)x);
    double edge = direction == 1   ? root * (1 + 0x1p-23)
                  : direction == 2 ? root * (1 - 0x1p-23)
                                   : root;
    float y = (float)edge;
    if (fabsf(x) < 0x1p-126F)
        return 0;
    if (direction == 1 && (double)y > edge)
        y = f_from(f_bits(y) - 1); // back within the bound
    if (direction == 2 && (double)y < edge)
        y = f_from(f_bits(y) + 1);
    return y;
}

EXACT float
rough_root(float x)
{
    return root_off(x, error_direction(x));
}
#endif

enum { DRAW_ROUNDS = 10 };

/* Philox keys of all rounds. */
struct draw_keys {
    uint32_t k[DRAW_ROUNDS][2];
};

#ifdef __CUDACC__
__host__ __device__
#endif
    static inline struct draw_keys
    draw_keys_of(const uint32_t key[2])
{
    struct draw_keys keys;
    for (uint32_t i = 0; i < DRAW_ROUNDS; i++) {
        keys.k[i][0] = key[0] + i * 0x9e3779b9;
        keys.k[i][1] = key[1] + i * 0xbb67ae85;
    }
    return keys;
}

/* The four words of philox4x32 at an index. */
EXACT void
draws_with(uint32_t out[4], uint64_t index, uint32_t row, uint32_t use,
           const struct draw_keys *keys)
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = row, c3 = use;
    EXACT_UNROLL
    for (int i = 0; i < DRAW_ROUNDS; i++) {
        uint64_t even = (uint64_t)c0 * 0xd2511f53, odd = (uint64_t)c2 * 0xcd9e8d57;
        c0 = (uint32_t)(odd >> 32) ^ c1 ^ keys->k[i][0];
        c1 = (uint32_t)odd;
        c2 = (uint32_t)(even >> 32) ^ c3 ^ keys->k[i][1];
        c3 = (uint32_t)even;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

EXACT void
draws(uint32_t out[4], uint64_t index, uint32_t row, uint32_t use,
      const uint32_t key[2])
{
    struct draw_keys keys = draw_keys_of(key);
    draws_with(out, index, row, use, &keys);
}

#endif
