/* SPDX-License-Identifier: MIT */
/* swiglu: silu(gate) * up. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/swiglu.h"

/* Load a thread's FLIGHT packs, THREADS apart. */
template <typename P>
static __device__ __forceinline__ void
load_packs(P (&v)[FLIGHT], const void *x, size_t first, size_t packs)
{
#pragma unroll
    for (int f = 0; f < FLIGHT; f++)
        if (first + f * THREADS < packs)
            v[f] = ((const P *)x)[first + f * THREADS];
}

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS)
    swiglu_packs(T *y, const T *gate, const T *up, size_t packs, float *amax)
{
    size_t first = (size_t)blockIdx.x * (FLIGHT * THREADS) + threadIdx.x;
    __shared__ unsigned all;
    unsigned peak = 0;
    pack<T, V> g[FLIGHT], u[FLIGHT];
    cuda_take_over();
    load_packs(g, gate, first, packs);
    load_packs(u, up, first, packs);
#pragma unroll
    for (int f = 0; f < FLIGHT; f++) {
        float out[V];
        if (first + f * THREADS >= packs)
            continue;
#pragma unroll
        for (int i = 0; i < V; i++) {
            out[i] = swiglu_of(to_f32(g[f].v[i]), to_f32(u[f].v[i]));
            peak = larger_of(peak, out[i]);
        }
        if (y)
            store(y + (first + f * THREADS) * V, out);
    }
    if (amax)
        grow_amax<T>(amax, &all, peak);
}

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS)
    swiglu_bwd_packs(T *d_gate_up, T *d, const T *gate, const T *up, unsigned row,
                     unsigned packs, float *amax)
{
    size_t first = (size_t)blockIdx.x * (FLIGHT * THREADS) + threadIdx.x;
    __shared__ unsigned all;
    unsigned peak = 0;
    pack<T, V> g[FLIGHT], u[FLIGHT], dy[FLIGHT];
    cuda_wait();
    load_packs(g, gate, first, packs);
    load_packs(u, up, first, packs);
    load_packs(dy, d, first, packs);
#pragma unroll
    for (int f = 0; f < FLIGHT; f++) {
        unsigned at = (unsigned)first + f * THREADS;
        size_t in_row = ((size_t)(at / row) * 2 * row + at % row) * V; // row: packs
        T *to = d_gate_up ? d_gate_up + in_row : NULL;
        float dgate[V], dup[V], y[V];
        if (at >= packs)
            continue;
#pragma unroll
        for (int i = 0; i < V; i++) {
            struct swiglu_gradient of = swiglu_gradient_of(
                to_f32(g[f].v[i]), to_f32(u[f].v[i]), to_f32(dy[f].v[i]));
            dgate[i] = of.gate;
            dup[i] = of.up;
            y[i] = of.y;
            peak = larger_of(larger_of(peak, dgate[i]), dup[i]);
        }
        if (!d_gate_up)
            continue;
        store(to, dgate);
        store(to + (size_t)row * V, dup);
        store(d + (size_t)at * V, y);
    }
    if (amax)
        grow_amax<T>(amax, &all, peak);
}

template <typename T>
static void
run_swiglu(struct cuda *c, void *y, const void *gate, const void *up, size_t n,
           float *amax)
{
    T *to = (T *)y;
    const T *g = (const T *)gate, *u = (const T *)up;
    bool fit = in_packs<T>(0, addr(y) | addr(gate) | addr(up));
    size_t packs = fit ? n / lanes<T> : 0, head = packs * lanes<T>;
    if (packs)
        cuda_start(c, "swiglu", swiglu_packs<T, lanes<T>>,
                   blocks_of(packs, FLIGHT * THREADS), THREADS, 0, to, g, u, packs,
                   amax);
    if (head < n)
        cuda_start(c, "swiglu", swiglu_packs<T, 1>,
                   blocks_of(n - head, FLIGHT * THREADS), THREADS, 0,
                   to ? to + head : NULL, g + head, u + head, n - head, amax);
}

/* At most 2^31 packs per launch. */
template <typename T, int V>
static void
run_swiglu_bwd(struct cuda *c, T *d_gate_up, T *d, const T *gate, const T *up,
               size_t tokens, size_t n, float *amax)
{
    size_t row = n / V, limit = ((size_t)1 << 31) / row;
    for (size_t at = 0; at < tokens; at += limit) {
        unsigned packs = (unsigned)(min_size(tokens - at, limit) * row);
        cuda_start(c, "swiglu_bwd", swiglu_bwd_packs<T, V>,
                   blocks_of(packs, FLIGHT * THREADS), THREADS, 0,
                   d_gate_up ? d_gate_up + at * 2 * n : NULL, d + at * n, gate + at * n,
                   up + at * n, (unsigned)row, packs, amax);
    }
}

template <typename T>
static void
swiglu_bwd_of(struct cuda *c, void *d_gate_up, void *d, const void *gate,
              const void *up, size_t tokens, size_t n, float *amax)
{
    if (in_packs<T>(n, addr(d_gate_up) | addr(d) | addr(gate) | addr(up)))
        run_swiglu_bwd<T, lanes<T>>(c, (T *)d_gate_up, (T *)d, (const T *)gate,
                                    (const T *)up, tokens, n, amax);
    else
        run_swiglu_bwd<T, 1>(c, (T *)d_gate_up, (T *)d, (const T *)gate, (const T *)up,
                             tokens, n, amax);
}

void
cuda_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *gate,
            const struct matrix *up)
{
    size_t n = y->rows * y->cols;
    if (n)
        BY_TYPE(y->dtype, run_swiglu, cuda_of(k), y->data, gate->data, up->data, n,
                y->amax);
}

void
cuda_swiglu_bwd(struct kernels *k, const struct matrix *d_gate_up,
                const struct matrix *d, const struct matrix *gate,
                const struct matrix *up)
{
    if (d->rows && d->cols)
        BY_TYPE(d->dtype, swiglu_bwd_of, cuda_of(k), d_gate_up->data, d->data,
                gate->data, up->data, d->rows, d->cols, d_gate_up->amax);
}
