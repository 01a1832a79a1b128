/* SPDX-License-Identifier: MIT */
/* rows: what goes over rows: moves, embeddings, norms, rotations, SwiGLU, losses.
 *
 * Memory bounds all of it.  So numbers go in packs of 16 bytes, each thread asks for
 * several before it uses the first, and what is needed twice waits in registers (norms,
 * heads) or in shared memory (logits).  Sizes and addresses that packs do not divide take
 * the same kernels with packs of one, or plain ones: right, and slower.
 */
#include "kernels/cuda/cuda.h"

#include "kernels/cuda/ptx.h"

#include <float.h>

enum {
    THREADS = 256,
    FLIGHT = 2, // packs of each tensor that a thread asks for at once
};

/* Call f<T, W>, by the type of what is read. */
#define BY_DTYPE(dtype, f, T, ...)                                                     \
    ((dtype) == DT_BF16  ? f<T, __nv_bfloat16>(__VA_ARGS__)                            \
     : (dtype) == DT_F16 ? f<T, __half>(__VA_ARGS__)                                   \
                         : f<T, float>(__VA_ARGS__))

static size_t
least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Addresses, to be or-ed: what divides all of them divides that. */
static uintptr_t
place(const void *p)
{
    return (uintptr_t)p;
}

/* Whether rows of n of T at these places are whole packs. */
template <typename T>
static bool
in_packs(size_t n, uintptr_t places)
{
    return n % lanes<T> == 0 && places % 16 == 0;
}

/* Threads of a block that has a row: whole warps, with about `per` packs a thread. */
static unsigned
row_threads(size_t packs, unsigned per, unsigned most)
{
    size_t threads = ((packs + per - 1) / per + 31) / 32 * 32;
    return (unsigned)(threads < 32 ? 32 : least(threads, most));
}

/* Neighbours as f32, 16 bytes at a time at most. */
template <int V, typename T>
static __device__ __forceinline__ void
load(float (&v)[V], const T *p)
{
    constexpr int N = V < lanes<T> ? V : lanes<T>;
#pragma unroll
    for (int i = 0; i < V; i += N) {
        pack<T, N> q = *(const pack<T, N> *)(p + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[i + j] = to_f32(q.v[j]);
    }
}

template <int V, typename T>
static __device__ __forceinline__ void
store(T *p, const float (&v)[V])
{
    constexpr int N = V < lanes<T> ? V : lanes<T>;
#pragma unroll
    for (int i = 0; i < V; i += N) {
        pack<T, N> q;
        if constexpr (sizeof(T) == 2 && N % 2 == 0) // bf16: two in one instruction
#pragma unroll
            for (int j = 0; j < N; j += 2)
                *(__nv_bfloat162 *)&q.v[j] =
                    __floats2bfloat162_rn(v[i + j], v[i + j + 1]);
        else
#pragma unroll
            for (int j = 0; j < N; j++)
                q.v[j] = from_f32<T>(v[i + j]);
        *(pack<T, N> *)(p + i) = q;
    }
}

/* From here on a pack is what it was, for all that the compiler knows.  Else it unpacks bf16
 * once for all uses, and carries twice the registers from the first to the last. */
template <typename P>
static __device__ __forceinline__ void
stay_packed(P &p)
{
    unsigned *word = (unsigned *)&p;
#pragma unroll
    for (int i = 0; i < (int)(sizeof p / sizeof *word); i++)
        word[i] = keep(word[i]);
}

/* ---- moves ---------------------------------------------------------------------------- */

/* A block a row; BACK: to the row that the index says, else from it. */
template <typename P, bool BACK>
static __global__ void
move_rows(P *__restrict__ y, const P *__restrict__ x, const int32_t *__restrict__ index,
          unsigned packs)
{
    size_t here = blockIdx.x, there = (size_t)index[here];
    const P *from = x + (BACK ? here : there) * packs;
    P *to = y + (BACK ? there : here) * packs;
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
           size_t packs, bool back)
{
    unsigned threads = row_threads(packs, FLIGHT, 2 * THREADS);
    if (back)
        move_rows<P, true><<<(unsigned)rows, threads, 0, c->stream>>>(
            (P *)y, (const P *)x, index, (unsigned)packs);
    else
        move_rows<P, false><<<(unsigned)rows, threads, 0, c->stream>>>(
            (P *)y, (const P *)x, index, (unsigned)packs);
    cuda_launched(c, back ? "scatter" : "gather");
}

template <typename T>
static void
move_of(struct cuda *c, void *y, const void *x, const int32_t *index, size_t rows,
        size_t n, bool back)
{
    if (in_packs<T>(n, place(y) | place(x)))
        move_packs<pack<T, lanes<T>>>(c, y, x, index, rows, n / lanes<T>, back);
    else
        move_packs<T>(c, y, x, index, rows, n, back);
}

void
cuda_gather(struct kernels *k, void *y, const void *x, const int32_t *index,
            size_t rows, size_t n)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && rows && n)
        BY_ACT(c, move_of, c, y, x, index, rows, n, false);
}

void
cuda_scatter(struct kernels *k, void *y, const void *x, const int32_t *index,
             size_t rows, size_t n)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && rows && n)
        BY_ACT(c, move_of, c, y, x, index, rows, n, true);
}

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

/* Packs are those of y, so that neighbours write what lies together. */
template <typename T, typename W>
static void
convert_of(struct cuda *c, T *y, const void *x, size_t n)
{
    const W *from = (const W *)x;
    size_t head = in_packs<T>(0, place(y) | place(x)) ? n - n % lanes<T> : 0;
    if (head) {
        size_t packs = head / lanes<T>;
        convert_packs<T, W, lanes<T>>
            <<<blocks_of(packs, FLIGHT * THREADS), THREADS, 0, c->stream>>>(y, from,
                                                                            packs);
        cuda_launched(c, "convert");
    }
    if (head < n) {
        convert_packs<T, W, 1>
            <<<blocks_of(n - head, FLIGHT * THREADS), THREADS, 0, c->stream>>>(
                y + head, from + head, n - head);
        cuda_launched(c, "convert");
    }
}

void
cuda_convert(struct kernels *k, float *y, const void *x, enum dtype dtype, size_t n)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && n)
        BY_DTYPE(dtype, convert_of, float, c, y, x, n);
}

/* ---- embedding -------------------------------------------------------------------------- */

