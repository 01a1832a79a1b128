/* SPDX-License-Identifier: MIT */
/* gemv_many: GEMV_FEW + 1 to GEMV_MAX tokens by tensor cores.  A warp has 16 rows of the
 * weight and unpacks them in registers; the warps of a block multiply them by the same x
 * in shared memory, which bulk copies bring there ahead of the products. */
#include "kernels/cuda/gemv.h"

#include <type_traits>

/* How a product is divided.  A slice has the units that a warp of one_kernel has, and
 * slices are added in the same order as there.  The blocks of a cluster have the same
 * rows and `per` slices each.  CHAINED: a block has all slices, one after the other, and
 * keeps only their sum. */
struct share {
    unsigned split, slices; // as in division; slices: of each part of the split
    unsigned blocks, per;   // of a cluster; slices of a block
    unsigned groups;        // warpgroups of a block, each with 64 rows
};

enum { CHAINED, MAX_BLOCKS = 8, GROUP = 128, GROUP_ROWS = 4 * ROWS };

/* Max. number of warpgroups of a block: what registers allow. */
template <int PER>
constexpr unsigned max_groups = PER == 1 ? 4 : 3;

/* x of up to 8 NT tokens in the order in which tensor cores read it: of each unit STEPS
 * products of 16 columns; of these the lower and upper 8, of each NT matrices of 8 tokens
 * by 8 columns, 128 bytes. */
template <typename F, int NT>
struct arranged {
    enum {
        STEPS = F::COLUMNS / 16,
        STEP = 2 * NT * 8,         // uint4 of a product
        SIZE = STEPS * STEP,       // of a unit
        STAGES = 640 / F::COLUMNS, // units in shared memory
        PARTS = STEPS / 2,         // of a unit: two products, which registers hold
        LAG = PARTS == 1 ? 2 : 1,  // units later those of a unit are done
    };
};

/* Store piece p of all quarters of a token's unit. */
template <typename F, int NT>
static __device__ __forceinline__ void
put_pieces(uint4 *to, unsigned unit, unsigned p, unsigned token, const uint4 (&v)[4])
{
    typedef arranged<F, NT> R;
    to += (size_t)unit * R::SIZE + 2 * p * R::STEP + token;
    to[0] = make_uint4(v[0].x, v[1].x, v[2].x, v[3].x);
    to[8 * NT] = make_uint4(v[0].y, v[1].y, v[2].y, v[3].y);
    to[R::STEP] = make_uint4(v[0].z, v[1].z, v[2].z, v[3].z);
    to[R::STEP + 8 * NT] = make_uint4(v[0].w, v[1].w, v[2].w, v[3].w);
}

template <typename F, int NT>
static __global__ void __launch_bounds__(THREADS)
    arrange_kernel(uint4 *to, const uint4 *x, unsigned tokens, unsigned pieces,
                   unsigned units)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    unsigned p = i / 8 % F::PIECES, unit = i / 8 / F::PIECES / NT,
             token = i / 8 / F::PIECES % NT * 8 + i % 8;
    uint4 v[4];
    cuda_take_over();
    if (unit >= units)
        return;
#pragma unroll
    for (unsigned t = 0; t < 4; t++) {
        unsigned piece = (unit * 4 + t) * F::PIECES + p;
        v[t] = make_uint4(0, 0, 0, 0);
        if (token < tokens && piece < pieces)
            v[t] = F::order(x[(size_t)token * pieces + piece]);
    }
    put_pieces<F, NT>(to, unit, p, token, v);
}

