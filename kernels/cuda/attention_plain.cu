/* SPDX-License-Identifier: MIT */
/* attention_plain: attention of any type and size, in f32 without tensor cores.
 *
 * 16 lanes share a row of the block: a query, or a key for dK and dV.  They compute its
 * dot products with N rows of the other side, some rows per lane, and then the weighted
 * sums of these rows, some columns per lane. */
#include "kernels/cuda/attention.h"

enum {
    OWN = 16,   // rows per block
    LANES = 16, // per row
    THREADS = OWN * LANES,
    COLUMNS = PLAIN_DIM / LANES, // per lane
};

/* Row stride in shared memory: odd, so that a column of 16 rows has no bank
 * conflicts. */
static __host__ __device__ constexpr int
pitch(int dim)
{
    return dim | 1;
}

/* Load n rows to shared memory as f32; those from `rows` on become 0. */
template <typename T>
static __device__ void
stage(float *to, const T *from, size_t ld, int dim, int rows, int n)
{
    for (int r = threadIdx.x / LANES; r < n; r += OWN)
        for (int d = threadIdx.x % LANES; d < dim; d += LANES)
            to[r * pitch(dim) + d] = r < rows ? to_f32(from[r * ld + d]) : 0;
}

static __device__ __forceinline__ float
dot(const float *x, const float *y, int dim)
{
    float sum = 0;
#pragma unroll 4
    for (int d = 0; d < dim; d++)
        sum = fmaf(x[d], y[d], sum);
    return sum;
}

static __device__ __forceinline__ float
row_sum(float x)
{
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffU, x, i);
    return x;
}

static __device__ __forceinline__ float
row_max(float x)
{
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, i));
    return x;
}

/* x += the sum over N rows of weight * row. */
template <int N>
static __device__ __forceinline__ void
add_rows(float (&x)[COLUMNS], const float *weight, const float *rows, int dim)
{
    for (int n = 0; n < N; n++) {
        float w = weight[n];
        const float *row = rows + n * pitch(dim) + threadIdx.x % LANES;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if (i * LANES + (int)(threadIdx.x % LANES) < dim)
                x[i] = fmaf(w, row[i * LANES], x[i]);
    }
}

