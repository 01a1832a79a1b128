/* SPDX-License-Identifier: MIT */
/* gemv: y = x W' + c for at most GEMV_MAX tokens, for decoding.  It is bound by reading
 * the weight, so the weight is read once, as it is stored, and as many loads as
 * possible are in flight before the kernel waits for x (see cuda_wait).
 *
 * A row of y has the same bits whatever other rows are computed with it: which columns
 * a warp sums, and in which order, depends on the weight alone (see division_of), and
 * so does the order in which the warps' sums are added.
 *
 * NVFP4 and bf16 weights with bf16 activations use the tensor cores, 16 rows of the
 * weight at a time, which leaves the other units free to unpack codes.  Both operands
 * of an mma may have their columns in any common order; ours is the one in which codes
 * unpack with the fewest operations, and for bf16 that in memory.  Everything else is a
 * dot product in f32, with a row per warp. */
#include "kernels/cuda/norm.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/swiglu.h"

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
    // of one token
    const float *gain; // x is normed first; NULL: it is not
    float eps;
    bool gated; // two parts, gate and up: y of the first is silu(gate) * up
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

enum {
    ROWS = 16,
    MANY_WARPS = 8,     // max. of a group
    MANY_THREADS = 320, // max. of a block with several groups
    MANY_STAGES = 3,    // of x in shared memory
};

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
    enum { COLUMNS = 128, PIECES = COLUMNS / 4 / 8, STEPS = 4 };
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
    // A of the next STEPS products: columns of two pieces.
    static __device__ __forceinline__ void
    operand(uint32_t (&to)[STEPS][4], const struct unit &u, int half)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t pair[8];
            uint4 c = u.codes[r];
            unpack(pair, half ? c.z : c.x, half ? c.w : c.y,
                   scale_factor(u.scales[r] >> (8 * half)));
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                to[k][r] = pair[2 * k];
                to[k][2 + r] = pair[2 * k + 1];
            }
        }
    }
    static __device__ __forceinline__ float
    multiplier(const struct product &w)
    {
        return w.scale2 ? unscale * *w.scale2 : unscale;
    }
};

struct bf16_form {
    enum { COLUMNS = 32, PIECES = COLUMNS / 4 / 8, STEPS = 2 };
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
    operand(uint32_t (&to)[STEPS][4], const struct unit &u, int)
    {
        uint4 a = u.values[0], b = u.values[1];
        const uint32_t all[STEPS][4] = { { a.x, b.x, a.y, b.y },
                                         { a.z, b.z, a.w, b.w } };
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[k][i] = all[k][i];
    }
    static __device__ __forceinline__ float
    multiplier(const struct product &w)
    {
        return w.scale2 ? *w.scale2 : 1; // expanded NVFP4
    }
};

/* sum += A x of STEPS products; x: as many columns of a token in the form's order. */
template <int STEPS>
static __device__ __forceinline__ void
add_products(float (&sum)[4], const uint32_t (&a)[STEPS][4], const uint4 *x)
{
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint4 v = x[k / 2];
        mma(sum, a[k], k % 2 ? v.z : v.x, k % 2 ? v.w : v.y);
    }
}

/* Where piece i of x belongs in shared memory, in the order in which threads read it:
 * of each unit the first pieces of its quarters, then the second ones. */
template <typename F>
static __device__ __forceinline__ unsigned
place_of(unsigned i)
{
    constexpr unsigned EACH = F::COLUMNS / 8;
    return (i / EACH * F::PIECES + i % F::PIECES) * 4 + i / F::PIECES % 4;
}

/* Copy units from .. to - 1 of one token's x to shared memory; zeros past the last
 * column. */
template <typename F>
static __device__ __forceinline__ void
stage(uint4 *shared, const struct job &j, unsigned from, unsigned to)
{
    constexpr unsigned EACH = F::COLUMNS / 8;
    const uint4 *x = (const uint4 *)j.x + from * EACH;
    unsigned all = (to - from) * EACH, there = (unsigned)(j.in / 8) - from * EACH;
    for (unsigned i = threadIdx.x; i < all; i += blockDim.x)
        shared[place_of<F>(i)] = F::order(i < there ? x[i] : make_uint4(0, 0, 0, 0));
}

/* The same of what norm_rows makes of x, bit by bit: its threads' sums are added as it
 * adds them. */
