/* SPDX-License-Identifier: MIT */
/* argmax: the largest of each row of logits. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

#include <float.h>

enum { BLOCKS = 64 };

/* A logit and its index; one that is not finite is larger than all others and has index -1. */
struct candidate {
    float value;
    uint32_t at;
};

static __device__ __forceinline__ struct candidate
better(struct candidate a, struct candidate b)
{
    return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}

/* The block's best, in thread 0. */
static __device__ __forceinline__ struct candidate
best_of_block(struct candidate best)
{
    __shared__ struct candidate scratch[THREADS / 32];
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        best = better(best, { __shfl_xor_sync(0xffffffffU, best.value, i),
                              __shfl_xor_sync(0xffffffffU, best.at, i) });
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = best;
    __syncthreads();
    for (unsigned i = 1; threadIdx.x == 0 && i < THREADS / 32; i++)
        best = better(best, scratch[i]);
    return best;
}

static __global__ void __launch_bounds__(THREADS)
    argmax_of_parts(struct candidate *out, const float *__restrict__ logits, unsigned n)
{
    struct candidate best = { -INFINITY, UINT32_MAX };
    cuda_take_over();
#pragma unroll 4
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < n;
         i += BLOCKS * THREADS) {
        float x = logits[i];
        bool finite = fabsf(x) <= FLT_MAX;
        best = better(best, { finite ? x : INFINITY, finite ? i : UINT32_MAX });
    }
    best = best_of_block(best);
    if (threadIdx.x == 0)
        out[blockIdx.x] = best;
}

static __global__ void __launch_bounds__(THREADS)
    argmax_of_all(int32_t *id, const struct candidate *part)
{
    static_assert(BLOCKS <= THREADS, "a part a thread");
    struct candidate best = { -INFINITY, UINT32_MAX };
    cuda_take_over();
    if (threadIdx.x < BLOCKS)
        best = part[threadIdx.x];
    best = best_of_block(best);
    if (threadIdx.x == 0)
        *id = (int32_t)best.at;
}

void
cuda_argmax(struct kernels *k, int32_t *id, const struct matrix *logits)
{
    struct cuda *c = cuda_of(k);
    struct candidate *part = (struct candidate *)c->q.partials;
    for (size_t r = 0; r < logits->rows && logits->cols; r++) {
        cuda_start(c, "argmax", argmax_of_parts, BLOCKS, THREADS, 0, part,
                   (const float *)logits->data + r * logits->stride,
                   (unsigned)logits->cols);
        cuda_start(c, "argmax", argmax_of_all, 1, THREADS, 0, id + r, part);
    }
}
