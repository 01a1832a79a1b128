/* SPDX-License-Identifier: MIT */
/* attention_hopper_forward: the forward pass of many tokens with wgmma (sm_90a): bf16, dim
 * 128, any documents and any past.
 *
 * A tile of 128 rows, tokens of query heads that share a kv head, loops over tiles of 128
 * keys.  Each of two warpgroups has 64 rows: queries, scores, weights and output are in
 * registers.  While the weights of a tile of keys are multiplied with values, so are the
 * queries with the next keys; and a warpgroup computes exponentials while the other
 * multiplies.  One more thread copies, as boxes of tensor maps.
 *
 * One block an SM takes tiles until there are none, by a counter, those with the most keys first;
 * the next tile's rows are copied while this one is computed.  Which block computes a tile
 * changes no bit of it. */
#include "kernels/cuda/attention_hopper.h"

enum {
    DIM = 128,
    ROWS = TILE_ROWS,
    KEYS = 128, // of a tile
    DEPTH = 2,
    THREADS = 384,   // a warpgroup of which a thread copies, two that compute
    COPY_REGS = 40,  // registers of a thread there
    OTHER_REGS = 232 // of one that computes
};

static_assert(COPY_REGS + 2 * OTHER_REGS <= 3 * BEGIN_REGS, "registers of the block");

/* Layout of shared memory. */
enum {
    HALF = 128 * 128, // bytes of 128 rows of 64 columns
    MATRIX = 2 * HALF,
    AT_ROWS = 0, // DEPTH matrices each
    AT_KEYS = AT_ROWS + DEPTH * MATRIX,
    AT_VALUES = AT_KEYS + DEPTH * MATRIX,
    AT_BARRIERS = AT_VALUES + DEPTH * MATRIX,
};

/* mbarriers */
enum {
    TICKET_FULL, // the number of a tile is in shared memory
    ROWS_FULL = TICKET_FULL + DEPTH,
    ROWS_EMPTY = ROWS_FULL + DEPTH, // frees the place of the number, too
    KEYS_FULL = ROWS_EMPTY + DEPTH,
    KEYS_EMPTY = KEYS_FULL + DEPTH,
    VALUES_FULL = KEYS_EMPTY + DEPTH,
    VALUES_EMPTY = VALUES_FULL + DEPTH,
    BARRIERS = VALUES_EMPTY + DEPTH,
    AT_TICKETS = AT_BARRIERS + BARRIERS * 8,
    SHARED = AT_TICKETS + DEPTH * 4,
};

struct args {
    struct tensor_map q, key, value;
    bf16 *out;
    float *lse;
    unsigned *ticket; // 0 before and after
    unsigned tiles;   // of tokens
};

#if HAS_WGMMA

/* A tile of rows, and the keys that they see: begin .. end - 1. */
struct forward_job {
    struct tile rows;
    int begin, end;
};

static __device__ __forceinline__ unsigned
tickets_of(const struct args &a, const struct view &v)
{
    return a.tiles * (unsigned)(v.query / v.pack);
}

static __device__ __forceinline__ bool
job_of(struct forward_job &j, const struct args &a, const struct view &v,
       unsigned ticket)
{
    unsigned bundles = (unsigned)(v.query / v.pack);
    if (ticket >= a.tiles * bundles)
        return false;
    j.rows.token = (int)(a.tiles - 1 - ticket / bundles) << v.shift;
    j.rows.head = (int)(ticket % bundles) * v.pack;
    j.rows.kv = j.rows.head / v.group;
    j.begin = v.first[j.rows.token];
    j.end = v.past + min(j.rows.token + (1 << v.shift), v.tokens);
    return true;
}

/* The barrier of the n-th of a kind: matrices take turns at DEPTH places. */
static __device__ __forceinline__ uint32_t
barrier_at(uint32_t shared, int kind, int n)
{
    return shared + AT_BARRIERS + (kind + n % DEPTH) * 8;
}

static __device__ __forceinline__ void
wait_full(uint32_t shared, int kind, int n)
{
    mbarrier_wait(barrier_at(shared, kind, n), n / DEPTH % 2);
}

static __device__ __forceinline__ void
wait_empty(uint32_t shared, int kind, int n)
{
    mbarrier_wait(barrier_at(shared, kind, n), n / DEPTH % 2 ^ 1);
}

/* ---- copies ---------------------------------------------------------------------- */

/* The next tile's number.  The block that is told last that there is none sets the counter
 * back. */
