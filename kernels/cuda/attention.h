/* SPDX-License-Identifier: MIT */
/* attention: what the parts of attention share.
 *
 * Matrices in shared memory are rows of DIM bf16 in chunks of 16 bytes; chunk c of row r is
 * at c ^ (r % 8), so that 8 rows' chunks of one column are in different banks.  A row
 * begins at a multiple of its length: the address of another column of a lane's chunk is
 * that of its first by one exclusive or, and other rows are a constant further. */
#ifndef NIBBLE_KERNELS_CUDA_ATTENTION_H
#define NIBBLE_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

typedef __nv_bfloat16 bf16;

/* A call, as kernels take it.  Rows are tokens and heads: a tile of rows has some tokens
 * of `pack` query heads that share a kv head, head by head. */
struct view {
    const int32_t *first;
    int tokens, past, query, kv, dim;
    int group;       // query heads of a kv head
    int pack, shift; // heads of a tile of rows, log2 of its tokens
    int span;        // tokens of a warp's rows
    float scale;     // of scores
    float scale2;    // the same for powers of 2
};

enum {
    TILE_ROWS = 128, // of a tile of rows
    WARP_ROWS = 32, // of a warp's: what is loaded for two 16-row products is used twice
    PLANNED = 8192, // tiles that are put in order, at most
    DECODED = 16,   // tokens, at most, for which memory is the bound
};

/* The work of tiles of rows, or of keys, the longest first.  end: where the queries of a
 * tile of keys end, NULL of rows. */
void attention_plan(struct cuda *c, int *order, int *end, int tiles, int each,
                    const struct view *v);
void attention_allow(struct cuda *c, const void *kernel, size_t shared);

/* Tokens 1..DECODED with any past: bf16 of dim 64 or 128. */
void attention_decode(struct cuda *c, void *out, float *lse, const void *q,
                      const void *key, const void *value, const struct view *v);
/* bf16 of dim 64 or 128; work has the sums of dout * out. */
void attention_bwd(struct cuda *c, const struct attention_grads *d, const void *dout,
                   const float *lse, const void *q, const void *key, const void *value,
                   const float *work, const struct view *v);
/* Any type, and any dim up to PLAIN_DIM. */
enum { PLAIN_DIM = 256 };
void attention_plain(struct cuda *c, void *out, float *lse, const struct matrix *q,
                     const void *key, const void *value, const struct view *v);
void attention_plain_bwd(struct cuda *c, const struct attention_grads *d,
                         const void *dout, const float *lse, const struct matrix *q,
                         const void *key, const void *value, const float *work,
                         const struct view *v);

/* ---- on the device ------------------------------------------------------------------ */

/* N rows of a matrix to shared memory, by THREADS threads; those from `rows` on are 0. */
template <int DIM, int N, int THREADS>
static __device__ __forceinline__ void
fetch(uint32_t to, const bf16 *from, size_t line, int rows, int thread)
{
    constexpr int CHUNKS = DIM / 8, EACH = THREADS / CHUNKS;
    int row = thread / CHUNKS, chunk = thread % CHUNKS;
    from += row * line + chunk * 8;
#pragma unroll
    for (int i = 0; i < N; i += EACH, row += EACH, from += EACH * line)
        copy16(to + row * DIM * 2 + ((chunk ^ (row & 7)) << 4), from, row < rows);
}

/* The same in a loop: to and from are those of a thread's own first chunk, and rows are
 * counted from there. */
template <int DIM>
static __device__ __forceinline__ uint32_t
own_chunk(int thread)
{
    int row = thread / (DIM / 8), chunk = thread % (DIM / 8);
    return row * DIM * 2 + ((chunk ^ (row & 7)) << 4);
}

template <int DIM, int N, int THREADS>
static __device__ __forceinline__ void
fetch_own(uint32_t to, const bf16 *from, size_t line, int rows)
{
    constexpr int EACH = THREADS / (DIM / 8);
    static_assert(EACH % 8 == 0,
                  "all of a thread's chunks are at the same place of rows");
#pragma unroll
    for (int i = 0; i < N; i += EACH, from += EACH * line)
        copy16(to + i * DIM * 2, from, i < rows);
}

