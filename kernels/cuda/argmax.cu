/* SPDX-License-Identifier: MIT */
/* argmax: index of the maximum of each row of logits. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

#include <float.h>

enum { BLOCKS = 64 };

/* A logit and its index.  A logit that is not finite wins, with index -1. */
struct candidate {
    float value;
    uint32_t at;
};

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

/* Block-wide argmax, valid in thread 0. */
static __device__ __forceinline__ struct candidate
block_argmax(struct candidate peak)
{
    __shared__ struct candidate scratch[THREADS / 32];
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        peak = larger(peak, { __shfl_xor_sync(0xffffffffU, peak.value, i),
                              __shfl_xor_sync(0xffffffffU, peak.at, i) });
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = peak;
    __syncthreads();
    for (unsigned i = 1; threadIdx.x == 0 && i < THREADS / 32; i++)
        peak = larger(peak, scratch[i]);
    return peak;
}

static __global__ void __launch_bounds__(THREADS)
    argmax_partial(struct candidate *out, const float *__restrict__ logits, unsigned n)
{
    struct candidate peak = { -INFINITY, UINT32_MAX };
    cuda_take_over();
#pragma unroll 4
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < n; i += BLOCKS * THREADS)
        peak = larger(peak, candidate_of(logits[i], i));
    peak = block_argmax(peak);
    if (threadIdx.x == 0)
        out[blockIdx.x] = peak;
}

static __global__ void __launch_bounds__(THREADS)
    argmax_final(int32_t *id, const struct candidate *part)
{
    static_assert(BLOCKS <= THREADS, "a part a thread");
    struct candidate peak = { -INFINITY, UINT32_MAX };
    cuda_take_over();
    if (threadIdx.x < BLOCKS)
        peak = part[threadIdx.x];
    peak = block_argmax(peak);
    if (threadIdx.x == 0)
        *id = (int32_t)peak.at;
}

/* Of many rows: a block each. */
static __global__ void __launch_bounds__(THREADS)
    argmax_rows(int32_t *id, const float *__restrict__ logits, unsigned n)
{
    struct candidate peak = { -INFINITY, UINT32_MAX };
    const float *row = logits + (size_t)blockIdx.x * n;
    cuda_take_over();
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < n; i += THREADS)
        peak = larger(peak, candidate_of(row[i], i));
    peak = block_argmax(peak);
    if (threadIdx.x == 0)
        id[blockIdx.x] = (int32_t)peak.at;
}

enum { FEW = 8 }; // rows that several blocks share

void
cuda_argmax(struct kernels *k, int32_t *id, const struct matrix *logits)
{
    struct cuda *c = cuda_of(k);
    struct candidate *part = (struct candidate *)c->q.partials;
    if (logits->rows > FEW && logits->cols) {
        cuda_start(c, "argmax", argmax_rows, (unsigned)logits->rows, THREADS, 0, id,
                   (const float *)logits->data, (unsigned)logits->cols);
        return;
    }
    for (size_t r = 0; r < logits->rows && logits->cols; r++) {
        cuda_start(c, "argmax", argmax_partial, BLOCKS, THREADS, 0, part,
                   (const float *)logits->data + r * logits->stride,
                   (unsigned)logits->cols);
        cuda_start(c, "argmax", argmax_final, 1, THREADS, 0, id + r, part);
    }
}
