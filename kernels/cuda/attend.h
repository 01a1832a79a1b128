/* SPDX-License-Identifier: MIT */
/* attend: attention of one token to its sequence, as attend.cu and layers.cu divide and
 * add it, so that both have the same bits. */
#ifndef NIBBLE_KERNELS_CUDA_ATTEND_H
#define NIBBLE_KERNELS_CUDA_ATTEND_H

#include "kernels/cuda/attention.h"

enum {
    ATTEND_ROWS = 16,    // max. query heads of a kv head
    ATTEND_KEYS = 16,    // per warp and step
    ATTEND_WARPS = 8,    // take pieces of as many keys in turn
    ATTEND_SLICE = 256,  // min. keys of a slice
    ATTEND_UNIT = 64,    // the keys of a slice are a multiple
    ATTEND_BLOCKS = 128, // target number of slices of all kv heads; max. of one
};

struct cut {
    int n, keys; // slices, and keys of each
};

static __host__ __device__ __forceinline__ struct cut
cut_of(int keys, int limit)
{
    int each =
        ((keys + limit - 1) / limit + ATTEND_UNIT - 1) / ATTEND_UNIT * ATTEND_UNIT;
    each = each > ATTEND_SLICE ? each : ATTEND_SLICE;
    return { (keys + each - 1) / each, each };
}

/* The most slices of as many tokens before, or up to the next multiple of ATTEND_STEP. */
static inline int
most_slices(int past, int limit)
{
    int low = past / ATTEND_STEP * ATTEND_STEP + 1;
    struct cut first = cut_of(low, limit), last = cut_of(low + ATTEND_STEP - 1, limit);
    return first.keys == last.keys ? last.n : limit;
}

/* A head's cosines, sines and gains that a lane needs: of dimensions lane + 32 p and
 * those DIM / 2 on. */
template <int DIM>
struct angles {
    float cosine[DIM / 64], sine[DIM / 64];

    __device__ __forceinline__
    angles(const float *table, int lane)
    {
#pragma unroll
        for (int p = 0; p < DIM / 64; p++) {
            cosine[p] = table[lane + 32 * p];
            sine[p] = table[DIM / 2 + lane + 32 * p];
        }
    }
};

/* A warp norms a head and rotates it: a, b: elements lane + 32 p, and those DIM / 2 on;
 * gain: of both. */
template <int DIM>
static __device__ __forceinline__ void
turn_head(bf16 *to, const float (&a)[DIM / 64], const float (&b)[DIM / 64],
          const float (&gain)[2][DIM / 64], const struct angles<DIM> &at, float eps,
          int lane)
{
    float sum = 0;
#pragma unroll
    for (int p = 0; p < DIM / 64; p++)
        sum = fmaf(a[p], a[p], fmaf(b[p], b[p], sum));
    float s = 1 / sqrtf(warp_sum(sum) / (float)DIM + eps);
#pragma unroll
    for (int p = 0; p < DIM / 64; p++) {
        float first = a[p] * s * gain[0][p];
        float second = b[p] * s * gain[1][p];
        to[lane + 32 * p] = from_f32<bf16>(first * at.cosine[p] - second * at.sine[p]);
        to[DIM / 2 + lane + 32 * p] =
            from_f32<bf16>(second * at.cosine[p] + first * at.sine[p]);
    }
}

#endif
