/* SPDX-License-Identifier: MIT */
/* cuda_fp16: the part that the backend uses, for the emulation. */
#ifndef NIBBLE_TESTS_EMULATE_CUDA_FP16_H
#define NIBBLE_TESTS_EMULATE_CUDA_FP16_H

#include "cuda_runtime.h"

struct __half {
    uint16_t bits;
};

struct alignas(4) __half2 {
    __half x, y;
};

static inline float
__half2float(__half h)
{
    unsigned sign = (h.bits & 0x8000U) << 16, size = h.bits & 0x7fffU;
    if (size < 0x400) // subnormal
        return __uint_as_float(sign | __float_as_uint((float)size * 0x1p-24F));
    unsigned exponent = size >= 0x7c00 ? 0x7f800000U - (0x7c00U << 13) : 112U << 23;
    return __uint_as_float(sign | ((size << 13) + exponent));
}

static inline float2
__half22float2(__half2 two)
{
    return make_float2(__half2float(two.x), __half2float(two.y));
}

/* Ties to even. */
static inline __half
__float2half_rn(float x)
{
    unsigned bits = __float_as_uint(x), size = bits & 0x7fffffffU;
    unsigned out;
    if (size > 0x7f800000U)
        return { 0x7fff };
    if (size < 0x38800000U) // subnormal: the sum rounds it
        out = __float_as_uint(__uint_as_float(size) + 0.5F) - 0x3f000000U;
    else if (size >= 0x47800000U)
        out = 0x7c00;
    else
        out = (size - (112U << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    return { (uint16_t)(out | (bits >> 16 & 0x8000U)) };
}

static inline __half
__ushort_as_half(unsigned short bits)
{
    return { bits };
}

#endif
