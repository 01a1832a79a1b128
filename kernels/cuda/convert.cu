/* SPDX-License-Identifier: MIT */
/* convert: conversion between types, and sums of what is converted. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

/* v = y + v */
template <typename T, int V>
static __device__ __forceinline__ void
add_to(float (&v)[V], const T *y)
{
    float old[V];
    load(old, y);
#pragma unroll
    for (int i = 0; i < V; i++)
        v[i] = old[i] + v[i];
}

/* y = x, or y += x, of the same length, in packs of V. */
template <bool ADD, typename T, typename W, int V>
static __global__ void
convert_packs(T *__restrict__ y, const W *__restrict__ x, size_t packs)
{
    size_t first = (size_t)blockIdx.x * (FLIGHT * THREADS) + threadIdx.x;
    float v[FLIGHT][V];
#pragma unroll
    for (int f = 0; f < FLIGHT; f++)
        if (first + f * THREADS < packs)
            load(v[f], x + (first + f * THREADS) * V);
    if (ADD)
#pragma unroll
        for (int f = 0; f < FLIGHT; f++)
            if (first + f * THREADS < packs)
                add_to(v[f], y + (first + f * THREADS) * V);
#pragma unroll
    for (int f = 0; f < FLIGHT; f++)
        if (first + f * THREADS < packs)
            store(y + (first + f * THREADS) * V, v[f]);
}

/* Packs have 16 bytes of y, so that stores coalesce. */
template <bool ADD, typename T, typename W>
static void
convert_or_add(struct cuda *c, T *y, const void *x, size_t n)
{
    const W *from = (const W *)x;
    size_t head = in_packs<T>(0, addr(y) | addr(x)) ? n - n % lanes<T> : 0;
    if (head) {
        size_t packs = head / lanes<T>;
        convert_packs<ADD, T, W, lanes<T>>
            <<<blocks_of(packs, FLIGHT * THREADS), THREADS, 0, c->q.stream>>>(y, from,
                                                                              packs);
        cuda_launched(c, "convert");
    }
    if (head < n) {
        convert_packs<ADD, T, W, 1>
            <<<blocks_of(n - head, FLIGHT * THREADS), THREADS, 0, c->q.stream>>>(
                y + head, from + head, n - head);
        cuda_launched(c, "convert");
    }
}

template <typename T, typename W>
static void
convert_of(struct cuda *c, T *y, const void *x, size_t n)
{
    convert_or_add<false, T, W>(c, y, x, n);
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

void
cuda_add(struct kernels *k, const struct matrix *y, const struct matrix *x)
{
    size_t n = x->rows * x->cols;
    if (x->dtype == DT_BF16)
        convert_or_add<true, float, __nv_bfloat16>(cuda_of(k), (float *)y->data,
                                                   x->data, n);
    else
        convert_or_add<true, float, float>(cuda_of(k), (float *)y->data, x->data, n);
}
