/* SPDX-License-Identifier: MIT */
/* cross_entropy: losses of rows of logits, which are replaced by their gradients. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

#include <float.h>

/* A row of logits is read twice.  In between, its first LOSS_KEPT bytes stay in shared
 * memory, the rest, 140 kB per SM with Qwen3's vocabulary, in L2. */
enum {
    LOSS_THREADS = 1024,
    LOSS_FLIGHT = 4,
    LOSS_KEPT = 160 << 10,
};

/* exp(x) for x <= 0.  For bf16 the approximation has a relative error of at most (2 +
 * 1.2 |x|) 2^-23: fast enough to be memory-bound, and where it is less exact the term
 * is small. */
template <typename T>
static __device__ __forceinline__ float
exponential(float x)
{
    if (sizeof(T) == sizeof(float))
        return expf(x);
    // __expf without its handling of subnormals.
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
    P *cached = (P *)shared_packs;
    T *row = logits + (size_t)blockIdx.x * vocab;
    unsigned packs = vocab / V, step = blockDim.x;
    cuda_wait();
    int32_t target_id = label[blockIdx.x];
    if (target_id < 0) {
        clear_row<V>(row, packs);
        if (threadIdx.x == 0)
            loss[blockIdx.x] = 0;
        return;
    }
    float target = to_f32(row[target_id]), max = -FLT_MAX, sum = 0;
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
                cached[i + f * step] = v[f];
#pragma unroll
            for (int j = 0; j < V; j++)
                max = fmaxf(max, to_f32(v[f].v[j]));
            sum *= exponential<T>(before - max);
#pragma unroll
            for (int j = 0; j < V; j++)
                sum += exponential<T>(to_f32(v[f].v[j]) - max);
        }
    }
    float row_max = block_max(max, scratch);
    sum = block_sum(sum * exponential<T>(max - row_max), scratch);
    if (threadIdx.x == 0)
        loss[blockIdx.x] = logf(sum) + (row_max - target);
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
                v[f] = cached[i + f * step];
            else if (i + f * step < packs)
                v[f] = ((const P *)row)[i + f * step];
#pragma unroll
        for (unsigned f = 0; f < LOSS_FLIGHT; f++) {
            float out[V];
            if (i + f * step >= packs)
                continue;
#pragma unroll
            for (int j = 0; j < V; j++)
                out[j] = exponential<T>(to_f32(v[f].v[j]) - row_max) * share;
            store(row + (size_t)(i + f * step) * V, out);
        }
    }
    __syncthreads(); // then correct the element of the label
    if (threadIdx.x == 0)
        row[target_id] = from_f32<T>(exponential<T>(target - row_max) * share - scale);
}

template <typename T, int V>
static void
loss_launch(struct cuda *c, float *loss, void *logits, const int32_t *label,
            size_t rows, size_t vocab, float scale)
{
    size_t fits = min_size(LOSS_KEPT, c->shared - 1024) / sizeof(pack<T, V>);
    size_t kept = scale != 0 ? min_size(vocab / V, fits) : 0;
    size_t bytes = kept * sizeof(pack<T, V>);
    if (!cuda_check(c,
                    cudaFuncSetAttribute(loss_rows<T, V>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)bytes),
                    "cudaFuncSetAttribute"))
        return;
    cuda_start(c, "cross_entropy", loss_rows<T, V>, (unsigned)rows,
               row_threads(vocab / V, 1, LOSS_THREADS), bytes, loss, (T *)logits, label,
               (unsigned)vocab, (unsigned)kept, scale);
}

template <typename T>
static void
loss_of(struct cuda *c, float *loss, void *logits, const int32_t *label, size_t rows,
        size_t vocab, float scale)
{
    if (in_packs<T>(vocab, addr(logits)))
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
