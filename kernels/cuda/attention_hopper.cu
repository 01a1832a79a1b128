/* SPDX-License-Identifier: MIT */
/* attention_hopper: the backward pass of attention in one pass, with wgmma (sm_90a):
 * bf16, dim 128, no past.
 *
 * A block has 128 keys of a kv head and loops over tiles of 64 queries, the last first,
 * and over the query heads that share the kv head.  Each of two warpgroups has 64 keys:
 *
 *   S' = K Q', P' = exp2(S' scale - lse), dP' = V dO', dS' = P' (dP' - sums),
 *   dV += P' dO, dK += dS' Q, with P' and dS' in registers;
 *   dQ (64, 128) = dS K, of which each warpgroup computes 64 columns: both write dS' to
 *   shared memory.
 *
 * dQ of a tile is computed while the scores of the next become weights, so that a
 * warpgroup seldom waits for the other's dS'.  Four more warps copy: two queries and
 * dout, half of each, two add dQ to f32 in global memory, each every other tile, so that
 * one tile may wait while the next is added.
 *
 * dQ is a sum over blocks of keys, in a fixed order: `chunk` neighbouring blocks follow
 * each other, the last first, and chunks the first first.  A counter per tile and head
 * has the number of blocks that have added.  Blocks take their work by a ticket, in an
 * order in which each waits only for blocks with an earlier ticket, which run: so none
 * waits forever.  As all blocks of a chunk begin with the last queries, they ask for the
 * same queries at about the same time, and rarely wait long. */
#include "kernels/cuda/attention_hopper.h"

enum {
    DIM = 128,
    KEYS = 128,   // of a block
    QUERIES = 64, // of a tile
    DEPTH = 2,
    THREADS = 384,    // a warpgroup that copies, two that compute
    COPY_REGS = 24,   // registers of a thread that copies
    OTHER_REGS = 240, // of one that computes
    MAX_CHUNKS = 4096,
    MAX_TOKENS = MAX_CHUNKS * 2 * KEYS, // a chunk has at least 2 blocks
};

static_assert(COPY_REGS + 2 * OTHER_REGS <= 3 * BEGIN_REGS, "registers of the block");

/* Layout of shared memory. */
enum {
    HALF_KEYS = KEYS * 128, // bytes of a half matrix
    HALF_QUERIES = QUERIES * 128,
    KV = 2 * HALF_KEYS,
    QDO = 2 * HALF_QUERIES,
    DQ = QUERIES * DIM * 4,
    DS = KEYS * QUERIES * 2,
    SCALARS = 3 * QUERIES * 4, // lse, first, sums
    AT_KEY = 0,
    AT_VALUE = AT_KEY + KV,
    AT_Q = AT_VALUE + KV,
    AT_DOUT = AT_Q + DEPTH * QDO,
    AT_DS = AT_DOUT + DEPTH * QDO,
    AT_DQ = AT_DS + 2 * DS,
    AT_SCALARS = AT_DQ + 2 * DQ,
    AT_BARRIERS = AT_SCALARS + DEPTH * SCALARS,
};

/* mbarriers */
enum {
    KV_FULL,
    Q_FULL,
    Q_EMPTY = Q_FULL + DEPTH,
    DOUT_FULL = Q_EMPTY + DEPTH,
    DOUT_EMPTY = DOUT_FULL + DEPTH,
    DQ_FULL = DOUT_EMPTY + DEPTH,
    DQ_EMPTY = DQ_FULL + 2,
    DS_FULL = DQ_EMPTY + 2,
    ENDED = DS_FULL + 2,
    BARRIERS,
    AT_TICKET = AT_BARRIERS + BARRIERS * 8,
    SHARED = AT_TICKET + 8,
};

struct args {
    const bf16 *dout, *q, *key, *value;
    const float *lse, *work;
    bf16 *dq, *dkey, *dvalue;
    size_t q_row, kv_row; // token strides of gradients
    float *sums;          // (H, tiles, DQ): dQ before the scale
    int *ticket, *added;  // added: (H, tiles)
    int *end, *order;     // of blocks of keys; of chunks
    int blocks, tiles, chunk, chunks;
};

