/* SPDX-License-Identifier: MIT */
/* multiply: the products of a warpgroup that ptx.h describes, by mma: for chips without
 * wgmma, and for the emulation, whose ptx.h includes it, too. */
#ifndef NIBBLE_KERNELS_CUDA_MULTIPLY_H
#define NIBBLE_KERNELS_CUDA_MULTIPLY_H

template <int NT>
static __device__ __forceinline__ uint32_t
operand_at(uint32_t x)
{
    return x;
}

template <int NT>
static __device__ __forceinline__ void
multiply(float (&sum)[NT][4], const uint32_t (&a)[4], uint32_t x, int k, bool more)
{
    x += (uint32_t)k * NT * 256;
    unsigned lane = threadIdx.x % 32, upper = lane / 8 % 2, next = lane / 16;
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
        uint32_t b[4];
        load4(b, x + ((upper * NT + n + next) * 8 + lane % 8) * 16);
#pragma unroll
        for (int i = n; i < n + 2; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[i][e] = more ? sum[i][e] : 0;
            mma(sum[i], a, b[2 * (i - n)], b[2 * (i - n) + 1]);
        }
    }
}

static __device__ __forceinline__ void
products_begin(void)
{
}

static __device__ __forceinline__ void
products_commit(void)
{
}

template <int N>
static __device__ __forceinline__ void
products_wait(void)
{
}

template <typename T, int N>
static __device__ __forceinline__ void
hold(T (&)[N][4])
{
}

#endif
