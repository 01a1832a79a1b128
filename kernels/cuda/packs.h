/* SPDX-License-Identifier: MIT */
/* packs: rows of activations in packs of 16 bytes, for operations that memory bounds.
 *
 * A thread asks for several packs before it uses the first, and what is needed twice waits in
 * registers (norms, heads) or in shared memory (logits).  Sizes and addresses that packs do
 * not divide take the same kernels with packs of one, or plain ones: correct, but slower.
 */
#ifndef NIBBLE_KERNELS_CUDA_PACKS_H
#define NIBBLE_KERNELS_CUDA_PACKS_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

enum {
    THREADS = 256,
    FLIGHT = 2, // packs of each tensor that a thread asks for at once
};

/* Call f<T, W>, by the type of what is read. */
#define BY_DTYPE(dtype, f, T, ...)                                                     \
    ((dtype) == DT_BF16  ? f<T, __nv_bfloat16>(__VA_ARGS__)                            \
     : (dtype) == DT_F16 ? f<T, __half>(__VA_ARGS__)                                   \
                         : f<T, float>(__VA_ARGS__))

static size_t
least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Addresses, to be or-ed: what divides all of them divides that. */
static uintptr_t
place(const void *p)
{
    return (uintptr_t)p;
}

/* Whether rows of n of T at these places are whole packs. */
template <typename T>
static bool
in_packs(size_t n, uintptr_t places)
{
    return n % lanes<T> == 0 && places % 16 == 0;
}

/* Threads of a block that has a row: whole warps, with about `per` packs a thread. */
static unsigned
row_threads(size_t packs, unsigned per, unsigned most)
{
    size_t threads = ((packs + per - 1) / per + 31) / 32 * 32;
    return (unsigned)(threads < 32 ? 32 : least(threads, most));
}

/* Neighbours as f32, 16 bytes at a time at most. */
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

/* From here on a pack is what it was, for all that the compiler knows.  Else it unpacks bf16
 * once for all uses, and carries twice the registers from the first to the last. */
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
