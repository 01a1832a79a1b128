/* SPDX-License-Identifier: MIT */
/* device: what kernels share: launches that begin early, types, sums over warps and blocks. */
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_H
#define NIBBLE_KERNELS_CUDA_DEVICE_H

#include "kernels/cuda/cuda.h"

/* Launches that begin early.  Decoding is short kernels one after the other, so each lets
 * the next one begin at once, which gets its blocks in place and asks for its weights while
 * the one before still works.  A kernel that cuda_start launches calls cuda_next, which
 * lets the next one begin, and in every block cuda_wait, before anything but weights is
 * read and before anything is written: then all kernels before it have ended, since the
 * one before it had waited, too.
 *
 * What it reads before it waits must not be what a kernel writes that may still run.  After
 * anything else on the stream the next launch is a plain one, which begins when all before
 * it has ended, and those behind it begin no earlier than it does.  In between:
 *   EARLY_FORWARD     no kernel writes weights, which is what is read;
 *   EARLY_UPDATES     of norms, clips and adamw, adamw alone reads: a gradient and the state
 *                     of its tensor, which only another adamw of it writes; it lets the next
 *                     one begin when it has waited, so that c->q.updated is all there is to know;
 *   EARLY_QUANTIZERS  values, their amax and weights of columns are read, which kernels.h
 *                     says none of them writes; codes and the like are written, and a
 *                     multiplier that several share, by each the same. */
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

/* Both: of kernels that have nothing to do before. */
static __device__ __forceinline__ void
cuda_take_over(void)
{
    cuda_next();
    cuda_wait();
}

/* cluster: how many neighbouring blocks are a cluster. */
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

/* N neighbours that are read and written at once. */
template <typename T, int N>
struct alignas(sizeof(T) * N) pack {
    T v[N];
};

/* How many of them make 16 bytes. */
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

/* Sum over a block of at most 1024 threads, the same for all; scratch: 33 floats. */
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
