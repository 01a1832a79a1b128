/* SPDX-License-Identifier: MIT */
/* attention: shared by the attention kernels.
 *
 * Matrices in shared memory are rows of DIM bf16 in chunks of 16 bytes.  They are
 * swizzled: chunk c of row r is at c ^ (r % 8), so that a column of chunks in 8 rows
 * has no bank conflicts.  Rows start at multiples of their size, so a lane reaches
 * another column by one XOR, and other rows by a constant offset. */
#ifndef NIBBLE_KERNELS_CUDA_ATTENTION_H
#define NIBBLE_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/query_sums.h"

typedef __nv_bfloat16 bf16;

/* Parameters of a call.  A row is a query head and a token; a tile of rows has some
 * tokens of `pack` query heads that share a kv head, head by head. */
struct view {
    const int32_t *first;
    int tokens, past, query, kv, dim;
    int group;       // query heads per kv head
    int pack, shift; // heads per tile of rows, log2 of its tokens
    int span;        // tokens in a warp's rows
    float scale;     // of scores
    float scale2;    // scale * log2(e), for exp2
};

enum {
    TILE_ROWS = 128, // rows per block
    WARP_ROWS = 32,  // rows per warp: two 16-row mma reuse each B
    PLANNED = 8192,  // max. tiles that are sorted
    DECODED = 16,    // max. tokens of attention_decode: memory-bound
};

static_assert((int)ATTENTION_CUT == (int)WARP_ROWS,
              "rows of a warp raise their maxima together");

/* Order tiles by work, the longest first: tiles of rows if end is NULL, else tiles of
 * keys, with the end of the queries that see them. */
void attention_plan(struct cuda *c, int *order, int *end, int tiles, int each,
                    const struct view *v);
void attention_allow(struct cuda *c, const void *kernel, size_t shared);

/* Whether the chip has wgmma, and this build has kernels for it (Makefile). */
static inline bool
is_hopper(int major)
{
    return SM_90A && major == 9;
}

/* 1 .. DECODED tokens with any past; bf16, dim 64 or 128. */
void attention_decode(struct cuda *c, void *out, float *lse, const void *q,
                      const void *key, const void *value, const struct view *v);
/* More tokens with any past, with wgmma: bf16, dim 128, if is_hopper. */
void attention_hopper_forward(struct cuda *c, void *out, float *lse, const void *q,
                              const void *key, const void *value, const struct view *v);
/* bf16, dim 64 or 128; work: the row sums of dout * out. */
void attention_bwd(struct cuda *c, const struct attention_grads *d, const void *dout,
                   const float *lse, const void *q, const void *key, const void *value,
                   const float *work, const struct view *v);
/* The same in one pass, on sm_90, dim 128 and no past, with dQ in f32 between.  First the
 * plan, beside which the sums of dout * out may be computed; false, with the error set,
 * without memory.  sums: NULL, or it is set to where dQ is in f32, until the next
 * cuda_scratch, and d->dq is not written.  Workspace: bytes; 0: not for these sizes. */
size_t attention_hopper_workspace(const struct heads *h);
bool attention_hopper_plan(struct cuda *c, const struct view *v, const struct heads *h);
void attention_hopper_bwd(struct cuda *c, const struct attention_grads *d,
                          const void *dout, const float *lse, const void *q,
                          const void *key, const void *value, const float *work,
                          const struct view *v, const struct heads *h,
                          struct query_sums *sums);
/* Any type, and any dim up to PLAIN_DIM. */
enum { PLAIN_DIM = 256 };
void attention_plain(struct cuda *c, void *out, float *lse, const struct matrix *q,
                     const void *key, const void *value, const struct view *v);
void attention_plain_bwd(struct cuda *c, const struct attention_grads *d,
                         const void *dout, const float *lse, const struct matrix *q,
                         const void *key, const void *value, const float *work,
                         const struct view *v);

/* ---- on the device --------------------------------------------------------------- */

/* The first query from `low` on that sees no key up to `last`. */
static __device__ __forceinline__ int
end_of_queries(const struct view &v, int low, int last)
{
    int high = v.tokens;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (v.first[middle] > last)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Copy N rows to shared memory by THREADS threads, asynchronously; rows from `rows` on
 * become 0. */
template <int DIM, int N, int THREADS>
static __device__ __forceinline__ void
fetch(uint32_t to, const bf16 *from, size_t ld, int rows, int thread)
{
    constexpr int CHUNKS = DIM / 8, EACH = THREADS / CHUNKS;
    int row = thread / CHUNKS, chunk = thread % CHUNKS;
    from += row * ld + chunk * 8;
#pragma unroll
    for (int i = 0; i < N; i += EACH, row += EACH, from += EACH * ld)
        copy16(to + row * DIM * 2 + ((chunk ^ (row & 7)) << 4), from, row < rows);
}

/* The same for a loop: own_chunk is the offset of a thread's first chunk; fetch_own has
 * to, from and rows relative to that chunk. */
template <int DIM>
static __device__ __forceinline__ uint32_t
own_chunk(int thread)
{
    int row = thread / (DIM / 8), chunk = thread % (DIM / 8);
    return row * DIM * 2 + ((chunk ^ (row & 7)) << 4);
}

template <int DIM, int N, int THREADS>
static __device__ __forceinline__ void
fetch_own(uint32_t to, const bf16 *from, size_t ld, int rows)
{
    constexpr int EACH = THREADS / (DIM / 8);
    static_assert(EACH % 8 == 0,
                  "all of a thread's chunks are at the same place of rows");
#pragma unroll
    for (int i = 0; i < N; i += EACH, from += EACH * ld)
        copy16(to + i * DIM * 2, from, i < rows);
}

/* First token, first query head, and kv head of a tile of rows. */
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

/* Copy a tile of rows of q or dout by TILE_ROWS threads, asynchronously. */
template <int DIM>
static __device__ __forceinline__ void
fetch_rows(uint32_t to, const bf16 *from, const struct view &v, const struct tile &t)
{
    constexpr int CHUNKS = DIM / 8, EACH = TILE_ROWS / CHUNKS;
    int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i += EACH, row += EACH) {
        bool valid = token_of(v, t, row) < v.tokens;
        copy16(to + row * DIM * 2 + ((chunk ^ (row & 7)) << 4),
               valid ? from + at_row(v, t, row, DIM) + chunk * 8 : from, valid);
    }
}

