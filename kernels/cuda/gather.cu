/* SPDX-License-Identifier: MIT */
/* gather: rows from and to indexed positions. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

/* A block per row; SCATTER: to row index[i], else from it. */
template <typename P, bool SCATTER>
static __global__ void
move_rows(P *__restrict__ y, const P *__restrict__ x, const int32_t *__restrict__ index,
          unsigned packs)
{
    size_t here = blockIdx.x, there = (size_t)index[here];
    const P *from = x + (SCATTER ? here : there) * packs;
    P *to = y + (SCATTER ? there : here) * packs;
    for (unsigned i = threadIdx.x; i < packs; i += FLIGHT * blockDim.x) {
        P v[FLIGHT];
#pragma unroll
        for (unsigned f = 0; f < FLIGHT; f++)
            if (i + f * blockDim.x < packs)
                v[f] = from[i + f * blockDim.x];
#pragma unroll
        for (unsigned f = 0; f < FLIGHT; f++)
            if (i + f * blockDim.x < packs)
                to[i + f * blockDim.x] = v[f];
    }
}

template <typename P>
static void
move_packs(struct cuda *c, void *y, const void *x, const int32_t *index, size_t rows,
           size_t packs, bool scatter)
{
    unsigned threads = row_threads(packs, FLIGHT, 2 * THREADS);
    if (scatter)
        move_rows<P, true><<<(unsigned)rows, threads, 0, c->q.stream>>>(
            (P *)y, (const P *)x, index, (unsigned)packs);
    else
        move_rows<P, false><<<(unsigned)rows, threads, 0, c->q.stream>>>(
            (P *)y, (const P *)x, index, (unsigned)packs);
    cuda_launched(c, scatter ? "scatter" : "gather");
}

template <typename T>
static void
move_of(struct cuda *c, void *y, const void *x, const int32_t *index, size_t rows,
        size_t n, bool scatter)
{
    if (in_packs<T>(n, addr(y) | addr(x)))
        move_packs<pack<T, lanes<T>>>(c, y, x, index, rows, n / lanes<T>, scatter);
    else
        move_packs<T>(c, y, x, index, rows, n, scatter);
}

void
cuda_gather(struct kernels *k, const struct matrix *y, const struct matrix *x,
            const int32_t *index)
{
    if (y->rows && y->cols)
        BY_TYPE(y->dtype, move_of, cuda_of(k), y->data, x->data, index, y->rows,
                y->cols, false);
}

void
cuda_scatter(struct kernels *k, const struct matrix *y, const struct matrix *x,
             const int32_t *index)
{
    if (x->rows && x->cols)
        BY_TYPE(y->dtype, move_of, cuda_of(k), y->data, x->data, index, x->rows,
                x->cols, true);
}
