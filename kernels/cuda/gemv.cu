/* SPDX-License-Identifier: MIT */
/* gemv: y = x W' + c for at most GEMV_MAX tokens, for decoding.  It is bound by reading
 * the weight, so the weight is read once, as it is stored, and as many loads as
 * possible are in flight before the kernel waits for x (see cuda_wait).
 *
 * NVFP4 and bf16 weights with bf16 activations use the tensor cores, 16 rows of the
 * weight at a time, which leaves the other units free to unpack codes.  Both operands
 * of an mma may have their columns in any common order; ours is the one in which codes
 * unpack with the fewest operations, and for bf16 that in memory.  Everything else is a
 * dot product in f32, with a row per warp. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.h"

/* One of several products with the same x. */
struct product {
    void *y;
    const void *add, *values;
    const uint8_t *scales;
    const float *scale2;
    size_t out;
    unsigned tiles; // number of tiles of ROWS rows
};

struct job {
    struct product part[LINEAR_MAX];
    const void *x;
    size_t in;
    int tokens, parts;
    unsigned tiles; // of all parts
    bool wide;      // y is f32
};

/* The addend of one row and token. */
template <typename A>
static __device__ __forceinline__ float
added(const struct job &j, const struct product &w, int token, size_t row)
{
    size_t at = (size_t)token * w.out + row;
    if (!w.add)
        return 0;
    return j.wide ? ((const float *)w.add)[at] : to_f32(((const A *)w.add)[at]);
}

template <typename A>
static __device__ __forceinline__ void
put(const struct job &j, const struct product &w, int token, size_t row, float sum)
{
    size_t at = (size_t)token * w.out + row;
    if (j.wide)
        ((float *)w.y)[at] = sum;
    else
        ((A *)w.y)[at] = from_f32<A>(sum);
}

/* ---- tensor cores ---------------------------------------------------------------- */

enum { ROWS = 16 };

/* Two codes of a word, at mask 0x000f000f << 4 I, as bf16x2 of 2^-126 times their
 * values: sign and magnitude move to the bits of sign, exponent and fraction; 0.5
 * becomes a subnormal.  One multiplication moves both, since the two copies of a code
 * do not overlap: that saves shifts and masks, whose units have half the throughput of
 * others. */
template <int I>
static __device__ __forceinline__ uint32_t
two_codes(uint32_t word)
{
    uint32_t codes = word & 0x000f000fU << (4 * I);
    return codes * (0x1040U >> (4 * I)) & 0x81c081c0U;
}

/* 2^118 times an E4M3 value, in both halves: the largest power that keeps 448
 * finite. */
static __device__ __forceinline__ __nv_bfloat162
scale_factor(uint32_t byte)
{
    uint32_t pair = (byte & 0x7f) * 0x00100010U; // 2^-120 times
    __nv_bfloat162 up = __float2bfloat162_rn(0x1p119F);
    return __hmul2(__hmul2(*(__nv_bfloat162 *)&pair, up), up);
}

constexpr float unscale = 0x1p8F; // 126 - 118

static __device__ __forceinline__ uint32_t
times(uint32_t pair, __nv_bfloat162 s)
{
    __nv_bfloat162 v = __hmul2(*(__nv_bfloat162 *)&pair, s);
    return *(uint32_t *)&v;
}

/* Unpack 16 codes as pairs (0,4) (1,5) (2,6) (3,7) (8,12) ... */
static __device__ __forceinline__ void
unpack(uint32_t pair[8], uint32_t low, uint32_t high, __nv_bfloat162 s)
{
    pair[0] = times(two_codes<0>(low), s);
    pair[1] = times(two_codes<1>(low), s);
    pair[2] = times(two_codes<0>(low >> 8), s);
    pair[3] = times(two_codes<1>(low >> 8), s);
    pair[4] = times(two_codes<0>(high), s);
    pair[5] = times(two_codes<1>(high), s);
    pair[6] = times(two_codes<0>(high >> 8), s);
    pair[7] = times(two_codes<1>(high >> 8), s);
}

/* Eight activations in the same order. */
static __device__ __forceinline__ uint4
arrange(uint4 a)
{
    return make_uint4(__byte_perm(a.x, a.z, 0x5410), __byte_perm(a.x, a.z, 0x7632),
                      __byte_perm(a.y, a.w, 0x5410), __byte_perm(a.y, a.w, 0x7632));
}