/* The same of norm(x), with the bits of norm_rows; a block per token. */
template <typename F, int NT, int PER>
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_kernel(uint4 *to, const __nv_bfloat16 *x, const float *__restrict__ gain,
                float eps, unsigned tokens, unsigned pieces, unsigned units)
{
    typedef pack<__nv_bfloat16, 8> P;
    __shared__ float scratch[33];
    __shared__ uint4 row[PER * NORM_THREADS];
    unsigned token = blockIdx.x;
    P v[PER];
    cuda_take_over();
    if (token < tokens) {
        float s =
            load_scaled(v, x + (size_t)token * pieces * 8, pieces * 8, eps, scratch);
#pragma unroll
        for (int k = 0; k < PER; k++) {
            unsigned i = threadIdx.x + k * blockDim.x;
            float g[8];
            if (i >= pieces)
                continue;
            load(g, gain + i * 8);
#pragma unroll
            for (int e = 0; e < 8; e++)
                g[e] = to_f32(v[k].v[e]) * s * g[e];
            store((__nv_bfloat16 *)&v[k], g);
            row[i] = F::order(*(uint4 *)&v[k]);
        }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < units * F::PIECES; i += blockDim.x) {
        uint4 of[4];
#pragma unroll
        for (unsigned t = 0; t < 4; t++) {
            unsigned piece = (i / F::PIECES * 4 + t) * F::PIECES + i % F::PIECES;
            of[t] =
                token < tokens && piece < pieces ? row[piece] : make_uint4(0, 0, 0, 0);
        }
        put_pieces<F, NT>(to, i / F::PIECES, i % F::PIECES, token, of);
    }
}

/* The units of a block, slice by slice; `slice` counts in the part of the split that has
 * units from .. to - 1.  Behind the block's last unit it is anything. */
struct walk {
    unsigned slices, units, slice, from, to, unit;

    __device__ __forceinline__
    walk(const struct share &p, unsigned all, unsigned rank)
        : slices(p.slices), units(all), slice(rank * p.per), from(0),
          to(p.split > 1 ? all / 2 : all)
    {
        if (slice >= slices) {
            slice -= slices;
            from = to;
            to = units;
        }
        unit = from + slice;
    }
    __device__ __forceinline__ void
    next_slice(void)
    {
        if (++slice == slices) {
            slice = 0;
            from = to;
            to = units;
        }
        unit = from + slice;
    }
    __device__ __forceinline__ bool
    ends_slice(void) const
    {
        return unit + slices >= to;
    }
    __device__ __forceinline__ void
    next(void)
    {
        if (ends_slice())
            next_slice();
        else
            unit += slices;
    }
};

/* The number of units of `per` slices. */
static __device__ __forceinline__ unsigned
count_units(struct walk w, unsigned per)
{
    unsigned n = 0;
    for (unsigned i = 0; i < per; i++, w.next_slice())
        n += (w.to - w.unit - 1) / w.slices + 1;
    return n;
}

/* A stage of the ring, and how often it was used. */
struct stage {
    unsigned at, phase;

    template <int STAGES>
    __device__ __forceinline__ void
    next(void)
    {
        if (++at == STAGES) {
            at = 0;
            phase ^= 1;
        }
    }
};

/* x on its way to shared memory, a unit at a time as the warps read it; of one thread. */
template <typename F, int NT>
struct inputs {
    typedef arranged<F, NT> R;
    enum { AHEAD = R::STAGES - 1 - R::LAG }; // units: other warps may be one behind
    uint4 *ring;
    const uint4 *x;
    uint64_t *there, *read;
    struct walk w;
    struct stage s;
    unsigned left, used; // stages used for the first time

    __device__ __forceinline__ void
    copy(void)
    {
        if (!left)
            return;
        if (used == R::STAGES)
            mbarrier_wait(shared_address(&read[s.at]), s.phase);
        else
            used++;
        mbarrier_arrive_expect(shared_address(&there[s.at]), R::SIZE * 16);
        bulk_load(ring + s.at * R::SIZE, x + (size_t)w.unit * R::SIZE, R::SIZE * 16,
                  shared_address(&there[s.at]));
        w.next();
        s.template next<R::STAGES>();
        left--;
    }
};

/* A of two products: columns of a piece of each quarter. */
static __device__ __forceinline__ void
two_steps(uint32_t (&to)[2][4], const fp4_form::unit &u, int piece)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint4 c = u.codes[r];
        uint32_t word = piece == 0 ? c.x : piece == 1 ? c.y : piece == 2 ? c.z : c.w;
        __nv_bfloat162 s = scale_factor(u.scales[r] >> (piece / 2 * 8));
        to[0][r] = times(two_codes<0>(word), s);
        to[0][2 + r] = times(two_codes<1>(word), s);
        to[1][r] = times(two_codes<0>(word >> 8), s);
        to[1][2 + r] = times(two_codes<1>(word >> 8), s);
    }
}

static __device__ __forceinline__ void
two_steps(uint32_t (&to)[2][4], const bf16_form::unit &u, int)
{
    bf16_form::operand(to, u, 0);
}

