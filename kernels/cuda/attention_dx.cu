/* SPDX-License-Identifier: MIT */
/* attention_bwd: the backward pass of attention, bf16 on tensor cores.
 *
 * Two kernels recompute the scores: one has a tile of keys and loops over queries (dK,
 * dV), one has a tile of query rows and loops over keys (dQ).  So each sum belongs to
 * one warp and has a fixed order, without atomics.  A single pass (attention_hopper.cu)
 * needs five products instead of seven, but also dQ in f32 and an order to add it in.
 *
 * For dK and dV, two warps share 32 keys: one computes S = K Q', its weights P, and dV
 * = P dO; the other V dO' and, with P from the first, dK = dS Q.  So each does half of
 * the work with 32 rows of results in registers, and reuses what it loads from shared
 * memory as often as the dQ kernel. */
#include "kernels/cuda/attention.h"

enum { DEPTH = 2 }; // stages: tiles in shared memory

/* ---- dK and dV ------------------------------------------------------------------- */

/* Layout of shared memory: PAIRS pairs of warps with 32 keys each, tiles of QUERIES
 * queries. */
template <int DIM, int PAIRS, int QUERIES>
struct bwd_layout {
    static constexpr int KEYS = PAIRS * WARP_ROWS, THREADS = PAIRS * 64;
    static constexpr uint32_t OWN = KEYS * DIM * 2;      // keys or values
    static constexpr uint32_t OTHER = QUERIES * DIM * 2; // queries or dout
    static constexpr uint32_t EXCHANGE = WARP_ROWS * QUERIES * 2;
    static constexpr uint32_t SCALARS = 3 * QUERIES * 4; // lse, sums, first
    static constexpr uint32_t STAGE = 2 * OTHER;
    static constexpr uint32_t AT_STAGES = 2 * OWN;
    static constexpr uint32_t AT_EXCHANGE = AT_STAGES + DEPTH * STAGE;
    static constexpr uint32_t AT_SCALARS = AT_EXCHANGE + PAIRS * EXCHANGE;
    static constexpr uint32_t AT_BARRIERS = AT_SCALARS + DEPTH * SCALARS;
    static constexpr uint32_t SHARED = AT_BARRIERS + PAIRS * 2 * 8;
};

struct args {
    const bf16 *dout, *q, *key, *value;
    const float *lse, *work;
    bf16 *dq, *dkey, *dvalue;
    size_t q_row, kv_row; // token strides of gradients
    const int *order, *end;
};

/* Copy a tile of queries of a head, with dout, lse, sums and first.  Past the last
 * query dout and its sum are 0, which adds 0 to the gradients. */
template <int DIM, int PAIRS, int QUERIES>
static __device__ __forceinline__ void
fetch_queries(uint32_t shared, int stage, const struct args &b, const struct view &v,
              int head, int token, int thread)
{
    using L = bwd_layout<DIM, PAIRS, QUERIES>;
    uint32_t to = shared + L::AT_STAGES + stage * L::STAGE;
    size_t ld = (size_t)v.query * DIM, at = token * ld + (size_t)head * DIM;
    fetch<DIM, QUERIES, L::THREADS>(to, b.q + at, ld, v.tokens - token, thread);
    fetch<DIM, QUERIES, L::THREADS>(to + L::OTHER, b.dout + at, ld, v.tokens - token,
                                    thread);
    if (thread < QUERIES) {
        uint32_t scalars = shared + L::AT_SCALARS + stage * L::SCALARS + thread * 4;
        int t = min(token + thread, v.tokens - 1);
        size_t row = (size_t)head * v.tokens + t;
        copy4(scalars, b.lse + row, token + thread < v.tokens);
        copy4(scalars + QUERIES * 4, b.work + row, token + thread < v.tokens);
        copy4(scalars + 2 * QUERIES * 4, v.first + t, true);
    }
    copies_commit();
}

/* Mask with queries as columns: keys that they do not see become -infinity. */
template <int N>
static __device__ __forceinline__ void
mask_columns(float (&s)[2][N][4], const int *first, int key, int last)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int low = first[8 * n + e], high = last + 8 * n + e;
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int k = key + 16 * i + 8 * h;
                    if (k < low || k > high)
                        s[i][n][2 * h + e] = -INFINITY;
                }
        }
}

