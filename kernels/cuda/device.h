/* SPDX-License-Identifier: MIT */
/* device: shared by kernels: programmatic dependent launch, conversions, reductions
 * over warps and blocks. */
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_H
#define NIBBLE_KERNELS_CUDA_DEVICE_H

#include "kernels/cuda/cuda.h"

/* Programmatic dependent launch.  Decoding is a chain of short kernels, so each lets
 * the next one start at once, to place its blocks and load its weights while the one
 * before still runs.  A kernel launched by cuda_start calls cuda_next, which lets the
 * next kernel start, and in every block cuda_wait, before it reads anything but weights
 * and before it writes anything.  After cuda_wait all preceding kernels have ended,
 * since the one before has waited, too.
 *
 * What a kernel reads before cuda_wait must not be written by a kernel that may still
 * run.  After any other work on the stream, the next launch is an ordinary one, which
 * starts when all before it has ended; later ones start no earlier than it does.  A kernel that
 * does not call cuda_next lets the next one be placed as its blocks end, and so do products of
 * cuBLASLt, launched as ordinary ones.  Among kernels of one kind:
 *
 *   EARLY_FORWARD     no kernel writes weights, which are read early; gradients and losses, too;
 *   EARLY_UPDATES     norms, clip, adamw: adamw alone reads early: a gradient and the
 *                     state of its tensor, which only another adamw of it writes; it
 *                     calls cuda_next after cuda_wait, so c->q.updated tells enough; one
 *                     of several tensors, and the next one behind it, reads nothing early;
 *   EARLY_QUANTIZERS  values, amax and column weights are read early; kernels.h
 *                     promises that none of the kernels writes them.  A tensor scale
 *                     shared by several is written by each, with the same value. */
static __device__ __forceinline__ void
cuda_next(void)
{
    cudaTriggerProgrammaticLaunchCompletion();
}

static __device__ __forceinline__ void
cuda_wait(void)
{
    cudaGridDependencySynchronize();
}

/* Both, for kernels that have nothing to do before the wait. */
static __device__ __forceinline__ void
cuda_take_over(void)
{
    cuda_next();
    cuda_wait();
}

/* Launch a kernel of a kind; cluster: blocks per cluster. */
template <typename... P, typename... A>
static void
cuda_start_kind(struct cuda *c, enum early kind, const char *name, unsigned cluster,
                void (*kernel)(P...), dim3 blocks, unsigned threads, size_t shared,
                A... args)
{
    cudaLaunchAttribute attribute[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = c->q.stream;
    config.attrs = attribute;
    if (c->q.early == kind) {
        cudaLaunchAttribute *may = &attribute[config.numAttrs++];
        may->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        may->val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        cudaLaunchAttribute *size = &attribute[config.numAttrs++];
        size->id = cudaLaunchAttributeClusterDimension;
        size->val.clusterDim.x = cluster;
        size->val.clusterDim.y = size->val.clusterDim.z = 1;
    }
    cuda_check(c, cudaLaunchKernelEx(&config, kernel, (P)args...), name);
    cuda_launched(c, name);
    c->q.early = c->trace ? NOT_EARLY : kind;
}

template <typename... P, typename... A>
static void
cuda_start_clusters(struct cuda *c, const char *name, unsigned cluster,
                    void (*kernel)(P...), dim3 blocks, unsigned threads, size_t shared,
                    A... args)
{
    cuda_start_kind(c, EARLY_FORWARD, name, cluster, kernel, blocks, threads, shared,
                    args...);
}

template <typename... P, typename... A>
static void
cuda_start(struct cuda *c, const char *name, void (*kernel)(P...), dim3 blocks,
           unsigned threads, size_t shared, A... args)
{
    cuda_start_clusters(c, name, 1, kernel, blocks, threads, shared, args...);
}

static __device__ __forceinline__ float
to_f32(float x)
{
    return x;
}

static __device__ __forceinline__ float
to_f32(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ float
to_f32(__half x)
{
    return __half2float(x);
}

template <typename T>
static __device__ __forceinline__ T from_f32(float x);

template <>
__device__ __forceinline__ float
from_f32<float>(float x)
{
    return x;
}

template <>
__device__ __forceinline__ __nv_bfloat16
from_f32<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* N elements that are loaded and stored as one vector. */
template <typename T, int N>
struct alignas(sizeof(T) * N) pack {
    T v[N];
};

/* Elements in 16 bytes. */
template <typename T>
constexpr int lanes = 16 / (int)sizeof(T);

static __device__ __forceinline__ float
warp_sum(float x)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffU, x, i);
    return x;
}

static __device__ __forceinline__ float
warp_max(float x)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, i));
    return x;
}

/* A thread's share of the largest magnitude of what it writes: bits, of which those of NaN are
 * the largest. */
static __device__ __forceinline__ unsigned
larger_of(unsigned peak, float x)
{
    return max(peak, __float_as_uint(fabsf(x)));
}

/* *amax grows to that of a block, whose values are stored as T; by all threads of its warps;
 * all: of the block.
 * Rounding keeps order, so that of the largest value is the largest rounded one.  Blocks look
 * before they write: few find more than others have. */
template <typename T>
static __device__ __forceinline__ void
grow_amax(float *amax, unsigned *all, unsigned peak)
{
    if (threadIdx.x == 0)
        *all = 0;
    __syncthreads();
    peak = __reduce_max_sync(0xffffffffU, peak);
    if (threadIdx.x % 32 == 0)
        atomicMax(all, peak);
    __syncthreads();
    if (threadIdx.x)
        return;
    peak = __float_as_uint(to_f32(from_f32<T>(__uint_as_float(*all))));
    peak = peak >= 0x7f800000 ? 0x7fc00000 : peak;
    if (peak > *(volatile unsigned *)amax)
        atomicMax((unsigned *)amax, peak);
}

/* Block-wide sum, in all threads; at most 1024 threads; scratch: 33 floats. */
static __device__ __forceinline__ float
block_sum(float x, float *scratch)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
        warps = (blockDim.x + 31) / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0)
        scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_sum(lane < warps ? scratch[lane] : 0);
        if (lane == 0)
            scratch[32] = x;
    }
    __syncthreads();
    return scratch[32];
}

static __device__ __forceinline__ float
block_max(float x, float *scratch)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
        warps = (blockDim.x + 31) / 32;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0)
        scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_max(lane < warps ? scratch[lane] : scratch[0]);
        if (lane == 0)
            scratch[32] = x;
    }
    __syncthreads();
    return scratch[32];
}

#endif
