/* SPDX-License-Identifier: MIT */
/* norm: how RMSNorm of a row is summed, for all kernels that must agree about its bits. */
#ifndef NIBBLE_KERNELS_CUDA_NORM_H
#define NIBBLE_KERNELS_CUDA_NORM_H

#include <cuda_runtime.h>

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

#endif