/* Keys from .. end - 1 are visible to all rows of a warp, those from end - 1 + span on
 * to none. */
struct visible {
    int from, end;
};

static __device__ __forceinline__ struct visible
visible_of(const struct view &v, const struct tile &t, int warp)
{
    int low = token_of(v, t, warp * WARP_ROWS);
    struct visible s = { v.first[min(low + v.span, v.tokens) - 1], v.past + low + 1 };
    return s;
}

/* A lane's ldmatrix address for 16 rows from `row` on and 16 columns: as A, or
 * transposed as B with the rows summed over; or as B whose columns are the rows. */
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

/* s = A B', (16 M, 8 N), summed over DIM. */
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

/* o += p B, columns 16 n .. 16 n + 15, summed over 16 rows of B. */
template <int M, int D>
static __device__ __forceinline__ void
mma_columns(float (&o)[M][D][4], const uint32_t (&p)[M][4], uint32_t b, int n)
{
    uint32_t y[4];
    load4_trans(y, b ^ (n << 5));
#pragma unroll
    for (int i = 0; i < M; i++) {
        mma(o[i][2 * n], p[i], y[0], y[1]);
        mma(o[i][2 * n + 1], p[i], y[2], y[3]);
    }
}

/* Mask: scores of 32 rows that are not visible become -infinity. row, key: this lane's
 * first row and column; first: of each row. */
template <int N>
static __device__ __forceinline__ void
mask(float (&s)[2][N][4], const struct view &v, const struct tile &t, const int *first,
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

/* Write 32 rows of output, scaled by `times`, as bf16 to the warp's rows in shared
 * memory. */
template <int DIM>
static __device__ __forceinline__ void
stage_rows(uint8_t *rows, const float (&o)[2][DIM / 8][4], const float (&times)[2][2],
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

/* Store them to out or dq; ld: token stride. */
template <int DIM>
static __device__ __forceinline__ void
store_rows(bf16 *to, size_t ld, const uint8_t *rows, const struct view &v,
           const struct tile &t, int warp, int lane)
{
    constexpr int CHUNKS = DIM / 8, EACH = 32 / CHUNKS;
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i += EACH) {
        int row = i + lane / CHUNKS, of_tile = warp * WARP_ROWS + row;
        int token = token_of(v, t, of_tile), head = t.head + (of_tile >> v.shift);
        if (token < v.tokens)
            *(uint4 *)(to + token * ld + (size_t)head * DIM + lane % CHUNKS * 8) =
                chunk_of<DIM>(rows, row, lane % CHUNKS);
    }
}

/* Two neighbouring tiles of C as an A in bf16. */
static __device__ __forceinline__ void
as_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4])
{
    a[0] = two_bf16(left[0], left[1]);
    a[1] = two_bf16(left[2], left[3]);
    a[2] = two_bf16(right[0], right[1]);
    a[3] = two_bf16(right[2], right[3]);
}

/* Online softmax of rows: the maximum scaled score, or a value near it, and this lane's
 * part of the sum.  The maximum starts finite, so that no exponential is NaN. */
template <int M>
struct softmax {
    float max[M][2], sum[M][2];
};

template <int M>
static __device__ __forceinline__ void
begin_softmax(struct softmax<M> &x)
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            x.max[i][h] = -1e30F;
            x.sum[i][h] = 0;
        }
}

/* Update the maximum with the scores of a tile, and rescale sum and o.  The maximum
 * stays while no score exceeds it by more than 8, a factor of 2^8: that is as exact,
 * and o is seldom rescaled. */
template <int M, int N, int D>
static __device__ __forceinline__ void
update_max(struct softmax<M> &x, float (&o)[M][D][4], const float (&s)[M][N][4],
           float scale2)
{
    float tile_max[M][2];
    bool raised = false;
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
            tile_max[i][h] = m * scale2;
            raised |= tile_max[i][h] > x.max[i][h] + 8;
        }
    if (__any_sync(0xffffffffU, raised)) {
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float m = fmaxf(x.max[i][h], tile_max[i][h]);
                float factor = exp2_fast(x.max[i][h] - m);
                x.max[i][h] = m;
                x.sum[i][h] *= factor;
#pragma unroll
                for (int d = 0; d < D; d++) {
                    o[i][d][2 * h] *= factor;
                    o[i][d][2 * h + 1] *= factor;
                }
            }
    }
}

/* Score to softmax weight, added to the sum. */
static __device__ __forceinline__ void
to_weight(float &s, float &sum, float max, float scale2)
{
    s = exp2_fast(fmaf(s, scale2, -max));
    sum += s;
}

#endif
