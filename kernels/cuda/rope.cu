/* SPDX-License-Identifier: MIT */
/* rope: RMSNorm of heads and rotary embedding, fused. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/query_sums.h"

/* Parameters; stride: token stride of gradients. */
struct heads_job {
    struct rope rope;
    size_t tokens, stride;
    struct query_sums sums; // if gradients are read from there
};

/* A group of threads, a power of two within a warp, has MANY consecutive heads of a
 * token.  A thread has the packs (lane + p group) of the first half of each head, and
 * those of the second half that are rotated with them. */
enum {
    MAX_HEAD = 256,                  // max. head width
    HEAD_PACK = 4,                   // 8 would take the registers that other loads need
    PLAIN_PAIRS = MAX_HEAD / 2 / 32, // per thread, with packs of one
};

struct slot {
    unsigned token, head; // the first
    size_t row;           // its index
    size_t at;            // its offset in rows of t.stride
    unsigned heads;       // 0: past the last token
    const float *angle;   // cosines, then sines
};

template <int MANY>
static __device__ __forceinline__ struct slot
heads_of(const struct heads_job &t, unsigned item)
{
    unsigned heads = (unsigned)t.rope.heads, batches = (heads + MANY - 1) / MANY;
    unsigned token = item / batches, head = item % batches * MANY;
    struct slot m = { token,
                      head,
                      (size_t)token * heads + head,
                      token * t.stride + head * t.rope.dim,
                      0,
                      t.rope.table };
    if (token < t.tokens) {
        m.heads = heads - head < MANY ? heads - head : MANY;
        m.angle += (size_t)t.rope.position[token] * t.rope.dim;
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
scale_of(float squares, const struct heads_job &t)
{
    return 1 / sqrtf(squares / (float)t.rope.dim + t.rope.eps);
}

/* RMSNorm scales of heads from each thread's sums of squares.  With four heads each
 * thread finishes one: the same additions as group_sum, but fewer shuffles. */
template <int MANY>
static __device__ __forceinline__ void
scales_of(float (&s)[MANY], const float (&sum)[MANY], unsigned group,
          const struct heads_job &t)
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
    rope_heads(T *y, float *rstd, const T *x, const float *__restrict__ gain,
               const struct heads_job t, unsigned group)
{
    typedef pack<T, V> P;
    unsigned half = (unsigned)t.rope.dim / 2, lane = threadIdx.x % group;
    cuda_take_over();
    struct slot m =
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
            a[h][p] = *(const P *)(x + (m.row + h) * t.rope.dim + at);
            b[h][p] = *(const P *)(x + (m.row + h) * t.rope.dim + half + at);
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
            rstd[m.row + h] = s;
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
            store(y + (m.row + h) * t.rope.dim + at, out_a);
            store(y + (m.row + h) * t.rope.dim + half + at, out_b);
        }
    }
}

/* bf16: all blocks of an H200 at once, 12 and 22 percent faster for 32 and 8 heads than
 * 1024 blocks, two per SM, with four heads per group. f32 needs the registers. */
template <typename T>
constexpr int rope_blocks = 2;
template <>
constexpr int rope_blocks<__nv_bfloat16> = 3;
template <typename T>
constexpr size_t rope_slices = 1024;
template <>
constexpr size_t rope_slices<__nv_bfloat16> = 3 * 132;