template <typename F>
static __device__ __forceinline__ void
stage_normed(uint4 *shared, const struct job &j, unsigned from, unsigned to)
{
    typedef pack<__nv_bfloat16, 8> P;
    constexpr unsigned EACH = F::COLUMNS / 8;
    __shared__ float part[NORM_THREADS / 32];
    unsigned packs = (unsigned)(j.in / 8), lane = threadIdx.x % 32;
    unsigned first = from * EACH, end = to * EACH;
    struct norm_shape n = norm_shape_of(packs);
    for (unsigned warp = threadIdx.x / 32; warp < n.threads / 32;
         warp += blockDim.x / 32) {
        float sum = 0;
        for (unsigned i = warp * 32 + lane; i < packs; i += n.threads) {
            P v = ((const P *)j.x)[i];
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum = fmaf(to_f32(v.v[e]), to_f32(v.v[e]), sum);
            if (i >= first && i < end)
                shared[place_of<F>(i - first)] = *(uint4 *)&v;
        }
        sum = warp_sum(sum);
        if (lane == 0)
            part[warp] = sum;
    }
    for (unsigned i = (packs > first ? packs : first) + threadIdx.x; i < end;
         i += blockDim.x)
        shared[place_of<F>(i - first)] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    float scale = norm_scale(warp_sum(lane < n.threads / 32 ? part[lane] : 0),
                             (unsigned)j.in, j.eps);
    for (unsigned i = first + threadIdx.x; i < end && i < packs; i += blockDim.x) {
        uint4 &at = shared[place_of<F>(i - first)];
        P v = *(P *)&at;
        float g[8];
        load(g, j.gain + i * 8);
#pragma unroll
        for (int e = 0; e < 8; e++)
            g[e] = to_f32(v.v[e]) * scale * g[e];
        store((__nv_bfloat16 *)&v, g);
        at = F::order(*(uint4 *)&v);
    }
}

/* 16 rows of a part, from `first` on: a block's unit of work.  Gated: 8 of gate and the
 * same of up. */
struct tile {
    int part;
    size_t first;
};

static __device__ __forceinline__ struct tile
tile_of(const struct job &j, unsigned i)
{
    struct tile t = { 0, 0 };
    if (j.gated) {
        t.first = (size_t)i * (ROWS / 2);
        return t;
    }
    for (; t.part + 1 < j.parts && i >= j.part[t.part].tiles; t.part++)
        i -= j.part[t.part].tiles;
    t.first = (size_t)i * ROWS;
    return t;
}

/* The part and the row of it that row r of a tile is. */
static __device__ __forceinline__ struct tile
row_of(const struct job &j, const struct tile &t, int r)
{
    struct tile of = { t.part, t.first + (unsigned)r };
    if (j.gated) {
        of.part = r / (ROWS / 2);
        of.first = t.first + (unsigned)(r % (ROWS / 2));
    }
    return of;
}

/* Set a thread's two rows of a tile; past the last row, use the last. */
template <typename F>
static __device__ __forceinline__ void
begin_tile(F &form, const struct job &j, const struct tile &t, int group, int quarter)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        struct tile of = row_of(j, t, group + 8 * i);
        const struct product &w = j.part[of.part];
        form.begin(w, j.in, i, of.first < w.out ? of.first : w.out - 1, quarter);
    }
}

/* Units from .. to - 1 of a row are a block's.  The last unit may extend past the row:
 * then whole quarters of it are missing, and this thread's are there up to mine. */
struct span {
    unsigned from, to, mine;
};

template <typename F, int SPLIT>
static __device__ __forceinline__ struct span
span_of(const struct job &j, unsigned rank, int quarter)
{
    unsigned units = (unsigned)((j.in + F::COLUMNS - 1) / F::COLUMNS);
    struct span s = { units * rank / SPLIT, units * (rank + 1) / SPLIT, 0 };
    s.mine = (unsigned)((j.in + F::COLUMNS - 1 - (unsigned)quarter * (F::PIECES * 8)) /
                        F::COLUMNS);
    s.mine = s.mine < s.to ? s.mine : s.to;
    return s;
}

/* Blocks per SM: threads may have 102 registers, 128 if rows are split. */
constexpr int
blocks_at_once(int warps, int split)
{
    return (split > 1 ? 16 : 20) / warps;
}

/* One token.  The warps of a block take the units of 16 rows in turn, with LOADS units
 * in flight.  WHOLE: LOADS units are all that a warp has of a row; then the block's next
 * tile is loaded while this one is reduced.  SPLIT: the number of blocks of a
 * cluster; they share the units of each tile, and the first one finishes it. */