/* ---- order of blocks ------------------------------------------------------------- */

/* Sort chunks by work, the longest first, but none before one that it waits for; begin
 * with zero counters.  The sums of dout and out may be computed beside it: all kernels
 * before have ended by cuda_next. */
static __global__ void __launch_bounds__(1024) plan(struct args a, struct view v)
{
    __shared__ int work[MAX_CHUNKS];
    int n = v.query * a.tiles;
    cuda_wait();
    cuda_next();
    if (threadIdx.x == 0)
        *a.ticket = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        a.added[i] = 0;
    for (int b = threadIdx.x; b < a.blocks; b += blockDim.x)
        a.end[b] = end_of_queries(v, b * KEYS, b * KEYS + KEYS - 1);
    __syncthreads();
    // The first bit: whether a query sees keys of this chunk and of the next.
    for (int c = threadIdx.x; c < a.chunks; c += blockDim.x) {
        int most = 0, next = (c + 1) * a.chunk;
        for (int b = c * a.chunk; b < min(next, a.blocks); b++)
            most = max(most, a.end[b] - b * KEYS);
        work[c] = 2 * most + (next < a.blocks && a.end[next - 1] > next * KEYS);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int c = a.chunks - 2; c >= 0; c--)
            if (work[c] % 2)
                work[c] = max(work[c], work[c + 1] / 2 * 2 + 3);
    __syncthreads();
    for (int c = threadIdx.x; c < a.chunks; c += blockDim.x) {
        int rank = 0, w = work[c] / 2;
        for (int i = 0; i < a.chunks; i++)
            rank += work[i] / 2 > w || (work[i] / 2 == w && i < c);
        a.order[rank] = c;
    }
}

#if HAS_WGMMA

/* Work of a block: its keys, and tiles of queries begin .. end - 1. */
struct backward_job {
    int block, kv, begin, end;
};

static __device__ __forceinline__ bool
job_of(struct backward_job &j, const struct args &a, const struct view &v, int ticket)
{
    int rank = ticket / (v.kv * a.chunk), rest = ticket % (v.kv * a.chunk);
    if (rank >= a.chunks)
        return false;
    j.kv = rest / a.chunk;
    j.block = a.order[rank] * a.chunk + a.chunk - 1 - rest % a.chunk;
    if (j.block >= a.blocks)
        return false;
    j.begin = j.block * (KEYS / QUERIES);
    j.end = (a.end[j.block] + QUERIES - 1) / QUERIES;
    return true;
}

/* ---- copies ---------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t
barrier_at(uint32_t shared, int which)
{
    return shared + AT_BARRIERS + which * 8;
}

/* Copy 64 rows to a matrix with halves of HALF bytes by a warp; rows from `rows` on
 * become 0. */
template <int HALF, int N>
static __device__ __forceinline__ void
copy_rows(uint32_t to, const bf16 *from, size_t ld, int rows, int lane)
{
    int row = lane / 16, chunk = lane % 16;
    from += row * ld + chunk * 8;
    to += chunk / 8 * HALF + row * 128 + ((chunk % 8 ^ row) << 4);
    rows -= row;
#pragma unroll 1
    for (int i = 0; i < N; i += 8, to += 8 * 128)
#pragma unroll
        for (int j = 0; j < 4; j++, from += 2 * ld)
            copy16((to ^ (j << 5)) + j * 256, from, i + 2 * j < rows);
}

/* The copies so far are there for wgmma. */
static __device__ __forceinline__ void
copies_arrive(uint32_t barrier)
{
    copies_commit();
    copies_wait<0>();
    bulk_fence();
    mbarrier_arrive(barrier);
}