/* Scores of 16 queries to weights; lse: from this lane's first column on. */
static __device__ __forceinline__ void
weights(float (&left)[4], float (&right)[4], const float *lse, float scale2)
{
    float2 a = *(const float2 *)lse, b = *(const float2 *)(lse + 8);
    const float minus[4] = { -a.x * 1.44269504F, -a.y * 1.44269504F, -b.x * 1.44269504F,
                             -b.y * 1.44269504F };
#pragma unroll
    for (int e = 0; e < 4; e++) {
        left[e] = exp2_fast(fmaf(left[e], scale2, minus[e % 2]));
        right[e] = exp2_fast(fmaf(right[e], scale2, minus[2 + e % 2]));
    }
}

/* dS = P (V dO' - sum) of 16 queries, as A. */
static __device__ __forceinline__ void
score_bwd(uint32_t (&a)[4], const uint4 &p, const float (&left)[4],
          const float (&right)[4], const float2 &sum, const float2 &sum8)
{
    a[0] =
        two_bf16(low_bf16(p.x) * (left[0] - sum.x), high_bf16(p.x) * (left[1] - sum.y));
    a[1] =
        two_bf16(low_bf16(p.y) * (left[2] - sum.x), high_bf16(p.y) * (left[3] - sum.y));
    a[2] = two_bf16(low_bf16(p.z) * (right[0] - sum8.x),
                    high_bf16(p.z) * (right[1] - sum8.y));
    a[3] = two_bf16(low_bf16(p.w) * (right[2] - sum8.x),
                    high_bf16(p.w) * (right[3] - sum8.y));
}

/* One warp of a pair: for dV, or for dK if OF_KEYS.  P goes from the first to the
 * second in two halves, so that neither waits long. */