/* A weight format.  A warp takes COLUMNS columns at a time, a unit; `unit` is a
 * thread's part of it.  A thread has a quarter of the columns, in pieces of eight, of
 * two rows that are 8 apart. */
struct fp4_form {
    enum { COLUMNS = 128, PIECES = COLUMNS / 4 / 8 };
    const char *codes[2];
    const uint8_t *scales[2];
    struct unit {
        uint4 codes[2];
        uint32_t scales[2];
    };

    __device__ __forceinline__ void
    begin(const struct product &w, size_t in, int i, size_t row, int quarter)
    {
        size_t block = row * (in / NVFP4_BLOCK) + 2 * (unsigned)quarter;
        codes[i] = (const char *)w.values + block * 8;
        scales[i] = w.scales + block;
    }
    // May run before cuda_wait: weights are not written. Scales are cached, since those
    // of the next unit are adjacent.
    __device__ __forceinline__ void
    fetch(struct unit *u, unsigned unit, bool there) const
    {
        // If !there, the codes do not matter: their scales are 0.
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load16_once(u->codes[i], codes[i] + (size_t)unit * (COLUMNS / 2), there);
            u->scales[i] =
                load2(scales[i] + (size_t)unit * (COLUMNS / NVFP4_BLOCK), there);
        }
    }
    static __device__ __forceinline__ uint4
    order(uint4 x)
    {
        return arrange(x);
    }
    static __device__ __forceinline__ void
    use(float sum[4], const struct unit &u, const uint4 x[PIECES])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t a[8], b[8];
            uint4 c0 = u.codes[0], c1 = u.codes[1], lo = x[2 * i], hi = x[2 * i + 1];
            unpack(a, i ? c0.z : c0.x, i ? c0.w : c0.y,
                   scale_factor(u.scales[0] >> (8 * i)));
            unpack(b, i ? c1.z : c1.x, i ? c1.w : c1.y,
                   scale_factor(u.scales[1] >> (8 * i)));
            mma(sum, a[0], b[0], a[1], b[1], lo.x, lo.y);
            mma(sum, a[2], b[2], a[3], b[3], lo.z, lo.w);
            mma(sum, a[4], b[4], a[5], b[5], hi.x, hi.y);
            mma(sum, a[6], b[6], a[7], b[7], hi.z, hi.w);
        }
    }
    static __device__ __forceinline__ float
    multiplier(const struct product &w)
    {
        return w.scale2 ? unscale * *w.scale2 : unscale;
    }
};

struct bf16_form {
    enum { COLUMNS = 32, PIECES = COLUMNS / 4 / 8 };
    const char *values[2];
    struct unit {
        uint4 values[2];
    };

    __device__ __forceinline__ void
    begin(const struct product &w, size_t in, int i, size_t row, int quarter)
    {
        values[i] = (const char *)w.values + (row * in + 8 * (unsigned)quarter) * 2;
    }
    __device__ __forceinline__ void
    fetch(struct unit *u, unsigned unit, bool there) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u->values[i] = make_uint4(0, 0, 0, 0);
            load16_once(u->values[i], values[i] + (size_t)unit * (COLUMNS * 2), there);
        }
    }
    static __device__ __forceinline__ uint4
    order(uint4 x)
    {
        return x;
    }
    static __device__ __forceinline__ void
    use(float sum[4], const struct unit &u, const uint4 x[PIECES])
    {
        uint4 a = u.values[0], b = u.values[1];
        mma(sum, a.x, b.x, a.y, b.y, x[0].x, x[0].y);
        mma(sum, a.z, b.z, a.w, b.w, x[0].z, x[0].w);
    }
    static __device__ __forceinline__ float
    multiplier(const struct product &w)
    {
        return w.scale2 ? *w.scale2 : 1; // expanded NVFP4
    }
};

/* Copy units from .. to - 1 of one token's x to shared memory, in the order in which
 * threads read it: of each unit the first pieces of its quarters, then the second
 * ones.  Zeros past the last column. */