/* A warp's rows of the weight. */
template <typename F>
struct rows_of {
    enum { LOADS = 4 }; // units ahead
    F form;
    typename F::unit u[LOADS];
    struct walk ahead;
    unsigned left; // units
    unsigned edge; // the first unit of which this thread's quarter is missing

    __device__ __forceinline__
    rows_of(const struct gemv_job &j, const struct walk &w, unsigned n, unsigned tile)
        : u{}, ahead(w), left(n)
    {
        unsigned lane = threadIdx.x % 32, quarter = lane % 4;
        begin_tile(form, j, tile_of(j, tile < j.tiles ? tile : j.tiles - 1),
                   (int)lane / 4, (int)quarter);
        edge = keep(((unsigned)j.in + F::COLUMNS - 1 - quarter * (F::PIECES * 8)) /
                    F::COLUMNS);
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            fetch(i);
    }
    __device__ __forceinline__ void
    fetch(int i)
    {
        form.fetch(&u[i], ahead.unit, left && ahead.unit < edge);
        if (left) {
            ahead.next();
            left--;
        }
    }
};

/* A warp's sums to shared memory: (tokens, rows of the block + 4). */
template <int NT>
static __device__ __forceinline__ void
lay_out(float *sums, unsigned pitch, const float (&sum)[NT][4])
{
    unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * ROWS + lane / 4;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sums[(8 * n + lane % 4 * 2 + e % 2) * pitch + row + e / 2 * 8] = sum[n][e];
}

/* The sum of a token and a row of the block: slices in their order. */
template <int NT, int PER>
static __device__ __forceinline__ float
sum_of(const struct share &p, const float *sums, unsigned pitch, unsigned token,
       unsigned row)
{
    if constexpr (PER == CHAINED) {
        return sums[token * pitch + row];
    } else {
        constexpr unsigned MAX = MAX_BLOCKS * PER;
        float slice[MAX], all = 0;
#pragma unroll
        for (unsigned k = 0; k < MAX; k++) {
            bool there = k < p.blocks * PER;
            const float *from =
                (const float *)__cluster_map_shared_rank(sums, there ? k / PER : 0);
            slice[k] = there ? from[(k % PER * 8 * NT + token) * pitch + row] : 0;
        }
#pragma unroll
        for (unsigned k = 0; k < MAX; k++)
            all += slice[k];
        return all;
    }
}

/* Store what the sums give; each block of a cluster has some of the tokens, a thread one
 * row of y. */
template <typename F, int NT, int PER>
static __device__ __forceinline__ void
store_rows(const struct gemv_job &j, const struct share &p, const float *sums,
           unsigned pitch)
{
    unsigned each = j.gated ? ROWS / 2 : ROWS, // rows of y in a tile
        rows = p.groups * 4 * each, r = threadIdx.x % rows,
             rank = blockIdx.x % p.blocks,
             tile = blockIdx.x / p.blocks * (p.groups * 4) + r / each,
             at = r / each * ROWS + r % each;
    if (tile >= j.tiles)
        return;
    struct tile t = tile_of(j, tile);
    const struct product &w = j.part[t.part];
    size_t row = t.first + r % each;
    if (row >= w.out)
        return;
    float multiplier = F::multiplier(w), of_up = j.gated ? F::multiplier(j.part[1]) : 0;
#pragma unroll 2
    for (unsigned token = rank + threadIdx.x / rows * p.blocks;
         token < (unsigned)j.tokens; token += blockDim.x / rows * p.blocks) {
        float more = added<__nv_bfloat16>(j, w, (int)token, row),
              y = sum_of<NT, PER>(p, sums, pitch, token, at) * multiplier + more;
        if (j.gated) {
            // + 0: that of a product alone, whose addend is 0
            float up = sum_of<NT, PER>(p, sums, pitch, token, at + each) * of_up + 0;
            y = swiglu_of_rounded(y, up);
        }
        put<__nv_bfloat16>(j, w, (int)token, row, y);
    }
}