template <typename F, int WARPS, int LOADS, bool WHOLE, int SPLIT>
static __global__ void __launch_bounds__(WARPS * 32, blocks_at_once(WARPS, SPLIT))
    one_kernel(const __grid_constant__ struct job j)
{
    constexpr bool MORE = WHOLE && SPLIT == 1; // more than one tile per block
    extern __shared__ uint4 shared[];
    __shared__ float sums[1 + MORE][SPLIT][WARPS][ROWS];
    unsigned warp = threadIdx.x / 32, rank = blockIdx.x % SPLIT;
    int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    struct span s = span_of<F, SPLIT>(j, rank, quarter);
    int r = (int)threadIdx.x % ROWS; // the row that this thread may finish
    F form;
    typename F::unit u[LOADS] = {};
    struct tile t = tile_of(j, blockIdx.x / SPLIT);
    cuda_next();
    begin_tile(form, j, t, group, quarter);
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        form.fetch(&u[i], s.from + warp + i * WARPS,
                   s.from + warp + i * WARPS < s.mine);
    if (j.gain)
        for (unsigned i = threadIdx.x * 32; i < j.in; i += WARPS * 32 * 32)
            prefetch(j.gain + i); // a line of 128 bytes
    if (SPLIT > 1)
        __cluster_barrier_arrive_relaxed(); // does not wait for the loads in flight
    cuda_wait();
    if (j.gain)
        stage_normed<F>(shared, j, s.from, s.to);
    else
        stage<F>(shared, j, s.from, s.to);
    __syncthreads();

    for (unsigned now = blockIdx.x, which = 0;; now += gridDim.x) {
        struct tile of = row_of(j, t, r);
        const struct product &w = j.part[of.part];
        bool ends = threadIdx.x < ROWS && of.first < w.out && rank == 0;
        float multiplier = ends ? F::multiplier(w) : 0;
        float more = ends ? added<__nv_bfloat16>(j, w, 0, of.first) : 0;
        float sum[4] = { 0, 0, 0, 0 };
        bool last = !MORE || now + gridDim.x >= j.tiles;
        if (!last) {
            t = tile_of(j, now + gridDim.x);
            begin_tile(form, j, t, group, quarter);
        }
        for (unsigned at = s.from + warp; at < s.to;
             at = WHOLE ? s.to : at + LOADS * WARPS)
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                unsigned unit = at + i * WARPS, then = unit + LOADS * WARPS;
                uint4 x[F::PIECES];
                if (unit >= s.to)
                    break;
#pragma unroll
                for (int p = 0; p < F::PIECES; p++)
                    x[p] = shared[((unit - s.from) * F::PIECES + p) * 4 + quarter];
#pragma unroll
                for (int half = 0; half < F::PIECES * 2 / F::STEPS; half++) {
                    uint32_t a[F::STEPS][4];
                    F::operand(a, u[i], half);
                    add_products(sum, a, x + half * F::STEPS / 2);
                }
                if (MORE)
                    form.fetch(&u[i], unit, !last && unit < s.mine);
                else if (!WHOLE)
                    form.fetch(&u[i], then, then < s.mine);
            }
        auto out = sums[which][rank][warp];
        if (SPLIT > 1) { // to the first block of the cluster, which has started
            __cluster_barrier_wait();
            out = (decltype(out))__cluster_map_shared_rank(out, 0);
        }
        if (quarter == 0) {
            out[group] = sum[0];
            out[group + 8] = sum[2];
        }
        if (SPLIT > 1) {
            __cluster_barrier_arrive();
            __cluster_barrier_wait();
        } else {
            __syncthreads();
        }
        if (threadIdx.x < 32) {
            float all = 0;
#pragma unroll
            for (int i = 0; i < SPLIT * WARPS; i++)
                all += sums[which][i / WARPS][i % WARPS][r];
            all = all * multiplier + more;
            if (j.gated) {
                float up = __shfl_xor_sync(0xffffffffU, all, ROWS / 2);
                all = swiglu_of_rounded(all, up);
                ends = ends && of.part == 0;
            }
            if (ends)
                put<__nv_bfloat16>(j, w, 0, of.first, all);
        }
        if (last)
            break;
        which ^= MORE; // double buffer: some threads still read the sums
    }
}

/* How the warps of a block of many tokens divide rows and columns.  A slice has the units
 * that a warp of one_kernel has, a group 16 MT rows; a warp is one slice of one group. */
