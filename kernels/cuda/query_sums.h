/* SPDX-License-Identifier: MIT */
/* query_sums: dQ before the scale, as attention_hopper.cu sums it and rope.cu reads it. */
#ifndef NIBBLE_KERNELS_CUDA_QUERY_SUMS_H
#define NIBBLE_KERNELS_CUDA_QUERY_SUMS_H

#include <cuda_runtime.h>
#include <stddef.h>

enum { SUMS_TOKENS = 64, SUMS_DIM = 128, SUMS_HALF = SUMS_TOKENS * SUMS_DIM / 2 };

/* data: (H, tiles, 2, SUMS_TOKENS, SUMS_DIM / 2): of a tile of tokens half of the columns,
 * then the others.  Chunk c of 8 columns of row r is at c ^ (r % 8). */
struct query_sums {
    const float *data;
    size_t tiles;
    float scale;
};

/* Columns `column` .. of the first half, up to the end of a chunk; those of the second are
 * SUMS_HALF on. */
static __device__ __forceinline__ const float *
query_sums_at(const struct query_sums &s, size_t head, size_t token, unsigned column)
{
    size_t tile = head * s.tiles + token / SUMS_TOKENS;
    unsigned row = (unsigned)(token % SUMS_TOKENS);
    return s.data + tile * (2 * SUMS_HALF) + row * (SUMS_DIM / 2) +
           ((column / 8 ^ row % 8) << 3) + column % 8;
}

#endif
