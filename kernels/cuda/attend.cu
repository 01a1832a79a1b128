/* SPDX-License-Identifier: MIT */
/* attend: a token each of several sequences: heads are normed and rotated, the new key
 * and value go into the sequence's cache, and the query attends to all of it.
 *
 * A block has a slice of the keys of a sequence and a kv head, and the query heads of
 * that kv head as rows.  Each warp loops over pieces of 16 keys; the first two are
 * asked for before the token's own key is known, which with 256 keys is all of them.
 * The block adds up its warps, and a second kernel the slices, where there are more than
 * one.  Slices depend on the length of the sequence alone. */
#include "kernels/cuda/attend.h"
#include "kernels/cuda/ops.h"

enum {
    ROWS = ATTEND_ROWS,
    KEYS = ATTEND_KEYS,
    WARPS = ATTEND_WARPS,
    DEPTH = 2, // stages: pieces of a warp in shared memory; all of the least slice
    BLOCKS = ATTEND_BLOCKS,
    FIXED = 6 << 10, // bytes of shared memory besides the stages, at most
};

struct sequences {
    bf16 *key[ATTEND_MAX], *value[ATTEND_MAX]; // caches
    const int32_t *past;                       // tokens in each
};

struct shape {
    int query, kv, group; // heads; query heads per kv head
    int limit;            // max. slices
    float eps, scale2;    // of norms; of scores, times log2(e)
    const float *table, *q_gain, *k_gain;
};

/* Partial results of slices, (sequences, limit, query heads): unnormalized output, and
 * the maximum scaled score and the sum of weights. */
struct slices {
    float *out, *max, *sum;
};

template <int DIM>
constexpr uint32_t attend_shared = 4 * WARPS *DEPTH *KEYS *DIM;

template <int DIM>
static __device__ __forceinline__ void
turn_head(bf16 *to, const bf16 *from, const float *gain, const struct angles<DIM> &at,
          float eps, int lane)
{
    float a[DIM / 64], b[DIM / 64], g[2][DIM / 64];
#pragma unroll
    for (int p = 0; p < DIM / 64; p++) {
        a[p] = to_f32(from[lane + 32 * p]);
        b[p] = to_f32(from[DIM / 2 + lane + 32 * p]);
        g[0][p] = gain[lane + 32 * p];
        g[1][p] = gain[DIM / 2 + lane + 32 * p];
    }
    turn_head<DIM>(to, a, b, g, at, eps, lane);
}

