/* SPDX-License-Identifier: MIT */
/* column_stats: squares and magnitudes of activations by column.  A thread has a column and
 * adds its rows in their order, so that the sums do not depend on how a text is divided. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

enum { STATS_THREADS = 64, STATS_FLIGHT = 16 };

template <typename T>
static __global__ void __launch_bounds__(STATS_THREADS)
    stats_kernel(double *squares, float *peak, const T *x, size_t rows, size_t cols,
                 size_t stride)
{
    size_t i = (size_t)blockIdx.x * STATS_THREADS + threadIdx.x;
    if (i >= cols)
        return;
    double sum = squares[i];
    float most = peak[i];
    for (size_t r = 0; r < rows; r += STATS_FLIGHT) {
        float v[STATS_FLIGHT];
#pragma unroll
        for (size_t f = 0; f < STATS_FLIGHT; f++)
            v[f] = r + f < rows ? to_f32(x[(r + f) * stride + i]) : 0;
#pragma unroll
        for (size_t f = 0; f < STATS_FLIGHT; f++) {
            sum += (double)v[f] * (double)v[f];
            most = fmaxf(most, fabsf(v[f]));
        }
    }
    squares[i] = sum;
    peak[i] = most;
}

template <typename T>
static void
stats_of(struct cuda *c, double *squares, float *peak, const struct matrix *x)
{
    unsigned grid = (unsigned)((x->cols + STATS_THREADS - 1) / STATS_THREADS);
    stats_kernel<<<grid, STATS_THREADS, 0, c->q.stream>>>(
        squares, peak, (const T *)x->data, x->rows, x->cols, x->stride);
    cuda_launched(c, "column_stats");
}

void
cuda_column_stats(struct kernels *k, double *squares, float *peak,
                  const struct matrix *x)
{
    if (x->rows && x->cols)
        BY_TYPE(x->dtype, stats_of, cuda_of(k), squares, peak, x);
}
