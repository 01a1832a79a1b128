/* SPDX-License-Identifier: MIT */
/* blocks: loads a block of 16 values and decodes codes, for the kernels that
 * quantize. */
#ifndef NIBBLE_KERNELS_CUDA_BLOCKS_H
#define NIBBLE_KERNELS_CUDA_BLOCKS_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/quant_math.h"

static __device__ __forceinline__ void
load_row(struct values *v, const float *x)
{
    const float4 *in = (const float4 *)x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 four = __ldg(in + i);
        v->x[4 * i] = four.x;
        v->x[4 * i + 1] = four.y;
        v->x[4 * i + 2] = four.z;
        v->x[4 * i + 3] = four.w;
    }
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++)
        v->pair[i] = u_bytes(f_bits(v->x[2 * i]), f_bits(v->x[2 * i + 1]), 0x7632);
}

static __device__ __forceinline__ void
load_pairs(struct values *v, const void *x)
{
    const uint4 *in = (const uint4 *)x;
    uint4 a = __ldg(in), b = __ldg(in + 1);
    v->pair[0] = a.x;
    v->pair[1] = a.y;
    v->pair[2] = a.z;
    v->pair[3] = a.w;
    v->pair[4] = b.x;
    v->pair[5] = b.y;
    v->pair[6] = b.z;
    v->pair[7] = b.w;
}

static __device__ __forceinline__ void
load_row(struct values *v, const __nv_bfloat16 *x)
{
    load_pairs(v, x);
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        v->x[2 * i] = f_from(v->pair[i] << 16);
        v->x[2 * i + 1] = f_from(v->pair[i] & 0xffff0000);
    }
}

static __device__ __forceinline__ void
load_row(struct values *v, const __half *x)
{
    load_pairs(v, x);
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        float2 two = __half22float2(*(const __half2 *)&v->pair[i]);
        v->x[2 * i] = two.x;
        v->x[2 * i + 1] = two.y;
    }
}

static __device__ __forceinline__ uint32_t
times(uint32_t two, __nv_bfloat162 scale)
{
    __nv_bfloat162 product = __hmul2(*(__nv_bfloat162 *)&two, scale);
    return *(uint32_t *)&product;
}

/* Eight codes times their scale, as bf16. */
static __device__ __forceinline__ uint4
products(uint32_t codes, uint32_t scale)
{
    __nv_bfloat162 s = __float2bfloat162_rn(scale_value(scale));
    uint32_t out[4];
    code_values(out, codes);
    code_values(out + 2, codes >> 16);
    return make_uint4(times(out[0], s), times(out[1], s), times(out[2], s),
                      times(out[3], s));
}

#endif
