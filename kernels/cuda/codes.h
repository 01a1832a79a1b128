/* SPDX-License-Identifier: MIT */
/* codes: NVFP4 weights of 16 rows as operands of an mma, for products of few tokens. */
#ifndef NIBBLE_KERNELS_CUDA_CODES_H
#define NIBBLE_KERNELS_CUDA_CODES_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

/* How the columns of a weight are divided: between `split` blocks, and between the warps
 * of each.  whole: a warp of one_kernel has all of its units in flight. */
struct division {
    int split, warps;
    bool whole;
};
/* gemv.cu: by the number of tiles of 16 rows, and that of units of columns. */
struct division cuda_gemv_division(unsigned tiles, unsigned units, enum dtype dtype);

/* Two codes of a word, at mask 0x000f000f << 4 I, as bf16x2 of 2^-126 times their
 * values: sign and magnitude move to the bits of sign, exponent and fraction; 0.5
 * becomes a subnormal.  One multiplication moves both, since the two copies of a code
 * do not overlap: that saves shifts and masks, whose units have half the throughput of
 * others. */
template <int I>
static __device__ __forceinline__ uint32_t
two_codes(uint32_t word)
{
    uint32_t codes = word & 0x000f000fU << (4 * I);
    return codes * (0x1040U >> (4 * I)) & 0x81c081c0U;
}

/* 2^118 times an E4M3 value, in both halves: the largest power that keeps 448
 * finite. */
static __device__ __forceinline__ __nv_bfloat162
scale_factor(uint32_t byte)
{
    uint32_t pair = (byte & 0x7f) * 0x00100010U; // 2^-120 times
    __nv_bfloat162 up = __float2bfloat162_rn(0x1p119F);
    return __hmul2(__hmul2(*(__nv_bfloat162 *)&pair, up), up);
}

constexpr float unscale = 0x1p8F; // 126 - 118

static __device__ __forceinline__ uint32_t
times(uint32_t pair, __nv_bfloat162 s)
{
    __nv_bfloat162 v = __hmul2(*(__nv_bfloat162 *)&pair, s);
    return *(uint32_t *)&v;
}

/* Unpack 16 codes as pairs (0,4) (1,5) (2,6) (3,7) (8,12) ... */
static __device__ __forceinline__ void
unpack(uint32_t pair[8], uint32_t low, uint32_t high, __nv_bfloat162 s)
{
    pair[0] = times(two_codes<0>(low), s);
    pair[1] = times(two_codes<1>(low), s);
    pair[2] = times(two_codes<0>(low >> 8), s);
    pair[3] = times(two_codes<1>(low >> 8), s);
    pair[4] = times(two_codes<0>(high), s);
    pair[5] = times(two_codes<1>(high), s);
    pair[6] = times(two_codes<0>(high >> 8), s);
    pair[7] = times(two_codes<1>(high >> 8), s);
}

/* Eight activations in the same order. */
static __device__ __forceinline__ uint4
arrange(uint4 a)
{
    return make_uint4(__byte_perm(a.x, a.z, 0x5410), __byte_perm(a.x, a.z, 0x7632),
                      __byte_perm(a.y, a.w, 0x5410), __byte_perm(a.y, a.w, 0x7632));
}

/* A of the next 4 products: columns of two of a thread's pieces, of two rows that are 8
 * apart. */
static __device__ __forceinline__ void
fp4_operand(uint32_t (&to)[4][4], const uint4 (&codes)[2], const uint32_t (&scales)[2],
            int half)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t pair[8];
        uint4 c = codes[r];
        unpack(pair, half ? c.z : c.x, half ? c.w : c.y,
               scale_factor(scales[r] >> (8 * half)));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            to[k][r] = pair[2 * k];
            to[k][2 + r] = pair[2 * k + 1];
        }
    }
}

/* sum += A x of STEPS products; x: as many columns of a token in the form's order. */
template <int STEPS>
static __device__ __forceinline__ void
add_products(float (&sum)[4], const uint32_t (&a)[STEPS][4], const uint4 *x)
{
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint4 v = x[k / 2];
        mma(sum, a[k], k % 2 ? v.z : v.x, k % 2 ? v.w : v.y);
    }
}

#endif
