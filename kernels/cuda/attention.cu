/* SPDX-License-Identifier: MIT */
/* attention: selects the kernels, and the forward pass of many tokens with mma.sync: bf16,
 * for heads of 64 and for chips that have no kernel of their own; scores are never in memory
 * (FlashAttention).
 *
 * A block has 128 rows: some tokens of query heads that share a kv head, so that its
 * warps need about the same keys.  A warp has 32 rows; it loops over tiles of 64 keys,
 * double-buffered, with its output in registers.  Two blocks share an SM: one computes
 * exponentials while the other multiplies. */
#include "kernels/cuda/attention.h"

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/ops.h"

enum { KEYS = 64, THREADS = TILE_ROWS };

/* ---- order of tiles -------------------------------------------------------------- */

/* One block sorts the tiles.  The order changes no result. */
static __global__ void __launch_bounds__(1024)
    plan(int *order, int *end, int tiles, int each, struct view v)
{
    __shared__ int work[PLANNED];
    for (int i = threadIdx.x; i < tiles; i += blockDim.x) {
        int at = i * each, w;
        if (end) {
            int begin = max(0, at - v.past);
            end[i] = end_of_queries(v, begin, at + each - 1);
            w = end[i] - begin;
        } else {
            w = v.past + min(at + each, v.tokens) - v.first[at];
        }
        if (tiles <= PLANNED)
            work[i] = w;
        else
            order[end ? i : tiles - 1 - i] = i;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tiles && tiles <= PLANNED; i += blockDim.x) {
        int rank = 0, w = work[i];
        for (int j = 0; j < tiles; j++)
            rank += work[j] > w || (work[j] == w && j < i);
        order[rank] = i;
    }
}

void
attention_plan(struct cuda *c, int *order, int *end, int tiles, int each,
               const struct view *v)
{
    plan<<<1, 1024, 0, c->q.stream>>>(order, end, tiles, each, *v);
    cuda_launched(c, "attention: plan");
}

/* Allow more than 48 KB of dynamic shared memory, with the maximum carveout. */
void
attention_allow(struct cuda *c, const void *kernel, size_t shared)
{
    cuda_check(c,
               cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)shared),
               "attention: shared memory");
    cuda_check(c,
               cudaFuncSetAttribute(kernel,
                                    cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared),
               "attention: shared memory");
}

/* ---- forward, many tokens -------------------------------------------------------- */

/* o += P V: exponentials of the next 16 keys overlap the products of these 16. */
template <int DIM>
static __device__ __forceinline__ void
add_values(float (&o)[2][DIM / 8][4], float (&s)[2][KEYS / 8][4], struct softmax<2> &x,
           uint32_t values, float scale2)
{
    constexpr int STEPS = DIM / 16, EACH = 16 / STEPS;
#pragma unroll
    for (int e = 0; e < 16; e++)
        to_weight(s[e / 8][e / 4 % 2][e % 4], x.sum[e / 8][e % 4 / 2],
                  x.max[e / 8][e % 4 / 2], scale2);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t p[2][4];
        as_a(p[0], s[0][2 * k], s[0][2 * k + 1]);
        as_a(p[1], s[1][2 * k], s[1][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < STEPS; n++) {
            mma_columns(o, p, values + k * 16 * DIM * 2, n);
            if (k + 1 < KEYS / 16) {
#pragma unroll
                for (int e = n * EACH; e < (n + 1) * EACH; e++)
                    to_weight(s[e / 8][2 * k + 2 + e / 4 % 2][e % 4],
                              x.sum[e / 8][e % 4 / 2], x.max[e / 8][e % 4 / 2], scale2);
            }
        }
    }
}