struct share {
    unsigned slices, groups, slice, group, rank;
    unsigned first; // the block's first tile
};

template <int MT, int SPLIT>
static __device__ __forceinline__ struct share
share_of(unsigned groups)
{
    unsigned slices = blockDim.x / 32 / groups, warp = threadIdx.x / 32;
    return { slices,
             groups,
             warp % slices,
             warp / slices,
             blockIdx.x % SPLIT,
             blockIdx.x / SPLIT * groups * MT };
}

/* A warp's rows of the weight, a unit at a time, LOADS units ahead. */
template <typename F, int MT>
struct rows_of {
    enum { LOADS = 2 };
    F form[MT];
    typename F::unit u[LOADS][MT];

    __device__ __forceinline__
    rows_of(const struct job &j, const struct share &b, const struct span &s)
        : u{}
    {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            unsigned i = b.first + b.group * MT + m;
            begin_tile(form[m], j, tile_of(j, i < j.tiles ? i : j.tiles - 1), lane / 4,
                       lane % 4);
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            fetch(i, s.from + b.slice + i * b.slices, s);
    }
    __device__ __forceinline__ void
    fetch(int i, unsigned unit, const struct span &s)
    {
#pragma unroll
        for (int m = 0; m < MT; m++)
            form[m].fetch(&u[i][m], unit, unit < s.mine);
    }
};

/* Add up what the warps have, slice by slice as one_kernel does, and store it. */
template <typename F, int MT, int NT, int SPLIT>
static __device__ __forceinline__ void
add_up(const struct job &j, const struct share &b, const float (&sum)[MT][NT][4],
       float *sums)
{
    constexpr int WIDE = 8 * NT, LD = WIDE + 1;
    constexpr unsigned EACH = ROWS * MT * LD; // of a warp
    int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    float *out = sums + ((b.rank * b.slices + b.slice) * b.groups + b.group) * EACH;
    if (SPLIT > 1) { // the first block of the cluster has started, and reads no x
        __cluster_barrier_arrive();
        __cluster_barrier_wait();
        out = (float *)__cluster_map_shared_rank(out, 0);
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[(16 * m + group + e / 2 * 8) * LD + 8 * n + 2 * quarter + e % 2] =
                    sum[m][n][e];
    if (SPLIT > 1) {
        __cluster_barrier_arrive();
        __cluster_barrier_wait();
    } else {
        __syncthreads();
    }
    // A thread has a row, and each n-th of its tokens.
    unsigned rows = ROWS * MT * b.groups, r = threadIdx.x % rows, n = blockDim.x / rows,
             tile = b.first + r / ROWS;
    if (b.rank != 0 || tile >= j.tiles)
        return;
    struct tile t = tile_of(j, tile);
    const struct product &w = j.part[t.part];
    size_t row = t.first + r % ROWS;
    if (row >= w.out)
        return;
    const float *of = sums + r / (ROWS * MT) * EACH + r % (ROWS * MT) * LD;
    float multiplier = F::multiplier(w);
#pragma unroll 4
    for (unsigned token = threadIdx.x / rows; token < (unsigned)j.tokens; token += n) {
        float more = added<__nv_bfloat16>(j, w, (int)token, row), all = 0;
        for (unsigned k = 0; k < SPLIT * b.slices; k++)
            all += of[k * b.groups * EACH + token];
        put<__nv_bfloat16>(j, w, (int)token, row, all * multiplier + more);
    }
}

/* Up to 8 NT tokens, 16 at most: one group of 16 rows, and x from where it is. */
template <typename F, int NT, int SPLIT>
static __global__ void __launch_bounds__(MANY_WARPS * 32)
    few_kernel(const __grid_constant__ struct job j)
{
    extern __shared__ float sums[];
    struct share b = share_of<1, SPLIT>(1);
    int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    struct span s = span_of<F, SPLIT>(j, b.rank, quarter);
    cuda_next();
    rows_of<F, 1> w(j, b, s);
    cuda_wait();

    float sum[1][NT][4] = {};
    for (unsigned at = s.from + b.slice; at < s.to; at += w.LOADS * b.slices)
#pragma unroll
        for (int i = 0; i < w.LOADS; i++) {
            unsigned unit = at + i * b.slices;
            size_t column =
                (size_t)unit * F::COLUMNS + (unsigned)quarter * F::PIECES * 8;
            if (unit >= s.to)
                break;
#pragma unroll
            for (int half = 0; half < F::PIECES * 2 / F::STEPS; half++) {
                constexpr int EACH = F::STEPS / 2; // pieces
                uint32_t a[F::STEPS][4];
                uint4 x[NT][EACH];
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    int token = 8 * n + group < j.tokens ? 8 * n + group : 0;
                    const uint4 *from = (const uint4 *)((const __nv_bfloat16 *)j.x +
                                                        (size_t)token * j.in + column) +
                                        half * EACH;
#pragma unroll
                    for (int p = 0; p < EACH; p++)
                        x[n][p] = column < j.in ? from[p] : make_uint4(0, 0, 0, 0);
                }
                F::operand(a, w.u[i][0], half);
#pragma unroll
                for (int n = 0; n < NT; n++) {
#pragma unroll
                    for (int p = 0; p < EACH; p++)
                        x[n][p] = F::order(x[n][p]);
                    add_products(sum[0][n], a, x[n]);
                }
            }
            w.fetch(i, unit + w.LOADS * b.slices, s);
        }
    add_up<F, 1, NT, SPLIT>(j, b, sum, sums);
}

