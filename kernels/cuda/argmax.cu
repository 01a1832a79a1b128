/* SPDX-License-Identifier: MIT */
/* argmax: index of the maximum of each row of logits. */
#include "kernels/cuda/argmax.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

enum { BLOCKS = 64 };

/* Block-wide argmax, valid in thread 0. */
static __device__ __forceinline__ struct candidate
block_argmax(struct candidate peak)
{
    __shared__ struct candidate scratch[THREADS / 32];
    peak = warp_argmax(peak);
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
    struct candidate peak = no_candidate();
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
    struct candidate peak = no_candidate();
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
    struct candidate peak = no_candidate();
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