/* Store lse; part: 1 / sum of weights. */
static __device__ __forceinline__ void
store_lse(float (&part)[2][2], float *lse, const struct softmax<2> &x,
          const struct view &v, const struct tile &t, int row, int lane)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = row + 16 * i + 8 * h, token = token_of(v, t, r);
            float sum = x.sum[i][h];
            sum += __shfl_xor_sync(0xffffffffU, sum, 1);
            sum += __shfl_xor_sync(0xffffffffU, sum, 2);
            part[i][h] = 1 / sum;
            if (lane % 4 == 0 && token < v.tokens)
                lse[(size_t)(t.head + (r >> v.shift)) * v.tokens + token] =
                    fmaf(x.max[i][h], 0.693147181F, logf(sum));
        }
}

template <int DIM>
constexpr size_t
    forward_shared = (TILE_ROWS + 4 * KEYS) * DIM * 2 + TILE_ROWS * sizeof(int) +
                     sizeof(struct tile);

template <int DIM>
static __global__ void __launch_bounds__(THREADS, 2)
    forward(bf16 *out, float *lse, const bf16 *q, const bf16 *key, const bf16 *value,
            const int *order, struct view v)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    constexpr uint32_t MATRIX = KEYS * DIM * 2; // keys or values; two stages of both
    constexpr uint32_t OWN = TILE_ROWS * DIM * 2;
    int *first = (int *)(shared + OWN + 4 * MATRIX);
    struct tile *kept = (struct tile *)(first + TILE_ROWS); // saves registers
    uint32_t rows = shared_address(shared), keys = rows + OWN;
    int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    size_t ld = (size_t)v.kv * DIM;

    struct tile t = tile_of(v, order);
    struct visible visible = visible_of(v, t, warp);
    int k = v.first[t.token];
    int left = v.past + min(t.token + (1 << v.shift), v.tokens) - k; // keys
    int tiles = (left + KEYS - 1) / KEYS;
    fetch_rows<DIM>(rows, q, v, t);

    // This thread's first chunk to copy, and its ldmatrix addresses.
    int own_row = thread / (DIM / 8);
    size_t at = (k + own_row) * ld + t.kv * DIM + thread % (DIM / 8) * 8;
    uint32_t to = keys + own_chunk<DIM>(thread);
    uint32_t of_keys = keep(lane_as_b<DIM>(keys, 0, lane));
    uint32_t of_values = keep(lane_as_a<DIM>(keys + MATRIX, 0, lane));
    uint32_t of_rows = keep(lane_as_a<DIM>(rows, warp * WARP_ROWS, lane));
    key += at;
    value += at;
    left -= own_row; // from this thread's row on
    fetch_own<DIM, KEYS, THREADS>(to, key, ld, left);
    fetch_own<DIM, KEYS, THREADS>(to + MATRIX, value, ld, left);
    copies_commit();
    first[thread] = v.first[min(token_of(v, t, thread), v.tokens - 1)];
    if (thread == 0)
        *kept = t;

    float o[2][DIM / 8][4] = {};
    struct softmax<2> x;
    begin_softmax(x);
    uint32_t stage = 0;
    for (; tiles > 0; tiles--, k += KEYS, stage ^= 2 * MATRIX) {
        copies_wait<0>();
        __syncthreads();
        if (tiles > 1) {
            left -= KEYS;
            key += KEYS * ld;
            value += KEYS * ld;
            uint32_t next = to + (stage ^ (2 * MATRIX));
            fetch_own<DIM, KEYS, THREADS>(next, key, ld, left);
            fetch_own<DIM, KEYS, THREADS>(next + MATRIX, value, ld, left);
            copies_commit();
        }
        if (k >= visible.end - 1 + v.span)
            continue;
        float s[2][KEYS / 8][4];
        scores<DIM>(s, of_rows, of_keys + stage);
        if (k < visible.from || k + KEYS > visible.end)
            mask(s, v, *kept, first, warp * WARP_ROWS + lane / 4, k + lane % 4 * 2);
        update_max(x, o, s, v.scale2);
        add_values<DIM>(o, s, x, of_values + stage, v.scale2);
    }
    // The output is staged in the warp's rows of q, which are no longer needed.
    float part[2][2];
    uint8_t *own = shared + warp * WARP_ROWS * DIM * 2;
    t = *kept;
    store_lse(part, lse, x, v, t, warp * WARP_ROWS + lane / 4, lane);
    stage_rows<DIM>(own, o, part, lane);
    store_rows<DIM>(out, (size_t)v.query * DIM, own, v, t, warp, lane);
}