template <typename T, typename W, int V>
static __global__ void
embed_rows(T *__restrict__ y, const W *__restrict__ w, const int32_t *__restrict__ ids,
           unsigned n)
{
    cuda_take_over();
    const W *from = w + (size_t)ids[blockIdx.x] * n;
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
    if (in_packs<T>(n, place(y) | place(w)))
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
embed_of(struct cuda *c, void *y, const struct weight *w, const int32_t *ids,
         size_t tokens)
{
    BY_DTYPE(w->dtype, embed_from, T, c, y, w->values, ids, tokens, w->in);
}

void
cuda_embed(struct kernels *k, void *y, const struct weight *w, const int32_t *ids,
           size_t tokens)
{
    struct cuda *c = cuda_of(k);
    c->passes++;
    if (cuda_ready(c) && tokens && w->in)
        BY_ACT(c, embed_of, c, y, w, ids, tokens);
}

/* Rows of a gradient grow by those of the tokens that have their id.  Tokens are sorted by
 * id first; then whoever finds the first of an id adds all of them in order, and nobody
 * else touches that row.  The sort counts, which is quadratic: so no more than PIECE
 * tokens at a time. */
enum {
    PIECE = 1 << 16,
    WALK = 8, // rows that are asked for at once
    WALKERS = 128,
    LONG = 64, // tokens of an id: more are left to grow_long
};

/* A warp a token: its place is the number of those that go before it. */
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

/* A block a place in that order and a part of the columns.  L1: what is added is -share
 * times the sign of x - w, else x. */
template <typename T, typename W, int V, bool L1>
static __global__ void __launch_bounds__(WALKERS)
grow_rows(float *dw, const T *__restrict__ x, const W *__restrict__ w,
          const int32_t *__restrict__ key, const int32_t *__restrict__ order, int n,
          unsigned width, unsigned parts, float share)
{
    int first = (int)(blockIdx.x / parts), id = key[first];
    unsigned column = (blockIdx.x % parts * WALKERS + threadIdx.x) * V;
    if (column >= width || (first > 0 && key[first - 1] == id))
        return;
    float *to = dw + (size_t)id * width + column;
    float sum[V], e[V];
    load(sum, to);
    if (L1)
        load(e, w + (size_t)id * width + column);
    for (int at = first; at < first + LONG && at < n && key[at] == id; at += WALK) {
        float v[WALK][V];
        bool is[WALK];
#pragma unroll
        for (int i = 0; i < WALK; i++) {
            is[i] = at + i < n && key[at + i] == id;
            if (is[i])
                load(v[i], x + (size_t)order[at + i] * width + column);
        }
#pragma unroll
        for (int i = 0; i < WALK; i++)
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

/* Whether a place is the first that grow_rows leaves of an id. */
static __device__ __forceinline__ bool
is_left(const int32_t *key, int n, int at)
{
    return at < n && key[at - LONG] == key[at] &&
           (at == LONG || key[at - LONG - 1] != key[at]);
}

/* What is left of ids with many tokens, in the same order: a warp has LONG places, of which
 * one at most is the first of such a rest, and a part of the columns.  The order of rows is
 * read ahead, so that nothing waits but for 4 kB of rows or more at a time. */
template <typename T, typename W, int V, bool L1>
static __global__ void __launch_bounds__(32)
grow_long(float *dw, const T *__restrict__ x, const W *__restrict__ w,
          const int32_t *__restrict__ key, const int32_t *__restrict__ order, int n,
          unsigned width, unsigned parts, float share)
{
    constexpr int ROUND = sizeof(T) == 2 ? 32 : 16;
    const unsigned all = 0xffffffffU;
    int lane = (int)threadIdx.x, at = ((int)(blockIdx.x / parts) + 1) * LONG;
    unsigned low = __ballot_sync(all, is_left(key, n, at + lane));
    unsigned high = __ballot_sync(all, is_left(key, n, at + 32 + lane));
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
        rows = __popc(__ballot_sync(all, next == id)); // they come first
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
grow(struct cuda *c, float *dw, const void *x, const void *w, const int32_t *ids,
     size_t tokens, size_t width, float share)
{
    int32_t *key = (int32_t *)c->partials, *order = key + PIECE;
    // Packs of four: those of f32, which is most of what moves.
    bool packs = width % 4 == 0 && (place(dw) | place(x) | place(w)) % 16 == 0;
    unsigned parts = blocks_of(width, (packs ? 4 : 1) * WALKERS);
    for (size_t at = 0; at < tokens; at += PIECE) {
        unsigned n = (unsigned)least(tokens - at, PIECE);
        const T *from = (const T *)x + at * width;
        sort_ids<<<blocks_of(n, THREADS / 32), THREADS, 0, c->stream>>>(
            key, order, ids + at, (int)n);
        cuda_launched(c, "sort");
        if (packs)
            grow_rows<T, W, 4, L1><<<n * parts, WALKERS, 0, c->stream>>>(
                dw, from, (const W *)w, key, order, (int)n, (unsigned)width, parts,
                share);
        else
            grow_rows<T, W, 1, L1><<<n * parts, WALKERS, 0, c->stream>>>(
                dw, from, (const W *)w, key, order, (int)n, (unsigned)width, parts,
                share);
        cuda_launched(c, "grow");
        if (n <= LONG)
            continue;
        unsigned thin = blocks_of(width, (packs ? 4 : 1) * 32);
        unsigned places = blocks_of(n - LONG, LONG);
        if (packs)
            grow_long<T, W, 4, L1><<<places * thin, 32, 0, c->stream>>>(
                dw, from, (const W *)w, key, order, (int)n, (unsigned)width, thin,
                share);
        else
            grow_long<T, W, 1, L1><<<places * thin, 32, 0, c->stream>>>(
                dw, from, (const W *)w, key, order, (int)n, (unsigned)width, thin,
                share);
        cuda_launched(c, "grow");
    }
}

template <typename T>
static void
embed_dw_of(struct cuda *c, float *dw, const void *dy, const int32_t *ids,
            size_t tokens, size_t in)
{
    grow<T, float, false>(c, dw, dy, NULL, ids, tokens, in, 0);
}

void
cuda_embed_dw(struct kernels *k, float *dw, const void *dy, const int32_t *ids,
              size_t tokens, size_t in)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && tokens && in)
        BY_ACT(c, embed_dw_of, c, dw, dy, ids, tokens, in);
}

/* ---- norms ------------------------------------------------------------------------------ */

/* The gradient of a gain is a sum over rows: row r goes to slice r % slices, each slice
 * sums into its part of c->partials, then these are added.  How many slices there are
 * depends on sizes alone. */
enum {
    SLICES = 512,      // of norm_dx: a part is as wide as a row
    ADD_WARPS = 32,
    COLUMNS = 1 << 16, // that a plain norm_dx has partials for at a time
    ROW_THREADS = 640, // no more, so that a thread may have 96 registers
    ROOM = PARTIALS / sizeof(float),
};

/* to += the sum of slices of n; a block has 32 columns, a warp every ADD_WARPS-th slice. */
static __global__ void __launch_bounds__(32 * ADD_WARPS)
add_slices(float *to, const float *__restrict__ partial, unsigned slices, unsigned n)
{
    __shared__ float room[ADD_WARPS][32];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned column = blockIdx.x * 32 + lane;
    float sum = 0;
    if (column < n)
#pragma unroll 8
        for (unsigned s = warp; s < slices; s += ADD_WARPS)
            sum += partial[(size_t)s * n + column];
    room[warp][lane] = sum;
    __syncthreads();
    if (warp || column >= n)
        return;
    sum = 0;
#pragma unroll
    for (int i = 0; i < ADD_WARPS; i++)
        sum += room[i][lane];
    to[column] += sum;
}

static void
add_up(struct cuda *c, float *to, size_t slices, size_t n)
{
    add_slices<<<blocks_of(n, 32), 32 * ADD_WARPS, 0, c->stream>>>(
        to, c->partials, (unsigned)slices, (unsigned)n);
    cuda_launched(c, "add_slices");
}

/* A block a row, which waits in registers: PER packs a thread. */
template <typename T, int PER>
static __global__ void __launch_bounds__(ROW_THREADS)
norm_rows(T *y, float *scale, const T *x, const float *__restrict__ gain, unsigned n,
          float eps)
{
    constexpr int V = lanes<T>;
    __shared__ float room[33];
    size_t row = blockIdx.x;
    unsigned packs = n / V;
    pack<T, V> v[PER];
    float sum = 0;
    cuda_take_over();
#pragma unroll
    for (int p = 0; p < PER; p++)
        if (threadIdx.x + p * blockDim.x < packs)
            v[p] = ((const pack<T, V> *)(x + row * n))[threadIdx.x + p * blockDim.x];
#pragma unroll
    for (int p = 0; p < PER; p++)
        if (threadIdx.x + p * blockDim.x < packs)
#pragma unroll
            for (int i = 0; i < V; i++)
                sum = fmaf(to_f32(v[p].v[i]), to_f32(v[p].v[i]), sum);
    float s = 1 / sqrtf(block_sum(sum, room) / (float)n + eps);
#pragma unroll
    for (int p = 0; p < PER; p++) {
        unsigned at = (threadIdx.x + p * blockDim.x) * V;
        float g[V];
        if (at >= n)
            continue;
        load(g, gain + at);
#pragma unroll
        for (int i = 0; i < V; i++)
            g[i] = to_f32(v[p].v[i]) * s * g[i];
        store(y + row * n + at, g);
    }
    if (threadIdx.x == 0)
        scale[row] = s;
}

/* Any width: x is read twice. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
norm_plain(T *y, float *scale, const T *x, const float *__restrict__ gain, size_t n,
           float eps)
{
    __shared__ float room[33];
    size_t row = blockIdx.x;
    float sum = 0;
    cuda_take_over();
    for (size_t i = threadIdx.x; i < n; i += THREADS)
        sum = fmaf(to_f32(x[row * n + i]), to_f32(x[row * n + i]), sum);
    float s = 1 / sqrtf(block_sum(sum, room) / (float)n + eps);
    for (size_t i = threadIdx.x; i < n; i += THREADS)
        y[row * n + i] = from_f32<T>(to_f32(x[row * n + i]) * s * gain[i]);
    if (threadIdx.x == 0)
        scale[row] = s;
}

template <typename T, int PER>
static void
norm_per(struct cuda *c, void *y, float *scale, const void *x, const float *gain,
         size_t rows, size_t n, float eps)
{
    unsigned threads = row_threads(n / lanes<T>, PER, ROW_THREADS);
    cuda_start(c, "norm", norm_rows<T, PER>, (unsigned)rows, threads, 0, (T *)y, scale,
               (const T *)x, gain, (unsigned)n, eps);
}

template <typename T>
static void
norm_of(struct cuda *c, void *y, float *scale, const void *x, const float *gain,
        size_t rows, size_t n, float eps)
{
    size_t packs = n / lanes<T>;
    if (!in_packs<T>(n, place(y) | place(x) | place(gain)) || packs > 4 * ROW_THREADS)
        cuda_start(c, "norm", norm_plain<T>, (unsigned)rows, THREADS, 0, (T *)y, scale,
                   (const T *)x, gain, n, eps);
    else if (packs <= THREADS)
        norm_per<T, 1>(c, y, scale, x, gain, rows, n, eps);
    else if (packs <= 2 * ROW_THREADS)
        norm_per<T, 2>(c, y, scale, x, gain, rows, n, eps);
    else
        norm_per<T, 4>(c, y, scale, x, gain, rows, n, eps);
}

void
cuda_norm(struct kernels *k, void *y, float *scale, const void *x, const float *gain,
          size_t rows, size_t n, float eps)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && rows && n)
        BY_ACT(c, norm_of, c, y, scale, x, gain, rows, n, eps);
}

/* A thread's packs of a row. */
template <typename P, int PER>
static __device__ __forceinline__ void
take_row(P (&v)[PER], const void *row, unsigned packs)
{
#pragma unroll
    for (int p = 0; p < PER; p++)
        if (threadIdx.x + p * blockDim.x < packs)
            v[p] = ((const P *)row)[threadIdx.x + p * blockDim.x];
}

/* A block a slice of the rows.  dx may be dy: a thread writes only what it alone has read.
 * Rejected: asking for the next row while this one is summed.  It takes registers, and
 * more blocks hide as much. */
template <typename T, int PER>
static __global__ void __launch_bounds__(ROW_THREADS)
norm_dx_rows(T *dx, float *partial, T *y, const T *dy, const T *x, const float *scale,
             const float *__restrict__ gain, size_t rows, unsigned n, bool add)
{
    constexpr int V = lanes<T>;
    __shared__ float room[33];
    unsigned packs = n / V;
    pack<T, V> d[PER], v[PER], old[PER];
    float g[PER][V], grown[PER][V];
#pragma unroll
    for (int p = 0; p < PER; p++) {
        unsigned at = (threadIdx.x + p * blockDim.x) * V;
        if (at < n)
            load(g[p], gain + at);
#pragma unroll
        for (int i = 0; i < V; i++)
            grown[p][i] = 0;
    }
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float s = scale[row], share = 0;
        take_row(d, dy + row * n, packs);
        take_row(v, x + row * n, packs);
        if (add)
            take_row(old, dx + row * n, packs);
#pragma unroll
        for (int p = 0; p < PER; p++)
            if (threadIdx.x + p * blockDim.x < packs)
#pragma unroll
                for (int i = 0; i < V; i++)
                    share = fmaf(to_f32(d[p].v[i]) * g[p][i], to_f32(v[p].v[i]), share);
        share = block_sum(share, room) * s * s / (float)n;
#pragma unroll
        for (int p = 0; p < PER; p++) {
            unsigned at = (threadIdx.x + p * blockDim.x) * V;
            float out[V], again[V];
            if (at >= n)
                continue;
            stay_packed(d[p]);
            stay_packed(v[p]);
#pragma unroll
            for (int i = 0; i < V; i++) {
                float di = to_f32(d[p].v[i]), vi = to_f32(v[p].v[i]);
                again[i] = vi * s * g[p][i];
                grown[p][i] = fmaf(di, vi * s, grown[p][i]);
                out[i] = s * (di * g[p][i] - vi * share);
                if (add)
                    out[i] = to_f32(old[p].v[i]) + out[i];
            }
            store(dx + row * n + at, out);
            if (y)
                store(y + row * n + at, again);
        }
    }
    if (!partial)
        return;
#pragma unroll
    for (int p = 0; p < PER; p++) {
        unsigned at = (threadIdx.x + p * blockDim.x) * V;
        if (at < n)
            store(partial + (size_t)blockIdx.x * n + at, grown[p]);
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
norm_dx_plain(T *dx, T *y, const T *dy, const T *x, const float *scale,
              const float *__restrict__ gain, size_t n, bool add)
{
    __shared__ float room[33];
    size_t row = blockIdx.x * n;
    float s = scale[blockIdx.x], share = 0;
    for (size_t i = threadIdx.x; i < n; i += THREADS)
        share = fmaf(to_f32(dy[row + i]) * gain[i], to_f32(x[row + i]), share);
    share = block_sum(share, room) * s * s / (float)n;
    for (size_t i = threadIdx.x; i < n; i += THREADS) {
        float out = s * (to_f32(dy[row + i]) * gain[i] - to_f32(x[row + i]) * share);
        if (add)
            out = to_f32(dx[row + i]) + out;
        dx[row + i] = from_f32<T>(out);
        if (y)
            y[row + i] = from_f32<T>(to_f32(x[row + i]) * s * gain[i]);
    }
}

/* Of some columns of rows of n: a thread a column and a slice. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
norm_dgain_plain(float *partial, const T *dy, const T *x, const float *scale,
                 size_t rows, size_t n, unsigned columns, unsigned slices)
{
    unsigned parts = (columns + THREADS - 1) / THREADS, slice = blockIdx.x / parts;
    unsigned column = blockIdx.x % parts * THREADS + threadIdx.x;
    float sum = 0;
    if (column >= columns)
        return;
    for (size_t row = slice; row < rows; row += slices)
        sum = fmaf(to_f32(dy[row * n + column]), to_f32(x[row * n + column]) * scale[row],
                   sum);
    partial[(size_t)slice * columns + column] = sum;
}

/* The gain's gradient first: dx may be dy. */
template <typename T>
static void
norm_dx_slow(struct cuda *c, void *dx, float *dgain, void *y, const void *dy,
             const void *x, const float *scale, const float *gain, size_t rows, size_t n,
             bool add)
{
    unsigned slices = (unsigned)least(rows, ROOM / COLUMNS);
    for (size_t at = 0; dgain && at < n; at += COLUMNS) {
        unsigned columns = (unsigned)least(n - at, COLUMNS);
        norm_dgain_plain<T>
            <<<blocks_of(columns, THREADS) * slices, THREADS, 0, c->stream>>>(
                c->partials, (const T *)dy + at, (const T *)x + at, scale, rows, n,
                columns, slices);
        cuda_launched(c, "norm_dx");
        add_up(c, dgain + at, slices, columns);
    }
    norm_dx_plain<T><<<(unsigned)rows, THREADS, 0, c->stream>>>(
        (T *)dx, (T *)y, (const T *)dy, (const T *)x, scale, gain, n, add);
    cuda_launched(c, "norm_dx");
}

template <typename T, int PER>
static void
norm_dx_per(struct cuda *c, void *dx, float *dgain, void *y, const void *dy,
            const void *x, const float *scale, const float *gain, size_t rows, size_t n,
            bool add)
{
    unsigned threads = row_threads(n / lanes<T>, PER, ROW_THREADS);
    size_t slices = least(rows, least(SLICES, ROOM / n));
    norm_dx_rows<T, PER><<<(unsigned)slices, threads, 0, c->stream>>>(
        (T *)dx, dgain ? c->partials : NULL, (T *)y, (const T *)dy, (const T *)x, scale,
        gain, rows, (unsigned)n, add);
    cuda_launched(c, "norm_dx");
    if (dgain)
        add_up(c, dgain, slices, n);
}

template <typename T>
static void
norm_dx_of(struct cuda *c, void *dx, float *dgain, void *y, const void *dy,
           const void *x, const float *scale, const float *gain, size_t rows, size_t n,
           bool add)
{
    uintptr_t places = place(dx) | place(y) | place(dy) | place(x) | place(gain);
    size_t packs = n / lanes<T>;
    if (!in_packs<T>(n, places) || packs > 2 * ROW_THREADS)
        norm_dx_slow<T>(c, dx, dgain, y, dy, x, scale, gain, rows, n, add);
    else if (packs <= THREADS)
        norm_dx_per<T, 1>(c, dx, dgain, y, dy, x, scale, gain, rows, n, add);
    else
        norm_dx_per<T, 2>(c, dx, dgain, y, dy, x, scale, gain, rows, n, add);
}

void
cuda_norm_dx(struct kernels *k, void *dx, float *dgain, void *y, const void *dy,
             const void *x, const float *scale, const float *gain, size_t rows, size_t n,
             const void *add)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && rows && n)
        BY_ACT(c, norm_dx_of, c, dx, dgain, y, dy, x, scale, gain, rows, n,
               add != NULL);
}

/* ---- heads ------------------------------------------------------------------------------ */

/* A group of threads, a power of two of one warp, has MANY neighbouring heads of a token.
 * A thread has the packs (lane + p group) of the first half of each, and those of the
 * second half that are turned with them. */
enum {
    HEAD_MOST = 256, // numbers of a head
    HEAD_PACK = 4,   // 8 would take more registers than there are for other loads
    PLAIN_PAIRS = HEAD_MOST / 2 / 32, // of packs of one
};

struct mine {
    size_t row;         // of the first head
    size_t at;          // and where that is in rows of t.row
    unsigned heads;     // 0: of no token
    const float *angle; // cosines, then sines
};

template <int MANY>
static __device__ __forceinline__ struct mine
heads_of(const struct turn &t, unsigned item)
{
    unsigned heads = (unsigned)t.heads, batches = (heads + MANY - 1) / MANY;
    unsigned token = item / batches, head = item % batches * MANY;
    struct mine m = { (size_t)token * heads + head,
                      token * t.row + head * t.dim, 0, t.table };
    if (token < t.tokens) {
        m.heads = heads - head < MANY ? heads - head : MANY;
        m.angle += (size_t)t.position[token] * t.dim;
    }
    return m;
}

static __device__ __forceinline__ float
group_sum(float x, unsigned group)
{
    for (unsigned i = group / 2; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffU, x, i);
    return x;
}

static __device__ __forceinline__ float
scale_of(float squares, const struct turn &t)
{
    return 1 / sqrtf(squares / (float)t.dim + t.eps);
}

/* Scales of heads, from what each thread of the group has of their squares.  Of four heads
 * each thread follows one: the additions are those of group_sum, and fewer. */
template <int MANY>
static __device__ __forceinline__ void
scales_of(float (&s)[MANY], const float (&sum)[MANY], unsigned group,
          const struct turn &t)
{
    if constexpr (MANY == 4) {
        const unsigned all = 0xffffffffU, half = group / 2, quarter = group / 4;
        if (quarter > 0) {
            bool high = threadIdx.x & half, odd = threadIdx.x & quarter;
            float a = high ? sum[2] : sum[0], b = high ? sum[3] : sum[1];
            a += __shfl_xor_sync(all, high ? sum[0] : sum[2], half);
            b += __shfl_xor_sync(all, high ? sum[1] : sum[3], half);
            float mine = odd ? b : a;
            mine += __shfl_xor_sync(all, odd ? a : b, quarter);
            mine = scale_of(group_sum(mine, quarter), t);
#pragma unroll
            for (unsigned h = 0; h < 4; h++)
                s[h] = __shfl_sync(all, mine, (int)(h / 2 * half + h % 2 * quarter),
                                   (int)group);
            return;
        }
    }
#pragma unroll
    for (int h = 0; h < MANY; h++)
        s[h] = scale_of(group_sum(sum[h], group), t);
}

template <typename T, int V, int PAIRS, int MANY>
static __global__ void __launch_bounds__(THREADS)
turn_heads(T *y, float *scale, const T *x, const float *__restrict__ gain,
           const struct turn t, unsigned group)
{
    typedef pack<T, V> P;
    unsigned half = (unsigned)t.dim / 2, lane = threadIdx.x % group;
    cuda_take_over();
    struct mine m =
        heads_of<MANY>(t, blockIdx.x * (THREADS / group) + threadIdx.x / group);
    P a[MANY][PAIRS], b[MANY][PAIRS];
    float gain_a[PAIRS][V], gain_b[PAIRS][V], cosine[PAIRS][V], sine[PAIRS][V];
    float sums[MANY], scales[MANY];
#pragma unroll
    for (unsigned h = 0; h < MANY; h++)
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            unsigned at = (lane + p * group) * V;
            if (h >= m.heads || at >= half)
                continue;
            a[h][p] = *(const P *)(x + (m.row + h) * t.dim + at);
            b[h][p] = *(const P *)(x + (m.row + h) * t.dim + half + at);
        }
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        unsigned at = (lane + p * group) * V;
        if (!m.heads || at >= half)
            continue;
        load(cosine[p], m.angle + at);
        load(sine[p], m.angle + half + at);
        load(gain_a[p], gain + at);
        load(gain_b[p], gain + half + at);
    }