/* x of up to 8 NT tokens as many_kernel's threads read it: for each half of a unit, NT
 * times EACH pieces of 32 lanes, in the form's order; zeros where there is nothing. */
template <typename F, int NT>
struct arranged {
    enum {
        HALVES = F::PIECES * 2 / F::STEPS,
        EACH = F::STEPS / 2,   // pieces of a thread
        SIZE = NT * EACH * 32, // of half a unit
    };
};

template <typename F, int NT>
static __global__ void __launch_bounds__(THREADS)
    arrange_kernel(uint4 *to, const uint4 *x, unsigned tokens, unsigned pieces,
                   unsigned units)
{
    typedef arranged<F, NT> R;
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    cuda_take_over();
    if (i >= units * R::HALVES * R::SIZE)
        return;
    unsigned lane = i % 32, p = i / 32 % R::EACH,
             token = i / 32 / R::EACH % NT * 8 + lane / 4,
             half = i / R::SIZE % R::HALVES, unit = i / R::SIZE / R::HALVES,
             piece = (unit * 4 + lane % 4) * F::PIECES + half * R::EACH + p;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (token < tokens && piece < pieces)
        v = x[(size_t)token * pieces + piece];
    to[i] = F::order(v);
}

/* Up to 8 NT tokens, with x arranged.  A slice's x is copied to shared memory half a unit
 * at a time, STAGES - 1 ahead, for the warps of all groups. */
