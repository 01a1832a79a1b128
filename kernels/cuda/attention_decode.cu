/* SPDX-License-Identifier: MIT */
/* attention_decode: attention of few tokens, split over keys (flash decoding); keys and
 * values are read once.
 *
 * A block has a slice of the keys of a kv head and up to 16 rows: tokens with all query
 * heads of that kv head.  Each warp loops over pieces of 16 keys, with two more in
 * flight; the block combines its four warps, a second kernel the slices.  The number of
 * slices depends on sizes only. */
#include "kernels/cuda/attention.h"

enum {
    ROWS = 16, // per block
    KEYS = 16, // per warp and step
    WARPS = 4,
    DEPTH = 3,    // stages: pieces of a warp in shared memory
    SLICE = 64,   // slices have multiples of so many keys
    BLOCKS = 256, // target number of blocks; max. slices
};

/* Partial results of slices: unnormalized output, and for each row the maximum scaled
 * score and the sum of weights. */
struct slices {
    int n, keys, rows;      // rows: of all heads
    float *out, *max, *sum; // (n, rows, dim), (n, rows), (n, rows)
};

template <int DIM>
constexpr uint32_t decode_shared = 4 * WARPS *DEPTH *KEYS *DIM;

/* Two columns of a row as bf16x2; 0 if !there. */
static __device__ __forceinline__ uint32_t
two_at(const bf16 *row, int column, bool there)
{
    return there ? *(const uint32_t *)(row + column) : 0;
}

template <int DIM>
static __global__ void __launch_bounds__(32 * WARPS)
    decode(struct slices part, const bf16 *q, const bf16 *key, const bf16 *value,
           struct view v)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ float all_max[WARPS][ROWS], all_sum[WARPS][ROWS];
    constexpr uint32_t MATRIX = KEYS * DIM * 2, STAGE = 2 * MATRIX;
    static_assert(ROWS * DIM * 4 <= DEPTH * STAGE, "results reuse the stages");
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int slice = blockIdx.x, kv = blockIdx.y, rows = v.tokens * v.group;
    int row = blockIdx.z * ROWS + lane / 4;
    size_t ld = (size_t)v.kv * DIM;
    uint8_t *own = shared + warp * DEPTH * STAGE;
    uint32_t base = shared_address(own);

    uint32_t a[DIM / 16][4];
    int low[2], high[2];
    cuda_take_over();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row + 8 * h, token = min(r, rows - 1) / v.group;
        const bf16 *from =
            q + ((size_t)token * v.query + kv * v.group + r % v.group) * DIM;
        low[h] = v.first[token];
        high[h] = v.past + token;
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            a[k][h] = two_at(from, 16 * k + lane % 4 * 2, r < rows);
            a[k][2 + h] = two_at(from, 16 * k + 8 + lane % 4 * 2, r < rows);
        }
    }

    // Warps take pieces round-robin.
    int begin = slice * part.keys + warp * KEYS;
    int end = min((slice + 1) * part.keys, v.past + v.tokens);
    int pieces = begin < end ? (end - begin + WARPS * KEYS - 1) / (WARPS * KEYS) : 0;
    key += (size_t)kv * DIM;
    value += (size_t)kv * DIM;
    auto prefetch = [&](int i) {
        int at = begin + i * WARPS * KEYS;
        uint32_t to = base + i % DEPTH * STAGE;
        if (i < pieces) {
            fetch<DIM, KEYS, 32>(to, key + at * ld, ld, end - at, lane);
            fetch<DIM, KEYS, 32>(to + MATRIX, value + at * ld, ld, end - at, lane);
        }
        copies_commit();
    };

    float o[1][DIM / 8][4] = {};
    struct softmax<1> x;
    begin_softmax(x);
    for (int i = 0; i < DEPTH - 1; i++)
        prefetch(i);
    for (int i = 0; i < pieces; i++) {
        prefetch(i + DEPTH - 1);
        copies_wait<DEPTH - 1>();
        __syncwarp();
        uint32_t at = base + i % DEPTH * STAGE;
        uint32_t keys = lane_as_b<DIM>(at, 0, lane);
        uint32_t values = lane_as_a<DIM>(at + MATRIX, 0, lane);
        float s[1][2][4] = {};
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            uint32_t y[4];
            load4(y, keys ^ (k << 5));
            mma(s[0][0], a[k], y[0], y[1]);
            mma(s[0][1], a[k], y[2], y[3]);
        }
        int k0 = begin + i * WARPS * KEYS + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int k = k0 + 8 * n + e % 2;
                if (k < low[e / 2] || k > high[e / 2])
                    s[0][n][e] = -INFINITY;
            }
        update_max(x, o, s, v.scale2);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                to_weight(s[0][n][e], x.sum[0][e / 2], x.max[0][e / 2], v.scale2);
        uint32_t p[1][4];
        as_a(p[0], s[0][0], s[0][1]);