#pragma unroll
    for (unsigned h = 0; h < MANY; h++) {
        float sum = 0;
#pragma unroll
        for (int p = 0; p < PAIRS; p++)
            if (h < m.heads && (lane + p * group) * V < half)
#pragma unroll
                for (int i = 0; i < V; i++) {
                    float first = to_f32(a[h][p].v[i]), second = to_f32(b[h][p].v[i]);
                    sum = fmaf(first, first, fmaf(second, second, sum));
                }
        sums[h] = sum;
    }
    scales_of(scales, sums, group, t);
#pragma unroll
    for (unsigned h = 0; h < MANY; h++) {
        float s = scales[h];
        if (h >= m.heads)
            continue;
        if (lane == 0)
            scale[m.row + h] = s;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            unsigned at = (lane + p * group) * V;
            float out_a[V], out_b[V];
            if (at >= half)
                continue;
            stay_packed(a[h][p]);
            stay_packed(b[h][p]);
#pragma unroll
            for (int i = 0; i < V; i++) {
                float first = to_f32(a[h][p].v[i]) * s * gain_a[p][i];
                float second = to_f32(b[h][p].v[i]) * s * gain_b[p][i];
                out_a[i] = first * cosine[p][i] - second * sine[p][i];
                out_b[i] = second * cosine[p][i] + first * sine[p][i];
            }
            store(y + (m.row + h) * t.dim + at, out_a);
            store(y + (m.row + h) * t.dim + half + at, out_b);
        }
    }
}

