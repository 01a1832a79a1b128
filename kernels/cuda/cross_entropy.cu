/* SPDX-License-Identifier: MIT */
/* cross_entropy: losses of rows of logits, which become their gradients. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

#include <float.h>

/* A row of logits waits for the second look at it: its first LOSS_KEPT bytes in shared
 * memory, the rest, 140 kB of a multiprocessor if the vocabulary is Qwen3's, in L2. */
enum {
    LOSS_THREADS = 1024,
    LOSS_FLIGHT = 4,
    LOSS_KEPT = 160 << 10,
};

/* Of numbers <= 0.  The short way is off by (2 + 1.2 |x|) 2^-23 of itself at max: with it
 * bf16 keeps up with memory, and what is far off is a small part of the sum. */
template <typename T>
static __device__ __forceinline__ float
exponential(float x)
{
    if (sizeof(T) == sizeof(float))
        return expf(x);
    // __expf without what it does about subnormal numbers.
    return exp2_fast(x * 1.4426950408889634F);
}

template <int V, typename T>
static __device__ __forceinline__ void
clear_row(T *row, unsigned packs)
{
    const float zero[V] = {};
    for (unsigned i = threadIdx.x; i < packs; i += blockDim.x)
        store(row + (size_t)i * V, zero);
}

template <typename T, int V>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_rows(float *loss, T *logits, const int32_t *__restrict__ label, unsigned vocab,
              unsigned kept, float scale)
{
    typedef pack<T, V> P;
    extern __shared__ uint4 shared_packs[];
    __shared__ float scratch[33];
    P *keep = (P *)shared_packs;
    T *row = logits + (size_t)blockIdx.x * vocab;
    unsigned packs = vocab / V, step = blockDim.x;
    int32_t right = label[blockIdx.x];
    if (right < 0) {
        clear_row<V>(row, packs);
        if (threadIdx.x == 0)
            loss[blockIdx.x] = 0;
        return;
    }
    float target = to_f32(row[right]), max = -FLT_MAX, sum = 0;
    for (unsigned i = threadIdx.x; i < packs; i += LOSS_FLIGHT * step) {
        P v[LOSS_FLIGHT];
#pragma unroll
        for (unsigned f = 0; f < LOSS_FLIGHT; f++)
            if (i + f * step < packs)
                v[f] = ((const P *)row)[i + f * step];
#pragma unroll
        for (unsigned f = 0; f < LOSS_FLIGHT; f++) {
            float before = max;
            if (i + f * step >= packs)
                continue;
            if (i + f * step < kept)
                keep[i + f * step] = v[f];
#pragma unroll
            for (int j = 0; j < V; j++)
                max = fmaxf(max, to_f32(v[f].v[j]));
            sum *= exponential<T>(before - max);
#pragma unroll
            for (int j = 0; j < V; j++)
                sum += exponential<T>(to_f32(v[f].v[j]) - max);
        }
    }
    float highest = block_max(max, scratch);
    sum = block_sum(sum * exponential<T>(max - highest), scratch);
    if (threadIdx.x == 0)
        loss[blockIdx.x] = logf(sum) + (highest - target);
    if (scale == 0) {
        clear_row<V>(row, packs);
        return;
    }
    float share = scale / sum;
    for (unsigned i = threadIdx.x; i < packs; i += LOSS_FLIGHT * step) {
        P v[LOSS_FLIGHT];
#pragma unroll
        for (unsigned f = 0; f < LOSS_FLIGHT; f++)
            if (i + f * step < kept)
                v[f] = keep[i + f * step];
            else if (i + f * step < packs)
                v[f] = ((const P *)row)[i + f * step];
#pragma unroll
        for (unsigned f = 0; f < LOSS_FLIGHT; f++) {
            float out[V];
            if (i + f * step >= packs)
                continue;
#pragma unroll
            for (int j = 0; j < V; j++)
                out[j] = exponential<T>(to_f32(v[f].v[j]) - highest) * share;
            store(row + (size_t)(i + f * step) * V, out);
        }
    }
    __syncthreads(); // the one number that the label changes is written again
    if (threadIdx.x == 0)
        row[right] = from_f32<T>(exponential<T>(target - highest) * share - scale);
}

template <typename T, int V>
static void
loss_launch(struct cuda *c, float *loss, void *logits, const int32_t *label,
            size_t rows, size_t vocab, float scale)
{
    size_t fits = least(LOSS_KEPT, c->shared - 1024) / sizeof(pack<T, V>);
    size_t kept = scale != 0 ? least(vocab / V, fits) : 0;
    size_t bytes = kept * sizeof(pack<T, V>);
    if (!cuda_check(c,
                    cudaFuncSetAttribute(loss_rows<T, V>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)bytes),
                    "cudaFuncSetAttribute"))
        return;
    loss_rows<T, V><<<(unsigned)rows, row_threads(vocab / V, 1, LOSS_THREADS), bytes,
                      c->q.stream>>>(loss, (T *)logits, label, (unsigned)vocab,
                                     (unsigned)kept, scale);
    cuda_launched(c, "cross_entropy");
}

template <typename T>
static void
loss_of(struct cuda *c, float *loss, void *logits, const int32_t *label, size_t rows,
        size_t vocab, float scale)
{
    if (in_packs<T>(vocab, place(logits)))
        loss_launch<T, lanes<T>>(c, loss, logits, label, rows, vocab, scale);
    else
        loss_launch<T, 1>(c, loss, logits, label, rows, vocab, scale);
}

void
cuda_cross_entropy(struct kernels *k, float *loss, const struct matrix *logits,
                   const int32_t *label, float scale)
{
    if (logits->rows && logits->cols)
        BY_TYPE(logits->dtype, loss_of, cuda_of(k), loss, logits->data, label,
                logits->rows, logits->cols, scale);
}