/* Each of four warps copies half of the keys or values. */
static __device__ __forceinline__ void
copy_keys(uint32_t shared, const struct args &a, const struct view &v,
          const struct backward_job &j, int warp, int lane)
{
    int row = warp / 2 * 64, key = j.block * KEYS + row;
    size_t ld = (size_t)v.kv * DIM, at = key * ld + (size_t)j.kv * DIM;
    copy_rows<HALF_KEYS, 64>(shared + (warp % 2 ? AT_VALUE : AT_KEY) + row * 128,
                             (warp % 2 ? a.value : a.key) + at, ld, v.tokens - key,
                             lane);
    copies_arrive(barrier_at(shared, KV_FULL));
}

/* Copy half of the rows of queries, with lse and first, and of dout with its sums.  Past
 * the last query they are 0, which adds 0 to the gradients. */
static __device__ __forceinline__ void
copy_queries(uint32_t shared, const struct args &a, const struct view &v,
             const struct backward_job &j, int half, int lane)
{
    size_t ld = (size_t)v.query * DIM;
    uint32_t phase = 1;
    int stage = 0;
    for (int i = j.end - 1; i >= j.begin; i--)
        for (int head = j.kv * v.group; head < (j.kv + 1) * v.group; head++) {
            int token = i * QUERIES + half * 32, left = v.tokens - token;
            size_t at = token * ld + (size_t)head * DIM;
            uint32_t to = shared + stage * QDO + half * (32 * 128);
            uint32_t scalars =
                shared + AT_SCALARS + stage * SCALARS + half * (32 * 4) + lane * 4;
            int t = min(token + lane, v.tokens - 1);
            size_t row = (size_t)head * v.tokens + t;
            mbarrier_wait(barrier_at(shared, Q_EMPTY + stage), phase);
            copy_rows<HALF_QUERIES, 32>(to + AT_Q, a.q + at, ld, left, lane);
            copy4(scalars, a.lse + row, lane < left);
            copy4(scalars + QUERIES * 4, v.first + t, true);
            copies_commit();
            mbarrier_wait(barrier_at(shared, DOUT_EMPTY + stage), phase);
            copy_rows<HALF_QUERIES, 32>(to + AT_DOUT, a.dout + at, ld, left, lane);
            copy4(scalars + 2 * QUERIES * 4, a.work + row, lane < left);
            copies_commit();
            copies_wait<1>();
            bulk_fence();
            mbarrier_arrive(barrier_at(shared, Q_FULL + stage));
            copies_wait<0>();
            bulk_fence();
            mbarrier_arrive(barrier_at(shared, DOUT_FULL + stage));
            if (++stage == DEPTH) {
                stage = 0;
                phase ^= 1;
            }
        }
}

/* The first key that the first query of a turn's tile sees. */
static __device__ __forceinline__ int
first_of(const struct view &v, const struct backward_job &j, int turn)
{
    int i = j.end - 1 - turn / v.group;
    return i < j.begin ? 0 : v.first[i * QUERIES];
}

/* How many blocks add to a turn's tile before this one; tile: its index. */
static __device__ __forceinline__ int
order_of(size_t &tile, const struct args &a, const struct view &v,
         const struct backward_job &j, int turn, int first)
{
    int i = j.end - 1 - turn / v.group, head = j.kv * v.group + turn % v.group;
    int last = i * QUERIES / KEYS, chunk = j.block / a.chunk * a.chunk;
    first /= KEYS; // blocks whose keys this tile sees: first .. last
    tile = (size_t)head * a.tiles + i;
    return max(first, chunk) - first + min(last, chunk + a.chunk - 1) - j.block;
}

/* Add every other tile of dQ, when the blocks before in the order have added.  By one
 * thread, which asks for the next tile's counter while this one is read from shared
 * memory: what it does in a turn must fit into two turns of the others. */