template <int DIM, int PAIRS, int QUERIES, bool OF_KEYS>
static __device__ __forceinline__ void
bwd_keys_warp(uint8_t *shared, const struct args &b, const struct view &v, int key0,
              int kv, int begin, int tiles, int pair, int lane)
{
    using L = bwd_layout<DIM, PAIRS, QUERIES>;
    constexpr int N = QUERIES / 8, STEPS = QUERIES / 16, HALF = STEPS / 2;
    constexpr int COLUMNS = DIM / 16;
    uint32_t base = shared_address(shared);
    uint32_t own =
        lane_as_a<DIM>(base + (OF_KEYS ? L::OWN : 0), pair * WARP_ROWS, lane);
    uint4 *exchange = (uint4 *)(shared + L::AT_EXCHANGE + pair * L::EXCHANGE) + lane;
    uint32_t barrier = base + L::AT_BARRIERS + pair * 2 * 8, phase = 0; // one per half
    int warp_key = key0 + pair * WARP_ROWS, stage = 0;
    int head = kv * v.group, token = begin, tile = 0;
    float o[2][DIM / 8][4] = {};

    for (int left = tiles * v.group; left > 0; left--) {
        int next = token + QUERIES, next_tile = tile + 1;
        if (next_tile == tiles) {
            next_tile = 0;
            next = begin;
            head++;
        }
        copies_wait<0>();
        block_barrier();
        if (left > 1)
            fetch_queries<DIM, PAIRS, QUERIES>(base, stage ^ 1, b, v, head, next,
                                               threadIdx.x);
        const float *scalars =
            (const float *)(shared + L::AT_SCALARS + stage * L::SCALARS) + lane % 4 * 2;
        const int *first =
            (const int *)(shared + L::AT_SCALARS + stage * L::SCALARS) + 2 * QUERIES;
        uint32_t others = base + L::AT_STAGES + stage * L::STAGE;
        uint32_t first_b = lane_as_b<DIM>(others + (OF_KEYS ? L::OTHER : 0), 0, lane);
        uint32_t second_b = lane_as_a<DIM>(others + (OF_KEYS ? 0 : L::OTHER), 0, lane);
        int at = token;
        token = next;
        tile = next_tile;
        stage ^= 1;
        // The same for both warps of a pair, so that their phases agree.
        if (v.past + at + QUERIES <= warp_key || first[0] >= warp_key + WARP_ROWS)
            continue;

        float s[2][N][4];
        scores<DIM>(s, own, first_b);
        if (!OF_KEYS) {
            if (v.past + at < warp_key + WARP_ROWS - 1 || first[QUERIES - 1] > warp_key)
                mask_columns(s, first + lane % 4 * 2, warp_key + lane / 4,
                             v.past + at + lane % 4 * 2);
#pragma unroll
            for (int k = 0; k < HALF; k++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    weights(s[i][2 * k], s[i][2 * k + 1], scalars + 16 * k, v.scale2);
        }
        uint32_t a[STEPS][2][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (OF_KEYS)
                mbarrier_wait(barrier + half * 8, phase);
#pragma unroll
            for (int k = half * HALF; k < (half + 1) * HALF; k++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (OF_KEYS) {
                        const float *sums = scalars + QUERIES + 16 * k;
                        score_bwd(a[k][i], exchange[(2 * k + i) * 32], s[i][2 * k],
                                  s[i][2 * k + 1], *(const float2 *)sums,
                                  *(const float2 *)(sums + 8));
                    } else {
                        as_a(a[k][i], s[i][2 * k], s[i][2 * k + 1]);
                        exchange[(2 * k + i) * 32] =
                            make_uint4(a[k][i][0], a[k][i][1], a[k][i][2], a[k][i][3]);
                    }
            if (!OF_KEYS)
                mbarrier_arrive(barrier + half * 8);
#pragma unroll
            for (int k = half * HALF; k < (half + 1) * HALF; k++)
#pragma unroll
                for (int n = 0; n < COLUMNS; n++) {
                    mma_columns(o, a[k], second_b + k * 16 * DIM * 2, n);
                    // Exponentials of the second half overlap the products of the
                    // first.
                    if (!OF_KEYS && half == 0 && n % (COLUMNS / 2) == COLUMNS / 2 - 1) {
                        int i = n / (COLUMNS / 2), j = 2 * (k + HALF);
                        weights(s[i][j], s[i][j + 1], scalars + 8 * j, v.scale2);
                    }
                }
        }
        phase ^= 1;
    }

    if (tiles == 0) { // otherwise done by each iteration
        copies_wait<0>();
        block_barrier();
    }
    // The results are staged in the warp's rows of keys or values.
    constexpr int CHUNKS = DIM / 8;
    const float scale = OF_KEYS ? v.scale : 1;
    const float times[2][2] = { { scale, scale }, { scale, scale } };
    uint8_t *rows = shared + (OF_KEYS ? L::OWN : 0) + pair * WARP_ROWS * DIM * 2;
    bf16 *out = OF_KEYS ? b.dkey : b.dvalue;
    stage_rows<DIM>(rows, o, times, lane);
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i += 32 / CHUNKS) {
        int row = i + lane / CHUNKS, key = warp_key + row, chunk = lane % CHUNKS;
        if (key < v.past + v.tokens)
            *(uint4 *)(out + (size_t)key * b.kv_row + kv * DIM + chunk * 8) =
                chunk_of<DIM>(rows, row, chunk);
    }
}

template <int DIM, int PAIRS, int QUERIES>
static __global__ void __launch_bounds__(PAIRS * 64, 1)
    bwd_keys(struct args b, struct view v)
{
    using L = bwd_layout<DIM, PAIRS, QUERIES>;
    extern __shared__ __align__(1024) uint8_t shared[];
    int tile = b.order[blockIdx.x / (unsigned)v.kv];
    int kv = (int)(blockIdx.x % (unsigned)v.kv);
    int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    int key0 = tile * L::KEYS;
    int begin = max(0, key0 - v.past), queries = max(0, b.end[tile] - begin);
    int tiles = (queries + QUERIES - 1) / QUERIES;
    size_t ld = (size_t)v.kv * DIM, at = key0 * ld + (size_t)kv * DIM;
    uint32_t base = shared_address(shared);
    int keys = v.past + v.tokens - key0;
    if (thread == 0) { // visible after the first block barrier
        for (int i = 0; i < 2 * PAIRS; i++)
            mbarrier_init(base + L::AT_BARRIERS + i * 8, 32);
        mbarrier_init_fence();
    }
    fetch<DIM, L::KEYS, L::THREADS>(base, b.key + at, ld, keys, thread);
    fetch<DIM, L::KEYS, L::THREADS>(base + L::OWN, b.value + at, ld, keys, thread);
    if (tiles > 0)
        fetch_queries<DIM, PAIRS, QUERIES>(base, 0, b, v, kv * v.group, begin, thread);
    else
        copies_commit();
    if (warp < PAIRS)
        bwd_keys_warp<DIM, PAIRS, QUERIES, false>(shared, b, v, key0, kv, begin, tiles,
                                                  warp, lane);
    else
        bwd_keys_warp<DIM, PAIRS, QUERIES, true>(shared, b, v, key0, kv, begin, tiles,
                                                 warp - PAIRS, lane);
}

/* ---- dQ -------------------------------------------------------------------------- */

enum { KEYS = 32, THREADS = TILE_ROWS };

template <int DIM>
constexpr size_t
    rows_shared = (2 * TILE_ROWS + 2 * DEPTH * KEYS) * DIM * 2 + TILE_ROWS *
                                                                     sizeof(int);

template <int DIM>
static __global__ void __launch_bounds__(THREADS, 2)
    bwd_queries(struct args b, struct view v)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    constexpr uint32_t OWN = TILE_ROWS * DIM * 2, MATRIX = KEYS * DIM * 2;
    int *first = (int *)(shared + 2 * OWN + 2 * DEPTH * MATRIX);
    uint32_t rows = shared_address(shared), keys = rows + 2 * OWN;
    int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    int row = warp * WARP_ROWS + lane / 4;
    size_t ld = (size_t)v.kv * DIM;

    struct tile t = tile_of(v, b.order);
    struct visible visible = visible_of(v, t, warp);
    int from = v.first[t.token];
    int end = v.past + min(t.token + (1 << v.shift), v.tokens);
    const bf16 *key = b.key + from * ld + t.kv * DIM;
    const bf16 *value = b.value + from * ld + t.kv * DIM;
    fetch_rows<DIM>(rows, b.q, v, t);
    fetch_rows<DIM>(rows + OWN, b.dout, v, t);
    fetch<DIM, KEYS, THREADS>(keys, key, ld, end - from, thread);
    fetch<DIM, KEYS, THREADS>(keys + MATRIX, value, ld, end - from, thread);
    copies_commit();
    first[thread] = v.first[min(token_of(v, t, thread), v.tokens - 1)];

    float o[2][DIM / 8][4] = {}, minus[2][2], sum[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = row + 16 * i + 8 * h, token = min(token_of(v, t, r), v.tokens - 1);
            size_t at = (size_t)(t.head + (r >> v.shift)) * v.tokens + token;
            minus[i][h] = -b.lse[at] * 1.44269504F;
            sum[i][h] = b.work[at];
        }
    uint32_t own_q = lane_as_a<DIM>(rows, warp * WARP_ROWS, lane),
             own_dout = own_q + OWN;
    uint32_t stage = 0;
    for (int k = from; k < end; k += KEYS, stage ^= 2 * MATRIX) {
        copies_wait<0>();
        __syncthreads();
        if (k + KEYS < end) {
            uint32_t to = keys + (stage ^ (2 * MATRIX));
            key += KEYS * ld;
            value += KEYS * ld;
            fetch<DIM, KEYS, THREADS>(to, key, ld, end - k - KEYS, thread);
            fetch<DIM, KEYS, THREADS>(to + MATRIX, value, ld, end - k - KEYS, thread);
            copies_commit();
        }
        if (k >= visible.end - 1 + v.span)
            continue;
        float p[2][KEYS / 8][4], ds[2][KEYS / 8][4];
        uint32_t of_keys = lane_as_b<DIM>(keys + stage, 0, lane);
        scores<DIM>(p, own_q, of_keys);
        if (k < visible.from || k + KEYS > visible.end)
            mask(p, v, t, first, row, k + lane % 4 * 2);
        scores<DIM>(ds, own_dout, of_keys + MATRIX);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float w = exp2_fast(fmaf(p[i][n][e], v.scale2, minus[i][e / 2]));
                    ds[i][n][e] = w * (ds[i][n][e] - sum[i][e / 2]);
                }
        uint32_t keys_trans = lane_as_a<DIM>(keys + stage, 0, lane);
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            uint32_t a[2][4];
            as_a(a[0], ds[0][2 * step], ds[0][2 * step + 1]);
            as_a(a[1], ds[1][2 * step], ds[1][2 * step + 1]);
#pragma unroll
            for (int n = 0; n < DIM / 16; n++)
                mma_columns(o, a, keys_trans + step * 16 * DIM * 2, n);
        }
    }

    // The results are staged in the warp's rows of q.
    const float times[2][2] = { { v.scale, v.scale }, { v.scale, v.scale } };
    uint8_t *own = shared + warp * WARP_ROWS * DIM * 2;
    stage_rows<DIM>(own, o, times, lane);
    store_rows<DIM>(b.dq, b.q_row, own, v, t, warp, lane);
}