static __device__ __forceinline__ unsigned
draw(const struct args &a, const struct view &v)
{
    unsigned ticket = atomicAdd(a.ticket, 1U);
    if (ticket == tickets_of(a, v) + gridDim.x - 1)
        *a.ticket = 0;
    return ticket;
}

/* Copy the n-th matrix of a kind to its place: rows of `heads` heads, the first at `column`,
 * one head behind the other. */
static __device__ __forceinline__ void
copy(uint32_t shared, int at, int full, int n, const struct tensor_map *from,
     int column, int row, int heads)
{
    uint32_t to = shared + at + n % DEPTH * MATRIX,
             barrier = barrier_at(shared, full, n);
    mbarrier_arrive_expect(barrier, MATRIX);
    for (int i = 0; i < heads; i++, column += DIM, to += HALF / heads) {
        box_load(to, from, column, row, barrier);
        box_load(to + HALF, from, column + BOX_COLUMNS, row, barrier);
    }
}

/* One thread copies, and draws the number of the next tile before it needs it.  A tile of keys
 * is copied whole: values of keys that no row sees are multiplied by 0, and must be finite. */
static __device__ __forceinline__ void
copy_all(uint8_t *shared, const struct args &a, const struct view &v)
{
    uint32_t base = shared_address(shared);
    unsigned *tickets = (unsigned *)(shared + AT_TICKETS), ticket = draw(a, v);
    int turn = 0;
    struct forward_job j;
    for (int n = 0;; n++) {
        wait_empty(base, ROWS_EMPTY, n);
        tickets[n % DEPTH] = ticket;
        mbarrier_arrive(barrier_at(base, TICKET_FULL, n));
        if (!job_of(j, a, v, ticket))
            return;
        ticket = draw(a, v);
        copy(base, AT_ROWS, ROWS_FULL, n, &a.q, j.rows.head * DIM, j.rows.token,
             v.pack);
        for (int k = j.begin; k < j.end; k += KEYS, turn++) {
            wait_empty(base, KEYS_EMPTY, turn);
            copy(base, AT_KEYS, KEYS_FULL, turn, &a.key, j.rows.kv * DIM, k, 1);
            wait_empty(base, VALUES_EMPTY, turn);
            copy(base, AT_VALUES, VALUES_FULL, turn, &a.value, j.rows.kv * DIM, k, 1);
        }
    }
}

/* ---- products -------------------------------------------------------------------- */

/* A warp's 16 rows of q as A. */
static __device__ __forceinline__ void
load_rows(uint32_t (&q)[8][4], uint32_t rows, int row, int lane)
{
    uint32_t at = rows + (row + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
        load4(q[k], (at + k / 4 * HALF) ^ (k % 4 << 5));
}

/* s = Q K' of a warpgroup's 64 rows. */
static __device__ __forceinline__ void
start_scores(float (&s)[64], const uint32_t (&q)[8][4], uint64_t keys)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
        wgmma<false>(s, q[k], descriptor(keys, k / 4 * HALF + k % 4 * 32), k > 0);
    wgmma_commit();
}

/* A lane's two rows of scores, 8 apart: the keys that they see, the maximum as of struct
 * softmax, this lane's part of the sum of weights, and what the sums so far are multiplied with. */
struct lane_rows {
    int first[2], last[2];
    float max[2], sum[2], factor[2];
};

/* Keys that a row does not see become -infinity.  key: this lane's first. */
static __device__ __forceinline__ void
mask_scores(float (&s)[64], const struct lane_rows &x, int key)
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int k = key + 8 * n + e % 2;
            if (k < x.first[e / 2] || k > x.last[e / 2])
                s[4 * n + e] = -INFINITY;
        }
}

/* Scores to weights.  The maximum stays while no score exceeds it by more than 8; true: that of
 * some row of the warp was raised, and o is to be multiplied by `factor`. */
static __device__ __forceinline__ bool
to_weights(float (&s)[64], struct lane_rows &x, float scale2)
{
    float most[2];
    bool raised = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
        for (int n = 1; n < KEYS / 8; n++)
            m = fmaxf(m, fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffU, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffU, m, 2));
        most[h] = m * scale2;
        raised |= most[h] > x.max[h] + 8;
    }
    raised = __any_sync(0xffffffffU, raised);
    if (raised)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m = fmaxf(x.max[h], most[h]);
            x.factor[h] = exp2_fast(x.max[h] - m);
            x.max[h] = m;
            x.sum[h] *= x.factor[h];
        }