static __device__ __forceinline__ void
add_queries(uint8_t *shared, const struct args &a, const struct view &v,
            const struct backward_job &j, int stage)
{
    uint32_t base = shared_address(shared), phase = 0;
    int turns = (j.end - j.begin) * v.group, seen = 0,
        ahead = first_of(v, j, stage + 2);
    size_t tile;
    int before = order_of(tile, a, v, j, stage, first_of(v, j, stage));
    for (int turn = stage; turn < turns; turn += 2) {
        float *to = a.sums + tile * (DQ / sizeof(float));
        int *added = a.added + tile, count = before + 1;
        mbarrier_wait(barrier_at(base, DQ_FULL + stage), phase);
        phase ^= 1;
        while (seen < before)
            seen = load_acquire(added);
        if (before > 0) {
            bulk_fence_global();
            bulk_add(to, shared + AT_DQ + stage * DQ, DQ);
        } else {
            bulk_put(to, shared + AT_DQ + stage * DQ, DQ);
        }
        bulk_commit();
        seen = 0;
        if (turn + 2 < turns) {
            before = order_of(tile, a, v, j, turn + 2, ahead);
            ahead = first_of(v, j, turn + 4);
            if (before > 0)
                seen = load_acquire(a.added + tile);
        }
        bulk_wait_read();
        mbarrier_arrive(barrier_at(base, DQ_EMPTY + stage));
        bulk_wait(); // seen by this thread, without a proxy fence
        store_release(added, count);
    }
}

/* ---- products -------------------------------------------------------------------- */

/* s = A B', of a warpgroup's 64 keys or values and a tile of queries or dout. */
static __device__ __forceinline__ void
start_scores(float (&s)[32], uint64_t a, uint64_t b)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
        wgmma<false, false>(s, descriptor(a, k / 4 * HALF_KEYS + k % 4 * 32),
                            descriptor(b, k / 4 * HALF_QUERIES + k % 4 * 32), k > 0);
    wgmma_commit();
}

/* dq = dS K, 64 columns. */
static __device__ __forceinline__ void
start_queries(float (&dq)[32], uint64_t ds, uint64_t keys)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        wgmma<true, true>(dq, descriptor(ds, k * 16 * 128),
                          descriptor(keys, k * 16 * 128), k > 0);
    wgmma_commit();
}

/* Keys that a query does not see become -infinity.  key: this lane's first; first: of
 * queries from this lane's first column on; query: that column. */
static __device__ __forceinline__ void
mask_keys(float (&s)[32], const int *first, int key, int query)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int low = first[8 * n + e], high = query + 8 * n + e;
            if (key < low || key > high)
                s[4 * n + e] = -INFINITY;
            if (key + 8 < low || key + 8 > high)
                s[4 * n + 2 + e] = -INFINITY;
        }
}

/* Scores to weights, as A. */
static __device__ __forceinline__ void
weights(uint32_t (&p)[4][4], float (&s)[32], const float *lse, float scale2)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 x = *(const float2 *)(lse + 8 * n);
        const float minus[2] = { -x.x * 1.44269504F, -x.y * 1.44269504F };
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[4 * n + e] = exp2_fast(fmaf(s[4 * n + e], scale2, minus[e % 2]));
        p[n / 2][n % 2 * 2] = two_bf16(s[4 * n], s[4 * n + 1]);
        p[n / 2][n % 2 * 2 + 1] = two_bf16(s[4 * n + 2], s[4 * n + 3]);
    }
}

/* dS' = P' (dP' - sums), as A. */
static __device__ __forceinline__ void
score_grads(uint32_t (&ds)[4][4], const uint32_t (&p)[4][4], const float (&dp)[32],
            const float *sums)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 x = *(const float2 *)(sums + 8 * n);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t w = p[n / 2][n % 2 * 2 + h];
            ds[n / 2][n % 2 * 2 + h] =
                two_bf16(low_bf16(w) * (dp[4 * n + 2 * h] - x.x),
                         high_bf16(w) * (dp[4 * n + 2 * h + 1] - x.y));
        }
    }
}

