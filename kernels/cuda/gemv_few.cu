/* SPDX-License-Identifier: MIT */
/* gemv_few: 2 to GEMV_FEW tokens by tensor cores. */
#include "kernels/cuda/gemv.h"

/* A warp's rows of the weight, a unit at a time, LOADS units ahead. */
template <typename F>
struct rows_of {
    enum { LOADS = 2 };
    F form;
    typename F::unit u[LOADS];

    __device__ __forceinline__
    rows_of(const struct gemv_job &j, unsigned tile, unsigned slice, unsigned slices,
            const struct span &s)
        : u{}
    {
        int lane = threadIdx.x % 32;
        begin_tile(form, j, tile_of(j, tile), lane / 4, lane % 4);
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            fetch(i, s.from + slice + i * slices, s);
    }
    __device__ __forceinline__ void
    fetch(int i, unsigned unit, const struct span &s)
    {
        form.fetch(&u[i], unit, unit < s.mine);
    }
};

enum { PITCH = GEMV_FEW + 1 }; // of a warp's sums, (ROWS, PITCH)

/* Add up what the warps have, slice by slice as one_kernel does, and store it. */
template <typename F, int SPLIT>
static __device__ __forceinline__ void
add_up(const struct gemv_job &j, unsigned slice, unsigned slices, const float (&sum)[4],
       float *sums)
{
    int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    unsigned rank = blockIdx.x % SPLIT;
    float *out = sums + (rank * slices + slice) * ROWS * PITCH;
    if (SPLIT > 1) { // the first block of the cluster has started, and reads no x
        __cluster_barrier_arrive();
        __cluster_barrier_wait();
        out = (float *)__cluster_map_shared_rank(out, 0);
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        out[(group + e / 2 * 8) * PITCH + 2 * quarter + e % 2] = sum[e];
    if (SPLIT > 1) {
        __cluster_barrier_arrive();
        __cluster_barrier_wait();
    } else {
        __syncthreads();
    }
    // A thread has a row, and each n-th of its tokens.
    unsigned r = threadIdx.x % ROWS, n = blockDim.x / ROWS;
    struct tile t = tile_of(j, blockIdx.x / SPLIT);
    const struct product &w = j.part[t.part];
    size_t row = t.first + r;
    if (rank != 0 || row >= w.out)
        return;
    float multiplier = F::multiplier(w);
    for (unsigned token = threadIdx.x / ROWS; token < (unsigned)j.tokens; token += n) {
        float more = added<__nv_bfloat16>(j, w, (int)token, row), all = 0;
        for (unsigned k = 0; k < SPLIT * slices; k++)
            all += sums[(k * ROWS + r) * PITCH + token];
        put<__nv_bfloat16>(j, w, (int)token, row, all * multiplier + more);
    }
}

/* A block has 16 rows, a warp a slice of them: the units that a warp of one_kernel has. */
template <typename F, int SPLIT>
static __global__ void __launch_bounds__(MANY_WARPS * 32)
    few_kernel(const __grid_constant__ struct gemv_job j)
{
    extern __shared__ float sums[];
    unsigned slices = blockDim.x / 32, slice = threadIdx.x / 32;
    int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    struct span s = span_of<F, SPLIT>(j, blockIdx.x % SPLIT, quarter);
    const __nv_bfloat16 *x =
        (const __nv_bfloat16 *)j.x + (size_t)(group < j.tokens ? group : 0) * j.in;
    cuda_next();
    rows_of<F> w(j, blockIdx.x / SPLIT, slice, slices, s);
    cuda_wait();

    float sum[4] = {};
    for (unsigned at = s.from + slice; at < s.to; at += w.LOADS * slices)
#pragma unroll
        for (int i = 0; i < w.LOADS; i++) {
            unsigned unit = at + i * slices;
            size_t column =
                (size_t)unit * F::COLUMNS + (unsigned)quarter * F::PIECES * 8;
            if (unit >= s.to)
                break;
#pragma unroll
            for (int half = 0; half < F::PIECES * 2 / F::STEPS; half++) {
                constexpr int EACH = F::STEPS / 2; // pieces
                const uint4 *from = (const uint4 *)(x + column) + half * EACH;
                uint32_t a[F::STEPS][4];
                uint4 v[EACH];
#pragma unroll
                for (int p = 0; p < EACH; p++)
                    v[p] = column < j.in ? from[p] : make_uint4(0, 0, 0, 0);
                F::operand(a, w.u[i], half);
#pragma unroll
                for (int p = 0; p < EACH; p++)
                    v[p] = F::order(v[p]);
                add_products(sum, a, v);
            }
            w.fetch(i, unit + w.LOADS * slices, s);
        }
    add_up<F, SPLIT>(j, slice, slices, sum, sums);
}

template <typename F, int SPLIT>
static void
start_few(struct cuda *c, const struct gemv_job &j, const struct division &d)
{
    cuda_start_clusters(c, "a product of few tokens", SPLIT, few_kernel<F, SPLIT>,
                        SPLIT * j.tiles, (unsigned)d.warps * 32,
                        (size_t)d.split * d.warps * ROWS * PITCH * sizeof(float), j);
}

void
cuda_gemv_few(struct cuda *c, const struct gemv_job &j, enum dtype dtype,
              const struct division &d)
{
    if (dtype == DT_BF16)
        start_few<bf16_form, 1>(c, j, d);
    else
        d.split > 1 ? start_few<fp4_form, 2>(c, j, d) : start_few<fp4_form, 1>(c, j, d);
}