template <int DIM>
static __global__ void __launch_bounds__(32 * WARPS)
    attend(bf16 *out, struct slices part, const bf16 *q, const bf16 *key,
           const bf16 *value, const struct shape v,
           const __grid_constant__ struct sequences s)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ float all_max[WARPS][ROWS], all_sum[WARPS][ROWS];
    __shared__ __align__(16) bf16 heads[ROWS * DIM];
    constexpr uint32_t MATRIX = KEYS * DIM * 2, STAGE = 2 * MATRIX;
    static_assert(ROWS * DIM * 4 <= DEPTH * STAGE, "results reuse the stages");
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int slice = blockIdx.x, kv = blockIdx.y, sequence = blockIdx.z;
    int past = s.past[sequence];
    struct cut cut = cut_of(past + 1, v.limit);
    cuda_next();
    if (slice >= cut.n)
        return;

    // Warps take pieces round-robin.
    size_t ld = (size_t)v.kv * DIM;
    uint8_t *own = shared + warp * DEPTH * STAGE;
    uint32_t base = shared_address(own);
    bf16 *keys_of = s.key[sequence] + (size_t)kv * DIM;
    bf16 *values_of = s.value[sequence] + (size_t)kv * DIM;
    int begin = slice * cut.keys + warp * KEYS;
    int end = min((slice + 1) * cut.keys, past + 1);
    int pieces = begin < end ? (end - begin + WARPS * KEYS - 1) / (WARPS * KEYS) : 0;
    auto is_old = [&](int i) { return begin + i * WARPS * KEYS + KEYS <= past; };
    auto prefetch_piece = [&](int i) {
        int at = begin + i * WARPS * KEYS;
        uint32_t to = base + i % DEPTH * STAGE;
        fetch<DIM, KEYS, 32>(to, keys_of + at * ld, ld, end - at, lane);
        fetch<DIM, KEYS, 32>(to + MATRIX, values_of + at * ld, ld, end - at, lane);
    };
    // The cache is not written by a kernel that may still run: those of one step write
    // the caches of other layers, and a step begins with an upload.
    for (int i = 0; i < DEPTH; i++) {
        if (i < pieces && is_old(i))
            prefetch_piece(i);
        copies_commit();
    }
    struct angles<DIM> at(v.table + (size_t)past * DIM, lane);
    cuda_wait();

    bool newest = slice == cut.n - 1; // has the token itself
    for (int h = warp; h < v.group + newest; h += WARPS)
        if (h < v.group)
            turn_head<DIM>(heads + h * DIM,
                           q + ((size_t)sequence * v.query + kv * v.group + h) * DIM,
                           v.q_gain, at, v.eps, lane);
        else
            turn_head<DIM>(keys_of + past * ld,
                           key + ((size_t)sequence * v.kv + kv) * DIM, v.k_gain, at,
                           v.eps, lane);
    if (newest && warp == WARPS - 1)
        for (int i = lane; i < DIM; i += 32)
            values_of[past * ld + i] = value[((size_t)sequence * v.kv + kv) * DIM + i];
    __syncthreads();
    for (int i = 0; i < DEPTH && i < pieces; i++)
        if (!is_old(i)) { // the one with the token itself
            prefetch_piece(i);
            copies_commit();
            copies_wait<0>();
        }

    uint32_t a[DIM / 16][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = lane / 4 + 8 * h;
        const bf16 *from = heads + r * DIM + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            a[k][h] = r < v.group ? *(const uint32_t *)(from + 16 * k) : 0;
            a[k][2 + h] = r < v.group ? *(const uint32_t *)(from + 16 * k + 8) : 0;
        }
    }
    float o[1][DIM / 8][4] = {};
    struct softmax<1> x;
    begin_softmax(x);
    for (int i = 0; i < pieces; i++) {
        copies_wait<DEPTH - 1>();
        __syncwarp();
        uint32_t stage = base + i % DEPTH * STAGE;
        uint32_t keys = lane_as_b<DIM>(stage, 0, lane);
        uint32_t values = lane_as_a<DIM>(stage + MATRIX, 0, lane);
        float score[1][2][4] = {};
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            uint32_t y[4];
            load4(y, keys ^ (k << 5));
            mma(score[0][0], a[k], y[0], y[1]);
            mma(score[0][1], a[k], y[2], y[3]);
        }
        int k0 = begin + i * WARPS * KEYS + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (k0 + 8 * n + e % 2 > past)
                    score[0][n][e] = -INFINITY;
        update_max(x, o, score, v.scale2);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                to_weight(score[0][n][e], x.sum[0][e / 2], x.max[0][e / 2], v.scale2);
        uint32_t p[1][4];
        as_a(p[0], score[0][0], score[0][1]);
#pragma unroll
        for (int n = 0; n < DIM / 16; n++)
            mma_columns(o, p, values, n);
        __syncwarp(); // before the next copy overwrites this piece
        if (i + DEPTH < pieces)
            prefetch_piece(i + DEPTH);
        copies_commit();
    }
    copies_wait<0>();
    __syncwarp();

    // Combine the warps.
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
    for (int i = threadIdx.x; i < v.group * DIM; i += 32 * WARPS) {
        int r = i / DIM, d = i % DIM, head = kv * v.group + r;
        float top = -INFINITY, sum = 0, y = 0;
        for (int w = 0; w < WARPS; w++)
            top = fmaxf(top, all_max[w][r]);
        for (int w = 0; w < WARPS; w++) {
            float weight = exp2_fast(all_max[w][r] - top);
            const float *from = (const float *)(shared + w * DEPTH * STAGE);
            sum = fmaf(weight, all_sum[w][r], sum);
            y = fmaf(weight, from[i], y);
        }
        if (cut.n == 1) {
            out[((size_t)sequence * v.query + head) * DIM + d] =
                from_f32<bf16>(y / sum);
            continue;
        }
        size_t to = ((size_t)sequence * v.limit + slice) * v.query + head;
        part.out[to * DIM + d] = y;
        if (d == 0) {
            part.max[to] = top;
            part.sum[to] = sum;
        }
    }
}