/* Store dK or dV, staged in the warp's 16 rows of values. */
static __device__ __forceinline__ void
store_grads(bf16 *out, const float (&o)[64], float scale, uint8_t *shared,
            const struct args &a, const struct view &v, const struct backward_job &j,
            int row, int lane)
{
    uint32_t at = shared_address(shared) + AT_VALUE + (row + lane % 16) * 128 +
                  ((lane / 16 ^ lane % 8) << 4);
#pragma unroll
    for (int n = 0; n < 16; n += 2) {
        const float *x = o + 4 * n;
        const uint32_t r[4] = { two_bf16(x[0] * scale, x[1] * scale),
                                two_bf16(x[2] * scale, x[3] * scale),
                                two_bf16(x[4] * scale, x[5] * scale),
                                two_bf16(x[6] * scale, x[7] * scale) };
        store4((at + n / 8 * HALF_KEYS) ^ (n % 8 << 4), r);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        int r = row + i + lane / 16, c = lane % 16, key = j.block * KEYS + r;
        if (key < v.tokens)
            *(uint4 *)(out + (size_t)key * a.kv_row + j.kv * DIM + c * 8) =
                *(const uint4 *)(shared + AT_VALUE + c / 8 * HALF_KEYS + r * 128 +
                                 ((c % 8 ^ r % 8) << 4));
    }
    __syncwarp();
}

/* Write dQ of a turn for the thread that adds it. */
static __device__ __forceinline__ void
put_queries(uint8_t *shared, const float (&dq)[32], int group, int warp, int lane,
            int turn)
{
    uint32_t base = shared_address(shared);
    int two = turn % 2, g = lane / 4, t = lane % 4;
    mbarrier_wait(barrier_at(base, DQ_EMPTY + two), turn / 2 % 2 ^ 1);
    // Half matrices of f32, chunk c of 32 bytes of row r at c ^ (r % 8).
    uint8_t *to =
        shared + AT_DQ + two * DQ + group * (DQ / 2) + (warp * 16 + g) * 256 + t * 8;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        *(float2 *)(to + ((n ^ g) << 5)) = make_float2(dq[4 * n], dq[4 * n + 1]);
        *(float2 *)(to + ((n ^ g) << 5) + 8 * 256) =
            make_float2(dq[4 * n + 2], dq[4 * n + 3]);
    }
    bulk_fence();
    warp_arrive(barrier_at(base, DQ_FULL + two), lane);
}

/* dQ of a turn, at once. */
static __device__ __forceinline__ void
compute_queries(float (&dq)[32], uint8_t *shared, uint64_t ds_rows, uint64_t key_rows,
                int turn)
{
    mbarrier_wait(barrier_at(shared_address(shared), DS_FULL + turn % 2), turn / 2 % 2);
    start_queries(dq, ds_rows + turn % 2 * (DS >> 4), key_rows);
    wgmma_wait<0>();
    wgmma_result(dq);
}

/* Turns of queries that see none of the second warpgroup's keys: its dS' is 0. */
static __device__ __forceinline__ void
pass_turns(uint8_t *shared, uint64_t ds_rows, uint64_t key_rows, uint32_t own_ds,
           int group, int warp, int lane, int from, int end)
{
    uint32_t base = shared_address(shared);
    for (int turn = from; turn < end; turn++) {
        int two = turn % 2, stage = turn % DEPTH;
        const uint32_t zeros[4] = {};
        float dq[32];
        if (turn > 0) {
            compute_queries(dq, shared, ds_rows, key_rows, turn - 1);
            put_queries(shared, dq, group, warp, lane, turn - 1);
        }
        mbarrier_wait(barrier_at(base, DQ_FULL + two), turn / 2 % 2 ^ 1);
        if (turn < from + 2)
#pragma unroll
            for (int k = 0; k < 4; k++)
                store4((base + two * DS + own_ds) ^ (k << 5), zeros);
        bulk_fence();
        warp_arrive(barrier_at(base, DS_FULL + two), lane);
        warp_arrive(barrier_at(base, DOUT_EMPTY + stage), lane);
        warp_arrive(barrier_at(base, Q_EMPTY + stage), lane);
    }
}

