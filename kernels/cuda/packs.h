/* SPDX-License-Identifier: MIT */
/* packs: rows of activations in packs of 16 bytes, for memory-bound operations.
 *
 * A thread has several loads in flight, and keeps what is needed twice in registers
 * (norms, heads) or shared memory (logits).  Sizes and addresses that are not multiples
 * of packs take the same kernels with packs of one element, or plain ones: correct, but
 * slower. */
#ifndef NIBBLE_KERNELS_CUDA_PACKS_H
#define NIBBLE_KERNELS_CUDA_PACKS_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

enum {
    THREADS = 256,
    FLIGHT = 2, // packs of each tensor that a thread loads at once
};

/* Call f<T, W>, W by the dtype that is read. */
#define BY_DTYPE(dtype, f, T, ...)                                                     \
    ((dtype) == DT_BF16  ? f<T, __nv_bfloat16>(__VA_ARGS__)                            \
     : (dtype) == DT_F16 ? f<T, __half>(__VA_ARGS__)                                   \
                         : f<T, float>(__VA_ARGS__))

static size_t
min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* An address, to be or-ed with others: their common alignment is that of the result. */
static uintptr_t
addr(const void *p)
{
    return (uintptr_t)p;
}

/* Whether rows of n elements at these addresses consist of whole packs. */
template <typename T>
static bool
in_packs(size_t n, uintptr_t addrs)
{
    return n % lanes<T> == 0 && addrs % 16 == 0;
}

/* Threads of a block per row: whole warps, with about `per` packs per thread. */
static unsigned
row_threads(size_t packs, unsigned per, unsigned max)
{
    size_t threads = ((packs + per - 1) / per + 31) / 32 * 32;
    return (unsigned)(threads < 32 ? 32 : min_size(threads, max));
}

/* Load V elements as f32, at most 16 bytes at a time. */
template <int V, typename T>
static __device__ __forceinline__ void
load(float (&v)[V], const T *p)
{
    constexpr int N = V < lanes<T> ? V : lanes<T>;
#pragma unroll
    for (int i = 0; i < V; i += N) {
        pack<T, N> q = *(const pack<T, N> *)(p + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[i + j] = to_f32(q.v[j]);
    }
}

template <int V, typename T>
static __device__ __forceinline__ void
store(T *p, const float (&v)[V])
{
    constexpr int N = V < lanes<T> ? V : lanes<T>;
#pragma unroll
    for (int i = 0; i < V; i += N) {
        pack<T, N> q;
        if constexpr (sizeof(T) == 2 && N % 2 == 0) // bf16: two in one instruction
#pragma unroll
            for (int j = 0; j < N; j += 2)
                *(__nv_bfloat162 *)&q.v[j] =
                    __floats2bfloat162_rn(v[i + j], v[i + j + 1]);
        else
#pragma unroll
            for (int j = 0; j < N; j++)
                q.v[j] = from_f32<T>(v[i + j]);
        *(pack<T, N> *)(p + i) = q;
    }
}

/* Hide from the compiler that the pack is unchanged.  Else it unpacks bf16 once for all
 * uses, and holds twice the registers from the first to the last. */
template <typename P>
static __device__ __forceinline__ void
stay_packed(P &p)
{
    unsigned *word = (unsigned *)&p;
#pragma unroll
    for (int i = 0; i < (int)(sizeof p / sizeof *word); i++)
        word[i] = keep(word[i]);
}

#endif