static __device__ __forceinline__ float
rounded(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* A block per slice of the gain's gradient.  SUMS: the gradient is read from there, and
 * rounded as if it had been stored. */
template <typename T, int V, int PAIRS, int MANY, bool SUMS>
static __global__ void __launch_bounds__(THREADS, rope_blocks<T>)
    rope_bwd_heads(T *d, float *partial, const T *x, const float *rstd,
                   const float *__restrict__ gain, const struct heads_job t,
                   unsigned group, unsigned items)
{
    typedef pack<T, V> P;
    typedef std::conditional_t<SUMS, pack<float, V>, P> D;
    __shared__ float scratch[2 * V * PAIRS * THREADS]; // a head per group
    unsigned dim = (unsigned)t.rope.dim, half = dim / 2, groups = THREADS / group;
    unsigned lane = threadIdx.x % group, which = threadIdx.x / group;
    float gain_a[PAIRS][V], gain_b[PAIRS][V], dgain_a[PAIRS][V], dgain_b[PAIRS][V];
    cuda_wait();
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        unsigned at = (lane + p * group) * V;
        if (at < half) {
            load(gain_a[p], gain + at);
            load(gain_b[p], gain + half + at);
        }
#pragma unroll
        for (int i = 0; i < V; i++)
            dgain_a[p][i] = dgain_b[p][i] = 0;
    }
    // All threads iterate equally often, since warps shuffle.
    for (unsigned first = blockIdx.x * groups; first < items;
         first += gridDim.x * groups) {
        struct slot m = heads_of<MANY>(t, first + which);
        D da[MANY][PAIRS], db[MANY][PAIRS];
        P xa[MANY][PAIRS], xb[MANY][PAIRS];
        float cosine[PAIRS][V], sine[PAIRS][V], scales[MANY];
#pragma unroll
        for (unsigned h = 0; h < MANY; h++) {
            scales[h] = h < m.heads ? rstd[m.row + h] : 0;
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                unsigned at = (lane + p * group) * V;
                if (h >= m.heads || at >= half)
                    continue;
                if (SUMS) {
                    const float *from = query_sums_at(t.sums, m.head + h, m.token, at);
                    da[h][p] = *(const D *)from;
                    db[h][p] = *(const D *)(from + SUMS_HALF);
                } else {
                    da[h][p] = *(const D *)(d + m.at + h * dim + at);
                    db[h][p] = *(const D *)(d + m.at + h * dim + half + at);
                }
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
            float rotated_a[PAIRS][V], rotated_b[PAIRS][V], share = 0, s = scales[h];
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                if (h >= m.heads || (lane + p * group) * V >= half)
                    continue;
                if constexpr (!SUMS) {
                    stay_packed(da[h][p]);
                    stay_packed(db[h][p]);
                }
                stay_packed(xa[h][p]);
                stay_packed(xb[h][p]);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    float a = to_f32(da[h][p].v[i]), b = to_f32(db[h][p].v[i]);
                    if (SUMS) {
                        a = rounded(a * t.sums.scale);
                        b = rounded(b * t.sums.scale);
                    }
                    float va = to_f32(xa[h][p].v[i]), vb = to_f32(xb[h][p].v[i]);
                    float ta = a * cosine[p][i] + b * sine[p][i];
                    float tb = b * cosine[p][i] - a * sine[p][i];
                    dgain_a[p][i] = fmaf(ta, va * s, dgain_a[p][i]);
                    dgain_b[p][i] = fmaf(tb, vb * s, dgain_b[p][i]);
                    rotated_a[p][i] = ta * gain_a[p][i];
                    rotated_b[p][i] = tb * gain_b[p][i];
                    share = fmaf(rotated_a[p][i], va, fmaf(rotated_b[p][i], vb, share));
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
                    rotated_a[p][i] =
                        s * (rotated_a[p][i] - to_f32(xa[h][p].v[i]) * share);
                    rotated_b[p][i] =
                        s * (rotated_b[p][i] - to_f32(xb[h][p].v[i]) * share);
                }
                store(d + m.at + h * dim + at, rotated_a[p]);
                store(d + m.at + h * dim + half + at, rotated_b[p]);
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
            scratch[which * dim + at] = dgain_a[p][i];
            scratch[which * dim + half + at] = dgain_b[p][i];
        }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < dim; i += THREADS) {
        float sum = 0;
        for (unsigned g = 0; g < groups; g++)
            sum += scratch[g * dim + i];
        partial[(size_t)blockIdx.x * dim + i] = sum;
    }
}

/* False, with the error set, if heads are too wide. */
static bool
heads_fit(struct cuda *c, const struct heads_job *t)
{
    if (t->rope.dim > MAX_HEAD)
        err_set(c->k.err, ERR_USAGE, "cuda:%d: head_dim is %zu: expected at most %d",
                c->device, t->rope.dim, (int)MAX_HEAD);
    return t->rope.dim <= MAX_HEAD;
}

static bool
heads_in_packs(const struct heads_job *t, uintptr_t places)
{
    return t->rope.dim / 2 % HEAD_PACK == 0 && (places | addr(t->rope.table)) % 16 == 0;
}

/* Threads per head with packs of v elements. */
static unsigned
group_of(size_t dim, unsigned v)
{
    unsigned group = 1;
    while (group < 32 && group * v * 2 < dim)
        group *= 2;
    return group;
}