/* Up to 8 NT tokens, with x arranged.  PER: the number of slices of a block, or CHAINED. */
template <typename F, int NT, int PER>
static __global__ void __launch_bounds__(max_groups<PER> *GROUP)
    many_kernel(const __grid_constant__ struct gemv_job j,
                const __grid_constant__ struct share p, const uint4 *x)
{
    typedef arranged<F, NT> R;
    constexpr int PARTS = R::PARTS;
    static_assert(rows_of<F>::LOADS * PARTS % 2 == 0, "registers take turns");
    extern __shared__ uint4 shared[]; // the ring; then sums
    __shared__ uint64_t there[R::STAGES], read[R::STAGES];
    unsigned warp = threadIdx.x / 32, rank = blockIdx.x % p.blocks,
             units = (unsigned)((j.in + F::COLUMNS - 1) / F::COLUMNS),
             tile = blockIdx.x / p.blocks * (p.groups * 4) + warp,
             pitch = p.groups * GROUP_ROWS + 4;
    float *sums = (float *)shared;
    cuda_next();
    if (threadIdx.x < R::STAGES) {
        mbarrier_init(shared_address(&there[threadIdx.x]), 1);
        mbarrier_init(shared_address(&read[threadIdx.x]), p.groups * 4);
        mbarrier_init_fence();
    }
    struct walk now(p, units, rank);
    unsigned n = PER == CHAINED ? units : count_units(now, PER);
    struct inputs<F, NT> in = {
        shared, x, there, read, now, { 0, 1 }, n, 0
    };
    rows_of<F> w(j, now, n, tile);
    __syncthreads();
    cuda_wait();
    if (threadIdx.x == 0)
        for (int i = 0; i < in.AHEAD; i++)
            in.copy();

    struct stage s = { 0, 0 }, done = { 0, 0 };
    float sum[NT][4], held[NT][4];
    uint32_t a[2][2][4];
    bool more = false; // products of this slice
#pragma unroll
    for (int m = 0; m < NT; m++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            held[m][e] = sum[m][e] = 0;
    hold(sum);
    for (unsigned round = 0; round < n; round += w.LOADS)
#pragma unroll
        for (int i = 0; i < w.LOADS; i++) {
            if (round + i >= n)
                break;
            auto from = operand_at<NT>(shared_address(shared + s.at * R::SIZE));
            if (threadIdx.x == 0)
                in.copy();
            __syncwarp();
            mbarrier_wait(shared_address(&there[s.at]), s.phase);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                auto &turn = a[(i * PARTS + part) % 2];
                products_wait<1>(); // the products that read these registers
                hold(turn);
                if (part == (PARTS > 1) && round + i >= R::LAG) {
                    if (threadIdx.x % 32 == 0)
                        mbarrier_arrive(shared_address(&read[done.at]));
                    done.template next<R::STAGES>();
                }
                two_steps(turn, w.u[i], part);
                hold(turn);
                products_begin();
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    multiply(sum, turn[k], from, part * 2 + k, more);
                    more = true;
                }
                products_commit();
            }
            if (PER != 1 && now.ends_slice()) {
                products_wait<0>();
                if (PER == CHAINED || round + i + 1 < n) {
#pragma unroll
                    for (int m = 0; m < NT; m++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            held[m][e] += sum[m][e];
                }
                more = false;
            }
            w.fetch(i);
            now.next();
            s.template next<R::STAGES>();
        }
    products_wait<0>();
    __syncthreads(); // the sums take the memory of x
    if (PER != 1)
        lay_out<NT>(sums, pitch, held);
    if (PER != CHAINED)
        lay_out<NT>(sums + (PER == 2 ? 8 * NT : 0) * pitch, pitch, sum);
    if (PER == CHAINED) {
        __syncthreads();
    } else {
        __cluster_barrier_arrive();
        __cluster_barrier_wait();
    }
    store_rows<F, NT, PER>(j, p, sums, pitch);
    if (PER != CHAINED) { // others may still read its sums
        __cluster_barrier_arrive_relaxed();
        __cluster_barrier_wait();
    }
}