/* bf16: all blocks of an H200 at once, 12 and 22 percent quicker for 32 and 8 heads than
 * 1024 of two a multiprocessor with four heads a group.  f32 wants the registers. */
template <typename T> constexpr int turn_blocks = 2;
template <> constexpr int turn_blocks<__nv_bfloat16> = 3;
template <typename T> constexpr size_t turn_slices = 1024;
template <> constexpr size_t turn_slices<__nv_bfloat16> = 3 * 132;

/* A block a slice. */
template <typename T, int V, int PAIRS, int MANY>
static __global__ void __launch_bounds__(THREADS, turn_blocks<T>)
turn_dx_heads(T *d, float *partial, const T *x, const float *scale,
              const float *__restrict__ gain, const struct turn t, unsigned group,
              unsigned items)
{
    typedef pack<T, V> P;
    __shared__ float room[2 * V * PAIRS * THREADS]; // as many heads as groups
    unsigned dim = (unsigned)t.dim, half = dim / 2, groups = THREADS / group;
    unsigned lane = threadIdx.x % group, which = threadIdx.x / group;
    float gain_a[PAIRS][V], gain_b[PAIRS][V], grown_a[PAIRS][V], grown_b[PAIRS][V];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        unsigned at = (lane + p * group) * V;
        if (at < half) {
            load(gain_a[p], gain + at);
            load(gain_b[p], gain + half + at);
        }
#pragma unroll
        for (int i = 0; i < V; i++)
            grown_a[p][i] = grown_b[p][i] = 0;
    }
    // All threads go round equally often: their warps shuffle.
    for (unsigned first = blockIdx.x * groups; first < items;
         first += gridDim.x * groups) {
        struct mine m = heads_of<MANY>(t, first + which);
        P da[MANY][PAIRS], db[MANY][PAIRS], xa[MANY][PAIRS], xb[MANY][PAIRS];
        float cosine[PAIRS][V], sine[PAIRS][V], scales[MANY];
#pragma unroll
        for (unsigned h = 0; h < MANY; h++) {
            scales[h] = h < m.heads ? scale[m.row + h] : 0;
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                unsigned at = (lane + p * group) * V;
                if (h >= m.heads || at >= half)
                    continue;
                da[h][p] = *(const P *)(d + m.at + h * dim + at);
                db[h][p] = *(const P *)(d + m.at + h * dim + half + at);
                xa[h][p] = *(const P *)(x + (m.row + h) * dim + at);
                xb[h][p] = *(const P *)(x + (m.row + h) * dim + half + at);
            }
        }
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            unsigned at = (lane + p * group) * V;
            if (!m.heads || at >= half)
                continue;
            load(cosine[p], m.angle + at);
            load(sine[p], m.angle + half + at);
        }