/* A warpgroup that computes: 64 keys.  In a turn it starts dQ of the tile before, dP'
 * and dV of this one, dK, and S' of the next, and computes beside each.  The queries of the
 * block's first tile, the last one here, do not see the second warpgroup's keys: it adds
 * to dQ only.  All products end before the next turn of the loop, else the compiler makes
 * each wait. */
static __device__ __forceinline__ void
compute(uint8_t *shared, const struct args &a, const struct view &v,
        const struct backward_job &j, int group, int thread)
{
    uint32_t base = shared_address(shared);
    int warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    int row = group * 64 + warp * 16, key0 = j.block * KEYS + group * 64;
    uint64_t keys = columns_summed(base + AT_KEY + group * 64 * 128);
    uint64_t values = columns_summed(base + AT_VALUE + group * 64 * 128);
    uint64_t key_rows = rows_summed(base + AT_KEY + group * HALF_KEYS, HALF_QUERIES);
    uint64_t ds_rows = rows_summed(base + AT_DS, HALF_QUERIES);
    uint64_t q0 = columns_summed(base + AT_Q), dout0 = columns_summed(base + AT_DOUT);
    const uint64_t to_rows = rows_summed(0, HALF_QUERIES) - columns_summed(0);
    uint32_t own_ds = AT_DS + (row + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
    int turns = (j.end - j.begin) * v.group, tile = j.end - 1, head = 0;
    int full = group == 0 ? turns : turns - v.group;
    float dk[64], dv[64], s[32];
#pragma unroll
    for (int i = 0; i < 64; i++)
        dk[i] = dv[i] = 0;

    mbarrier_wait(barrier_at(base, KV_FULL), 0);
    mbarrier_wait(barrier_at(base, Q_FULL), 0);
    start_scores(s, keys, q0);
    wgmma_wait<0>();
    wgmma_result(s);
    for (int turn = 0; turn < full; turn++) {
        int two = turn % 2, stage = turn % DEPTH;
        uint64_t q = q0 + stage * (QDO >> 4), dout = dout0 + stage * (QDO >> 4);
        const float *lse = (const float *)(shared + AT_SCALARS + stage * SCALARS);
        const int *first = (const int *)lse + QUERIES;
        float dq[32], dp[32], next_s[32];
        mbarrier_wait(barrier_at(base, DS_FULL + 1 - two), (turn + 3) / 2 % 2);
        start_queries(dq, ds_rows + (1 - two) * (DS >> 4), key_rows); // of turn - 1
        uint32_t p[4][4], ds[4][4];
        if (tile * QUERIES < key0 + 63 || first[QUERIES - 1] > key0) {
            mask_keys(s, first + 2 * t, key0 + warp * 16 + g, tile * QUERIES + 2 * t);
            weights(p, s, lse + 2 * t, v.scale2);
        } else { // apart, else scores are moved to other registers
            weights(p, s, lse + 2 * t, v.scale2);
        }
        mbarrier_wait(barrier_at(base, DOUT_FULL + stage), turn / DEPTH % 2);
        start_scores(dp, values, dout);
        start_sums(dv, p, dout + to_rows);
        wgmma_wait<2>();
        wgmma_result(dq);
        if (turn > 0)
            put_queries(shared, dq, group, warp, lane, turn - 1);
        wgmma_wait<1>();
        wgmma_result(dp);
        score_grads(ds, p, dp, lse + 2 * QUERIES + 2 * t);
        mbarrier_wait(barrier_at(base, DQ_FULL + two), turn / 2 % 2 ^ 1);
#pragma unroll
        for (int k = 0; k < 4; k++) // over that of turn - 2
            store4((base + two * DS + own_ds) ^ (k << 5), ds[k]);
        bulk_fence();
        warp_arrive(barrier_at(base, DS_FULL + two), lane);
        start_sums(dk, ds, q + to_rows);
        uint64_t next_q = q;
        if (turn + 1 < full) {
            int next = (turn + 1) % DEPTH;
            mbarrier_wait(barrier_at(base, Q_FULL + next), (turn + 1) / DEPTH % 2);
            next_q = q0 + next * (QDO >> 4);
        }
        // After the last tile, too: a branch would cost registers.
        start_scores(next_s, keys, next_q);
        wgmma_wait<1>(); // dV and dK
        warp_arrive(barrier_at(base, DOUT_EMPTY + stage), lane);
        warp_arrive(barrier_at(base, Q_EMPTY + stage), lane);
        wgmma_wait<0>();
        wgmma_result(next_s);
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i] = next_s[i];
        if (++head == v.group) {
            head = 0;
            tile--;
        }
    }
    pass_turns(shared, ds_rows, key_rows, own_ds, group, warp, lane, full, turns);
    compute_queries(s, shared, ds_rows, key_rows, turns - 1);
    put_queries(shared, s, group, warp, lane, turns - 1);
    wgmma_result(dk);
    wgmma_result(dv);
    warp_arrive(barrier_at(base, ENDED), lane); // values are overwritten
    mbarrier_wait(barrier_at(base, ENDED), 0);
    store_grads(a.dvalue, dv, 1, shared, a, v, j, row, lane);
    store_grads(a.dkey, dk, v.scale, shared, a, v, j, row, lane);
}