/* Combine the slices of a head, in order. */
template <int DIM>
static __global__ void __launch_bounds__(DIM)
    join(bf16 *out, struct slices part, const struct shape v,
         const __grid_constant__ struct sequences s)
{
    __shared__ float weight[BLOCKS], scratch[33];
    int head = blockIdx.x, sequence = blockIdx.y, thread = threadIdx.x;
    struct cut cut = cut_of(s.past[sequence] + 1, v.limit);
    size_t first = (size_t)sequence * v.limit * v.query + head;
    float top = -INFINITY, sum = 0, x = 0;
    cuda_take_over();
    if (cut.n == 1)
        return;
    for (int i = thread; i < cut.n; i += DIM) {
        weight[i] = part.max[first + (size_t)i * v.query];
        top = fmaxf(top, weight[i]);
    }
    top = block_max(top, scratch);
    for (int i = thread; i < cut.n; i += DIM) {
        weight[i] = exp2_fast(weight[i] - top);
        sum = fmaf(weight[i], part.sum[first + (size_t)i * v.query], sum);
    }
    sum = block_sum(sum, scratch);
    const float *from = part.out + first * DIM + thread;
#pragma unroll 8
    for (int i = 0; i < cut.n; i++)
        x = fmaf(weight[i], from[(size_t)i * v.query * DIM], x);
    out[((size_t)sequence * v.query + head) * DIM + thread] = from_f32<bf16>(x / sum);
}

/* Some of the sequences; `longest` is the most tokens that one of them has before. */
template <int DIM>
static void
run(struct cuda *c, bf16 *out, const bf16 *q, const bf16 *key, const bf16 *value,
    const struct shape *v, const struct sequences *s, unsigned n, int longest)
{
    size_t all = (size_t)n * (unsigned)v->limit * (unsigned)v->query;
    struct slices part = { c->q.partials, NULL, NULL };
    part.max = part.out + all * DIM;
    part.sum = part.max + all;
    unsigned slices = (unsigned)most_slices(longest, v->limit);
    if (c->attends != DIM) // once: every call costs time of the host
        attention_allow(c, (const void *)attend<DIM>, attend_shared<DIM>);
    c->attends = DIM;
    cuda_start(c, "attend: slices", attend<DIM>, dim3(slices, (unsigned)v->kv, n),
               32 * WARPS, attend_shared<DIM>, out, part, q, key, value, *v, *s);
    if (slices > 1)
        cuda_start(c, "attend: join", join<DIM>, dim3((unsigned)v->query, n), DIM, 0,
                   out, part, *v, *s);
}

/* As many sequences at a time as there is scratch for. */
template <int DIM>
static void
run_all(struct cuda *c, bf16 *out, const bf16 *q, const bf16 *key, const bf16 *value,
        const struct shape *v, const struct attend *a)
{
    size_t wide = a->query * a->dim, narrow = a->kv * a->dim;
    size_t each =
        PARTIALS / sizeof(float) / ((size_t)v->limit * a->query * (size_t)(DIM + 2));
    for (size_t first = 0, n; first < a->tokens; first += n) {
        struct sequences s = {};
        int longest = 0;
        s.past = a->position + first;
        for (n = 0; n < each && first + n < a->tokens; n++) {
            s.key[n] = (bf16 *)a->key[first + n];
            s.value[n] = (bf16 *)a->value[first + n];
            longest = max(longest, (int)a->past[first + n]);
        }
        run<DIM>(c, out + first * wide, q + first * wide, key + first * narrow,
                 value + first * narrow, v, &s, (unsigned)n, longest);
    }
}

bool
cuda_attend(struct kernels *k, const struct matrix *out, const struct matrix *q,
            const struct matrix *key, const struct matrix *value,
            const struct attend *a)
{
    struct cuda *c = cuda_of(k);
    struct shape v = {};
    size_t group = a->query / a->kv;
    if (q->dtype != DT_BF16 || (a->dim != 64 && a->dim != 128) || group > ROWS)
        return false;
    if ((a->dim == 64 ? attend_shared<64> : attend_shared<128>)+FIXED > c->shared)
        return false;
    v.query = (int)a->query;
    v.kv = (int)a->kv;
    v.group = (int)group;
    v.limit = max(1, BLOCKS / v.kv);
    v.eps = a->eps;
    v.scale2 = 1 / sqrtf((float)a->dim) * 1.44269504F;
    v.table = a->table;
    v.q_gain = a->q_gain;
    v.k_gain = a->k_gain;
    if ((size_t)v.limit * a->query * (a->dim + 2) * sizeof(float) > PARTIALS)
        return false;
    (a->dim == 64 ? run_all<64> : run_all<128>)(c, (bf16 *)out->data,
                                                (const bf16 *)q->data,
                                                (const bf16 *)key->data,
                                                (const bf16 *)value->data, &v, a);
    return true;
}
