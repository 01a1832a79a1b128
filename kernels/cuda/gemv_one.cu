/* SPDX-License-Identifier: MIT */
/* gemv_one: one token by tensor cores.  As many loads of the weight as possible are in
 * flight before the kernel waits for x (see cuda_wait). */
#include "kernels/cuda/gemv.h"

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
stage(uint4 *shared, const struct gemv_job &j, unsigned from, unsigned to)
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
stage_normed(uint4 *shared, const struct gemv_job &j, unsigned from, unsigned to)
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
    one_kernel(const __grid_constant__ struct gemv_job j)
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

/* Number of blocks: about as many tiles each, all resident at once. */
static unsigned
even_blocks(const struct cuda *c, unsigned tiles, int warps)
{
    unsigned limit = (unsigned)(c->sms * blocks_at_once(warps, 1));
    unsigned rounds = (tiles + limit - 1) / limit;
    return (tiles + rounds - 1) / rounds;
}

template <typename F, int WARPS, bool WHOLE, int SPLIT>
static void
start_one_as(struct cuda *c, const struct gemv_job &j, size_t bytes)
{
    unsigned blocks = SPLIT > 1 ? SPLIT * j.tiles
                      : WHOLE   ? even_blocks(c, j.tiles, WARPS)
                                : j.tiles;
    cuda_start_clusters(c, "a product of one token", SPLIT,
                        one_kernel<F, WARPS, DEPTH, WHOLE, SPLIT>, blocks, WARPS * 32,
                        bytes, j);
}

void
cuda_gemv_one(struct cuda *c, const struct gemv_job &j, enum dtype dtype,
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
