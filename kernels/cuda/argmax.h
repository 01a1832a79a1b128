/* SPDX-License-Identifier: MIT */
/* argmax: the larger one of two logits. */
#ifndef NIBBLE_KERNELS_CUDA_ARGMAX_H
#define NIBBLE_KERNELS_CUDA_ARGMAX_H

#include "kernels/cuda/cuda.h"

#include <float.h>

/* A logit and its index.  A logit that is not finite wins, with index -1. */
struct candidate {
    float value;
    uint32_t at;
};

static __device__ __forceinline__ struct candidate
no_candidate(void)
{
    return { -INFINITY, UINT32_MAX };
}

static __device__ __forceinline__ struct candidate
larger(struct candidate a, struct candidate b)
{
    return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}

static __device__ __forceinline__ struct candidate
candidate_of(float x, uint32_t at)
{
    bool finite = fabsf(x) <= FLT_MAX;
    return { finite ? x : INFINITY, finite ? at : UINT32_MAX };
}

/* That of a warp, in all lanes. */
static __device__ __forceinline__ struct candidate
warp_argmax(struct candidate peak)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        peak = larger(peak, { __shfl_xor_sync(0xffffffffU, peak.value, i),
                              __shfl_xor_sync(0xffffffffU, peak.at, i) });
    return peak;
}

#endif
