/* SPDX-License-Identifier: MIT */
/* convert: conversion between types, and sums of what is converted. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

/* y = x, of the same length, in packs of V. */
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

/* ---- sums ------------------------------------------------------------------------ */

/* What is added, and how many: */
struct terms {
    const void *x[SUM_MAX];
    int n;
    bool add; // to what is there
};

/* v = v + x */
template <typename W, int V>
static __device__ __forceinline__ void
add_packs(float (&v)[FLIGHT][V], const W *x, size_t first, size_t packs)
{
    float more[FLIGHT][V];
#pragma unroll
    for (int f = 0; f < FLIGHT; f++)
        if (first + f * THREADS < packs)
            load(more[f], x + (first + f * THREADS) * V);
#pragma unroll
    for (int f = 0; f < FLIGHT; f++)
        if (first + f * THREADS < packs)
#pragma unroll
            for (int i = 0; i < V; i++)
                v[f][i] = v[f][i] + more[f][i];
}

template <typename W, int V>
static __device__ __forceinline__ void
load_packs(float (&v)[FLIGHT][V], const W *x, size_t first, size_t packs)
{
#pragma unroll
    for (int f = 0; f < FLIGHT; f++)
        if (first + f * THREADS < packs)
            load(v[f], x + (first + f * THREADS) * V);
}

/* From element `at` on, in packs of V. */
template <typename W, int V>
static __global__ void
sum_packs(float *y, struct terms t, size_t at, size_t packs)
{
    size_t first = (size_t)blockIdx.x * (FLIGHT * THREADS) + threadIdx.x;
    float v[FLIGHT][V] = {};
    if (t.add)
        load_packs(v, y + at, first, packs);
    else
        load_packs(v, (const W *)t.x[0] + at, first, packs);
    for (int q = !t.add; q < t.n; q++)
        add_packs(v, (const W *)t.x[q] + at, first, packs);
#pragma unroll
    for (int f = 0; f < FLIGHT; f++)
        if (first + f * THREADS < packs)
            store(y + at + (first + f * THREADS) * V, v[f]);
}

template <typename W>
static void
sum_of(struct cuda *c, float *y, const struct terms *t, size_t n)
{
    enum { V = lanes<float> };
    uintptr_t all = addr(y);
    for (int q = 0; q < t->n; q++)
        all |= addr(t->x[q]);
    size_t packs = in_packs<float>(0, all) ? n / V : 0, rest = n - packs * V;
    if (packs) {
        sum_packs<W, V>
            <<<blocks_of(packs, FLIGHT * THREADS), THREADS, 0, c->q.stream>>>(y, *t, 0,
                                                                              packs);
        cuda_launched(c, "sum");
    }
    if (rest) {
        sum_packs<W, 1><<<blocks_of(rest, FLIGHT * THREADS), THREADS, 0, c->q.stream>>>(
            y, *t, packs * V, rest);
        cuda_launched(c, "sum");
    }
}

void
cuda_sum(struct kernels *k, const struct matrix *y, size_t n, const struct matrix *x,
         bool add)
{
    struct terms t = { {}, (int)n, add };
    for (size_t i = 0; i < n; i++)
        t.x[i] = x[i].data;
    if (x->dtype == DT_BF16)
        sum_of<__nv_bfloat16>(cuda_of(k), (float *)y->data, &t, x->rows * x->cols);
    else
        sum_of<float>(cuda_of(k), (float *)y->data, &t, x->rows * x->cols);
}