static __device__ __forceinline__ void
open_barriers(uint32_t shared)
{
    mbarrier_init(barrier_at(shared, KV_FULL), 128);
    mbarrier_init(barrier_at(shared, ENDED), 8);
    for (int i = 0; i < DEPTH; i++) {
        mbarrier_init(barrier_at(shared, Q_FULL + i), 64);
        mbarrier_init(barrier_at(shared, DOUT_FULL + i), 64);
        mbarrier_init(barrier_at(shared, Q_EMPTY + i), 8);
        mbarrier_init(barrier_at(shared, DOUT_EMPTY + i), 8);
    }
    for (int i = 0; i < 2; i++) {
        mbarrier_init(barrier_at(shared, DS_FULL + i), 8);
        mbarrier_init(barrier_at(shared, DQ_FULL + i), 8);
        mbarrier_init(barrier_at(shared, DQ_EMPTY + i), 1);
    }
    mbarrier_init_fence();
}

#endif

static __global__ void __launch_bounds__(THREADS, 1) bwd(struct args a, struct view v)
{
#if HAS_WGMMA
    extern __shared__ __align__(1024) uint8_t shared[];
    uint32_t base = shared_address(shared);
    int *ticket = (int *)(shared + AT_TICKET);
    int lane = threadIdx.x % 32, warp = __shfl_sync(~0U, (int)threadIdx.x / 32, 0);
    struct backward_job j;
    if (threadIdx.x == 0) {
        *ticket = atomicAdd(a.ticket, 1);
        open_barriers(base);
    }
    __syncthreads();
    if (!job_of(j, a, v, *ticket))
        return;
    if (warp < 4) {
        registers_release<COPY_REGS>();
        copy_keys(base, a, v, j, warp, lane);
        if (warp == 1 || warp == 2)
            copy_queries(base, a, v, j, warp - 1, lane);
        else if (lane == 0)
            add_queries(shared, a, v, j, warp != 0);
    } else {
        registers_acquire<OTHER_REGS>();
        compute(shared, a, v, j, warp / 4 - 1, threadIdx.x % 128);
    }
#else
    __trap(); // not launched, see is_hopper
#endif
}

/* dQ as bf16: a block per tile and head. */
enum { TO_BF16 = 256 };

static __global__ void __launch_bounds__(TO_BF16)
    queries_to_bf16(struct args a, struct view v)
{
    int tile = (int)(blockIdx.x % (unsigned)a.tiles);
    int head = (int)(blockIdx.x / (unsigned)a.tiles);
    int c = threadIdx.x % 8, half = threadIdx.x / 8 % 2;
    const float *from = a.sums +
                        ((size_t)head * a.tiles + tile) * (DQ / sizeof(float)) +
                        half * (DQ / 2 / sizeof(float));
#pragma unroll
    for (int r = threadIdx.x / 16; r < QUERIES; r += TO_BF16 / 16) {
        const float4 *x = (const float4 *)(from + r * 64 + ((c ^ r % 8) << 3));
        float4 low = x[0], high = x[1];
        int token = tile * QUERIES + r;
        if (token < v.tokens)
            *(uint4 *)(a.dq + token * a.q_row + (size_t)head * DIM + half * 64 +
                       c * 8) =
                make_uint4(two_bf16(low.x * v.scale, low.y * v.scale),
                           two_bf16(low.z * v.scale, low.w * v.scale),
                           two_bf16(high.x * v.scale, high.y * v.scale),
                           two_bf16(high.z * v.scale, high.w * v.scale));
    }
}