static size_t
batches_of(const struct heads_job *t, unsigned many)
{
    return t->tokens * ((t->rope.heads + many - 1) / many);
}

template <typename T, int V, int PAIRS, int MANY>
static void
rope_launch(struct cuda *c, void *y, float *rstd, const void *x, const float *gain,
            const struct heads_job *t)
{
    unsigned group = group_of(t->rope.dim, V);
    cuda_start(c, "rope", rope_heads<T, V, PAIRS, MANY>,
               blocks_of(batches_of(t, MANY), THREADS / group), THREADS, 0, (T *)y,
               rstd, (const T *)x, gain, *t, group);
}

template <typename T>
static void
rope_of(struct cuda *c, void *y, float *rstd, const void *x, const float *gain,
        const struct heads_job *t)
{
    if (heads_in_packs(t, addr(y) | addr(x) | addr(gain)))
        rope_launch<T, HEAD_PACK, 1, 4>(c, y, rstd, x, gain, t);
    else
        rope_launch<T, 1, PLAIN_PAIRS, 1>(c, y, rstd, x, gain, t);
}

void
cuda_qk_norm_rope(struct kernels *k, const struct matrix *y, float *rstd,
                  const struct matrix *x, const float *gain, const struct rope *r)
{
    struct heads_job t = { *r, x->rows, 0, {} };
    if (heads_fit(cuda_of(k), &t) && x->rows && x->cols)
        BY_TYPE(x->dtype, rope_of, cuda_of(k), y->data, rstd, x->data, gain, &t);
}

template <typename T, int V, int PAIRS, int MANY, bool SUMS>
static void
rope_bwd_launch(struct cuda *c, void *d, float *dgain, const void *x, const float *rstd,
                const float *gain, const struct heads_job *t)
{
    unsigned group = group_of(t->rope.dim, V);
    size_t items = batches_of(t, MANY);
    size_t slices = min_size(blocks_of(items, THREADS / group), rope_slices<T>);
    cuda_start(c, "rope_bwd", rope_bwd_heads<T, V, PAIRS, MANY, SUMS>, (unsigned)slices,
               THREADS, 0, (T *)d, dgain ? c->q.partials : NULL, (const T *)x, rstd,
               gain, *t, group, (unsigned)items);
    if (dgain)
        cuda_add_slices(c, dgain, slices, t->rope.dim);
}

template <typename T>
static void
rope_bwd_of(struct cuda *c, void *d, float *dgain, const void *x, const float *rstd,
            const float *gain, const struct heads_job *t)
{
    if (heads_in_packs(t, addr(d) | addr(x) | addr(gain) | t->stride * sizeof(T)))
        rope_bwd_launch<T, HEAD_PACK, 1, 2, false>(c, d, dgain, x, rstd, gain, t);
    else
        rope_bwd_launch<T, 1, PLAIN_PAIRS, 1, false>(c, d, dgain, x, rstd, gain, t);
}

void
cuda_qk_norm_rope_bwd(struct kernels *k, const struct matrix *d, float *dgain,
                      const struct matrix *x, const float *rstd, const float *gain,
                      const struct rope *r)
{
    struct heads_job t = { *r, x->rows, d->stride, {} };
    if (heads_fit(cuda_of(k), &t) && x->rows && x->cols)
        BY_TYPE(x->dtype, rope_bwd_of, cuda_of(k), d->data, dgain, x->data, rstd, gain,
                &t);
}

/* Whether dQ can be read from f32 sums: heads in packs. */
bool
cuda_rope_bwd_sums_fit(const struct matrix *d, const struct head_norm *n)
{
    struct heads_job t = { *n->rope, 0, 0, {} };
    return d->dtype == DT_BF16 && n->rope->dim == SUMS_DIM &&
           heads_in_packs(&t, addr(d->data) | addr(n->x->data) | addr(n->gain) |
                                  d->stride * sizeof(__nv_bfloat16));
}

void
cuda_rope_bwd_sums(struct cuda *c, const struct matrix *d, const struct query_sums *s,
                   const struct head_norm *n)
{
    struct heads_job t = { *n->rope, n->x->rows, d->stride, *s };
    rope_bwd_launch<__nv_bfloat16, HEAD_PACK, 1, 2, true>(
        c, d->data, n->dgain, n->x->data, n->rstd, n->gain, &t);
}