#pragma unroll
        for (int n = 0; n < DIM / 16; n++)
            mma_columns(o, p, values, n);
        __syncwarp(); // before the next copy overwrites this piece
    }
    copies_wait<0>();
    __syncwarp();

    // Combine the four warps.
    float *mine = (float *)own;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = lane / 4 + 8 * h;
        float sum = x.sum[0][h];
        sum += __shfl_xor_sync(0xffffffffU, sum, 1);
        sum += __shfl_xor_sync(0xffffffffU, sum, 2);
        if (lane % 4 == 0) {
            all_max[warp][r] = x.max[0][h];
            all_sum[warp][r] = sum;
        }
#pragma unroll
        for (int d = 0; d < DIM / 8; d++)
            *(float2 *)(mine + r * DIM + 8 * d + lane % 4 * 2) =
                make_float2(o[0][d][2 * h], o[0][d][2 * h + 1]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * DIM; i += 32 * WARPS) {
        int r = i / DIM, d = i % DIM, of_kv = blockIdx.z * ROWS + r;
        if (of_kv >= rows)
            break;
        float top = -INFINITY, sum = 0, out = 0;
        for (int w = 0; w < WARPS; w++)
            top = fmaxf(top, all_max[w][r]);
        for (int w = 0; w < WARPS; w++) {
            float weight = exp2_fast(all_max[w][r] - top);
            const float *from = (const float *)(shared + w * DEPTH * STAGE);
            sum = fmaf(weight, all_sum[w][r], sum);
            out = fmaf(weight, from[i], out);
        }
        size_t to = (size_t)slice * part.rows + kv * rows + of_kv;
        part.out[to * DIM + d] = out;
        if (d == 0) {
            part.max[to] = top;
            part.sum[to] = sum;
        }
    }
}

/* Combine the slices of a row, in order.  Rows are (kv head, token, query head of
 * it). */
template <int DIM>
static __global__ void __launch_bounds__(DIM)
    join(bf16 *out, float *lse, struct slices part, struct view v)
{
    __shared__ float weight[BLOCKS], scratch[33];
    int row = blockIdx.x, thread = threadIdx.x;
    int of_kv = row % (v.tokens * v.group), kv = row / (v.tokens * v.group);
    int token = of_kv / v.group, head = kv * v.group + of_kv % v.group;
    float top = -INFINITY, sum = 0, x = 0;
    cuda_take_over();
    for (int i = thread; i < part.n; i += DIM) {
        weight[i] = part.max[(size_t)i * part.rows + row];
        top = fmaxf(top, weight[i]);
    }
    top = block_max(top, scratch);
    for (int i = thread; i < part.n; i += DIM) {
        weight[i] = exp2_fast(weight[i] - top);
        sum = fmaf(weight[i], part.sum[(size_t)i * part.rows + row], sum);
    }
    sum = block_sum(sum, scratch);
    const float *from = part.out + (size_t)row * DIM + thread;
#pragma unroll 8
    for (int i = 0; i < part.n; i++)
        x = fmaf(weight[i], from[(size_t)i * part.rows * DIM], x);
    out[((size_t)token * v.query + head) * DIM + thread] = from_f32<bf16>(x / sum);
    if (thread == 0)
        lse[(size_t)head * v.tokens + token] = fmaf(top, 0.693147181F, logf(sum));
}

template <int DIM>
static void
run(struct cuda *c, void *out, float *lse, const void *q, const void *key,
    const void *value, const struct view *v)
{
    int rows = v->tokens * v->group, keys = v->past + v->tokens;
    unsigned parts = blocks_of((size_t)rows, ROWS);
    int limit = max(1, BLOCKS / (int)((unsigned)v->kv * parts));
    struct slices s = {};
    s.keys = ((keys + limit - 1) / limit + SLICE - 1) / SLICE * SLICE;
    s.n = (keys + s.keys - 1) / s.keys;
    s.rows = v->tokens * v->query;
    size_t all = (size_t)s.n * s.rows;
    s.out = c->q.partials;
    s.max = s.out + all * DIM;
    s.sum = s.max + all;
    if (all * (DIM + 2) * sizeof(float) > PARTIALS) {
        err_set(c->k.err, ERR_USAGE,
                "cuda:%d: attention: %d query heads are too many for its buffer",
                c->device, v->query);
        return;
    }
    attention_allow(c, (const void *)decode<DIM>, decode_shared<DIM>);
    cuda_start(c, "attention: slices", decode<DIM>,
               dim3((unsigned)s.n, (unsigned)v->kv, parts), 32 * WARPS,
               decode_shared<DIM>, s, (const bf16 *)q, (const bf16 *)key,
               (const bf16 *)value, *v);
    cuda_start(c, "attention: join", join<DIM>, (unsigned)s.rows, DIM, 0, (bf16 *)out,
               lse, s, *v);
}

void
attention_decode(struct cuda *c, void *out, float *lse, const void *q, const void *key,
                 const void *value, const struct view *v)
{
    if (v->dim == 64)
        run<64>(c, out, lse, q, key, value, v);
    else
        run<128>(c, out, lse, q, key, value, v);
}