template <typename F, int MT, int NT, int SPLIT>
static __global__ void __launch_bounds__(MANY_THREADS)
    many_kernel(const __grid_constant__ struct job j, const uint4 *x, unsigned groups)
{
    typedef arranged<F, NT> R;
    extern __shared__ uint4 shared[]; // (STAGES, slices, SIZE); later sums
    __shared__ uint64_t there[MANY_STAGES * MANY_WARPS], read[MANY_STAGES * MANY_WARPS];
    struct share b = share_of<MT, SPLIT>(groups);
    int lane = threadIdx.x % 32;
    struct span s = span_of<F, SPLIT>(j, b.rank, lane % 4);
    unsigned all = s.to - s.from, units = (all + b.slices - 1 - b.slice) / b.slices,
             steps = units * R::HALVES;
    bool copies = b.group == 0 && lane == 0;
    cuda_next();
    if (threadIdx.x < MANY_STAGES * b.slices) {
        mbarrier_init(shared_address(&there[threadIdx.x]), 1);
        mbarrier_init(shared_address(&read[threadIdx.x]), groups);
        mbarrier_init_fence();
    }
    rows_of<F, MT> w(j, b, s);
    __syncthreads();
    cuda_wait();

    auto copy = [&](unsigned step) {
        unsigned at = step % MANY_STAGES * b.slices + b.slice,
                 unit = s.from + step / R::HALVES * b.slices + b.slice;
        if (!copies || step >= steps)
            return;
        if (step >= MANY_STAGES)
            mbarrier_wait(shared_address(&read[at]), (step / MANY_STAGES - 1) % 2);
        mbarrier_arrive_expect(shared_address(&there[at]), R::SIZE * 16);
        bulk_load(shared + at * R::SIZE,
                  x + ((size_t)unit * R::HALVES + step % R::HALVES) * R::SIZE,
                  R::SIZE * 16, shared_address(&there[at]));
    };
#pragma unroll
    for (int i = 0; i < MANY_STAGES - 1; i++)
        copy(i);

    float sum[MT][NT][4] = {};
    for (unsigned round = 0; round < units; round += w.LOADS)
#pragma unroll
        for (int i = 0; i < w.LOADS; i++) {
            if (round + i >= units)
                break;
#pragma unroll
            for (int half = 0; half < R::HALVES; half++) {
                unsigned step = (round + i) * R::HALVES + half,
                         at = step % MANY_STAGES * b.slices + b.slice;
                const uint4 *from = shared + at * R::SIZE + lane;
                uint32_t a[MT][F::STEPS][4];
                copy(step + MANY_STAGES - 1);
                __syncwarp();
#pragma unroll
                for (int m = 0; m < MT; m++)
                    F::operand(a[m], w.u[i][m], half);
                mbarrier_wait(shared_address(&there[at]), step / MANY_STAGES % 2);
#pragma unroll
                for (int p = 0; p < R::EACH; p++)
#pragma unroll
                    for (int first = 0; first < NT; first += 4) {
                        uint4 v[4];
#pragma unroll
                        for (int n = 0; n < 4; n++)
                            v[n] = from[((first + n) * R::EACH + p) * 32];
                            // Eight sums in turn: a product waits for the one before of its sum.
#pragma unroll
                        for (int k = 0; k < 2; k++)
#pragma unroll
                            for (int n = 0; n < 4; n++)
#pragma unroll
                                for (int m = 0; m < MT; m++)
                                    mma(sum[m][first + n], a[m][2 * p + k],
                                        k ? v[n].z : v[n].x, k ? v[n].w : v[n].y);
                    }
                __syncwarp();
                if (lane == 0)
                    mbarrier_arrive(shared_address(&read[at]));
            }
            w.fetch(i, s.from + (round + i + w.LOADS) * b.slices + b.slice, s);
        }
    __syncthreads(); // the sums take the memory of x
    add_up<F, MT, NT, SPLIT>(j, b, sum, (float *)shared);
}

/* ---- f32 dot products ------------------------------------------------------------ */

enum { FEW = 8 }; // tokens at a time

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
    float sum[FEW] = { 0 };
    cuda_take_over();
    if (row >= w.out)
        return;
    for (size_t at = threadIdx.x % 32 * N; at < j.in; at += 32 * N) {
        float v[N];
        reader<W, N>::read(v, j, row, at);
#pragma unroll
        for (int t = 0; t < FEW; t++)
            if (t < j.tokens) {
                const A *x = (const A *)j.x + (size_t)t * j.in + at;
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum[t] = fmaf(v[i], to_f32(x[i]), sum[t]);
            }
    }
    float scale = w.scale2 ? *w.scale2 : 1;
#pragma unroll
    for (int t = 0; t < FEW; t++)
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
    unsigned limit = (unsigned)(c->sms * blocks_at_once(warps, 1));
    unsigned rounds = (tiles + limit - 1) / limit;
    return (tiles + rounds - 1) / rounds;
}

/* How the columns of a weight are divided: between `split` blocks, and between the warps
 * of each.  whole: a warp of one_kernel has all of its units in flight. */
struct division {
    int split, warps;
    bool whole;
};

static struct division
division_of(unsigned tiles, unsigned units, enum dtype dtype)
{
    // So few tiles would leave SMs idle, or some with twice as many as others.
    bool few = dtype == DT_NVFP4 && tiles <= 200 && units >= 12;
    if (few)
        return units <= 2 * 4 * DEPTH ? division{ 2, 4, true }
                                      : division{ 2, 5, false };
    if (dtype == DT_NVFP4)
        for (int warps = 4; warps <= MANY_WARPS; warps += warps < 6 ? 1 : 2)
            if (units <= (unsigned)(warps * DEPTH))
                return { 1, warps, true };
    return { 1, 8, false };
}

template <typename F, int WARPS, bool WHOLE, int SPLIT>
static void
start_one_as(struct cuda *c, const struct job &j, size_t bytes)
{
    unsigned blocks = SPLIT > 1 ? SPLIT * j.tiles
                      : WHOLE   ? even_blocks(c, j.tiles, WARPS)
                                : j.tiles;
    cuda_start_clusters(c, "a product of one token", SPLIT,
                        one_kernel<F, WARPS, DEPTH, WHOLE, SPLIT>, blocks, WARPS * 32,
                        bytes, j);
}