#pragma unroll
        for (unsigned h = 0; h < MANY; h++) {
            float turned_a[PAIRS][V], turned_b[PAIRS][V], share = 0, s = scales[h];
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                if (h >= m.heads || (lane + p * group) * V >= half)
                    continue;
                stay_packed(da[h][p]);
                stay_packed(db[h][p]);
                stay_packed(xa[h][p]);
                stay_packed(xb[h][p]);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    float a = to_f32(da[h][p].v[i]), b = to_f32(db[h][p].v[i]);
                    float va = to_f32(xa[h][p].v[i]), vb = to_f32(xb[h][p].v[i]);
                    float ta = a * cosine[p][i] + b * sine[p][i];
                    float tb = b * cosine[p][i] - a * sine[p][i];
                    grown_a[p][i] = fmaf(ta, va * s, grown_a[p][i]);
                    grown_b[p][i] = fmaf(tb, vb * s, grown_b[p][i]);
                    turned_a[p][i] = ta * gain_a[p][i];
                    turned_b[p][i] = tb * gain_b[p][i];
                    share = fmaf(turned_a[p][i], va, fmaf(turned_b[p][i], vb, share));
                }
            }
            share = group_sum(share, group) * s * s / (float)dim;
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                unsigned at = (lane + p * group) * V;
                if (h >= m.heads || at >= half)
                    continue;
