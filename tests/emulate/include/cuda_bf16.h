/* SPDX-License-Identifier: MIT */
/* cuda_bf16: the part that the backend uses, for the emulation. */
#ifndef NIBBLE_TESTS_EMULATE_CUDA_BF16_H
#define NIBBLE_TESTS_EMULATE_CUDA_BF16_H

#include "cuda_runtime.h"

struct __nv_bfloat16 {
    uint16_t bits;
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float
__bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

static inline __nv_bfloat16
__float2bfloat16_rn(float x)
{
    return { emulate_bf16(__float_as_uint(x)) };
}

static inline __nv_bfloat162
__floats2bfloat162_rn(float x, float y)
{
    return { __float2bfloat16_rn(x), __float2bfloat16_rn(y) };
}

static inline __nv_bfloat162
__float2bfloat162_rn(float x)
{
    return __floats2bfloat162_rn(x, x);
}

/* A product of two bf16 has 16 significant bits, exact in f32: it is rounded once. */
static inline __nv_bfloat162
__hmul2(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return __floats2bfloat162_rn(__bfloat162float(a.x) * __bfloat162float(b.x),
                                 __bfloat162float(a.y) * __bfloat162float(b.y));
}

#endif
