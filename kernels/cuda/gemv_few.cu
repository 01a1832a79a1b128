/* SPDX-License-Identifier: MIT */
/* gemv_few: 2 to GEMV_MAX tokens by tensor cores. */
#include "kernels/cuda/gemv.h"

enum {
    MANY_THREADS = 320, // max. of a block with several groups
    MANY_STAGES = 3,    // of x in shared memory
};

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

void
cuda_gemv_few(struct cuda *c, const struct job &j, enum dtype dtype,
              const struct division &d)
{
    if (dtype == DT_BF16)
        start_many<bf16_form, 1>(c, j, d);
    else
        d.split > 1 ? start_many<fp4_form, 2>(c, j, d)
                    : start_many<fp4_form, 1>(c, j, d);
}
