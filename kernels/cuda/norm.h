/* SPDX-License-Identifier: MIT */
/* norm: how RMSNorm of a row is summed, for all kernels that must agree about its bits. */
#ifndef NIBBLE_KERNELS_CUDA_NORM_H
#define NIBBLE_KERNELS_CUDA_NORM_H

#include "kernels/cuda/device.h"

enum {
    NORM_THREADS = 640,            // max., so that a thread may have 96 registers
    NORM_PACKS = 4 * NORM_THREADS, // max. of a row that stays in registers
};

/* `threads` threads have packs threads apart, `per` at most; their sums are added by
 * warps, then those of the warps. */
struct norm_shape {
    unsigned per, threads;
};

static __host__ __device__ __forceinline__ struct norm_shape
norm_shape_of(unsigned packs)
{
    struct norm_shape s = { packs <= 256                ? 1U
                            : packs <= 2 * NORM_THREADS ? 2U
                                                        : 4U,
                            0 };
    s.threads = ((packs + s.per - 1) / s.per + 31) / 32 * 32;
    return s;
}

static __device__ __forceinline__ float
norm_scale(float squares, unsigned n, float eps)
{
    return 1 / sqrtf(squares / (float)n + eps);
}

/* Load a thread's packs of a row. */
template <typename P, int PER>
static __device__ __forceinline__ void
load_row(P (&v)[PER], const void *row, unsigned packs)
{
#pragma unroll
    for (int p = 0; p < PER; p++)
        if (threadIdx.x + p * blockDim.x < packs)
            v[p] = ((const P *)row)[threadIdx.x + p * blockDim.x];
}

/* Load a thread's packs of a row; rstd of all of it. */
template <typename T, int PER>
static __device__ __forceinline__ float
load_scaled(pack<T, lanes<T>> (&v)[PER], const T *row, unsigned n, float eps,
            float *scratch)
{
    unsigned packs = n / lanes<T>;
    float sum = 0;
    load_row(v, row, packs);
#pragma unroll
    for (int p = 0; p < PER; p++)
        if (threadIdx.x + p * blockDim.x < packs)
#pragma unroll
            for (int i = 0; i < lanes<T>; i++)
                sum = fmaf(to_f32(v[p].v[i]), to_f32(v[p].v[i]), sum);
    return norm_scale(block_sum(sum, scratch), n, eps);
}

#endif