template <typename F>
static __device__ __forceinline__ void
stage(uint4 *shared, const struct job &j, unsigned from, unsigned to)
{
    constexpr unsigned EACH = F::COLUMNS / 8;
    const uint4 *x = (const uint4 *)j.x + from * EACH;
    unsigned all = (to - from) * EACH, there = (unsigned)(j.in / 8) - from * EACH;
    for (unsigned i = threadIdx.x; i < all; i += blockDim.x) {
        unsigned unit = i / EACH, quarter = i / F::PIECES % 4;
        uint4 v = i < there ? x[i] : make_uint4(0, 0, 0, 0);
        shared[(unit * F::PIECES + i % F::PIECES) * 4 + quarter] = F::order(v);
    }
}

/* Load a thread's part of one token's x in a unit. */
template <typename F, bool ONE>
static __device__ __forceinline__ void
load_x(uint4 x[F::PIECES], const uint4 *shared, const struct job &j, unsigned unit,
       int token, int quarter)
{
    if (ONE) {
#pragma unroll
        for (int i = 0; i < F::PIECES; i++)
            x[i] = shared[(unit * F::PIECES + i) * 4 + quarter];
        return;
    }
    size_t at = (size_t)unit * F::COLUMNS + (unsigned)quarter * (F::PIECES * 8);
    const uint4 *from =
        (const uint4 *)((const __nv_bfloat16 *)j.x + (size_t)token * j.in + at);
#pragma unroll
    for (int i = 0; i < F::PIECES; i++)
        x[i] = at < j.in ? F::order(from[i]) : make_uint4(0, 0, 0, 0);
}

/* 16 rows of a part, from `first` on: a block's unit of work. */
struct tile {
    int part;
    size_t first;
};

static __device__ __forceinline__ struct tile
tile_of(const struct job &j, unsigned i)
{
    struct tile t = { 0, 0 };
    for (; t.part + 1 < j.parts && i >= j.part[t.part].tiles; t.part++)
        i -= j.part[t.part].tiles;
    t.first = (size_t)i * ROWS;
    return t;
}

/* Set a thread's two rows of a tile; past the last row, use the last. */
template <typename F>
static __device__ __forceinline__ void
begin_tile(F &form, const struct job &j, const struct tile &t, int group, int quarter)
{
    const struct product &w = j.part[t.part];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        size_t row = t.first + (unsigned)group + 8 * i;
        form.begin(w, j.in, i, row < w.out ? row : w.out - 1, quarter);
    }
}

/* Blocks per SM: threads may have 102 registers, 128 if rows are split, 85 with several
 * tokens. */
constexpr int
blocks_at_once(int warps, bool one, int split)
{
    return (split > 1 ? 16 : one ? 20 : 24) / warps;
}

/* The warps of a block take the units of 16 rows in turn, with LOADS units in flight.
 * ONE: one token, else up to eight.  WHOLE: LOADS units are all that a warp has of a
 * row; then the block's next tile is loaded while this one is reduced.  SPLIT: a
 * cluster of so many blocks shares the units of each tile, and its first block finishes
 * it. */