template <typename T>
static __device__ __forceinline__ void
put_row(T *to, const float (&x)[COLUMNS], float factor, int dim)
{
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        int d = i * LANES + (int)(threadIdx.x % LANES);
        if (d < dim)
            to[d] = from_f32<T>(x[i] * factor);
    }
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    plain(T *out, float *lse, const T *q, const T *key, const T *value, struct view v)
{
    extern __shared__ float shared[];
    float *queries = shared, *keys = queries + OWN * pitch(v.dim);
    float *values = keys + N * pitch(v.dim), *weight = values + N * pitch(v.dim);
    int head = (int)(blockIdx.x % (unsigned)v.query), row = threadIdx.x / LANES;
    int tiles = (int)(gridDim.x / (unsigned)v.query), lane = threadIdx.x % LANES;
    int first_token = (tiles - 1 - (int)(blockIdx.x / (unsigned)v.query)) * OWN;
    int token = min(first_token + row, v.tokens - 1);
    int low = v.first[token], high = v.past + token;
    int end = v.past + min(first_token + OWN, v.tokens);
    size_t ld = (size_t)v.kv * v.dim, to_kv = (size_t)(head / v.group) * v.dim;
    weight += row * N;
    stage(queries, q + ((size_t)first_token * v.query + head) * v.dim,
          (size_t)v.query * v.dim, v.dim, v.tokens - first_token, OWN);

    float x[COLUMNS] = {}, top = -INFINITY, sum = 0;
    for (int k = v.first[first_token]; k < end; k += N) {
        __syncthreads();
        stage(keys, key + k * ld + to_kv, ld, v.dim, end - k, N);
        stage(values, value + k * ld + to_kv, ld, v.dim, end - k, N);
        __syncthreads();
        float s[N / LANES], now = top;
#pragma unroll
        for (int j = 0; j < N / LANES; j++) {
            int n = j * LANES + lane;
            s[j] = dot(queries + row * pitch(v.dim), keys + n * pitch(v.dim), v.dim) *
                   v.scale;
            if (k + n < low || k + n > high)
                s[j] = -INFINITY;
            now = fmaxf(now, s[j]);
        }
        now = row_max(now);
        float rescale = now == -INFINITY ? 1 : expf(top - now);
        top = now;
        sum *= rescale;
#pragma unroll
        for (int j = 0; j < N / LANES; j++) {
            float w = s[j] == -INFINITY ? 0 : expf(s[j] - now);
            weight[j * LANES + lane] = w;
            sum += w;
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            x[i] *= rescale;
        add_rows<N>(x, weight, values, v.dim);
    }
    sum = row_sum(sum);
    if (first_token + row >= v.tokens)
        return;
    put_row(out + ((size_t)token * v.query + head) * v.dim, x, 1 / sum, v.dim);
    if (lane == 0)
        lse[(size_t)head * v.tokens + token] = top + logf(sum);
}

struct plain_bwd_args {
    const void *dout, *q, *key, *value;
    const float *lse, *work;
    void *dq, *dkey, *dvalue;
    size_t q_row, kv_row; // token strides of gradients
};

/* p: weight of a query's score with a key; ds: its gradient. */
static __device__ __forceinline__ void
score_bwd(float *p, float *ds, float score, float of_value, int key, int query,
          int head, const struct plain_bwd_args &b, const struct view &v)
{
    *p = *ds = 0;
    if (query >= v.tokens || key > v.past + query || key < v.first[query])
        return;
    size_t at = (size_t)head * v.tokens + query;
    *p = expf(score * v.scale - b.lse[at]);
    *ds = *p * (of_value - b.work[at]);
}

/* dQ, over keys; or if OF_KEYS dK and dV, over the queries of all heads that see
 * them. */
template <typename T, int N, bool OF_KEYS>
static __global__ void __launch_bounds__(THREADS)
    plain_bwd(struct plain_bwd_args b, struct view v)
{
    extern __shared__ float shared[];
    float *own = shared, *own_out = own + OWN * pitch(v.dim);
    float *other = own_out + OWN * pitch(v.dim), *other_out = other + N * pitch(v.dim);
    float *p = other_out + N * pitch(v.dim), *ds = p + OWN * N;
    int all = OF_KEYS ? v.past + v.tokens : v.tokens, heads = OF_KEYS ? v.kv : v.query;
    int head = (int)(blockIdx.x % (unsigned)heads), row = threadIdx.x / LANES;
    int lane = threadIdx.x % LANES, begin = (int)(blockIdx.x / (unsigned)heads) * OWN;
    size_t of_rows = (size_t)v.query * v.dim, of_keys = (size_t)v.kv * v.dim;
    size_t ld = OF_KEYS ? of_keys : of_rows, other_ld = OF_KEYS ? of_rows : of_keys;
    const T *side[2] = { (const T *)b.q, (const T *)b.dout };
    const T *other_side[2] = { (const T *)b.key, (const T *)b.value };
    size_t at = begin * ld + (size_t)head * v.dim;
    stage(own, (OF_KEYS ? other_side[0] : side[0]) + at, ld, v.dim, all - begin, OWN);
    stage(own_out, (OF_KEYS ? other_side[1] : side[1]) + at, ld, v.dim, all - begin,
          OWN);
    p += row * N;
    ds += row * N;

    float x[COLUMNS] = {}, y[COLUMNS] = {};
    for (int h = 0; h < (OF_KEYS ? v.group : 1); h++) {
        int other_head = OF_KEYS ? head * v.group + h : head / v.group;
        int from = OF_KEYS ? max(0, begin - v.past) : v.first[begin];
        int end = OF_KEYS ? v.tokens : v.past + min(begin + OWN, v.tokens);
        for (int i = from; i < end; i += N) {
            if (OF_KEYS && v.first[i] >= begin + OWN)
                break; // no later query sees these keys
            size_t from_other = i * other_ld + (size_t)other_head * v.dim;
            __syncthreads();
            stage(other, (OF_KEYS ? side[0] : other_side[0]) + from_other, other_ld,
                  v.dim, end - i, N);
            stage(other_out, (OF_KEYS ? side[1] : other_side[1]) + from_other, other_ld,
                  v.dim, end - i, N);
            __syncthreads();
#pragma unroll
            for (int j = 0; j < N / LANES; j++) {
                int n = j * LANES + lane, key = OF_KEYS ? begin + row : i + n;
                int query = OF_KEYS ? i + n : begin + row;
                float s =
                    dot(own + row * pitch(v.dim), other + n * pitch(v.dim), v.dim);
                float of_value = dot(own_out + row * pitch(v.dim),
                                     other_out + n * pitch(v.dim), v.dim);
                score_bwd(p + n, ds + n, s, of_value, key, query,
                          OF_KEYS ? other_head : head, b, v);
            }
            __syncwarp();
            add_rows<N>(x, ds, other, v.dim);
            if (OF_KEYS)
                add_rows<N>(y, p, other_out, v.dim);
        }
    }
    if (begin + row >= all)
        return;
    at = (begin + row) * (OF_KEYS ? b.kv_row : b.q_row) + (size_t)head * v.dim;
    put_row((T *)(OF_KEYS ? b.dkey : b.dq) + at, x, v.scale, v.dim);
    if (OF_KEYS)
        put_row((T *)b.dvalue + at, y, 1, v.dim);
}

template <typename T, int N>
static void
run(struct cuda *c, void *out, float *lse, const void *q, const void *key,
    const void *value, const struct view *v)
{
    unsigned blocks = blocks_of((size_t)v->tokens, OWN) * (unsigned)v->query;
    size_t shared = ((OWN + 2 * N) * pitch(v->dim) + OWN * N) * sizeof(float);
    attention_allow(c, (const void *)plain<T, N>, shared);
    plain<T, N><<<blocks, THREADS, shared, c->q.stream>>>(
        (T *)out, lse, (const T *)q, (const T *)key, (const T *)value, *v);
    cuda_launched(c, "attention: plain");
}

template <typename T, int N>
static void
run_bwd(struct cuda *c, const struct plain_bwd_args *b, const struct view *v)
{
    unsigned of_rows = blocks_of((size_t)v->tokens, OWN) * (unsigned)v->query;
    unsigned of_keys = blocks_of((size_t)(v->past + v->tokens), OWN) * (unsigned)v->kv;
    size_t shared = (2 * (OWN + N) * pitch(v->dim) + 2 * OWN * N) * sizeof(float);
    attention_allow(c, (const void *)plain_bwd<T, N, false>, shared);
    attention_allow(c, (const void *)plain_bwd<T, N, true>, shared);
    plain_bwd<T, N, true><<<of_keys, THREADS, shared, c->q.stream>>>(*b, *v);
    cuda_launched(c, "attention_bwd: plain, keys");
    plain_bwd<T, N, false><<<of_rows, THREADS, shared, c->q.stream>>>(*b, *v);
    cuda_launched(c, "attention_bwd: plain, queries");
}

/* Fewer rows of the other side fit if rows are long. */
template <typename T>
static void
run_either(struct cuda *c, void *out, float *lse, const void *q, const void *key,
           const void *value, const struct view *v)
{
    if (v->dim > 128)
        run<T, 16>(c, out, lse, q, key, value, v);
    else
        run<T, 32>(c, out, lse, q, key, value, v);
}

template <typename T>
static void
run_bwd_either(struct cuda *c, const struct plain_bwd_args *b, const struct view *v)
{
    if (v->dim > 128)
        run_bwd<T, 16>(c, b, v);
    else
        run_bwd<T, 32>(c, b, v);
}

void
attention_plain(struct cuda *c, void *out, float *lse, const struct matrix *q,
                const void *key, const void *value, const struct view *v)
{
    BY_TYPE(q->dtype, run_either, c, out, lse, q->data, key, value, v);
}

void
attention_plain_bwd(struct cuda *c, const struct attention_grads *d, const void *dout,
                    const float *lse, const struct matrix *q, const void *key,
                    const void *value, const float *work, const struct view *v)
{
    struct plain_bwd_args b = {};
    b.q_row = d->q_stride;
    b.kv_row = d->kv_stride;
    b.dout = dout;
    b.q = q->data;
    b.key = key;
    b.value = value;
    b.lse = lse;
    b.work = work;
    b.dq = d->dq;
    b.dkey = d->dkey;
    b.dvalue = d->dvalue;
    BY_TYPE(q->dtype, run_bwd_either, c, &b, v);
}