#pragma unroll
                for (int i = 0; i < V; i++) {
                    turned_a[p][i] =
                        s * (turned_a[p][i] - to_f32(xa[h][p].v[i]) * share);
                    turned_b[p][i] =
                        s * (turned_b[p][i] - to_f32(xb[h][p].v[i]) * share);
                }
                store(d + m.at + h * dim + at, turned_a[p]);
                store(d + m.at + h * dim + half + at, turned_b[p]);
            }
        }
    }
    if (!partial)
        return;
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
#pragma unroll
        for (int i = 0; i < V; i++) {
            unsigned at = (lane + p * group) * V + i;
            if (at >= half)
                continue;
            room[which * dim + at] = grown_a[p][i];
            room[which * dim + half + at] = grown_b[p][i];
        }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < dim; i += THREADS) {
        float sum = 0;
        for (unsigned g = 0; g < groups; g++)
            sum += room[g * dim + i];
        partial[(size_t)blockIdx.x * dim + i] = sum;
    }
}

/* Whether heads are of a size that there are threads for. */
static bool
heads_fit(struct cuda *c, const struct turn *t)
{
    if (t->dim > HEAD_MOST)
        err_set(c->err, ERR_USAGE, "cuda:%d: heads of %zu: at most %d can be turned",
                c->device, t->dim, (int)HEAD_MOST);
    return t->dim <= HEAD_MOST;
}

static bool
heads_in_packs(const struct turn *t, uintptr_t places)
{
    return t->dim / 2 % HEAD_PACK == 0 && (places | place(t->table)) % 16 == 0;
}

/* Threads of a head with packs of v. */
static unsigned
group_of(size_t dim, unsigned v)
{
    unsigned group = 1;
    while (group < 32 && group * v * 2 < dim)
        group *= 2;
    return group;
}

static size_t
batches_of(const struct turn *t, unsigned many)
{
    return t->tokens * ((t->heads + many - 1) / many);
}

template <typename T, int V, int PAIRS, int MANY>
static void
turn_launch(struct cuda *c, void *y, float *scale, const void *x, const float *gain,
            const struct turn *t)
{
    unsigned group = group_of(t->dim, V);
    cuda_start(c, "turn", turn_heads<T, V, PAIRS, MANY>,
               blocks_of(batches_of(t, MANY), THREADS / group), THREADS, 0, (T *)y, scale,
               (const T *)x, gain, *t, group);
}

template <typename T>
static void
turn_of(struct cuda *c, void *y, float *scale, const void *x, const float *gain,
        const struct turn *t)
{
    if (heads_in_packs(t, place(y) | place(x) | place(gain)))
        turn_launch<T, HEAD_PACK, 1, 4>(c, y, scale, x, gain, t);
    else
        turn_launch<T, 1, PLAIN_PAIRS, 1>(c, y, scale, x, gain, t);
}

void
cuda_turn(struct kernels *k, void *y, float *scale, const void *x, const float *gain,
          const struct turn *t)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && heads_fit(c, t) && t->tokens && t->heads && t->dim)
        BY_ACT(c, turn_of, c, y, scale, x, gain, t);
}

template <typename T, int V, int PAIRS, int MANY>
static void
turn_dx_launch(struct cuda *c, void *d, float *dgain, const void *x, const float *scale,
               const float *gain, const struct turn *t)
{
    unsigned group = group_of(t->dim, V);
    size_t items = batches_of(t, MANY);
    size_t slices = least(blocks_of(items, THREADS / group), turn_slices<T>);
    turn_dx_heads<T, V, PAIRS, MANY><<<(unsigned)slices, THREADS, 0, c->stream>>>(
        (T *)d, dgain ? c->partials : NULL, (const T *)x, scale, gain, *t, group,
        (unsigned)items);
    cuda_launched(c, "turn_dx");
    if (dgain)
        add_up(c, dgain, slices, t->dim);
}

template <typename T>
static void
turn_dx_of(struct cuda *c, void *d, float *dgain, const void *x, const float *scale,
           const float *gain, const struct turn *t)
{
    struct turn mine = *t;
    mine.row = turn_row(t);
    if (heads_in_packs(t, place(d) | place(x) | place(gain) | mine.row * sizeof(T)))
        turn_dx_launch<T, HEAD_PACK, 1, 2>(c, d, dgain, x, scale, gain, &mine);
    else
        turn_dx_launch<T, 1, PLAIN_PAIRS, 1>(c, d, dgain, x, scale, gain, &mine);
}

void
cuda_turn_dx(struct kernels *k, void *d, float *dgain, const void *x,
             const float *scale, const float *gain, const struct turn *t)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && heads_fit(c, t) && t->tokens && t->heads && t->dim)
        BY_ACT(c, turn_dx_of, c, d, dgain, x, scale, gain, t);
}

/* ---- SwiGLU ----------------------------------------------------------------------------- */

/* To 4e-7 of itself: the instruction is off by a unit at most.  0 below -87. */
static __device__ __forceinline__ float
sigmoid(float x)
{
    return inverse_fast(1 + expf(-x));
}