/* Tiles are sorted if they do not all run at once; that changes no bit of the
 * result. */
template <int DIM>
static void
run_forward(struct cuda *c, void *out, float *lse, const void *q, const void *key,
            const void *value, const struct view *v)
{
    int tiles = (v->tokens + (1 << v->shift) - 1) >> v->shift;
    unsigned bundles = (unsigned)(v->query / v->pack);
    int *order = NULL;
    if (bundles * (unsigned)tiles > 2 * (unsigned)c->sms) {
        order = (int *)c->q.partials;
        attention_plan(c, order, NULL, tiles, 1 << v->shift, v);
    }
    attention_allow(c, (const void *)forward<DIM>, forward_shared<DIM>);
    forward<DIM>
        <<<bundles *(unsigned)tiles, THREADS, forward_shared<DIM>, c->q.stream>>>(
            (bf16 *)out, lse, (const bf16 *)q, (const bf16 *)key, (const bf16 *)value,
            order, *v);
    cuda_launched(c, "attention");
}

/* ---- sums of dout * out ---------------------------------------------------------- */

enum { SUM_WARPS = 8 };

/* A warp per row; the rows of a block are neighbours in `work`. */
template <typename T>
static __global__ void __launch_bounds__(32 * SUM_WARPS)
    sum_products(float *work, const T *dout, const T *out, struct view v)
{
    int lane = threadIdx.x % 32, head = (int)(blockIdx.x % (unsigned)v.query);
    int token = (int)(blockIdx.x / (unsigned)v.query) * SUM_WARPS + threadIdx.x / 32;
    cuda_wait(); // a plan may still run, see attention_hopper.cu
    if (token >= v.tokens)
        return;
    size_t at = ((size_t)token * v.query + head) * v.dim;
    float sum = 0;
    if (v.dim % 4 == 0) {
        for (int d = lane * 4; d < v.dim; d += 128) {
            pack<T, 4> x = *(const pack<T, 4> *)(dout + at + d);
            pack<T, 4> y = *(const pack<T, 4> *)(out + at + d);
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum = fmaf(to_f32(x.v[e]), to_f32(y.v[e]), sum);
        }
    } else {
        for (int d = lane; d < v.dim; d += 32)
            sum = fmaf(to_f32(dout[at + d]), to_f32(out[at + d]), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0)
        work[(size_t)head * v.tokens + token] = sum;
}

/* The same, with the same order of additions, of heads of 128 in bf16: 16 lanes have a head, each
 * lane what two lanes have above.  A warp has four heads, whose loads are all on their way, and
 * waits for a plan, see attention_hopper.cu, at the end only. */
static __global__ void __launch_bounds__(32 * SUM_WARPS, 8)
    sum_products_128(float *work, const bf16 *dout, const bf16 *out, struct view v,
                     unsigned items)
{
    const unsigned fours = (unsigned)v.query / 4, lane = threadIdx.x % 32;
    for (unsigned item = blockIdx.x; item < items; item += gridDim.x) {
        int head = (int)(item % fours * 4 + lane / 16);
        int token = (int)(item / fours * SUM_WARPS + threadIdx.x / 32);
        size_t at = ((size_t)token * v.query + head) * 128 + lane % 16 * 8;
        pack<bf16, 8> x[2], y[2];
        if (token >= v.tokens)
            continue;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            x[h] = *(const pack<bf16, 8> *)(dout + at + h * 2 * 128);
            y[h] = *(const pack<bf16, 8> *)(out + at + h * 2 * 128);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum[2] = {};
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e / 4] = fmaf(to_f32(x[h].v[e]), to_f32(y[h].v[e]), sum[e / 4]);
#pragma unroll
            for (int i = 8; i > 0; i /= 2)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    sum[e] += __shfl_xor_sync(0xffffffffU, sum[e], i);
            if (lane % 16 == 0)
                work[(size_t)(head + 2 * h) * v.tokens + token] = sum[0] + sum[1];
        }
    }
    cuda_wait();
}

