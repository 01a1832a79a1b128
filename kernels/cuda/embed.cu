/* SPDX-License-Identifier: MIT */
/* embed: embedding lookup, and its weight gradient. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"

template <typename T, typename W, int V>
static __global__ void
embed_rows(T *__restrict__ y, const W *__restrict__ w, const int32_t *__restrict__ ids,
           unsigned n)
{
    cuda_take_over();
    // -1: there was no largest logit; what is made of it is not used.
    const W *from = w + (size_t)max(ids[blockIdx.x], 0) * n;
    T *to = y + (size_t)blockIdx.x * n;
    for (unsigned i = threadIdx.x * V; i < n; i += blockDim.x * V) {
        float v[V];
        load(v, from + i);
        store(to + i, v);
    }
}

template <typename T, typename W>
static void
embed_from(struct cuda *c, void *y, const void *w, const int32_t *ids, size_t tokens,
           size_t n)
{
    constexpr int V = lanes<T>;
    if (in_packs<T>(n, addr(y) | addr(w)))
        cuda_start(c, "embed", embed_rows<T, W, V>, (unsigned)tokens,
                   row_threads(n / V, 1, 2 * THREADS), 0, (T *)y, (const W *)w, ids,
                   (unsigned)n);
    else
        cuda_start(c, "embed", embed_rows<T, W, 1>, (unsigned)tokens,
                   row_threads(n, 1, 2 * THREADS), 0, (T *)y, (const W *)w, ids,
                   (unsigned)n);
}

template <typename T>
static void
embed_of(struct cuda *c, const struct matrix *y, const struct matrix *w,
         const int32_t *ids)
{
    BY_DTYPE(w->dtype, embed_from, T, c, y->data, w->data, ids, y->rows, w->cols);
}

void
cuda_embed(struct kernels *k, const struct matrix *y, const struct matrix *w,
           const int32_t *ids)
{
    if (y->rows && y->cols)
        BY_TYPE(y->dtype, embed_of, cuda_of(k), y, w, ids);
}

/* ---- gradient: each token's row is added to that of its id, in token order ------- */

/* Tokens are sorted by id; then the block at the first token of an id adds the rows of
 * all its tokens, in order, and no other block touches that row.  The rank sort is
 * quadratic, so it takes at most PIECE tokens. */
enum {
    PIECE = 1 << 16,
    ROWS = 8, // rows in flight
    BLOCK = 128,
    LONG = 64, // max. tokens per id; the rest is left to add_rest
};

/* Rank sort with a warp per token: its rank is the number of tokens before it. */
static __global__ void __launch_bounds__(THREADS)
    sort_ids(int32_t *__restrict__ key, int32_t *__restrict__ order,
             const int32_t *__restrict__ ids, int n)
{
    int t = (int)(blockIdx.x * (THREADS / 32) + threadIdx.x / 32), before = 0;
    if (t >= n)
        return;
    int32_t id = ids[t];
#pragma unroll 8
    for (int i = (int)(threadIdx.x % 32); i < n; i += 32)
        before += ids[i] < id + (i < t);
    before = __reduce_add_sync(0xffffffffU, before);
    if (threadIdx.x % 32 == 0) {
        key[before] = id;
        order[before] = t;
    }
}

/* A block per rank and part of the columns.  L1: adds -share * sign(x - w) instead of
 * x. */
template <typename T, typename W, int V, bool L1>
static __global__ void __launch_bounds__(BLOCK)
    add_rows(float *dw, const T *__restrict__ x, const W *__restrict__ w,
             const int32_t *__restrict__ key, const int32_t *__restrict__ order, int n,
             unsigned width, unsigned parts, float share)
{
    int first = (int)(blockIdx.x / parts), id = key[first];
    unsigned column = (blockIdx.x % parts * BLOCK + threadIdx.x) * V;
    if (column >= width || (first > 0 && key[first - 1] == id))
        return;
    float *to = dw + (size_t)id * width + column;
    float sum[V], e[V];
    load(sum, to);
    if (L1)
        load(e, w + (size_t)id * width + column);
    for (int at = first; at < first + LONG && at < n && key[at] == id; at += ROWS) {
        float v[ROWS][V];
        bool is[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            is[i] = at + i < n && key[at + i] == id;
            if (is[i])
                load(v[i], x + (size_t)order[at + i] * width + column);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < V; j++) {
                float d = v[i][j];
                if (L1)
                    d = d > e[j] ? -share : d < e[j] ? share : 0;
                if (is[i])
                    sum[j] += d;
            }
    }
    store(to, sum);
}

/* Whether a rank is the first of an id that add_rows leaves. */
static __device__ __forceinline__ bool
is_rest(const int32_t *key, int n, int at)
{
    return at < n && key[at - LONG] == key[at] &&
           (at == LONG || key[at - LONG - 1] != key[at]);
}

/* The rest of ids with many tokens, in the same order.  A warp has a part of the
 * columns and LONG ranks, at most one of which starts such a rest.  Ranks are
 * prefetched, so the loop waits only for 4 kB of rows or more at a time. */
