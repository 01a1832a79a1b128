/* SPDX-License-Identifier: MIT */
/* convert: conversion between types. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

/* y and x of the same length, in packs of V. */
template <typename T, typename W, int V>
static __global__ void
convert_packs(T *__restrict__ y, const W *__restrict__ x, size_t packs)
{
    size_t first = (size_t)blockIdx.x * (FLIGHT * THREADS) + threadIdx.x;
    float v[FLIGHT][V];
#pragma unroll
    for (int f = 0; f < FLIGHT; f++)
        if (first + f * THREADS < packs)
            load(v[f], x + (first + f * THREADS) * V);
#pragma unroll
    for (int f = 0; f < FLIGHT; f++)
        if (first + f * THREADS < packs)
            store(y + (first + f * THREADS) * V, v[f]);
}

/* Packs have 16 bytes of y, so that stores coalesce. */
template <typename T, typename W>
static void
convert_of(struct cuda *c, T *y, const void *x, size_t n)
{
    const W *from = (const W *)x;
    size_t head = in_packs<T>(0, addr(y) | addr(x)) ? n - n % lanes<T> : 0;
    if (head) {
        size_t packs = head / lanes<T>;
        convert_packs<T, W, lanes<T>>
            <<<blocks_of(packs, FLIGHT * THREADS), THREADS, 0, c->q.stream>>>(y, from,
                                                                              packs);
        cuda_launched(c, "convert");
    }
    if (head < n) {
        convert_packs<T, W, 1>
            <<<blocks_of(n - head, FLIGHT * THREADS), THREADS, 0, c->q.stream>>>(
                y + head, from + head, n - head);
        cuda_launched(c, "convert");
    }
}

void
cuda_convert_plain(struct cuda *c, float *y, const void *x, enum dtype dtype, size_t n)
{
    if (n)
        BY_DTYPE(dtype, convert_of, float, c, y, x, n);
}

void
cuda_convert(struct kernels *k, const struct matrix *y, const struct matrix *x)
{
    if (x->dtype == DT_NVFP4)
        cuda_unpack(cuda_of(k), y, x);
    else
        cuda_convert_plain(cuda_of(k), (float *)y->data, x->data, x->dtype,
                           x->rows * x->cols);
}