template <typename F, int WARPS, int LOADS, bool ONE, bool WHOLE, int SPLIT>
static __global__ void __launch_bounds__(WARPS * 32, blocks_at_once(WARPS, ONE, SPLIT))
    tensor_kernel(const __grid_constant__ struct job j)
{
    constexpr int COLUMNS = ONE ? 1 : GEMV_MAX;
    constexpr bool MORE = WHOLE && SPLIT == 1; // more than one tile per block
    extern __shared__ uint4 shared[];
    __shared__ float sums[1 + MORE][SPLIT][WARPS][ROWS][COLUMNS + !ONE];
    unsigned warp = threadIdx.x / 32, rank = blockIdx.x % SPLIT;
    int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    unsigned units = (unsigned)((j.in + F::COLUMNS - 1) / F::COLUMNS);
    unsigned from = units * rank / SPLIT, to = units * (rank + 1) / SPLIT;
    // The last unit may extend past the row: then whole quarters of it are missing.
    unsigned mine =
        (unsigned)((j.in + F::COLUMNS - 1 - (unsigned)quarter * (F::PIECES * 8)) /
                   F::COLUMNS);
    mine = mine < to ? mine : to;
    // The row and token that this thread finishes.
    int r = (int)threadIdx.x / COLUMNS, token = (int)threadIdx.x % COLUMNS;
    int column = group < j.tokens ? group : 0; // results past the last token are unused
    F form;
    typename F::unit u[LOADS] = {};
    struct tile t = tile_of(j, blockIdx.x / SPLIT);
    cuda_next();
    begin_tile(form, j, t, group, quarter);
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        form.fetch(&u[i], from + warp + i * WARPS, from + warp + i * WARPS < mine);
    if (SPLIT > 1)
        __cluster_barrier_arrive_relaxed(); // does not wait for the loads in flight
    cuda_wait();
    if (ONE) {
        stage<F>(shared, j, from, to);
        __syncthreads();
    }

    for (unsigned now = blockIdx.x, which = 0;; now += gridDim.x) {
        const struct product &w = j.part[t.part];
        size_t row = t.first + (unsigned)r;
        bool ends = r < ROWS && token < j.tokens && row < w.out && rank == 0;
        float multiplier = ends ? F::multiplier(w) : 0;
        float more = ends ? added<__nv_bfloat16>(j, w, token, row) : 0;
        float sum[4] = { 0, 0, 0, 0 };
        bool last = !MORE || now + gridDim.x >= j.tiles;
        if (!last) {
            t = tile_of(j, now + gridDim.x);
            begin_tile(form, j, t, group, quarter);
        }
        for (unsigned at = from + warp; at < to; at = WHOLE ? to : at + LOADS * WARPS)
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                unsigned unit = at + i * WARPS, then = unit + LOADS * WARPS;
                uint4 x[F::PIECES];
                if (unit >= to)
                    break;
                load_x<F, ONE>(x, shared, j, ONE ? unit - from : unit, column, quarter);
                F::use(sum, u[i], x);
                if (MORE)
                    form.fetch(&u[i], unit, !last && unit < mine);
                else if (!WHOLE)
                    form.fetch(&u[i], then, then < mine);
            }
        auto out = sums[which][rank][warp];
        if (SPLIT > 1) { // to the first block of the cluster, which has started
            __cluster_barrier_wait();
            out = (decltype(out))__cluster_map_shared_rank(out, 0);
        }
        if (ONE && quarter == 0) {
            out[group][0] = sum[0];
            out[group + 8][0] = sum[2];
        } else if (!ONE) {
            out[group][2 * quarter] = sum[0];
            out[group][2 * quarter + !ONE] = sum[1];
            out[group + 8][2 * quarter] = sum[2];
            out[group + 8][2 * quarter + !ONE] = sum[3];
        }
        if (SPLIT > 1) {
            __cluster_barrier_arrive();
            __cluster_barrier_wait();
        } else {
            __syncthreads();
        }
        if (ends) {
            float all = 0;
#pragma unroll
            for (int i = 0; i < SPLIT * WARPS; i++)
                all += sums[which][i / WARPS][i % WARPS][r][token];
            put<__nv_bfloat16>(j, w, token, row, all * multiplier + more);
        }
        if (last)
            break;
        which ^= MORE; // double buffer: some threads still read the sums
    }
}

/* ---- f32 dot products ------------------------------------------------------------ */

static __device__ __forceinline__ float
code_value(uint32_t code)
{
    uint32_t bits = (code & 7) << 22 | (code & 8) << 28;
    return __uint_as_float(bits) * 0x1p126F;
}

static __device__ __forceinline__ float
scale_value(uint32_t byte)
{
    return __uint_as_float((byte & 0x7f) << 20) * 0x1p120F;
}