/* ---- launch ---------------------------------------------------------------------- */

template <int DIM, int PAIRS, int QUERIES>
static void
run_keys(struct cuda *c, const struct args *b, const struct view *v)
{
    using L = bwd_layout<DIM, PAIRS, QUERIES>;
    struct args mine = *b;
    int tiles = (v->past + v->tokens + L::KEYS - 1) / L::KEYS;
    int *order = (int *)c->q.partials;
    attention_plan(c, order, order + tiles, tiles, L::KEYS, v);
    mine.order = order;
    mine.end = order + tiles;
    attention_allow(c, (const void *)bwd_keys<DIM, PAIRS, QUERIES>, L::SHARED);
    bwd_keys<DIM, PAIRS, QUERIES>
        <<<(unsigned)tiles *(unsigned)v->kv, L::THREADS, L::SHARED, c->q.stream>>>(mine,
                                                                                   *v);
    cuda_launched(c, "attention_bwd: keys");
}

template <int DIM>
static void
run_bwd(struct cuda *c, const struct args *b, const struct view *v)
{
    struct args mine = *b;
    int tiles = (v->tokens + (1 << v->shift) - 1) >> v->shift;
    unsigned bundles = (unsigned)(v->query / v->pack);
    int *order = NULL;
    if (bwd_layout<DIM, 4, 64>::SHARED <= c->shared)
        run_keys<DIM, 4, 64>(c, b, v);
    else
        run_keys<DIM, 2, 32>(c, b, v);
    if (bundles * (unsigned)tiles > 2 * (unsigned)c->sms) {
        order = (int *)c->q.partials;
        attention_plan(c, order, NULL, tiles, 1 << v->shift, v);
    }
    mine.order = order;
    attention_allow(c, (const void *)bwd_queries<DIM>, rows_shared<DIM>);
    bwd_queries<DIM>
        <<<bundles *(unsigned)tiles, THREADS, rows_shared<DIM>, c->q.stream>>>(mine,
                                                                               *v);
    cuda_launched(c, "attention_bwd: queries");
}

void
attention_bwd(struct cuda *c, const struct attention_grads *d, const void *dout,
              const float *lse, const void *q, const void *key, const void *value,
              const float *work, const struct view *v)
{
    struct args b = {};
    b.q_row = d->q_stride;
    b.kv_row = d->kv_stride;
    b.dout = (const bf16 *)dout;
    b.q = (const bf16 *)q;
    b.key = (const bf16 *)key;
    b.value = (const bf16 *)value;
    b.lse = lse;
    b.work = work;
    b.dq = (bf16 *)d->dq;
    b.dkey = (bf16 *)d->dkey;
    b.dvalue = (bf16 *)d->dvalue;
    if (v->dim == 64)
        run_bwd<64>(c, &b, v);
    else
        run_bwd<128>(c, &b, v);
}