/* bytes: of x in shared memory */
static void
start_one(struct cuda *c, const struct job &j, enum dtype dtype,
          const struct division &d, size_t bytes)
{
    if (dtype == DT_BF16)
        start_one_as<bf16_form, 8, false, 1>(c, j, bytes);
    else if (d.split > 1)
        d.whole ? start_one_as<fp4_form, 4, true, 2>(c, j, bytes)
                : start_one_as<fp4_form, 5, false, 2>(c, j, bytes);
    else if (!d.whole)
        start_one_as<fp4_form, 8, false, 1>(c, j, bytes);
    else if (d.warps == 4)
        start_one_as<fp4_form, 4, true, 1>(c, j, bytes);
    else if (d.warps == 5)
        start_one_as<fp4_form, 5, true, 1>(c, j, bytes);
    else if (d.warps == 6)
        start_one_as<fp4_form, 6, true, 1>(c, j, bytes);
    else
        start_one_as<fp4_form, 8, true, 1>(c, j, bytes);
}

/* Bytes of the sums of a block. */
static size_t
sums_of(const struct division &d, unsigned rows, int tokens)
{
    return (size_t)d.split * d.warps * rows * (tokens + 1) * sizeof(float);
}

template <typename F, int NT, int SPLIT>
static void
start_few_as(struct cuda *c, const struct job &j, const struct division &d)
{
    cuda_start_clusters(c, "a product of few tokens", SPLIT, few_kernel<F, NT, SPLIT>,
                        SPLIT * j.tiles, (unsigned)d.warps * 32,
                        sums_of(d, ROWS, 8 * NT), j);
}

/* Shared memory of a block of many_kernel: of x, then of the sums. */
template <typename F, int MT, int NT>
static size_t
many_bytes(const struct division &d, unsigned groups)
{
    size_t sums = sums_of(d, ROWS * MT * groups, 8 * NT),
           x = (size_t)MANY_STAGES * d.warps * arranged<F, NT>::SIZE * sizeof(uint4);
    return sums > x ? sums : x;
}

static unsigned
groups_of(const struct division &d)
{
    return MANY_THREADS / 32 / (unsigned)d.warps;
}

template <typename F, int MT, int NT, int SPLIT>
static void
start_many_as(struct cuda *c, const struct job &j, const struct division &d)
{
    typedef arranged<F, NT> R;
    unsigned units = blocks_of(j.in, F::COLUMNS), groups = groups_of(d),
             tiles = MT * groups;
    size_t bytes = many_bytes<F, MT, NT>(d, groups);
    auto kernel = many_kernel<F, MT, NT, SPLIT>;
    uint4 *to = (uint4 *)c->q.expanded;
    cuda_check(c,
               cudaFuncSetAttribute((const void *)kernel,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)bytes),
               "a product of many tokens: shared memory");
    cuda_start(c, "inputs of many tokens", arrange_kernel<F, NT>,
               blocks_of((size_t)units * R::HALVES * R::SIZE, THREADS), THREADS, 0, to,
               (const uint4 *)j.x, (unsigned)j.tokens, (unsigned)(j.in / 8), units);
    cuda_start_clusters(c, "a product of many tokens", SPLIT, kernel,
                        SPLIT * ((j.tiles + tiles - 1) / tiles),
                        (unsigned)d.warps * groups * 32, bytes, j, (const uint4 *)to,
                        groups);
}

/* Some of a job's tokens. */
static struct job
some_of(struct job j, size_t first, int tokens)
{
    j.x = (const __nv_bfloat16 *)j.x + first * j.in;
    for (int i = 0; i < j.parts; i++) {
        struct product *w = &j.part[i];
        size_t skip = first * w->out * (j.wide ? sizeof(float) : sizeof(__nv_bfloat16));
        w->y = (char *)w->y + skip;
        if (w->add)
            w->add = (const char *)w->add + skip;
    }
    j.tokens = tokens;
    return j;
}

template <typename F, int SPLIT>
static void
start_many(struct cuda *c, const struct job &j, const struct division &d)
{
    enum { HALF = 32 };
    // What the barriers take is static.
    bool fits = many_bytes<F, 2, 8>(d, groups_of(d)) + 1024 <= c->shared;
    if (j.tokens <= 8) {
        start_few_as<F, 1, SPLIT>(c, j, d);
    } else if (j.tokens <= 16) {
        start_few_as<F, 2, SPLIT>(c, j, d);
    } else if (j.tokens <= HALF) {
        start_many_as<F, 2, 4, SPLIT>(c, j, d);
    } else if (fits) {
        start_many_as<F, 2, 8, SPLIT>(c, j, d);
    } else {
        start_many<F, SPLIT>(c, some_of(j, 0, HALF), d);
        start_many<F, SPLIT>(c, some_of(j, HALF, j.tokens - HALF), d);
    }
}