/* A tile of rows. */
struct tile {
    int token, head, kv;
};

static __device__ __forceinline__ struct tile
tile_of(const struct view &v, const int *order)
{
    int bundles = v.query / v.pack, tiles = (int)(gridDim.x / (unsigned)bundles);
    int rank = (int)(blockIdx.x / (unsigned)bundles);
    struct tile t;
    t.token = (order ? order[rank] : tiles - 1 - rank) << v.shift;
    t.head = (int)(blockIdx.x % (unsigned)bundles) * v.pack;
    t.kv = t.head / v.group;
    return t;
}

static __device__ __forceinline__ int
token_of(const struct view &v, const struct tile &t, int row)
{
    return t.token + (row & ((1 << v.shift) - 1));
}

/* Offset of a row in q, out and their gradients. */
static __device__ __forceinline__ size_t
at_row(const struct view &v, const struct tile &t, int row, int dim)
{
    return ((size_t)token_of(v, t, row) * v.query + t.head + (row >> v.shift)) * dim;
}

/* A tile of rows of q or dout; THREADS as TILE_ROWS. */
template <int DIM>
static __device__ __forceinline__ void
fetch_rows(uint32_t to, const bf16 *from, const struct view &v, const struct tile &t)
{
    constexpr int CHUNKS = DIM / 8, EACH = TILE_ROWS / CHUNKS;
    int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i += EACH, row += EACH) {
        bool there = token_of(v, t, row) < v.tokens;
        copy16(to + row * DIM * 2 + ((chunk ^ (row & 7)) << 4),
               there ? from + at_row(v, t, row, DIM) + chunk * 8 : from, there);
    }
}

/* Keys that all rows of a warp see: from .. end - 1; from end - 1 + span on none does. */
struct sight {
    int from, end;
};

static __device__ __forceinline__ struct sight
sight_of(const struct view &v, const struct tile &t, int warp)
{
    int low = token_of(v, t, warp * WARP_ROWS);
    struct sight s = { v.first[min(low + v.span, v.tokens) - 1], v.past + low + 1 };
    return s;
}

/* What a lane loads from row `row` on: 16 rows of 16 columns as A, or as B of a product
 * over rows; and 16 rows that are columns of B. */
template <int DIM>
static __device__ __forceinline__ uint32_t
lane_as_a(uint32_t at, int row, int lane)
{
    return at + (row + (lane & 15)) * DIM * 2 + (((lane >> 4) ^ (lane & 7)) << 4);
}

template <int DIM>
static __device__ __forceinline__ uint32_t
lane_as_b(uint32_t at, int row, int lane)
{
    return at + (row + (lane & 7) + ((lane >> 4) << 3)) * DIM * 2 +
           ((((lane >> 3) & 1) ^ (lane & 7)) << 4);
}

/* s = A B', M times 16 rows and N times 8, over DIM. */
template <int DIM, int M, int N>
static __device__ __forceinline__ void
scores(float (&s)[M][N][4], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[i][n][e] = 0;
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        uint32_t x[M][4];
#pragma unroll
        for (int i = 0; i < M; i++)
            load4(x[i], (a ^ (k << 5)) + i * 16 * DIM * 2);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t y[4];
            load4(y, (b ^ (k << 5)) + n * 8 * DIM * 2);
#pragma unroll
            for (int i = 0; i < M; i++) {
                mma(s[i][n], x[i], y[0], y[1]);
                mma(s[i][n + 1], x[i], y[2], y[3]);
            }
        }
    }
}

/* Columns 16 n .. 16 n + 15 of o += p B, over 16 rows of B. */
template <int M, int D>
static __device__ __forceinline__ void
mix(float (&o)[M][D][4], const uint32_t (&p)[M][4], uint32_t b, int n)
{
    uint32_t y[4];
    load4_turned(y, b ^ (n << 5));
#pragma unroll
    for (int i = 0; i < M; i++) {
        mma(o[i][2 * n], p[i], y[0], y[1]);
        mma(o[i][2 * n + 1], p[i], y[2], y[3]);
    }
}

/* Scores of 32 rows from `row` on, this lane's first, that are not seen become -infinity.
 * first: of each row; key: of this lane's first column. */