#pragma unroll
    for (int i = 0; i < 64; i++)
        to_weight(s[i], x.sum[i / 2 % 2], x.max[i / 2 % 2], scale2);
    return raised;
}

static __device__ __forceinline__ void
round_weights(uint32_t (&p)[8][4], const float (&s)[64])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        p[i / 4][i % 4] = two_bf16(s[2 * i], s[2 * i + 1]);
}

/* Store lse and the output, which is staged in the warp's rows of q. */
static __device__ __forceinline__ void
store(uint8_t *rows, const float (&o)[64], const struct lane_rows &x,
      const struct args &a, const struct view &v, const struct tile &t, int row,
      int lane)
{
    float times[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row + lane / 4 + 8 * h, token = token_of(v, t, r);
        float sum = x.sum[h];
        sum += __shfl_xor_sync(0xffffffffU, sum, 1);
        sum += __shfl_xor_sync(0xffffffffU, sum, 2);
        times[h] = 1 / sum;
        if (lane % 4 == 0 && token < v.tokens)
            a.lse[(size_t)(t.head + (r >> v.shift)) * v.tokens + token] =
                fmaf(x.max[h], 0.693147181F, logf(sum));
    }
    uint32_t at =
        shared_address(rows) + (row + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
#pragma unroll
    for (int n = 0; n < 16; n += 2) {
        const float *y = o + 4 * n;
        const uint32_t r[4] = { two_bf16(y[0] * times[0], y[1] * times[0]),
                                two_bf16(y[2] * times[1], y[3] * times[1]),
                                two_bf16(y[4] * times[0], y[5] * times[0]),
                                two_bf16(y[6] * times[1], y[7] * times[1]) };
        store4((at + n / 8 * HALF) ^ (n % 8 << 4), r);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        int r = row + i + lane / 16, c = lane % 16;
        if (token_of(v, t, r) < v.tokens)
            *(uint4 *)(a.out + at_row(v, t, r, DIM) + c * 8) = *(
                const uint4 *)(rows + c / 8 * HALF + r * 128 + ((c % 8 ^ r % 8) << 4));
    }
}

/* The range of keys that each of the lane's two rows sees; a row past the last token has that
 * token's.  All rows of the warp see the keys from .. end - 1. */
static __device__ __forceinline__ void
begin_rows(struct lane_rows &x, int &from, int &end, const struct view &v,
           const struct tile &t, int row, int lane)
{
    enum { EACH = 16 }; // rows of a warp, which have one head
    int low = min(token_of(v, t, row), v.tokens - 1);
    from = v.first[min(low + EACH, v.tokens) - 1];
    end = v.past + low + 1;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int token = min(token_of(v, t, row + lane / 4 + 8 * h), v.tokens - 1);
        x.first[h] = v.first[token];
        x.last[h] = v.past + token;
        x.max[h] = -1e30F; // finite, so that no exponential is NaN
        x.sum[h] = 0;
    }
}

/* A warpgroup that computes.  All products end before the next turn of the loop, else the
 * compiler waits after each wgmma. */