/* ---- launch ---------------------------------------------------------------------- */

static size_t
up(size_t n, size_t each)
{
    return (n + each - 1) / each;
}

/* Bytes of the counters, ends and order. */
static size_t
counters_size(const struct heads *h)
{
    size_t tiles = up(h->tokens, QUERIES), blocks = up(h->tokens, KEYS);
    return up((1 + h->query * tiles + 2 * blocks) * sizeof(int), 256) * 256;
}

size_t
attention_hopper_workspace(const struct heads *h)
{
    if (h->dim != DIM || h->past > 0 || h->tokens > MAX_TOKENS)
        return 0;
    return h->query * up(h->tokens, QUERIES) * DQ + counters_size(h);
}

/* Memory of the launches, and what is to be done; false, with the error set, without memory. */
static bool
layout(struct args *a, struct cuda *c, const struct view *v, const struct heads *h)
{
    uint8_t *scratch = (uint8_t *)cuda_scratch(c, attention_hopper_workspace(h));
    *a = (struct args){};
    a->blocks = (int)up(h->tokens, KEYS);
    a->tiles = (int)up(h->tokens, QUERIES);
    // More blocks to a chunk read queries less often from memory, and end less evenly.
    a->chunk = h->length && h->length % 512 == 0 && a->blocks * v->kv >= 512 ? 4 : 2;
    a->chunks = (int)up((size_t)a->blocks, (size_t)a->chunk);
    a->ticket = (int *)scratch;
    a->added = a->ticket + 1;
    a->end = a->added + v->query * a->tiles;
    a->order = a->end + a->blocks;
    a->sums = (float *)(scratch + counters_size(h));
    return scratch != NULL;
}

bool
attention_hopper_plan(struct cuda *c, const struct view *v, const struct heads *h)
{
    struct args a;
    if (!layout(&a, c, v, h))
        return false;
    cuda_start(c, "attention_bwd: plan", plan, 1, 1024, 0, a, *v);
    return true;
}

void
attention_hopper_bwd(struct cuda *c, const struct attention_grads *d, const void *dout,
                     const float *lse, const void *q, const void *key,
                     const void *value, const float *work, const struct view *v,
                     const struct heads *h, struct query_sums *sums)
{
    struct args a;
    if (!layout(&a, c, v, h))
        return;
    a.q_row = d->q_stride;
    a.kv_row = d->kv_stride;
    a.dout = (const bf16 *)dout;
    a.q = (const bf16 *)q;
    a.key = (const bf16 *)key;
    a.value = (const bf16 *)value;
    a.lse = lse;
    a.work = work;
    a.dq = (bf16 *)d->dq;
    a.dkey = (bf16 *)d->dkey;
    a.dvalue = (bf16 *)d->dvalue;
    attention_allow(c, (const void *)bwd, SHARED);
    bwd<<<(unsigned)(a.chunks * a.chunk) * (unsigned)v->kv, THREADS, SHARED,
          c->q.stream>>>(a, *v);
    cuda_launched(c, "attention_bwd: one pass");
    if (sums) {
        *sums = (struct query_sums){ a.sums, (size_t)a.tiles, v->scale };
        return;
    }
    queries_to_bf16<<<(unsigned)a.tiles *(unsigned)v->query, TO_BF16, 0, c->q.stream>>>(
        a, *v);
    cuda_launched(c, "attention_bwd: dQ to bf16");
}