template <int N>
static __device__ __forceinline__ void
hide(float (&s)[2][N][4], const struct view &v, const struct tile &t, const int *first,
     int row, int key)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = row + 16 * i + 8 * h;
            int low = first[r], high = v.past + min(token_of(v, t, r), v.tokens - 1);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int k = key + 8 * n + e;
                    if (k < low || k > high)
                        s[i][n][2 * h + e] = -INFINITY;
                }
        }
}

/* Results of 32 rows, times something, to a warp's own rows in shared memory. */
template <int DIM>
static __device__ __forceinline__ void
put_rows(uint8_t *rows, const float (&o)[2][DIM / 8][4], const float (&times)[2][2],
         int lane)
{
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = 16 * i + 8 * h + lane / 4;
#pragma unroll
            for (int d = 0; d < DIM / 8; d++)
                *(uint32_t *)(rows + r * DIM * 2 + ((d ^ (r & 7)) << 4) +
                              lane % 4 * 4) =
                    two_bf16(o[i][d][2 * h] * times[i][h],
                             o[i][d][2 * h + 1] * times[i][h]);
        }
    __syncwarp();
}

template <int DIM>
static __device__ __forceinline__ uint4
chunk_of(const uint8_t *rows, int row, int chunk)
{
    return *(const uint4 *)(rows + row * DIM * 2 + ((chunk ^ (row & 7)) << 4));
}

/* And from there to q's gradient or out, of which a token has `line` numbers. */
template <int DIM>
static __device__ __forceinline__ void
store_rows(bf16 *to, size_t line, const uint8_t *rows, const struct view &v,
           const struct tile &t, int warp, int lane)
{
    constexpr int CHUNKS = DIM / 8, EACH = 32 / CHUNKS;
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i += EACH) {
        int row = i + lane / CHUNKS, of_tile = warp * WARP_ROWS + row;
        int token = token_of(v, t, of_tile), head = t.head + (of_tile >> v.shift);
        if (token < v.tokens)
            *(uint4 *)(to + token * line + (size_t)head * DIM + lane % CHUNKS * 8) =
                chunk_of<DIM>(rows, row, lane % CHUNKS);
    }
}

/* Eight numbers of C as A. */
static __device__ __forceinline__ void
as_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4])
{
    a[0] = two_bf16(left[0], left[1]);
    a[1] = two_bf16(left[2], left[3]);
    a[2] = two_bf16(right[0], right[1]);
    a[3] = two_bf16(right[2], right[3]);
}

/* The softmax of rows so far: the largest scaled score, or one near it, and this lane's
 * part of the sum.  Before any it is a finite number, so that none is ever NaN. */
template <int M>
struct softmax {
    float most[M][2], sum[M][2];
};

template <int M>
static __device__ __forceinline__ void
begin_softmax(struct softmax<M> &x)
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            x.most[i][h] = -1e30F;
            x.sum[i][h] = 0;
        }
}

/* Add the scores of a tile.  The exponent's base is left as it is while nothing is
 * more than 2^8 above it: that is as exact, and o is seldom multiplied. */
template <int M, int N, int D>
static __device__ __forceinline__ void
take_in(struct softmax<M> &x, float (&o)[M][D][4], const float (&s)[M][N][4],
        float scale2)
{
    float most[M][2];
    bool more = false;
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < N; n++)
                m = fmaxf(m, fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffU, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffU, m, 2));
            most[i][h] = m * scale2;
            more |= most[i][h] > x.most[i][h] + 8;
        }
    if (__any_sync(0xffffffffU, more)) {
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float m = fmaxf(x.most[i][h], most[i][h]);
                float less = exp2_fast(x.most[i][h] - m);
                x.most[i][h] = m;
                x.sum[i][h] *= less;
#pragma unroll
                for (int d = 0; d < D; d++) {
                    o[i][d][2 * h] *= less;
                    o[i][d][2 * h + 1] *= less;
                }
            }
    }
}

/* Scores become weights, added to the sums. */
static __device__ __forceinline__ void
weigh(float &s, float &sum, float most, float scale2)
{
    s = exp2_fast(fmaf(s, scale2, -most));
    sum += s;
}

#endif