/* The operands of a thread, FLIGHT packs THREADS apart. */
template <typename P>
static __device__ __forceinline__ void
take(P (&v)[FLIGHT], const void *x, size_t first, size_t packs)
{
#pragma unroll
    for (int f = 0; f < FLIGHT; f++)
        if (first + f * THREADS < packs)
            v[f] = ((const P *)x)[first + f * THREADS];
}

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS)
swiglu_packs(T *y, const T *gate, const T *up, size_t packs)
{
    size_t first = (size_t)blockIdx.x * (FLIGHT * THREADS) + threadIdx.x;
    pack<T, V> g[FLIGHT], u[FLIGHT];
    cuda_take_over();
    take(g, gate, first, packs);
    take(u, up, first, packs);
#pragma unroll
    for (int f = 0; f < FLIGHT; f++) {
        float out[V];
        if (first + f * THREADS >= packs)
            continue;
#pragma unroll
        for (int i = 0; i < V; i++) {
            float gi = to_f32(g[f].v[i]);
            out[i] = gi * sigmoid(gi) * to_f32(u[f].v[i]);
        }
        store(y + (first + f * THREADS) * V, out);
    }
}

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS)
swiglu_dx_packs(T *both, T *d, const T *gate, const T *up, unsigned row, unsigned packs)
{
    size_t first = (size_t)blockIdx.x * (FLIGHT * THREADS) + threadIdx.x;
    pack<T, V> g[FLIGHT], u[FLIGHT], dy[FLIGHT];
    take(g, gate, first, packs);
    take(u, up, first, packs);
    take(dy, d, first, packs);
#pragma unroll
    for (int f = 0; f < FLIGHT; f++) {
        unsigned at = (unsigned)first + f * THREADS;
        T *to = both + ((size_t)(at / row) * 2 * row + at % row) * V; // row: packs of one
        float dgate[V], dup[V], y[V];
        if (at >= packs)
            continue;
#pragma unroll
        for (int i = 0; i < V; i++) {
            float gi = to_f32(g[f].v[i]), ui = to_f32(u[f].v[i]);
            float di = to_f32(dy[f].v[i]), s = sigmoid(gi), silu = gi * s;
            dgate[i] = di * ui * (s + silu * (1 - s));
            dup[i] = di * silu;
            y[i] = silu * ui;
        }
        store(to, dgate);
        store(to + (size_t)row * V, dup);
        store(d + (size_t)at * V, y);
    }
}

template <typename T>
static void
swiglu_of(struct cuda *c, void *y, const void *gate, const void *up, size_t n)
{
    T *to = (T *)y;
    const T *g = (const T *)gate, *u = (const T *)up;
    bool fit = in_packs<T>(0, place(y) | place(gate) | place(up));
    size_t packs = fit ? n / lanes<T> : 0, head = packs * lanes<T>;
    if (packs)
        cuda_start(c, "swiglu", swiglu_packs<T, lanes<T>>,
                   blocks_of(packs, FLIGHT * THREADS), THREADS, 0, to, g, u, packs);
    if (head < n)
        cuda_start(c, "swiglu", swiglu_packs<T, 1>,
                   blocks_of(n - head, FLIGHT * THREADS), THREADS, 0, to + head, g + head,
                   u + head, n - head);
}

/* Of as many tokens at a time as have at most 2^31 packs. */
template <typename T, int V>
static void
run_swiglu_dx(struct cuda *c, T *both, T *d, const T *gate, const T *up, size_t tokens,
              size_t n)
{
    size_t row = n / V, most = ((size_t)1 << 31) / row;
    for (size_t at = 0; at < tokens; at += most) {
        unsigned packs = (unsigned)(least(tokens - at, most) * row);
        swiglu_dx_packs<T, V>
            <<<blocks_of(packs, FLIGHT * THREADS), THREADS, 0, c->stream>>>(
                both + at * 2 * n, d + at * n, gate + at * n, up + at * n, (unsigned)row,
                packs);
        cuda_launched(c, "swiglu_dx");
    }
}

template <typename T>
static void
swiglu_dx_of(struct cuda *c, void *both, void *d, const void *gate, const void *up,
             size_t tokens, size_t n)
{
    if (in_packs<T>(n, place(both) | place(d) | place(gate) | place(up)))
        run_swiglu_dx<T, lanes<T>>(c, (T *)both, (T *)d, (const T *)gate, (const T *)up,
                                   tokens, n);
    else
        run_swiglu_dx<T, 1>(c, (T *)both, (T *)d, (const T *)gate, (const T *)up, tokens,
                            n);
}

void
cuda_swiglu(struct kernels *k, void *y, const void *gate, const void *up, size_t n)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && n)
        BY_ACT(c, swiglu_of, c, y, gate, up, n);
}

void
cuda_swiglu_dx(struct kernels *k, void *both, void *d, const void *gate, const void *up,
               size_t tokens, size_t n)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && tokens && n)
        BY_ACT(c, swiglu_dx_of, c, both, d, gate, up, tokens, n);
}

/* ---- losses ------------------------------------------------------------------------------ */

/* A row of logits waits for the second look at it: its first LOSS_KEPT bytes in shared
 * memory, the rest, 140 kB of a multiprocessor if the vocabulary is Qwen3's, in L2. */
enum {
    LOSS_THREADS = 1024,
    LOSS_FLIGHT = 4,
    LOSS_KEPT = 160 << 10,
};

/* Of numbers <= 0.  The short way is off by (2 + 1.2 |x|) 2^-23 of itself at most: with it
 * bf16 keeps up with memory, and what is far off is a small part of the sum. */
template <typename T>
static __device__ __forceinline__ float
exponential(float x)
{
    if (sizeof(T) == sizeof(float))
        return expf(x);
    // __expf without what it does about subnormal numbers.
    return exp2_fast(x * 1.4426950408889634F);
}

template <int V, typename T>
static __device__ __forceinline__ void
clear_row(T *row, unsigned packs)
{
    const float zero[V] = {};
    for (unsigned i = threadIdx.x; i < packs; i += blockDim.x)
        store(row + (size_t)i * V, zero);
}

template <typename T, int V>
static __global__ void __launch_bounds__(LOSS_THREADS)
loss_rows(float *loss, T *logits, const int32_t *__restrict__ label, unsigned vocab,
          unsigned kept, float scale)
{
    typedef pack<T, V> P;
    extern __shared__ uint4 shared_packs[];
    __shared__ float room[33];
    P *keep = (P *)shared_packs;
    T *row = logits + (size_t)blockIdx.x * vocab;
    unsigned packs = vocab / V, step = blockDim.x;
    int32_t right = label[blockIdx.x];
    if (right < 0) {
        clear_row<V>(row, packs);
        if (threadIdx.x == 0)
            loss[blockIdx.x] = 0;
        return;
    }
    float target = to_f32(row[right]), most = -FLT_MAX, sum = 0;
    for (unsigned i = threadIdx.x; i < packs; i += LOSS_FLIGHT * step) {
        P v[LOSS_FLIGHT];
#pragma unroll
        for (unsigned f = 0; f < LOSS_FLIGHT; f++)
            if (i + f * step < packs)
                v[f] = ((const P *)row)[i + f * step];
#pragma unroll
        for (unsigned f = 0; f < LOSS_FLIGHT; f++) {
            float before = most;
            if (i + f * step >= packs)
                continue;
            if (i + f * step < kept)
                keep[i + f * step] = v[f];
#pragma unroll
            for (int j = 0; j < V; j++)
                most = fmaxf(most, to_f32(v[f].v[j]));
            sum *= exponential<T>(before - most);
#pragma unroll
            for (int j = 0; j < V; j++)
                sum += exponential<T>(to_f32(v[f].v[j]) - most);
        }
    }
    float highest = block_max(most, room);
    sum = block_sum(sum * exponential<T>(most - highest), room);
    if (threadIdx.x == 0)
        loss[blockIdx.x] = logf(sum) + (highest - target);
    if (scale == 0) {
        clear_row<V>(row, packs);
        return;
    }
    float share = scale / sum;
    for (unsigned i = threadIdx.x; i < packs; i += LOSS_FLIGHT * step) {
        P v[LOSS_FLIGHT];
#pragma unroll
        for (unsigned f = 0; f < LOSS_FLIGHT; f++)
            if (i + f * step < kept)
                v[f] = keep[i + f * step];
            else if (i + f * step < packs)
                v[f] = ((const P *)row)[i + f * step];
#pragma unroll
        for (unsigned f = 0; f < LOSS_FLIGHT; f++) {
            float out[V];
            if (i + f * step >= packs)
                continue;
#pragma unroll
            for (int j = 0; j < V; j++)
                out[j] = exponential<T>(to_f32(v[f].v[j]) - highest) * share;
            store(row + (size_t)(i + f * step) * V, out);
        }
    }
    __syncthreads(); // the one number that the label changes is written again
    if (threadIdx.x == 0)
        row[right] = from_f32<T>(exponential<T>(target - highest) * share - scale);
}