/* Load N elements of a row as f32. */
template <typename W, int N>
struct reader {
    static __device__ __forceinline__ void
    read(float w[N], const struct job &j, size_t row, size_t at)
    {
        const W *values = (const W *)j.part[0].values;
        pack<W, N> p = *(const pack<W, N> *)(values + row * j.in + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = to_f32(p.v[i]);
    }
};

struct fp4;
template <>
struct reader<fp4, NVFP4_BLOCK> {
    static __device__ __forceinline__ void
    read(float w[NVFP4_BLOCK], const struct job &j, size_t row, size_t at)
    {
        size_t block = (row * j.in + at) / NVFP4_BLOCK;
        uint2 codes = *(const uint2 *)((const char *)j.part[0].values + block * 8);
        float s = scale_value(j.part[0].scales[block]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            w[i] = code_value(codes.x >> (4 * i)) * s;
            w[i + 8] = code_value(codes.y >> (4 * i)) * s;
        }
    }
};

/* A row per warp, N columns per lane at a time; A: type of activations. */
template <typename A, typename W, int N>
static __global__ void __launch_bounds__(256)
    row_kernel(const __grid_constant__ struct job j)
{
    const struct product &w = j.part[0];
    size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    float sum[GEMV_MAX] = { 0 };
    cuda_take_over();
    if (row >= w.out)
        return;
    for (size_t at = threadIdx.x % 32 * N; at < j.in; at += 32 * N) {
        float v[N];
        reader<W, N>::read(v, j, row, at);
#pragma unroll
        for (int t = 0; t < GEMV_MAX; t++)
            if (t < j.tokens) {
                const A *x = (const A *)j.x + (size_t)t * j.in + at;
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum[t] = fmaf(v[i], to_f32(x[i]), sum[t]);
            }
    }
    float scale = w.scale2 ? *w.scale2 : 1;
#pragma unroll
    for (int t = 0; t < GEMV_MAX; t++)
        if (t < j.tokens) {
            float all = warp_sum(sum[t]) * scale;
            if (threadIdx.x % 32 == 0)
                put<A>(j, w, t, row, all + added<A>(j, w, t, row));
        }
}

template <typename A, typename W, int N>
static void
start_rows(struct cuda *c, const struct job &j)
{
    cuda_start(c, "a product of few tokens", row_kernel<A, W, N>,
               blocks_of(j.part[0].out, 8), 256, 0, j);
}

template <typename A>
static void
by_rows(struct cuda *c, const struct job &j, enum dtype dtype)
{
    size_t each = dtype == DT_F32 ? 4 : 8;
    bool whole = j.in % each == 0 && (uintptr_t)j.part[0].values % 16 == 0;
    if (dtype == DT_NVFP4)
        start_rows<A, fp4, NVFP4_BLOCK>(c, j);
    else if (dtype == DT_F32)
        whole ? start_rows<A, float, 4>(c, j) : start_rows<A, float, 1>(c, j);
    else if (dtype == DT_BF16)
        whole ? start_rows<A, __nv_bfloat16, 8>(c, j)
              : start_rows<A, __nv_bfloat16, 1>(c, j);
    else
        whole ? start_rows<A, __half, 8>(c, j) : start_rows<A, __half, 1>(c, j);
}

/* ---- dispatch -------------------------------------------------------------------- */

enum {
    STAGED = 40 << 10, // max. bytes of x in shared memory
    DEPTH = 4,         // units in flight per warp
};

/* Number of blocks: about as many tiles each, all resident at once. */
static unsigned
even_blocks(const struct cuda *c, unsigned tiles, int warps)
{
    unsigned limit = (unsigned)(c->sms * blocks_at_once(warps, true, 1));
    unsigned rounds = (tiles + limit - 1) / limit;
    return (tiles + rounds - 1) / rounds;
}

/* As many warps as have a whole row in flight. */
template <int WARPS>
static void
start_whole(struct cuda *c, const struct job &j, size_t bytes)
{
    cuda_start(c, "a product of few tokens",
               tensor_kernel<fp4_form, WARPS, DEPTH, true, true, 1>,
               even_blocks(c, j.tiles, WARPS), WARPS * 32, bytes, j);
}

/* Rows split in two.  WHOLE: as many warps as have half a row in flight; else they take
 * units in turn. */
template <int WARPS, bool WHOLE>
static void
start_halves(struct cuda *c, const struct job &j, size_t bytes)
{
    cuda_start_clusters(c, "a product of few tokens", 2,
                        tensor_kernel<fp4_form, WARPS, DEPTH, true, WHOLE, 2>,
                        2 * j.tiles, WARPS * 32, bytes, j);
}

template <typename F, int LOADS, bool ONE>
static void
start_long(struct cuda *c, const struct job &j, size_t bytes)
{
    cuda_start(c, "a product of few tokens", tensor_kernel<F, 8, LOADS, ONE, false, 1>,
               j.tiles, 8 * 32, bytes, j);
}

static void
start_one(struct cuda *c, const struct job &j, unsigned units, size_t bytes)
{
    // So few tiles would leave SMs idle, or some with twice as many as others.
    bool few = j.tiles <= 200 && units >= 12;
    if (few && units <= 2 * 4 * DEPTH)
        start_halves<4, true>(c, j, bytes);
    else if (few)
        start_halves<5, false>(c, j, bytes);
    else if (units <= 4 * DEPTH)
        start_whole<4>(c, j, bytes);
    else if (units <= 5 * DEPTH)
        start_whole<5>(c, j, bytes);
    else if (units <= 6 * DEPTH)
        start_whole<6>(c, j, bytes);
    else if (units <= 8 * DEPTH)
        start_whole<8>(c, j, bytes);
    else if (units <= 10 * DEPTH)
        start_whole<10>(c, j, bytes);
    else
        start_long<fp4_form, DEPTH, true>(c, j, bytes);
}

static void
by_tensor_cores(struct cuda *c, struct job &j, enum dtype dtype)
{
    unsigned units = blocks_of(j.in, fp4_form::COLUMNS);
    size_t bytes = (size_t)units * fp4_form::COLUMNS * 2; // of x; enough for bf16_form
    bool one = j.tokens == 1 && bytes <= STAGED;
    for (int i = 0; i < j.parts; i++)
        j.tiles += j.part[i].tiles = blocks_of(j.part[i].out, ROWS);
    if (dtype == DT_BF16)
        one ? start_long<bf16_form, DEPTH, true>(c, j, bytes)
            : start_long<bf16_form, 3, false>(c, j, 0);
    else if (one)
        start_one(c, j, units, bytes);
    else
        start_long<fp4_form, 2, false>(c, j, 0);
}

static const void *
values_of(const struct matrix *w)
{
    return w->data ? w->data : w->expanded;
}

static struct product
part_of(const struct matrix *y, const struct matrix *w, const struct matrix *add)
{
    return {
        y->data, add ? add->data : NULL, values_of(w), w->scales, w->scale2, w->rows, 0
    };
}

/* The format that is read: bf16 (expanded) if there are no codes. */
static enum dtype
form_of(const struct matrix *w)
{
    return w->dtype == DT_NVFP4 && !w->data ? DT_BF16 : w->dtype;
}

static bool
for_tensor_cores(const struct matrix *w, const struct matrix *x)
{
    enum dtype form = form_of(w);
    bool even = (uintptr_t)values_of(w) % 16 == 0 && (uintptr_t)x->data % 16 == 0;
    if (form == DT_NVFP4)
        even = even && w->cols % 32 == 0 && (uintptr_t)w->scales % 2 == 0;
    return even && w->cols % 8 == 0 && x->dtype == DT_BF16 &&
           (form == DT_NVFP4 || form == DT_BF16);
}

static struct job
job_of(const struct matrix *y, const struct matrix *x, size_t parts)
{
    struct job j = {};
    j.x = x->data;
    j.in = x->cols;
    j.tokens = (int)x->rows;
    j.parts = (int)parts;
    j.wide = y->dtype == DT_F32;
    return j;
}

void
cuda_gemv(struct cuda *c, const struct matrix *y, const struct matrix *x,
          const struct matrix *w, const struct matrix *add)
{
    struct job j = job_of(y, x, 1);
    j.part[0] = part_of(y, w, add);
    if (for_tensor_cores(w, x))
        by_tensor_cores(c, j, form_of(w));
    else
        BY_TYPE(x->dtype, by_rows, c, j, form_of(w));
}

bool
cuda_gemv_many(struct cuda *c, size_t n, const struct matrix *y, const struct matrix *x,
               const struct matrix *w)
{
    struct job j = job_of(y, x, n);
    for (size_t i = 0; i < n; i++) {
        if (form_of(&w[i]) != form_of(w) || y[i].dtype != y->dtype ||
            !for_tensor_cores(&w[i], x))
            return false;
        j.part[i] = part_of(&y[i], &w[i], NULL);
    }
    by_tensor_cores(c, j, form_of(w));
    return true;
}
