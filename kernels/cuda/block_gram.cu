/* SPDX-License-Identifier: MIT */
/* block_gram: products of the columns of activations, within blocks of columns.  A thread block
 * makes 32x32 of them; each thread adds the rows in their order, so that the sums do not depend
 * on how a text is divided. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

enum { GRAM_TILE = 32, GRAM_ROWS = 8, GRAM_EACH = GRAM_TILE / GRAM_ROWS };

/* The 32 columns from `column` on of as many rows; 0 beyond the last row, or column `end`.  What
 * is added for rows that are not there is 0, which changes no sum. */
template <typename T>
static __device__ __forceinline__ void
load_tile(float (*to)[GRAM_TILE], const T *x, size_t row, size_t rows, size_t column,
          size_t end, size_t stride)
{
    for (unsigned r = threadIdx.y; r < GRAM_TILE; r += GRAM_ROWS) {
        bool inside = row + r < rows && column + threadIdx.x < end;
        to[r][threadIdx.x] =
            inside ? to_f32(x[(row + r) * stride + column + threadIdx.x]) : 0;
    }
}

template <typename T>
static __global__ void __launch_bounds__(GRAM_TILE *GRAM_ROWS)
    gram_kernel(double *gram, unsigned width, const T *x, size_t rows, size_t stride)
{
    __shared__ float left[GRAM_TILE][GRAM_TILE], right[GRAM_TILE][GRAM_TILE];
    unsigned tiles = (width + GRAM_TILE - 1) / GRAM_TILE;
    unsigned i0 = blockIdx.x / tiles * GRAM_TILE, k0 = blockIdx.x % tiles * GRAM_TILE;
    size_t block = (size_t)blockIdx.y * width, end = block + width;
    double *to = gram + block * width;
    double sum[GRAM_EACH];
    unsigned k = k0 + threadIdx.x;
#pragma unroll
    for (unsigned e = 0; e < GRAM_EACH; e++) {
        unsigned i = i0 + threadIdx.y + e * GRAM_ROWS;
        sum[e] = i < width && k < width ? to[(size_t)i * width + k] : 0;
    }
    for (size_t row = 0; row < rows; row += GRAM_TILE) {
        load_tile(left, x, row, rows, block + i0, end, stride);
        load_tile(right, x, row, rows, block + k0, end, stride);
        __syncthreads();
#pragma unroll 4
        for (unsigned r = 0; r < GRAM_TILE; r++)
#pragma unroll
            for (unsigned e = 0; e < GRAM_EACH; e++)
                sum[e] += (double)left[r][threadIdx.y + e * GRAM_ROWS] *
                          (double)right[r][threadIdx.x];
        __syncthreads();
    }
#pragma unroll
    for (unsigned e = 0; e < GRAM_EACH; e++) {
        unsigned i = i0 + threadIdx.y + e * GRAM_ROWS;
        if (i < width && k < width)
            to[(size_t)i * width + k] = sum[e];
    }
}

template <typename T>
static void
gram_of(struct cuda *c, double *gram, size_t width, const struct matrix *x)
{
    unsigned tiles = blocks_of(width, GRAM_TILE);
    dim3 grid(tiles * tiles, (unsigned)(x->cols / width)),
        threads(GRAM_TILE, GRAM_ROWS);
    gram_kernel<<<grid, threads, 0, c->q.stream>>>(
        gram, (unsigned)width, (const T *)x->data, x->rows, x->stride);
    cuda_launched(c, "block_gram");
}

void
cuda_block_gram(struct kernels *k, double *gram, size_t width, const struct matrix *x)
{
    if (x->rows && x->cols)
        BY_TYPE(x->dtype, gram_of, cuda_of(k), gram, width, x);
}
