/* SPDX-License-Identifier: MIT */
/* fp8: how a value becomes E4M3 and what is counted, for all kernels that write it. */
#ifndef NIBBLE_KERNELS_CUDA_FP8_H
#define NIBBLE_KERNELS_CUDA_FP8_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

#define E4M3_FN static __device__ __forceinline__
#include "lib/nvfp4/e4m3_scale.h"

/* As it is when it has been stored. */
template <typename T>
static __device__ __forceinline__ float
rounded(float x)
{
    return to_f32(from_f32<T>(x));
}

static __device__ __forceinline__ float
power(int e)
{
    return __uint_as_float((uint32_t)(e + 127) << 23);
}

/* Maximum of n; NaN if one is. */
static __device__ __forceinline__ float
max_of(const float *amax, unsigned n)
{
    float peak = 0;
    for (unsigned i = 0; i < n; i++)
        peak = isnan(amax[i]) || amax[i] > peak ? amax[i] : peak;
    return peak;
}

/* What values are multiplied by for the largest of n at amax.  One thread writes the scale of the
 * result, that of x being *x_scale2, or with NULL 1. */
struct fp8_scale {
    float factor;
    bool finite;
};

static __device__ __forceinline__ struct fp8_scale
fp8_scale_of(float *scale2, const float *x_scale2, const float *amax, unsigned n)
{
    float peak = max_of(amax, n);
    bool finite = !isnan(peak);
    int e = finite ? e4m3_exponent(__float_as_uint(peak)) : 0;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *scale2 = finite ? __fmul_rn(power(-e), x_scale2 ? *x_scale2 : 1) : peak;
    return { power(e), finite };
}

/* Times 0, Inf is NaN, which no conversion takes for a large number; and 0 added to a number
 * changes none, nor its sign, which is that of the product. */
static __device__ __forceinline__ float
fp8_scaled(float x, float factor)
{
    return fmaf(x, 0, __fmul_rn(x, factor));
}

/* Bits of a largest magnitude and a sum, see struct fp8_found. */
struct tally {
    unsigned peak, lost;
};

static __device__ __forceinline__ struct tally
fp8_tally(const struct fp8_scale &s)
{
    return { s.finite ? 0 : 0x7fc00000U, 0 };
}

/* x: what is converted, codes: of NVFP4, which are lost if they are rounded. */
template <bool codes>
static __device__ __forceinline__ void
fp8_count(struct tally *t, float x, float factor)
{
    x = fabsf(x);
    t->peak = max(t->peak, __float_as_uint(x));
    x = __fmul_rn(x, factor);
    float steps = x * 512; // of subnormal numbers
    if (!codes)
        t->lost += x > E4M3_LIMIT && x < INFINITY;
    else
        t->lost += x < 0x1p-6f ? steps != truncf(steps)
                               : x > E4M3_LIMIT || (__float_as_uint(x) & 0xfffff);
}

/* By all threads of a block; all: of the block.  A sum of counts has no order.  Blocks look before
 * they write: few find more than others have. */
static __device__ __forceinline__ void
fp8_add(const struct fp8_found &to, struct tally *all, const struct tally &t)
{
    if (threadIdx.x == 0)
        *all = { 0, 0 };
    __syncthreads();
    unsigned most = __reduce_max_sync(0xffffffffU, t.peak);
    unsigned sum = (unsigned)__reduce_add_sync(0xffffffffU, (int)t.lost);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&all->peak, most >= 0x7f800000 ? 0x7fc00000 : most);
        atomicAdd(&all->lost, sum);
    }
    __syncthreads();
    if (threadIdx.x == 0 && to.amax && all->peak > *(volatile unsigned *)to.amax)
        atomicMax((unsigned *)to.amax, all->peak);
    if (threadIdx.x == 0 && all->lost)
        atomicAdd((unsigned long long *)to.lost, (unsigned long long)all->lost);
}

#endif
