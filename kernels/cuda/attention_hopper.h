/* SPDX-License-Identifier: MIT */
/* attention_hopper: what the attention kernels with wgmma (sm_90a) share; heads of 128.
 *
 * A matrix of 128 columns is two of 64 in shared memory, rows of 128 bytes with the swizzle
 * of wgmma: 16-byte chunk c of row r is at c ^ (r % 8). */
#ifndef NIBBLE_KERNELS_CUDA_ATTENTION_HOPPER_H
#define NIBBLE_KERNELS_CUDA_ATTENTION_HOPPER_H

#include "kernels/cuda/attention.h"

/* For other chips the kernels are not launched. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

/* Registers of each of 384 threads as a block begins: 65,536 / 384, as a multiple of 8.  A
 * warpgroup that asks for more than the others have released waits for ever. */
enum { BEGIN_REGS = 168 };

/* One arrival of a warp. */
static __device__ __forceinline__ void
warp_arrive(uint32_t barrier, int lane)
{
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(barrier);
}

/* Descriptor of a matrix with columns summed over: address, and the bytes from 8 rows to
 * the next 8. */
static __device__ __forceinline__ uint64_t
columns_summed(uint32_t at)
{
    return 1ULL << 62 | (uint64_t)(8 * 128 >> 4) << 32 | 1 << 16 | (at & 0x3ffff) >> 4;
}

/* With rows summed over; halves of `half` bytes, if it has more than 64 columns. */
static __device__ __forceinline__ uint64_t
rows_summed(uint32_t at, uint32_t half)
{
    return 1ULL << 62 | (uint64_t)(8 * 128 >> 4) << 32 | (uint64_t)(half >> 4) << 16 |
           (at & 0x3ffff) >> 4;
}

/* The descriptor of what is `offset` bytes on: one instruction.  To make each from its
 * address takes ten for a product, 23 % of the warps' time in the gradients' kernel. */
static __device__ __forceinline__ uint64_t
descriptor(uint64_t start, uint32_t offset)
{
    return start + (offset >> 4);
}

/* Start o += A B: A (64, 16 N) in registers, B with its rows summed over. */
template <int N>
static __device__ __forceinline__ void
start_sums(float (&o)[64], const uint32_t (&a)[N][4], uint64_t b)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < N; k++)
        wgmma<true>(o, a[k], descriptor(b, k * 16 * 128), true);
    wgmma_commit();
}

#endif
