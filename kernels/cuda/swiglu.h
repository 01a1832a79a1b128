/* SPDX-License-Identifier: MIT */
/* swiglu: silu(gate) * up of one element, for all kernels that compute it. */
#ifndef NIBBLE_KERNELS_CUDA_SWIGLU_H
#define NIBBLE_KERNELS_CUDA_SWIGLU_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

/* Relative error at most 4e-7: the reciprocal is off by 1 ulp. 0 below -87. */
static __device__ __forceinline__ float
sigmoid(float x)
{
    return inverse_fast(1 + expf(-x));
}

static __device__ __forceinline__ float
swiglu_of(float gate, float up)
{
    return gate * sigmoid(gate) * up;
}

/* The gradients of gate and up, d being that of y, which is computed again. */
struct swiglu_gradient {
    float gate, up, y;
};

static __device__ __forceinline__ struct swiglu_gradient
swiglu_gradient_of(float gate, float up, float d)
{
    float s = sigmoid(gate), silu = gate * s;
    return { d * up * (s + silu * (1 - s)), d * silu, silu * up };
}

/* The same as swiglu_of where gate and up have been stored as bf16. */
static __device__ __forceinline__ float
swiglu_of_rounded(float gate, float up)
{
    return swiglu_of(to_f32(from_f32<__nv_bfloat16>(gate)),
                     to_f32(from_f32<__nv_bfloat16>(up)));
}

#endif
