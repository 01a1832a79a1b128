/* SPDX-License-Identifier: MIT */
/* distill: how far rows of logits are from a teacher's; they are replaced by their
 * gradients. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

#include <float.h>

/* Rows are read twice.  The second time they come from L2 where that has room for two rows
 * of each SM, else from memory: five passes over a matrix of logits, which is little beside
 * the products that make them. */
enum { DISTILL_THREADS = 1024 };

/* As in cross_entropy.cu. */
template <typename T>
static __device__ __forceinline__ float
exponential(float x)
{
    if (sizeof(T) == sizeof(float))
        return expf(x);
    return exp2_fast(x * 1.4426950408889634F);
}

/* The largest of some numbers so far, and the sum of exp((x - max) * factor). */
struct running {
    float max, sum, factor;
};

template <typename T, int V>
static __device__ __forceinline__ void
add_to(struct running &r, const float (&v)[V])
{
    float before = r.max;
#pragma unroll
    for (int j = 0; j < V; j++)
        r.max = fmaxf(r.max, v[j]);
    r.sum *= exponential<T>((before - r.max) * r.factor);
#pragma unroll
    for (int j = 0; j < V; j++)
        r.sum += exponential<T>((v[j] - r.max) * r.factor);
}

/* Of all threads. */
template <typename T>
static __device__ __forceinline__ void
join(struct running &r, float *scratch)
{
    float max = block_max(r.max, scratch);
    r.sum = block_sum(r.sum * exponential<T>((r.max - max) * r.factor), scratch);
    r.max = max;
}

/* What is the same for all elements of a row. */
struct row_distill {
    float z_max, t_max, per_t;
    float z_share, t_share; // 1 / the sums
    float hard, soft, shift;
};

template <typename T>
static __device__ __forceinline__ float
gradient_of(float z, float t, const struct row_distill &d, float *kl)
{
    float s = exponential<T>((z - d.z_max) * d.per_t) * d.z_share;
    float p = exponential<T>((t - d.t_max) * d.per_t) * d.t_share;
    float e = d.hard == 0 ? 0 : d.hard * exponential<T>(z - d.z_max);
    *kl += p * ((t - z) * d.per_t - d.shift);
    return e + d.soft * (s - p);
}

template <typename T, int V>
static __global__ void __launch_bounds__(DISTILL_THREADS)
    distill_rows(float *ce, float *kl, T *logits, const T *__restrict__ teachers,
                 const int32_t *__restrict__ label, unsigned vocab, struct distill how,
                 float scale)
{
    __shared__ float scratch[33];
    T *row = logits + (size_t)blockIdx.x * vocab;
    const T *teacher = teachers + (size_t)blockIdx.x * vocab;
    unsigned packs = vocab / V;
    int32_t target_id = label[blockIdx.x];
    float v[V], t[V];
    if (target_id < 0) {
        const float zero[V] = {};
        for (unsigned i = threadIdx.x; i < packs; i += blockDim.x)
            store(row + (size_t)i * V, zero);
        if (threadIdx.x == 0)
            ce[blockIdx.x] = kl[blockIdx.x] = 0;
        return;
    }
    float target = to_f32(row[target_id]), per_t = 1 / how.temperature;
    struct running hard = { -FLT_MAX, 0, 1 }, soft = { -FLT_MAX, 0, per_t },
                   theirs = soft;
    for (unsigned i = threadIdx.x; i < packs; i += blockDim.x) {
        load(v, row + (size_t)i * V);
        load(t, teacher + (size_t)i * V);
        add_to<T>(soft, v);
        add_to<T>(theirs, t);
        if (per_t != 1)
            add_to<T>(hard, v);
    }
    join<T>(soft, scratch);
    join<T>(theirs, scratch);
    if (per_t != 1)
        join<T>(hard, scratch);
    else
        hard = soft;
    float off = scale * (1 - how.share);
    struct row_distill d = { .z_max = soft.max,
                             .t_max = theirs.max,
                             .per_t = per_t,
                             .z_share = 1 / soft.sum,
                             .t_share = 1 / theirs.sum,
                             .hard = off / hard.sum,
                             .soft = scale * how.share * how.temperature,
                             .shift = logf(theirs.sum) - logf(soft.sum) +
                                      (theirs.max - soft.max) * per_t };
    float part = 0;
    for (unsigned i = threadIdx.x; i < packs; i += blockDim.x) {
        load(v, row + (size_t)i * V);
        load(t, teacher + (size_t)i * V);
#pragma unroll
        for (int j = 0; j < V; j++)
            v[j] = gradient_of<T>(v[j], t[j], d, &part);
        store(row + (size_t)i * V, v);
    }
    part = block_sum(part, scratch); // then correct the element of the label
    if (threadIdx.x == 0) {
        float none = 0;
        kl[blockIdx.x] = part;
        ce[blockIdx.x] = logf(hard.sum) + (hard.max - target);
        row[target_id] = from_f32<T>(
            gradient_of<T>(target, to_f32(teacher[target_id]), d, &none) - off);
    }
}

template <typename T, int V>
static void
distill_launch(struct cuda *c, float *ce, float *kl, const struct matrix *logits,
               const struct matrix *teacher, const int32_t *label,
               const struct distill *how, float scale)
{
    unsigned threads = row_threads(logits->cols / V, 1, DISTILL_THREADS);
    distill_rows<T, V><<<(unsigned)logits->rows, threads, 0, c->q.stream>>>(
        ce, kl, (T *)logits->data, (const T *)teacher->data, label,
        (unsigned)logits->cols, *how, scale);
    cuda_launched(c, "distill");
}

template <typename T>
static void
distill_of(struct cuda *c, float *ce, float *kl, const struct matrix *logits,
           const struct matrix *teacher, const int32_t *label,
           const struct distill *how, float scale)
{
    if (in_packs<T>(logits->cols, addr(logits->data) | addr(teacher->data)))
        distill_launch<T, lanes<T>>(c, ce, kl, logits, teacher, label, how, scale);
    else
        distill_launch<T, 1>(c, ce, kl, logits, teacher, label, how, scale);
}

void
cuda_distill(struct kernels *k, float *ce, float *kl, const struct matrix *logits,
             const struct matrix *teacher, const int32_t *label,
             const struct distill *how, float scale)
{
    if (logits->rows && logits->cols)
        BY_TYPE(logits->dtype, distill_of, cuda_of(k), ce, kl, logits, teacher, label,
                how, scale);
}