template <typename T, int V>
static void
loss_launch(struct cuda *c, float *loss, void *logits, const int32_t *label,
            size_t rows, size_t vocab, float scale)
{
    size_t room = least(LOSS_KEPT, c->shared - 1024) / sizeof(pack<T, V>);
    size_t kept = scale != 0 ? least(vocab / V, room) : 0;
    size_t bytes = kept * sizeof(pack<T, V>);
    if (!cuda_check(c,
                    cudaFuncSetAttribute(loss_rows<T, V>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)bytes),
                    "cudaFuncSetAttribute"))
        return;
    loss_rows<T, V><<<(unsigned)rows, row_threads(vocab / V, 1, LOSS_THREADS), bytes,
                      c->stream>>>(loss, (T *)logits, label, (unsigned)vocab,
                                   (unsigned)kept, scale);
    cuda_launched(c, "cross_entropy");
}

template <typename T>
static void
loss_of(struct cuda *c, float *loss, void *logits, const int32_t *label, size_t rows,
        size_t vocab, float scale)
{
    if (in_packs<T>(vocab, place(logits)))
        loss_launch<T, lanes<T>>(c, loss, logits, label, rows, vocab, scale);
    else
        loss_launch<T, 1>(c, loss, logits, label, rows, vocab, scale);
}

void
cuda_cross_entropy(struct kernels *k, float *loss, void *logits, const int32_t *label,
                   size_t rows, size_t vocab, float scale)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && rows && vocab)
        BY_ACT(c, loss_of, c, loss, logits, label, rows, vocab, scale);
}

template <typename T, typename W, int V>
static __global__ void __launch_bounds__(THREADS)
l1_rows(float *loss, T *dx, const T *__restrict__ x, const W *__restrict__ w,
        const int32_t *__restrict__ label, unsigned n, float share)
{
    __shared__ float room[33];
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
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        loss[row] = sum / (float)n;
}

template <typename T, typename W>
static void
l1_from(struct cuda *c, float *loss, void *dx, float *dw, const void *x,
        const struct weight *w, const int32_t *label, size_t rows, float scale)
{
    constexpr int V = lanes<T>;
    size_t n = w->in;
    float share = scale / (float)n;
    const W *values = (const W *)w->values;
    if (in_packs<T>(n, place(dx) | place(x) | place(values)))
        l1_rows<T, W, V>
            <<<(unsigned)rows, row_threads(n / V, 2, THREADS), 0, c->stream>>>(
                loss, (T *)dx, (const T *)x, values, label, (unsigned)n, share);
    else
        l1_rows<T, W, 1>
            <<<(unsigned)rows, row_threads(n, 2, THREADS), 0, c->stream>>>(
                loss, (T *)dx, (const T *)x, values, label, (unsigned)n, share);
    cuda_launched(c, "l1");
    if (dw)
        grow<T, W, true>(c, dw, x, values, label, rows, n, share);
}

template <typename T>
static void
l1_of(struct cuda *c, float *loss, void *dx, float *dw, const void *x,
      const struct weight *w, const int32_t *label, size_t rows, float scale)
{
    BY_DTYPE(w->dtype, l1_from, T, c, loss, dx, dw, x, w, label, rows, scale);
}

void
cuda_l1(struct kernels *k, float *loss, void *dx, float *dw, const void *x,
        const struct weight *w, const int32_t *label, size_t rows, float scale)
{
    struct cuda *c = cuda_of(k);
    if (cuda_ready(c) && rows && w->in)
        BY_ACT(c, l1_of, c, loss, dx, dw, x, w, label, rows, scale);
}

/* ---- the largest logit ------------------------------------------------------------------ */

enum { BEST_BLOCKS = 64 };

/* A logit and where it is; one that is not finite is above all others, and nowhere. */
struct candidate {
    float value;
    uint32_t at;
};

static __device__ __forceinline__ struct candidate
better(struct candidate a, struct candidate b)
{
    return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}

/* Of a block, for its first thread. */
static __device__ __forceinline__ struct candidate
best_of_block(struct candidate best)
{
    __shared__ struct candidate room[THREADS / 32];
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        best = better(best, { __shfl_xor_sync(0xffffffffU, best.value, i),
                              __shfl_xor_sync(0xffffffffU, best.at, i) });
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = best;
    __syncthreads();
    for (unsigned i = 1; threadIdx.x == 0 && i < THREADS / 32; i++)
        best = better(best, room[i]);
    return best;
}

static __global__ void
__launch_bounds__(THREADS)
    best_of_parts(struct candidate *out, const float *__restrict__ logits, unsigned n)
{
    struct candidate best = { -INFINITY, UINT32_MAX };
    cuda_take_over();
#pragma unroll 4
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < n;
         i += BEST_BLOCKS * THREADS) {
        float x = logits[i];
        bool finite = fabsf(x) <= FLT_MAX;
        best = better(best, { finite ? x : INFINITY, finite ? i : UINT32_MAX });
    }
    best = best_of_block(best);
    if (threadIdx.x == 0)
        out[blockIdx.x] = best;
}

static __global__ void
__launch_bounds__(THREADS) best_of_all(int32_t *id, const struct candidate *part)
{
    static_assert(BEST_BLOCKS <= THREADS, "a part a thread");
    struct candidate best = { -INFINITY, UINT32_MAX };
    cuda_take_over();
    if (threadIdx.x < BEST_BLOCKS)
        best = part[threadIdx.x];
    best = best_of_block(best);
    if (threadIdx.x == 0)
        *id = (int32_t)best.at;
}

void
cuda_best(struct kernels *k, int32_t *id, const float *logits, size_t n)
{
    struct cuda *c = cuda_of(k);
    struct candidate *part = (struct candidate *)c->partials;
    if (!cuda_ready(c) || n == 0)
        return;
    cuda_start(c, "best", best_of_parts, BEST_BLOCKS, THREADS, 0, part, logits,
               (unsigned)n);
    if (cuda_ready(c))
        cuda_start(c, "best", best_of_all, 1, THREADS, 0, id, part);
}
