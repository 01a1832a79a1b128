/* SPDX-License-Identifier: MIT */
/* l1: mean distance of rows from rows of the embedding. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

template <typename T, typename W, int V>
static __global__ void __launch_bounds__(THREADS)
    l1_rows(float *loss, T *dx, const T *__restrict__ x, const W *__restrict__ w,
            const int32_t *__restrict__ label, unsigned n, float share)
{
    __shared__ float scratch[33];
    size_t row = blockIdx.x;
    const W *target = w + (size_t)label[row] * n;
    float sum = 0;
    for (unsigned at = threadIdx.x * V; at < n; at += blockDim.x * V) {
        float v[V], e[V];
        load(v, x + row * n + at);
        load(e, target + at);
#pragma unroll
        for (int i = 0; i < V; i++) {
            float off = v[i] - e[i];
            sum += fabsf(off);
            v[i] = off > 0 ? share : off < 0 ? -share : 0;
        }
        if (dx)
            store(dx + row * n + at, v);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0)
        loss[row] = sum / (float)n;
}

/* Arguments of l1. */
struct l1 {
    float *loss;
    const struct matrix *dx, *dw, *x, *w; // dx, dw: NULL: not computed
    const int32_t *label;
    float scale;
};

template <typename T, typename W>
static void
l1_from(struct cuda *c, const struct l1 *j)
{
    constexpr int V = lanes<T>;
    size_t n = j->w->cols;
    unsigned rows = (unsigned)j->x->rows;
    float share = j->scale / (float)n;
    const W *w = (const W *)j->w->data;
    const T *x = (const T *)j->x->data;
    T *dx = j->dx ? (T *)j->dx->data : NULL;
    if (in_packs<T>(n, addr(dx) | addr(x) | addr(w)))
        l1_rows<T, W, V><<<rows, row_threads(n / V, 2, THREADS), 0, c->q.stream>>>(
            j->loss, dx, x, w, j->label, (unsigned)n, share);
    else
        l1_rows<T, W, 1><<<rows, row_threads(n, 2, THREADS), 0, c->q.stream>>>(
            j->loss, dx, x, w, j->label, (unsigned)n, share);
    cuda_launched(c, "l1");
    if (j->dw)
        cuda_l1_dw(c, j->dw, j->x, j->w, j->label, share);
}

template <typename T>
static void
l1_of(struct cuda *c, const struct l1 *j)
{
    BY_DTYPE(j->w->dtype, l1_from, T, c, j);
}

void
cuda_l1(struct kernels *k, float *loss, const struct matrix *dx,
        const struct matrix *dw, const struct matrix *x, const struct matrix *w,
        const int32_t *label, float scale)
{
    const struct l1 j = { loss, dx, dw, x, w, label, scale };
    if (x->rows && w->cols)
        BY_TYPE(x->dtype, l1_of, cuda_of(k), &j);
}