template <typename T>
static void
run_sums(struct cuda *c, float *work, const void *dout, const void *out,
         const struct view *v)
{
    unsigned items = blocks_of((size_t)v->tokens, SUM_WARPS) * (unsigned)v->query;
    unsigned most = (unsigned)c->sms * 8;
    bool fast = sizeof(T) == sizeof(bf16) && v->dim == 128 && v->query % 4 == 0 &&
                ((uintptr_t)dout | (uintptr_t)out) % 16 == 0;
    if (!fast)
        cuda_start(c, "attention_bwd: sums", sum_products<T>, items, 32 * SUM_WARPS, 0,
                   work, (const T *)dout, (const T *)out, *v);
    else
        cuda_start(c, "attention_bwd: sums", sum_products_128,
                   items / 4 < most ? items / 4 : most, 32 * SUM_WARPS, 0, work,
                   (const bf16 *)dout, (const bf16 *)out, *v, items / 4);
}

/* ---- the operations -------------------------------------------------------------- */

/* False, with the error set, if no kernel supports the sizes. */
static bool
view_of(struct cuda *c, struct view *v, const struct heads *h)
{
    if (h->dim > PLAIN_DIM || h->past + h->tokens > INT32_MAX / 2) {
        err_set(
            c->k.err, ERR_USAGE,
            "cuda:%d: attention over %zu tokens with heads of %zu: expected at most "
            "%d tokens and heads of at most %d",
            c->device, h->past + h->tokens, h->dim, INT32_MAX / 2, PLAIN_DIM);
        return false;
    }
    *v = (struct view){};
    v->first = h->first;
    v->tokens = (int)h->tokens;
    v->past = (int)h->past;
    v->query = (int)h->query;
    v->kv = (int)h->kv;
    v->dim = (int)h->dim;
    v->group = (int)(h->query / h->kv);
    v->scale = 1 / sqrtf((float)h->dim);
    v->scale2 = v->scale * 1.44269504F;
    v->pack = 1;
    v->shift = 7;
    while (v->pack < 8 && v->group % (2 * v->pack) == 0) {
        v->pack *= 2;
        v->shift--;
    }
    v->span = 1 << v->shift < WARP_ROWS ? 1 << v->shift : WARP_ROWS;
    return true;
}

/* Whether gradients can be stored as 16-byte vectors. */
static bool
are_vectors(const struct attention_grads *d)
{
    uintptr_t merged = (uintptr_t)d->dq | (uintptr_t)d->dkey | (uintptr_t)d->dvalue;
    return (merged | d->q_stride * sizeof(bf16) | d->kv_stride * sizeof(bf16)) % 16 ==
           0;
}

/* Shorter documents of one length go to cuDNN first, where it can be used: of 512 tokens it
 * takes 95 us forward and 448 backward for our 96 and 358 (16 documents, H200). */
enum { OWN_LENGTH = 512 };

static bool
is_one_pass(const struct heads *h, int major)
{
    return is_hopper(major) && attention_hopper_workspace(h) > 0;
}

size_t
cuda_attention_workspace(const struct heads *h, int major, bool any_order)
{
    size_t own = is_one_pass(h, major) ? attention_hopper_workspace(h) : 0;
    if (!h->length || (own && h->length >= OWN_LENGTH) || !cudnn_version())
        return own;
    size_t other = cudnn_workspace(h, any_order);
    return other > own ? other : own;
}

static bool
has_tensor_cores(const struct cuda *c, const struct view *v)
{
    return c->k.is.act == DT_BF16 && (v->dim == 64 || v->dim == 128);
}