static void
by_tensor_cores(struct cuda *c, struct job &j, enum dtype dtype)
{
    unsigned columns = dtype == DT_BF16 ? +bf16_form::COLUMNS : +fp4_form::COLUMNS;
    for (int i = 0; i < j.parts; i++)
        j.tiles += j.part[i].tiles = blocks_of(j.part[i].out, ROWS);
    if (j.gated)
        j.tiles = blocks_of(j.part[0].out, ROWS / 2);
    unsigned units = blocks_of(j.in, columns);
    struct division d = division_of(j.tiles, units, dtype);
    size_t bytes = (size_t)((units + d.split - 1) / d.split) * columns * 2;
    if (j.tokens == 1 && bytes <= STAGED)
        start_one(c, j, dtype, d, bytes);
    else if (dtype == DT_BF16)
        start_many<bf16_form, 1>(c, j, d);
    else
        d.split > 1 ? start_many<fp4_form, 2>(c, j, d)
                    : start_many<fp4_form, 1>(c, j, d);
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
    even = even && w->cols <= EXPANDED / 256; // x of many tokens is copied there
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

/* Dot products of a few tokens after the other; rows are dense. */
static void
by_dot_products(struct cuda *c, struct job j, enum dtype act, enum dtype dtype)
{
    enum dtype of_y = j.wide ? DT_F32 : act;
    for (int left = j.tokens; left > 0; left -= FEW) {
        size_t out = j.part[0].out;
        j.tokens = left < FEW ? left : FEW;
        BY_TYPE(act, by_rows, c, j, dtype);
        j.x = dtype_at(act, j.x, FEW * j.in);
        j.part[0].y = dtype_at(of_y, j.part[0].y, FEW * out);
        j.part[0].add = dtype_at(of_y, j.part[0].add, FEW * out);
    }
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
        by_dot_products(c, j, x->dtype, form_of(w));
}

/* Parts of a job that tensor cores take in one launch; false: they do not. */
static bool
add_parts(struct job *j, size_t n, const struct matrix *y, const struct matrix *x,
          const struct matrix *w)
{
    for (size_t i = 0; i < n; i++) {
        if (form_of(&w[i]) != form_of(w) || y[i].dtype != y->dtype ||
            !for_tensor_cores(&w[i], x))
            return false;
        j->part[i] = part_of(&y[i], &w[i], NULL);
    }
    return true;
}

bool
cuda_gemv_many(struct cuda *c, size_t n, const struct matrix *y, const struct matrix *x,
               const struct matrix *w)
{
    struct job j = job_of(y, x, n);
    if (!add_parts(&j, n, y, x, w))
        return false;
    by_tensor_cores(c, j, form_of(w));
    return true;
}

/* Whether norms of x can be part of a product: as norm_rows takes them. */
static bool
can_norm(const struct matrix *x, const float *gain)
{
    return x->rows == 1 && x->cols / 8 <= NORM_PACKS && (uintptr_t)gain % 16 == 0 &&
           x->cols * 2 <= STAGED;
}

bool
cuda_norm_linear(struct kernels *k, size_t n, const struct matrix *y,
                 const struct matrix *x, const float *gain, float eps,
                 const struct matrix *w)
{
    struct job j = job_of(y, x, n);
    if (!can_norm(x, gain) || !add_parts(&j, n, y, x, w))
        return false;
    j.gain = gain;
    j.eps = eps;
    by_tensor_cores(cuda_of(k), j, form_of(w));
    return true;
}

bool
cuda_norm_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *x,
                 const float *gain, float eps, const struct matrix *w)
{
    const struct matrix both[2] = { *y, *y };
    struct job j = job_of(y, x, 2);
    // With an odd number of rows tiles would not be those of the products alone.
    if (!can_norm(x, gain) || w->rows % ROWS || w[1].rows != w->rows ||
        !add_parts(&j, 2, both, x, w))
        return false;
    j.gain = gain;
    j.eps = eps;
    j.gated = true;
    by_tensor_cores(cuda_of(k), j, form_of(w));
    return true;
}