static __device__ __forceinline__ void
compute(uint8_t *shared, const struct args &a, const struct view &v, int group,
        int thread)
{
    uint32_t base = shared_address(shared);
    const unsigned *tickets = (const unsigned *)(shared + AT_TICKETS);
    int warp = thread / 32, lane = thread % 32, row = group * 64 + warp * 16;
    uint64_t keys = columns_summed(base + AT_KEYS);
    uint64_t values = rows_summed(base + AT_VALUES, HALF);
    int turn = 0; // tiles of keys
    for (int n = 0;; n++) {
        int from, end;
        struct forward_job j;
        struct lane_rows x;
        float o[64], s[64];
        uint32_t q[8][4], p[8][4];
        uint8_t *rows = shared + AT_ROWS + n % DEPTH * MATRIX;
        wait_full(base, TICKET_FULL, n);
        if (!job_of(j, a, v, tickets[n % DEPTH]))
            return;
        begin_rows(x, from, end, v, j.rows, row, lane);
#pragma unroll
        for (int i = 0; i < 64; i++)
            o[i] = 0;

        wait_full(base, ROWS_FULL, n);
        load_rows(q, shared_address(rows), row, lane);
        wait_full(base, KEYS_FULL, turn);
        start_scores(s, q, descriptor(keys, turn % DEPTH * MATRIX));
        wgmma_wait<0>();
        wgmma_result(s);
        warp_arrive(barrier_at(base, KEYS_EMPTY, turn), lane);
        int k = j.begin;
        if (k < from || k + KEYS > end)
            mask_scores(s, x, k + lane % 4 * 2);
        to_weights(s, x, v.scale2);
        round_weights(p, s);
        for (k += KEYS; k < j.end; k += KEYS, turn++) {
            wait_full(base, KEYS_FULL, turn + 1);
            start_scores(s, q, descriptor(keys, (turn + 1) % DEPTH * MATRIX));
            wait_full(base, VALUES_FULL, turn);
            start_sums(o, p, descriptor(values, turn % DEPTH * MATRIX));
            wgmma_wait<1>();
            wgmma_result(s);
            warp_arrive(barrier_at(base, KEYS_EMPTY, turn + 1), lane);
            if (k < from || k + KEYS > end)
                mask_scores(s, x, k + lane % 4 * 2);
            bool raised = to_weights(s, x, v.scale2);
            wgmma_wait<0>();
            wgmma_result(o);
            warp_arrive(barrier_at(base, VALUES_EMPTY, turn), lane);
            if (raised)
#pragma unroll
                for (int i = 0; i < 64; i++)
                    o[i] *= x.factor[i / 2 % 2];
            round_weights(p, s);
        }
        wait_full(base, VALUES_FULL, turn);
        start_sums(o, p, descriptor(values, turn % DEPTH * MATRIX));
        wgmma_wait<0>();
        wgmma_result(o);
        warp_arrive(barrier_at(base, VALUES_EMPTY, turn), lane);
        turn++;
        store(rows, o, x, a, v, j.rows, row, lane);
        bulk_fence(); // before the next rows are copied there
        warp_arrive(barrier_at(base, ROWS_EMPTY, n), lane);
    }
}

static __device__ __forceinline__ void
open_barriers(uint32_t shared)
{
    for (int i = 0; i < DEPTH; i++) {
        mbarrier_init(barrier_at(shared, TICKET_FULL, i), 1);
        mbarrier_init(barrier_at(shared, ROWS_FULL, i), 1);
        mbarrier_init(barrier_at(shared, KEYS_FULL, i), 1);
        mbarrier_init(barrier_at(shared, VALUES_FULL, i), 1);
        mbarrier_init(barrier_at(shared, ROWS_EMPTY, i), 8); // warps
        mbarrier_init(barrier_at(shared, KEYS_EMPTY, i), 8);
        mbarrier_init(barrier_at(shared, VALUES_EMPTY, i), 8);
    }
    mbarrier_init_fence();
}

#endif

static __global__ void __launch_bounds__(THREADS, 1)
    forward(const __grid_constant__ struct args a, const struct view v)
{
#if HAS_WGMMA
    extern __shared__ __align__(1024) uint8_t shared[];
    int warp = __shfl_sync(~0U, (int)threadIdx.x / 32, 0);
    if (threadIdx.x == 0)
        open_barriers(shared_address(shared));
    __syncthreads();
    cuda_take_over();
    if (warp < 4) {
        registers_release<COPY_REGS>();
        if (threadIdx.x == 0)
            copy_all(shared, a, v);
    } else {
        registers_acquire<OTHER_REGS>();
        compute(shared, a, v, warp / 4 - 1, threadIdx.x % 128);
    }
#else
    __trap(); // not launched, see is_hopper
#endif
}

void
attention_hopper_forward(struct cuda *c, void *out, float *lse, const void *q,
                         const void *key, const void *value, const struct view *v)
{
    struct args a = {};
    size_t keys = (size_t)v->past + (size_t)v->tokens, narrow = (size_t)v->kv * DIM;
    a.out = (bf16 *)out;
    a.lse = lse;
    a.ticket = c->ticket;
    a.tiles = blocks_of((size_t)v->tokens, (size_t)1 << v->shift);
    if (!tensor_map_of(c, &a.q, q, (size_t)v->tokens, (size_t)v->query * DIM,
                       1U << v->shift) ||
        !tensor_map_of(c, &a.key, key, keys, narrow, KEYS) ||
        !tensor_map_of(c, &a.value, value, keys, narrow, KEYS))
        return;
    unsigned all = a.tiles * (unsigned)(v->query / v->pack);
    unsigned blocks = all < (unsigned)c->sms ? all : (unsigned)c->sms;
    attention_allow(c, (const void *)forward, SHARED);
    cuda_start(c, "attention", forward, blocks, THREADS, SHARED, a, *v);
}