static struct share
share_of(const struct cuda *c, const struct division &d, unsigned tiles, unsigned units)
{
    unsigned all = (unsigned)(d.split * d.warps), groups = (tiles + 3) / 4,
             sms = (unsigned)c->sms;
    struct share s = { (unsigned)d.split, (unsigned)d.warps, 1, all, 1 };
    // Many rows give all SMs something to do; a slice without units is not there.
    if (4 * blocks_of(groups, max_groups<CHAINED>) < 3 * sms &&
        units / s.split >= s.slices) {
        s.per = all > 8 ? 2 : 1;
        s.blocks = all / s.per;
        // Clusters do not fill the SMs of all GPCs: of 132 SMs 22 of 5, 15 of 8.
        sms = sms / (s.blocks + 1) * s.blocks;
    }
    unsigned max = s.blocks > 1 && s.per == 1 ? max_groups<1> : max_groups<CHAINED>;
    while (s.groups < max && blocks_of(groups, s.groups) * s.blocks > sms)
        s.groups++;
    if (s.blocks > 1 && s.per == 1 && blocks_of(groups, s.groups) * s.blocks > sms)
        s.groups = max / 2; // two blocks an SM
    return s;
}

template <typename F, int NT, int PER>
static void
start_norm(struct cuda *c, uint4 *to, const struct gemv_job &j, unsigned units)
{
    unsigned packs = (unsigned)(j.in / 8);
    cuda_start(c, "normed inputs of many tokens", norm_kernel<F, NT, PER>, 8 * NT,
               norm_shape_of(packs).threads, 0, to, (const __nv_bfloat16 *)j.x, j.gain,
               j.eps, (unsigned)j.tokens, packs, units);
}

template <typename F, int NT>
static void
arrange_inputs(struct cuda *c, uint4 *to, const struct gemv_job &j, unsigned units)
{
    unsigned packs = (unsigned)(j.in / 8), per = norm_shape_of(packs).per;
    if (!j.gain)
        cuda_start(c, "inputs of many tokens", arrange_kernel<F, NT>,
                   blocks_of((size_t)units * F::PIECES * NT * 8, THREADS), THREADS, 0,
                   to, (const uint4 *)j.x, (unsigned)j.tokens, packs, units);
    else if (per == 1)
        start_norm<F, NT, 1>(c, to, j, units);
    else if (per == 2)
        start_norm<F, NT, 2>(c, to, j, units);
    else
        start_norm<F, NT, 4>(c, to, j, units);
}

template <typename F, int NT, int PER>
static void
start_as(struct cuda *c, const struct gemv_job &j, const struct share &s)
{
    typedef arranged<F, NT> R;
    unsigned units = blocks_of(j.in, F::COLUMNS);
    size_t x = (size_t)R::STAGES * R::SIZE * sizeof(uint4),
           sums = (size_t)(PER == 2 ? 2 : 1) * 8 * NT * (s.groups * GROUP_ROWS + 4) *
                  sizeof(float),
           bytes = x > sums ? x : sums;
    auto kernel = many_kernel<F, NT, PER>;
    uint4 *to = (uint4 *)c->q.expanded;
    cuda_check(c,
               cudaFuncSetAttribute((const void *)kernel,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)bytes),
               "a product of many tokens: shared memory");
    arrange_inputs<F, NT>(c, to, j, units);
    cuda_start_clusters(c, "a product of many tokens", s.blocks, kernel,
                        s.blocks * blocks_of(j.tiles, s.groups * 4), s.groups * GROUP,
                        bytes, j, s, (const uint4 *)to);
}

template <typename F, int NT>
static void
start(struct cuda *c, const struct gemv_job &j, const struct share &s)
{
    if (s.blocks > 1 && s.per == 1)
        return start_as<F, NT, 1>(c, j, s);
    if constexpr (std::is_same<F, fp4_form>::value) // bf16 has 8 slices
        if (s.blocks > 1)
            return start_as<F, NT, 2>(c, j, s);
    start_as<F, NT, CHAINED>(c, j, s);
}

template <typename F>
static void
start_many(struct cuda *c, const struct gemv_job &j, const struct division &d)
{
    struct share s = share_of(c, d, j.tiles, blocks_of(j.in, F::COLUMNS));
    if (j.tokens <= 16)
        start<F, 2>(c, j, s);
    else if (j.tokens <= 32)
        start<F, 4>(c, j, s);
    else
        start<F, 8>(c, j, s);
}

void
cuda_gemv_several(struct cuda *c, const struct gemv_job &j, enum dtype dtype,
                  const struct division &d)
{
    if (dtype == DT_BF16)
        start_many<bf16_form>(c, j, d);
    else
        start_many<fp4_form>(c, j, d);
}