void
cuda_attention(struct kernels *k, const struct matrix *out, float *lse,
               const struct matrix *q, const struct matrix *key,
               const struct matrix *value, const struct heads *h)
{
    struct cuda *c = cuda_of(k);
    struct view v;
    if (h->tokens == 0 || !view_of(c, &v, h))
        return;
    bool cores = has_tensor_cores(c, &v);
    bool wide = cores && v.dim == 128 && is_hopper(c->major);
    if (h->length && !(wide && h->length >= OWN_LENGTH) &&
        cudnn_attention(c, out->data, lse, q->data, key->data, value->data, h)) {
        cuda_mark(c, "attention, cuDNN");
        return;
    }
    if (!cores)
        attention_plain(c, out->data, lse, q, key->data, value->data, &v);
    else if (v.tokens <= DECODED)
        attention_decode(c, out->data, lse, q->data, key->data, value->data, &v);
    else if (wide)
        attention_hopper_forward(c, out->data, lse, q->data, key->data, value->data,
                                 &v);
    else if (v.dim == 64)
        run_forward<64>(c, out->data, lse, q->data, key->data, value->data, &v);
    else
        run_forward<128>(c, out->data, lse, q->data, key->data, value->data, &v);
}

/* n: NULL, or dq becomes the gradient before that norm and rope, computed from dQ in f32;
 * false if there is no kernel for these sizes: then nothing was done. */
static bool
gradients(struct cuda *c, const struct matrix *dq, const struct matrix *dkey,
          const struct matrix *dvalue, const struct matrix *dout,
          const struct matrix *out, const float *lse, const struct matrix *q,
          const struct matrix *key, const struct matrix *value, float *work,
          const struct heads *h, const struct head_norm *n)
{
    const struct attention_grads d = { dq->data, dkey->data, dvalue->data, dq->stride,
                                       dkey->stride };
    struct view v;
    if (h->tokens == 0 || !view_of(c, &v, h))
        return false;
    bool vectors = are_vectors(&d);
    bool one_pass = vectors && has_tensor_cores(c, &v) && is_one_pass(h, c->major);
    bool cudnn_first = h->length && !(one_pass && h->length >= OWN_LENGTH);
    if (n && (!one_pass || cudnn_first || !cuda_rope_bwd_sums_fit(dq, n)))
        return false;
    if (cudnn_first && vectors &&
        cudnn_attention_bwd(c, &d, dout->data, out->data, lse, q->data, key->data,
                            value->data, work, h)) {
        cuda_mark(c, "attention's gradients, cuDNN");
        return true;
    }
    if (!one_pass)
        c->q.early = NOT_EARLY;
    else if (!attention_hopper_plan(c, &v, h))
        return true;
    BY_TYPE(q->dtype, run_sums, c, work, dout->data, out->data, &v);
    struct query_sums sums;
    if (one_pass) {
        attention_hopper_bwd(c, &d, dout->data, lse, q->data, key->data, value->data,
                             work, &v, h, n ? &sums : NULL);
        if (n)
            cuda_rope_bwd_sums(c, dq, &sums, n);
    } else if (has_tensor_cores(c, &v) && vectors)
        attention_bwd(c, &d, dout->data, lse, q->data, key->data, value->data, work,
                      &v);
    else
        attention_plain_bwd(c, &d, dout->data, lse, q, key->data, value->data, work,
                            &v);
    return true;
}

void
cuda_attention_bwd(struct kernels *k, const struct matrix *dq,
                   const struct matrix *dkey, const struct matrix *dvalue,
                   const struct matrix *dout, const struct matrix *out,
                   const float *lse, const struct matrix *q, const struct matrix *key,
                   const struct matrix *value, float *work, const struct heads *h)
{
    gradients(cuda_of(k), dq, dkey, dvalue, dout, out, lse, q, key, value, work, h,
              NULL);
}

bool
cuda_attention_rope_bwd(struct kernels *k, const struct matrix *dq,
                        const struct matrix *dkey, const struct matrix *dvalue,
                        const struct matrix *dout, const struct matrix *out,
                        const float *lse, const struct matrix *q,
                        const struct matrix *key, const struct matrix *value,
                        float *work, const struct heads *h, const struct head_norm *n)
{
    return gradients(cuda_of(k), dq, dkey, dvalue, dout, out, lse, q, key, value, work,
                     h, n);
}