template <typename T, typename W, int V, bool L1>
static __global__ void __launch_bounds__(32)
    add_rest(float *dw, const T *__restrict__ x, const W *__restrict__ w,
             const int32_t *__restrict__ key, const int32_t *__restrict__ order, int n,
             unsigned width, unsigned parts, float share)
{
    constexpr int ROUND = sizeof(T) == 2 ? 32 : 16;
    const unsigned all = 0xffffffffU;
    int lane = (int)threadIdx.x, at = ((int)(blockIdx.x / parts) + 1) * LONG;
    unsigned low = __ballot_sync(all, is_rest(key, n, at + lane));
    unsigned high = __ballot_sync(all, is_rest(key, n, at + 32 + lane));
    if (!(low | high))
        return;
    at += low ? __ffs((int)low) - 1 : 31 + __ffs((int)high);
    int32_t id = key[at];
    unsigned column = (blockIdx.x % parts * 32 + threadIdx.x) * V;
    bool mine = column < width;
    float *to = dw + (size_t)id * width + column;
    float sum[V] = {}, e[V] = {};
    if (mine)
        load(sum, to);
    if (L1 && mine)
        load(e, w + (size_t)id * width + column);
    int32_t next = at + lane < n ? key[at + lane] : -1;
    int32_t next_row = at + lane < n ? order[at + lane] : 0;
    for (int rows = 32; rows == 32;) {
        int32_t row = next_row;
        rows = __popc(__ballot_sync(all, next == id)); // matching ranks come first
        at += 32;
        next = at + lane < n ? key[at + lane] : -1;
        next_row = at + lane < n ? order[at + lane] : 0;
#pragma unroll
        for (int r = 0; r < 32; r += ROUND) {
            pack<T, V> v[ROUND];
#pragma unroll
            for (int i = 0; i < ROUND; i++) {
                size_t from = (size_t)__shfl_sync(all, row, r + i) * width + column;
                if (mine && r + i < rows)
                    v[i] = *(const pack<T, V> *)(x + from);
            }
#pragma unroll
            for (int i = 0; i < ROUND; i++)
#pragma unroll
                for (int j = 0; j < V; j++) {
                    float d = to_f32(v[i].v[j]);
                    if (L1)
                        d = d > e[j] ? -share : d < e[j] ? share : 0;
                    if (mine && r + i < rows)
                        sum[j] += d;
                }
        }
    }
    if (mine)
        store(to, sum);
}

template <typename T, typename W, bool L1>
static void
grad(struct cuda *c, float *dw, const void *x, const void *w, const int32_t *ids,
     size_t tokens, size_t width, float share)
{
    int32_t *key = (int32_t *)c->q.partials, *order = key + PIECE;
    // Packs of four fill 16 bytes of f32, which is most of the traffic.
    bool packs = width % 4 == 0 && (addr(dw) | addr(x) | addr(w)) % 16 == 0;
    unsigned parts = blocks_of(width, (packs ? 4 : 1) * BLOCK);
    for (size_t at = 0; at < tokens; at += PIECE) {
        unsigned n = (unsigned)min_size(tokens - at, PIECE);
        const T *from = (const T *)x + at * width;
        sort_ids<<<blocks_of(n, THREADS / 32), THREADS, 0, c->q.stream>>>(
            key, order, ids + at, (int)n);
        cuda_launched(c, "sort");
        if (packs)
            add_rows<T, W, 4, L1><<<n * parts, BLOCK, 0, c->q.stream>>>(
                dw, from, (const W *)w, key, order, (int)n, (unsigned)width, parts,
                share);
        else
            add_rows<T, W, 1, L1><<<n * parts, BLOCK, 0, c->q.stream>>>(
                dw, from, (const W *)w, key, order, (int)n, (unsigned)width, parts,
                share);
        cuda_launched(c, "grow");
        if (n <= LONG)
            continue;
        unsigned thin = blocks_of(width, (packs ? 4 : 1) * 32);
        unsigned ranks = blocks_of(n - LONG, LONG);
        if (packs)
            add_rest<T, W, 4, L1><<<ranks * thin, 32, 0, c->q.stream>>>(
                dw, from, (const W *)w, key, order, (int)n, (unsigned)width, thin,
                share);
        else
            add_rest<T, W, 1, L1><<<ranks * thin, 32, 0, c->q.stream>>>(
                dw, from, (const W *)w, key, order, (int)n, (unsigned)width, thin,
                share);
        cuda_launched(c, "grow");
    }
}

template <typename T>
static void
embed_dw_of(struct cuda *c, const struct matrix *dw, const struct matrix *dy,
            const int32_t *ids)
{
    grad<T, float, false>(c, (float *)dw->data, dy->data, NULL, ids, dy->rows, dw->cols,
                          0);
}

void
cuda_embed_dw(struct kernels *k, const struct matrix *dw, const struct matrix *dy,
              const int32_t *ids)
{
    if (dy->rows && dw->cols)
        BY_TYPE(dy->dtype, embed_dw_of, cuda_of(k), dw, dy, ids);
}

template <typename T, typename W>
static void
l1_grad_from(struct cuda *c, const struct matrix *dw, const struct matrix *x,
             const struct matrix *w, const int32_t *label, float share)
{
    grad<T, W, true>(c, (float *)dw->data, x->data, w->data, label, x->rows, w->cols,
                     share);
}

template <typename T>
static void
l1_grad(struct cuda *c, const struct matrix *dw, const struct matrix *x,
        const struct matrix *w, const int32_t *label, float share)
{
    BY_DTYPE(w->dtype, l1_grad_from, T, c, dw, x, w, label, share);
}

void
cuda_l1_dw(struct cuda *c, const struct matrix *dw, const struct matrix *x,
           const struct matrix *w, const int32_t *label, float share)
{
    BY_TYPE(x->dtype, l1_grad, c, dw, x, w, label, share);
}
