/* SPDX-License-Identifier: MIT */
/* adamw: AdamW, and the gradient norm for clipping.
 *
 * The update gives the CPU's bytes, by an exact or a fast path, see adamw_math.h.  One
 * pass reads and writes the whole state.  So do sums of squares, see op_sum_squares. */
#include "kernels/cuda/adamw_math.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.h"

#include <limits.h>
#include <math.h>

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    BATCH = 4,     // groups that a warp loads at once
    AT_ONCE = 256, // elements that a warp draws random bits for at once
};

static __device__ __forceinline__ uint32_t
warp_max_bits(uint32_t x)
{
    return __reduce_max_sync(0xffffffffU, x);
}

/* ---- exact path: a thread per element, a warp per group -------------------------- */

struct element {
    float w, m, v, grad;
};

/* Random bits to round the master, m and v. */
struct bits {
    uint32_t w, m, v;
};

template <typename W, typename G, enum moments MOMENTS>
static __device__ __forceinline__ void
read_element(struct element *x, const struct adam_state *s, const G *grad, uint64_t i)
{
    x->grad = to_f32(grad[i]);
    x->w = to_f32(((const W *)s->master)[i]);
    if (MOMENTS == MOMENTS_F32) {
        x->m = ((const float *)s->m)[i];
        x->v = ((const float *)s->v)[i];
    } else if (MOMENTS == MOMENTS_BF16) {
        x->m = to_f32(((const __nv_bfloat16 *)s->m)[i]);
        x->v = to_f32(((const __nv_bfloat16 *)s->v)[i]);
    } else {
        x->m = read_m8(((const int8_t *)s->m)[i], s->m_scale[i / GROUP]);
        x->v = read_v8(((const uint8_t *)s->v)[i], s->v_scale[i / GROUP]);
    }
}

/* Called by whole warps; `inside` is false past the last element.  Returns |master| as
 * f32 bits, 0 past the last element. */
template <typename W, enum moments MOMENTS>
static __device__ __forceinline__ uint32_t
write_element(const struct element *x, const struct adam_state *s, uint64_t i,
              bool inside, struct bits random)
{
    if (MOMENTS == MOMENTS_INT8) {
        float root = f_sqrt(x->v);
        uint32_t max_m = inside ? f_bits(x->m) & MAGNITUDE : 0;
        uint32_t max_v = inside ? f_bits(root) & MAGNITUDE : 0;
        uint32_t m_scale = scale_above(warp_max_bits(max_m));
        uint32_t v_scale = scale_above(warp_max_bits(max_v));
        if (inside) {
            ((uint8_t *)s->m)[i] = (uint8_t)code_m8(x->m, m_scale, random.m);
            ((uint8_t *)s->v)[i] = (uint8_t)code_v8(root, v_scale);
        }
        if (inside && i % GROUP == 0) {
            s->m_scale[i / GROUP] = (uint16_t)m_scale;
            s->v_scale[i / GROUP] = (uint16_t)v_scale;
        }
    }
    if (!inside)
        return 0;
    uint32_t master = f_bits(x->w);
    if (sizeof(W) == 4) {
        ((float *)s->master)[i] = x->w;
    } else {
        uint32_t half = stochastic(x->w, random.w);
        ((uint16_t *)s->master)[i] = (uint16_t)half;
        master = half << 16;
    }
    if (MOMENTS == MOMENTS_F32) {
        ((float *)s->m)[i] = x->m;
        ((float *)s->v)[i] = x->v;
    } else if (MOMENTS == MOMENTS_BF16) {
        ((uint16_t *)s->m)[i] = (uint16_t)stochastic(x->m, random.m);
        ((uint16_t *)s->v)[i] = (uint16_t)stochastic(x->v, random.v);
    }
    return master & MAGNITUDE;
}

/* Whole blocks: raise *amax to the maximum of peak, as f32 bits; inf becomes NaN. */
static __device__ __forceinline__ void
raise_amax(float *amax, uint32_t peak)
{
    __shared__ uint32_t block_max;
    if (!amax) // the same for all threads
        return;
    if (threadIdx.x == 0)
        block_max = 0;
    __syncthreads();
    peak = warp_max_bits(peak >= 0x7f800000 ? 0x7fc00000 : peak);
    if (threadIdx.x % 32 == 0)
        atomicMax(&block_max, peak);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicMax((uint32_t *)amax, block_max);
}

/* Random bits for 256 elements, in element order: each thread draws those of 8. */
struct random_words {
    uint16_t bits[AT_ONCE];
};

static __device__ __forceinline__ void
draw(struct random_words *buffer, uint64_t at, enum philox_use use,
     const struct hyper *h)
{
    uint32_t words[4], lane = threadIdx.x % 32;
    draws(words, at / 8 + lane, h->row, use, h->key);
    ((uint4 *)buffer->bits)[lane] = make_uint4(words[0], words[1], words[2], words[3]);
}

/* Exact update of elements first .. end - 1. */
template <typename W, typename G, enum moments MOMENTS>
static __global__ void __launch_bounds__(THREADS)
    adamw_kernel(struct adam_state s, const G *grad, uint64_t first, uint64_t end,
                 const float *clip, float *amax, struct hyper h)
{
    __shared__ alignas(16) struct random_words buffers[WARPS][3];
    struct random_words *buffer = buffers[threadIdx.x / 32];
    cuda_wait();
    cuda_next();
    const float c = *clip;
    uint32_t peak = 0;
    uint64_t warp = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    unsigned lane = threadIdx.x % 32;
    if (isnan(c))
        return;
    for (uint64_t at = first + warp * AT_ONCE; at < end;
         at += (uint64_t)gridDim.x * WARPS * AT_ONCE) {
        __syncwarp();
        if (sizeof(W) == 2)
            draw(&buffer[0], at, PHILOX_MASTER, &h);
        if (MOMENTS != MOMENTS_F32)
            draw(&buffer[1], at, PHILOX_MOMENT, &h);
        if (MOMENTS == MOMENTS_BF16)
            draw(&buffer[2], at, PHILOX_MOMENT2, &h);
        __syncwarp();
#pragma unroll 1
        for (unsigned j = 0; j < AT_ONCE && at + j < end; j += BATCH * GROUP) {
            struct element x[BATCH];
#pragma unroll
            for (unsigned b = 0; b < BATCH; b++) {
                uint64_t i = at + j + b * GROUP + lane;
                x[b] = {};
                if (i < end)
                    read_element<W, G, MOMENTS>(&x[b], &s, grad, i);
            }
#pragma unroll
            for (unsigned b = 0; b < BATCH; b++) {
                unsigned in = j + b * GROUP + lane;
                struct bits random = { buffer[0].bits[in], buffer[1].bits[in],
                                       buffer[2].bits[in] };
                update(&x[b].w, &x[b].m, &x[b].v, x[b].grad, c, &h);
                peak = max(peak, write_element<W, MOMENTS>(&x[b], &s, at + in,
                                                           at + in < end, random));
            }
        }
    }
    raise_amax(amax, peak);
}

/* ---- fast path: approximate, but with the exact path's bytes --------------------- */

enum {
    FAST_THREADS = 128,
    FAST_WARPS = FAST_THREADS / 32,
    FAST_BLOCKS = 6,          // per SM
    SPAN = 32 * PIECE,        // elements of a warp
    TILE = FAST_WARPS * SPAN, // elements of a block
    GROUPS = TILE / GROUP,
    ALIGNED = 16 / 2 * GROUP, // elements per 16 bytes of scales, for bulk copies
};

/* An update of the fast kernel; arrays are indexed by elements of the tensor. */
struct part {
    struct adam_state s; // dtype and moments are known
    const void *grad;
    const float *clip;
    float *amax;
    uint64_t first, end;
    unsigned tile; // number of its first tile
    unsigned row;
    float decay, keep; // as in struct hyper
    unsigned bulk;     // tiles below that number are whole and aligned for bulk copies
};

/* As many as fit in a kernel's parameters. */
enum { PARTS = 32 };

/* Parameters of the fast kernel, with the keys of all rounds of Philox as constants. */
struct fast_params {
    struct hyper h; // but for row, decay and keep
    struct draw_keys keys;
    unsigned parts, tiles;
    struct part part[PARTS];
};
static_assert(sizeof(struct fast_params) <= 4000, "parameters of a kernel");

/* A tile in shared memory.  Double-buffered: one thread starts the bulk copies of the
 * next tile while all threads compute this one. */
template <typename G>
struct alignas(128) tile {
    uint16_t master[TILE];
    uint8_t m[TILE], v[TILE];
    uint16_t m_scale[GROUPS], v_scale[GROUPS];
    G grad[TILE];
    static constexpr unsigned BYTES = TILE * (4 + sizeof(G)) + GROUPS * 4;
};
static_assert(TILE % ALIGNED == 0, "tiles start at aligned scales");

/* One thread: start loading the tile at element i; its arrival completes the mbarrier's
 * phase. */
template <typename G>
static __device__ __forceinline__ void
load_tile(struct tile<G> *to, uint64_t *arrived, const struct part &of, uint64_t i)
{
    const unsigned bar = shared_address(arrived);
    const struct adam_state *s = &of.s;
    const G *grad = (const G *)of.grad;
    static_assert(sizeof *to == to->BYTES, "no padding");
    mbarrier_arrive_expect(bar, sizeof *to);
    bulk_load(to->master, (const uint16_t *)s->master + i, sizeof to->master, bar);
    bulk_load(to->m, (const uint8_t *)s->m + i, sizeof to->m, bar);
    bulk_load(to->v, (const uint8_t *)s->v + i, sizeof to->v, bar);
    bulk_load(to->m_scale, s->m_scale + i / GROUP, sizeof to->m_scale, bar);
    bulk_load(to->v_scale, s->v_scale + i / GROUP, sizeof to->v_scale, bar);
    bulk_load(to->grad, grad + i, sizeof to->grad, bar);
}

/* One thread, when all are done: start storing the tile. */
template <typename G>
static __device__ __forceinline__ void
store_tile(const struct adam_state &s, const struct tile<G> *from, uint64_t i)
{
    bulk_store((uint16_t *)s.master + i, from->master, sizeof from->master);
    bulk_store((uint8_t *)s.m + i, from->m, sizeof from->m);
    bulk_store((uint8_t *)s.v + i, from->v, sizeof from->v);
    bulk_store(s.m_scale + i / GROUP, from->m_scale, sizeof from->m_scale);
    bulk_store(s.v_scale + i / GROUP, from->v_scale, sizeof from->v_scale);
    bulk_commit();
}

/* All threads, element by element: a partial or unaligned tile. */
template <typename G>
static __device__ __noinline__ void
load_partial(struct tile<G> *to, const struct part &of, uint64_t i, unsigned left)
{
    const struct adam_state *s = &of.s;
    const G *grad = (const G *)of.grad;
    for (unsigned k = threadIdx.x; k < left; k += FAST_THREADS) {
        to->master[k] = ((const uint16_t *)s->master)[i + k];
        to->m[k] = ((const uint8_t *)s->m)[i + k];
        to->v[k] = ((const uint8_t *)s->v)[i + k];
        to->grad[k] = grad[i + k];
        if (k % GROUP == 0) {
            to->m_scale[k / GROUP] = s->m_scale[(i + k) / GROUP];
            to->v_scale[k / GROUP] = s->v_scale[(i + k) / GROUP];
        }
    }
    __syncthreads();
}

template <typename G>
static __device__ __noinline__ void
store_partial(const struct adam_state &s, const struct tile<G> *from, uint64_t i,
              unsigned left)
{
    for (unsigned k = threadIdx.x; k < left; k += FAST_THREADS) {
        ((uint16_t *)s.master)[i + k] = from->master[k];
        ((uint8_t *)s.m)[i + k] = from->m[k];
        ((uint8_t *)s.v)[i + k] = from->v[k];
        if (k % GROUP == 0) {
            s.m_scale[(i + k) / GROUP] = from->m_scale[k / GROUP];
            s.v_scale[(i + k) / GROUP] = from->v_scale[k / GROUP];
        }
    }
}

template <typename G>
static __device__ __forceinline__ void
read_piece(struct piece *p, const struct tile<G> *from, unsigned mine)
{
    const uint4 *master = (const uint4 *)(from->master + mine);
    uint4 w0 = master[0], w1 = master[1];
    uint4 m = *(const uint4 *)(from->m + mine), v = *(const uint4 *)(from->v + mine);
    uint32_t w[] = { w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w };
    uint32_t codes[] = { m.x, m.y, m.z, m.w, v.x, v.y, v.z, v.w };
#pragma unroll
    for (int k = 0; k < 8; k++)
        p->w[k] = w[k];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        p->m[k] = codes[k];
        p->v[k] = codes[4 + k];
    }
    p->m_scale = from->m_scale[mine / GROUP];
    p->v_scale = from->v_scale[mine / GROUP];
}

template <typename G>
static __device__ __forceinline__ void
write_piece(struct tile<G> *to, const struct piece *p, unsigned mine)
{
    uint4 *master = (uint4 *)(to->master + mine);
    master[0] = make_uint4(p->w[0], p->w[1], p->w[2], p->w[3]);
    master[1] = make_uint4(p->w[4], p->w[5], p->w[6], p->w[7]);
    *(uint4 *)(to->m + mine) = make_uint4(p->m[0], p->m[1], p->m[2], p->m[3]);
    *(uint4 *)(to->v + mine) = make_uint4(p->v[0], p->v[1], p->v[2], p->v[3]);
    to->m_scale[mine / GROUP] =
        (uint16_t)p->m_scale; // both halves of a group write the same
    to->v_scale[mine / GROUP] = (uint16_t)p->v_scale;
}

static __device__ __forceinline__ void
read_grad(float x[PIECE], const float *from)
{
#pragma unroll
    for (int k = 0; k < PIECE; k += 4) {
        uint4 four = *(const uint4 *)(from + k);
        x[k] = f_from(four.x);
        x[k + 1] = f_from(four.y);
        x[k + 2] = f_from(four.z);
        x[k + 3] = f_from(four.w);
    }
}

static __device__ __forceinline__ void
read_grad(float x[PIECE], const __nv_bfloat16 *from)
{
#pragma unroll
    for (int k = 0; k < PIECE; k += 8) {
        uint4 eight = *(const uint4 *)(from + k);
        uint32_t words[] = { eight.x, eight.y, eight.z, eight.w };
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[k + 2 * j] = f_from(words[j] << 16);
            x[k + 2 * j + 1] = f_from(words[j] & 0xffff0000);
        }
    }
}

/* counter: Philox counter of the first 8 of the 16 elements; even. */
static __device__ __forceinline__ void
draw_piece(uint32_t words[8], uint64_t counter, uint32_t row, enum philox_use use,
           const struct fast_params *q)
{
    draws_with(words, counter, row, use, &q->keys);
    draws_with(words + 4, counter | 1, row, use, &q->keys);
}

/* Exact update of the group at element `at` of a tile, by the whole warp.  Elements
 * from `left` on are past the end. counter: Philox counter of its first 8 elements.
 * Returns as write_element. */
template <typename G>
static __device__ __noinline__ uint32_t
exact_group(struct tile<G> *buffer, unsigned at, unsigned left, uint64_t counter,
            float clip, const struct part &of, const struct hyper *all)
{
    struct hyper own = *all, *h = &own;
    own.row = of.row;
    own.decay = of.decay;
    unsigned lane = threadIdx.x % 32, half = lane % 8;
    uint32_t words[4], mine[2][4];
    const struct adam_state here = { buffer->master, DT_BF16,   MOMENTS_INT8,
                                     buffer->m,      buffer->v, buffer->m_scale,
                                     buffer->v_scale };
    struct element x = {};
    struct bits random;
    bool inside = at + lane < left;
    if (inside)
        read_element<__nv_bfloat16, G, MOMENTS_INT8>(&x, &here, buffer->grad,
                                                     at + lane);
    // Lanes 0-3 draw for the master, lanes 4-7 for m: 8 elements each.
    draws(words, counter + lane % 4, h->row, lane & 4 ? PHILOX_MOMENT : PHILOX_MASTER,
          h->key);
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            mine[k][j] = __shfl_sync(0xffffffffU, words[j], lane / 8 + 4 * k);
        uint32_t low = half < 4   ? half < 2 ? mine[k][0] : mine[k][1]
                         : half < 6 ? mine[k][2]
                                  : mine[k][3];
        (k ? random.m : random.w) = half % 2 ? low >> 16 : low & 0xffff;
    }
    random.v = 0;
    update(&x.w, &x.m, &x.v, x.grad, clip, h);
    __syncwarp(); // all have read the scales
    return write_element<__nv_bfloat16, MOMENTS_INT8>(&x, &here, at + lane, inside,
                                                      random);
}

/* A tile of a launch. */
struct place {
    unsigned number, part;
    uint64_t i;    // its first element
    unsigned left; // elements from there on, at most TILE; 0: there is no such tile
    bool bulk;     // it is copied in bulk
};

/* The tile of that number, in `part` or one behind it. */
static __device__ __forceinline__ struct place
place_of(const struct fast_params &q, unsigned number, unsigned part)
{
    struct place at = { number, part, 0, 0, false };
    if (number >= q.tiles)
        return at;
    while (at.part + 1 < q.parts && q.part[at.part + 1].tile <= number)
        at.part++;
    const struct part &p = q.part[at.part];
    at.i = p.first + (uint64_t)(number - p.tile) * TILE;
    at.left = (unsigned)(p.end - at.i < TILE ? p.end - at.i : TILE);
    at.bulk = number < p.bulk;
    return at;
}

/* A block's next tile. */
static __device__ __forceinline__ struct place
place_after(const struct fast_params &q, const struct place &at)
{
    const unsigned number = at.number + gridDim.x;
    if (number < q.part[at.part].bulk)
        return { number, at.part, at.i + (uint64_t)gridDim.x * TILE, TILE, true };
    return place_of(q, number, at.part);
}

/* Whole warps: raise *amax to the maximum of peak, as f32 bits; inf becomes NaN. */
static __device__ __forceinline__ void
warp_raise_amax(float *amax, uint32_t peak)
{
    peak = warp_max_bits(peak >= INFINITE ? 0x7fc00000 : peak);
    if (amax && peak && threadIdx.x % 32 == 0)
        atomicMax((uint32_t *)amax, peak);
}

/* Each block takes every gridDim.x-th tile of all parts.  Warps go on by themselves: the last of
 * them that is done with a tile has one thread store it, which loads the one after next to the
 * same place as soon as it has been read.  prefetch: the first tile is loaded before the
 * preceding kernels have ended, see device.h. */
template <typename G>
static __global__ void __launch_bounds__(FAST_THREADS, FAST_BLOCKS)
    fast_kernel(const __grid_constant__ struct fast_params q, bool prefetch)
{
    __shared__ struct share shares[CODES];
    __shared__ struct tile<G> buffers[2];
    __shared__ uint64_t arrived[2];
    __shared__ unsigned done[2]; // warps, counted on from tile to tile
    const unsigned mine = threadIdx.x * PIECE;
    struct place at = place_of(q, blockIdx.x, 0);
    uint32_t ranges = 0, peak = 0, phases = 0; // phases: of `arrived`, a bit each
    bool loads = threadIdx.x == 0;             // the tile after this one
    if (threadIdx.x == 0) {
        mbarrier_init(shared_address(&arrived[0]), 1);
        mbarrier_init(shared_address(&arrived[1]), 1);
        mbarrier_init_fence();
        done[0] = done[1] = 0;
    }
    __syncthreads();
    if (!prefetch)
        cuda_wait();
    if (threadIdx.x == 0 && at.bulk)
        load_tile(&buffers[0], &arrived[0], q.part[at.part], at.i);
    for (unsigned k = threadIdx.x; k < CODES; k += FAST_THREADS)
        shares[k] = share_of(k);
    if (prefetch)
        cuda_wait();
    cuda_next();
    __syncthreads();
    float c = at.left ? *q.part[at.part].clip : 0;
    for (unsigned iter = 0; at.left; iter++) {
        struct tile<G> *buffer = &buffers[iter % 2];
        const struct part &of = q.part[at.part];
        const struct place next = place_after(q, at);
        const uint64_t counter = (at.i + mine) / 8;
        const unsigned whole = at.left / GROUP * GROUP;
        const bool go = !isnan(c);
        struct piece p;
        struct doubt d = no_doubt();
        float g[PIECE];
        uint32_t words[8], m_scale, v_scale;
        draw_piece(words, counter, of.row, PHILOX_MASTER, &q);
        if (at.bulk) {
            mbarrier_wait(shared_address(&arrived[iter % 2]), phases >> iter % 2 & 1);
            phases ^= 1U << iter % 2;
        } else {
            __syncthreads(); // the buffer has been stored
            load_partial(buffer, of, at.i, at.left);
        }
        read_piece(&p, buffer, mine);
        read_grad(g, buffer->grad + mine);
        m_scale = p.m_scale;
        v_scale = p.v_scale;
        fast_update(&p, g, c, of.keep, words, shares, &q.h, &d);
        if (loads) {
            bulk_wait_read();
            if (next.bulk)
                load_tile(&buffers[(iter + 1) % 2], &arrived[(iter + 1) % 2],
                          q.part[next.part], next.i);
            loads = false;
        }
        // All lanes: the two halves of a group shuffle.
        __syncwarp();
        p.max_m = f_max(p.max_m, __shfl_xor_sync(0xffffffffU, p.max_m, 1));
        p.max_v = f_max(p.max_v, __shfl_xor_sync(0xffffffffU, p.max_v, 1));
        draw_piece(words, counter, of.row, PHILOX_MOMENT, &q);
        fast_codes(&p, words, &d);
        bool sure = mine < whole && is_sure(&p, &d, m_scale, v_scale);
        uint32_t slow =
            __ballot_sync(0xffffffffU, go && !sure && mine / GROUP * GROUP < at.left);
        slow = (slow | slow >> 1) & 0x55555555; // one bit per group
        if (go && mine < whole && !(slow >> threadIdx.x % 32 / 2 * 2 & 1)) {
            write_piece(buffer, &p, mine);
            ranges = u_add_max2(d.range, 0x00010001, ranges);
        }
        for (; slow; slow &= slow - 1) {
            unsigned in =
                threadIdx.x / 32 * SPAN + (unsigned)(__ffs((int)slow) - 1) * PIECE;
            peak = max(peak,
                       exact_group(buffer, in, at.left, (at.i + in) / 8, c, of, &q.h));
        }
        if (at.bulk) {
            bulk_fence();
            __syncwarp();
            if (threadIdx.x % 32 == 0 &&
                count_in(&done[iter % 2]) % FAST_WARPS == FAST_WARPS - 1) {
                if (go)
                    store_tile(of.s, buffer, at.i);
                loads = true;
            }
        } else {
            __syncthreads();
            if (go)
                store_partial(of.s, buffer, at.i, at.left);
            __syncthreads();
            loads = threadIdx.x == 0;
        }
        if (next.part != at.part || !next.left) {
            warp_raise_amax(of.amax, max(peak, max_of_ranges(ranges)));
            ranges = peak = 0;
            c = *q.part[next.part].clip;
        }
        at = next;
    }
    bulk_wait_read(); // the block must outlive the stores that read it
}

/* ---- launch ---------------------------------------------------------------------- */

static struct hyper
hyper_of(const struct adam_step *a)
{
    struct hyper h = {
        a->lr,  a->beta1, 1 - a->beta1,        a->beta2,           1 - a->beta2,
        a->eps, a->decay, a->bias_correction1, a->bias_correction2
    };
    fast_terms(&h);
    h.key[0] = a->seed;
    h.key[1] = a->step;
    h.row = a->row;
    return h;
}

static unsigned
grid_of(const struct cuda *c, uint64_t n, unsigned each, unsigned waves)
{
    uint64_t want = (n + each - 1) / each, limit = (uint64_t)c->sms * waves;
    return (unsigned)(want < limit ? want : limit);
}

/* Address of the tensor's element 0, for an array that starts at element `first` and
 * has `bits` bits per element. */
static void *
base_of(const void *p, uint64_t first, unsigned bits)
{
    return (void *)((uintptr_t)p - first * bits / 8);
}

/* The state with arrays indexed by elements of the tensor. */
static struct adam_state
whole_state(const struct adam_state *s)
{
    struct adam_state w = *s;
    unsigned bits = s->moments == MOMENTS_F32    ? 32
                    : s->moments == MOMENTS_BF16 ? 16
                                                 : 8;
    w.master = base_of(s->master, s->first, dtype_bits(s->dtype));
    w.m = base_of(s->m, s->first, bits);
    w.v = base_of(s->v, s->first, bits);
    w.m_scale = (uint16_t *)base_of(s->m_scale, s->first / GROUP, 16);
    w.v_scale = (uint16_t *)base_of(s->v_scale, s->first / GROUP, 16);
    return w;
}

static const void *
whole_grad(const struct adam_update *u)
{
    return base_of(u->grad.data, u->state.first, dtype_bits(u->grad.dtype));
}

template <typename W, typename G>
static void
exact_launch(struct cuda *c, const struct adam_update *u)
{
    void (*kernel)(struct adam_state, const G *, uint64_t, uint64_t, const float *,
                   float *, struct hyper) = adamw_kernel<W, G, MOMENTS_INT8>;
    if (u->state.moments == MOMENTS_F32)
        kernel = adamw_kernel<W, G, MOMENTS_F32>;
    else if (u->state.moments == MOMENTS_BF16)
        kernel = adamw_kernel<W, G, MOMENTS_BF16>;
    cuda_start_kind(c, EARLY_UPDATES, "adamw", 1, kernel,
                    grid_of(c, u->n, WARPS * AT_ONCE, 32), THREADS, 0,
                    whole_state(&u->state), (const G *)whole_grad(u), u->first,
                    u->first + u->n, u->step.clip, u->step.amax, hyper_of(&u->step));
    c->q.updated = u->state.master;
}

/* One update, exactly. */
static void
run_exact(struct cuda *c, const struct adam_update *u)
{
    bool full = u->state.dtype == DT_F32;
    if (u->grad.dtype == DT_F32)
        full ? exact_launch<float, float>(c, u)
             : exact_launch<__nv_bfloat16, float>(c, u);
    else
        full ? exact_launch<float, __nv_bfloat16>(c, u)
             : exact_launch<__nv_bfloat16, __nv_bfloat16>(c, u);
}

/* Blocks that fit on an SM. */
template <typename G>
static unsigned
fast_blocks(const struct cuda *c)
{
    const size_t buffers = 2 * sizeof(struct tile<G>) + CODES * sizeof(struct share);
    const size_t reserved = 2048; // barriers, and the driver's reserve
    size_t blocks = c->shared / (buffers + reserved);
    return blocks < FAST_BLOCKS ? (unsigned)blocks : FAST_BLOCKS;
}

/* Whether all arrays are aligned for bulk copies. */
static bool
are_aligned(const struct part *p)
{
    const struct adam_state *s = &p->s;
    const void *all[] = { s->master, s->m, s->v, s->m_scale, s->v_scale, p->grad };
    bool are = p->first % ALIGNED == 0;
    for (const void *x : all)
        are = are && (uintptr_t)x % 16 == 0;
    return are;
}

/* Launch the parts so far. */
template <typename G>
static void
run_parts(struct cuda *c, struct fast_params *q)
{
    const void *master = q->parts == 1 ? q->part[0].s.master : NULL;
    bool prefetch = c->q.early != EARLY_UPDATES ||
                    (master && c->q.updated && c->q.updated != master);
    unsigned grid = c->sms * fast_blocks<G>(c);
    if (q->parts == 0)
        return;
    cuda_check(c,
               cudaFuncSetAttribute(fast_kernel<G>,
                                    cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared),
               "cudaFuncSetAttribute");
    cuda_start_kind(c, EARLY_UPDATES, "adamw", 1, fast_kernel<G>,
                    q->tiles < grid ? q->tiles : grid, FAST_THREADS, 0, *q, prefetch);
    c->q.updated = master;
    q->parts = q->tiles = 0;
}

static bool
is_fast(const struct adam_update *u)
{
    const struct hyper h = hyper_of(&u->step);
    return u->state.dtype == DT_BF16 && u->state.moments == MOMENTS_INT8 &&
           can_be_fast(&h);
}

/* Whether these differ in what is a part's own only. */
static bool
is_one_step(const struct adam_step *a, const struct adam_step *b)
{
    return a->lr == b->lr && a->beta1 == b->beta1 && a->beta2 == b->beta2 &&
           a->eps == b->eps && a->bias_correction1 == b->bias_correction1 &&
           a->bias_correction2 == b->bias_correction2 && a->seed == b->seed &&
           a->step == b->step;
}

/* The fast ones among those with gradients G, of one step. */
template <typename G>
static void
run_fast(struct cuda *c, const struct adam_update *u, size_t count, enum dtype grad)
{
    struct fast_params q;
    q.parts = q.tiles = 0;
    for (size_t i = 0; i < count; i++) {
        const struct hyper h = hyper_of(&u[i].step);
        struct part p = {
            whole_state(&u[i].state), whole_grad(&u[i]), u[i].step.clip,
            u[i].step.amax,           u[i].first,        u[i].first + u[i].n
        };
        unsigned tiles = (unsigned)((u[i].n + TILE - 1) / TILE);
        if (u[i].grad.dtype != grad || !is_fast(&u[i]) || !tiles)
            continue;
        if (q.parts == PARTS || q.tiles > UINT_MAX / 2 - tiles)
            run_parts<G>(c, &q);
        p.tile = q.tiles;
        p.row = h.row;
        p.decay = h.decay;
        p.keep = h.keep;
        p.bulk = p.tile + (are_aligned(&p) ? (unsigned)(u[i].n / TILE) : 0);
        q.h = h;
        q.keys = draw_keys_of(h.key);
        q.part[q.parts++] = p;
        q.tiles += tiles;
    }
    run_parts<G>(c, &q);
}

void
cuda_adamw(struct kernels *k, const struct adam_update *u, size_t count)
{
    struct cuda *c = cuda_of(k);
    for (size_t n; count; count -= n, u += n) {
        for (n = 1; n < count && is_one_step(&u[0].step, &u[n].step);)
            n++;
        run_fast<__nv_bfloat16>(c, u, n, DT_BF16);
        run_fast<float>(c, u, n, DT_F32);
        for (size_t i = 0; i < n; i++)
            if (u[i].n && !is_fast(&u[i]))
                run_exact(c, &u[i]);
    }
}

/* ---- the norm -------------------------------------------------------------------- */

/* Both add neighbours until one is left, see op_sum_squares. */
static __device__ __forceinline__ double
sum_of_warp(double x)
{
#pragma unroll
    for (int i = 1; i < 32; i *= 2)
        x += __shfl_xor_sync(0xffffffffU, x, i);
    return x;
}

/* Of all threads, valid in thread 0. */
static __device__ __forceinline__ double
sum_of_block(double x)
{
    __shared__ double warp[WARPS];
    x = sum_of_warp(x);
    if (threadIdx.x % 32 == 0)
        warp[threadIdx.x / 32] = x;
    __syncthreads();
    static_assert(WARPS == 8, "three levels");
    return ((warp[0] + warp[1]) + (warp[2] + warp[3])) +
           ((warp[4] + warp[5]) + (warp[6] + warp[7]));
}

/* Lanes of a thread: neighbours, which it loads at once. */
enum { LANES_EACH = SQUARES_LANES / THREADS };
static_assert(LANES_EACH == 8, "16 bytes of bf16");

static __device__ __forceinline__ void
load_lanes(float v[LANES_EACH], const float *x)
{
    float4 low = __ldg((const float4 *)x), high = __ldg((const float4 *)x + 1);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

static __device__ __forceinline__ void
load_lanes(float v[LANES_EACH], const __nv_bfloat16 *x)
{
    uint4 p = __ldg((const uint4 *)x);
    const uint32_t pair[] = { p.x, p.y, p.z, p.w };
#pragma unroll
    for (int i = 0; i < LANES_EACH / 2; i++) {
        v[2 * i] = __uint_as_float(pair[i] << 16);
        v[2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000);
    }
}

/* Sum of squares of block number `block` of x, valid in thread 0. */
template <typename G>
static __device__ double
squares_of_block(const G *x, size_t n, unsigned block)
{
    enum { ROUNDS = SQUARES_BLOCK / SQUARES_LANES };
    const size_t first = (size_t)block * SQUARES_BLOCK + threadIdx.x * LANES_EACH;
    double sum[LANES_EACH] = { 0 };
    float v[ROUNDS][LANES_EACH];
#pragma unroll
    for (int k = 0; k < ROUNDS; k++) {
        const size_t at = first + (size_t)k * SQUARES_LANES;
        if (at + LANES_EACH <= n)
            load_lanes(v[k], x + at);
        else
            for (int i = 0; i < LANES_EACH; i++)
                v[k][i] = at + i < n ? to_f32(x[at + i]) : 0;
    }
#pragma unroll
    for (int k = 0; k < ROUNDS; k++)
#pragma unroll
        for (int i = 0; i < LANES_EACH; i++) // exact products: fused or not is the same
            sum[i] = fma((double)v[k][i], (double)v[k][i], sum[i]);
    return sum_of_block(((sum[0] + sum[1]) + (sum[2] + sum[3])) +
                        ((sum[4] + sum[5]) + (sum[6] + sum[7])));
}

template <typename G>
static __global__ void __launch_bounds__(THREADS)
    squares_kernel(double *sums, const G *x, size_t n)
{
    cuda_take_over();
    double sum = squares_of_block(x, n, blockIdx.x);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

/* The sum of all blocks; `sums` is used up.  Each thread adds neighbours of a part that has a
 * power of two, which makes one tree with those of sum_of_block. */
static __device__ __forceinline__ void
sum_up(double *out, double *sums, unsigned n)
{
    unsigned each = 1;
    while (each * THREADS < n)
        each *= 2;
    const unsigned first = threadIdx.x * each;
    for (unsigned w = 1; w < each; w *= 2)
        for (unsigned i = first; i < first + each && i + w < n; i += 2 * w)
            sums[i] += sums[i + w];
    double sum = sum_of_block(first < n ? sums[first] : 0);
    if (threadIdx.x == 0)
        *out = sum;
}

static __global__ void __launch_bounds__(THREADS)
    sum_kernel(double *out, double *sums, unsigned n)
{
    cuda_take_over();
    sum_up(out, sums, n);
}

/* One of several gradients whose sums are computed together. */
struct summed {
    const void *values;
    double *out;
    size_t n;
    unsigned first, blocks; // its blocks of the grid
    unsigned is_f32;
};

static __global__ void __launch_bounds__(THREADS)
    squares_of_many(double *sums, const struct summed *part, unsigned parts)
{
    unsigned low = 0;
    for (unsigned high = parts;
         high - low > 1;) { // the last that starts at this block or before
        unsigned mid = (low + high) / 2;
        if (part[mid].first <= blockIdx.x)
            low = mid;
        else
            high = mid;
    }
    struct summed p = part[low];
    unsigned block = blockIdx.x - p.first;
    double sum = p.is_f32
                     ? squares_of_block((const float *)p.values, p.n, block)
                     : squares_of_block((const __nv_bfloat16 *)p.values, p.n, block);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS)
    sums_of_many(double *sums, const struct summed *part)
{
    struct summed p = part[blockIdx.x];
    sum_up(p.out, sums + p.first, p.blocks);
}

static unsigned
squares_blocks(size_t n)
{
    return n ? (unsigned)((n - 1) / SQUARES_BLOCK + 1) : 1;
}

static void
squares_of_one(struct cuda *c, double *out, const struct matrix *g)
{
    size_t n = g->rows * g->cols;
    double *sums = (double *)c->q.partials;
    unsigned blocks = squares_blocks(n);
    c->q.early = NOT_EARLY; // any kernel may have written the gradient
    if (g->dtype == DT_F32)
        cuda_start_kind(c, EARLY_UPDATES, "sum_squares", 1, squares_kernel<float>,
                        blocks, THREADS, 0, sums, (const float *)g->data, n);
    else
        cuda_start_kind(c, EARLY_UPDATES, "sum_squares", 1,
                        squares_kernel<__nv_bfloat16>, blocks, THREADS, 0, sums,
                        (const __nv_bfloat16 *)g->data, n);
    cuda_start_kind(c, EARLY_UPDATES, "sum_squares", 1, sum_kernel, 1, THREADS, 0, out,
                    sums, blocks);
}

/* Gradients of one launch.  Their table and the sums of their blocks share c->q.partials. */
enum {
    MANY = 512,
    MANY_BLOCKS = (PARTIALS - MANY * sizeof(struct summed)) / sizeof(double),
};

struct many {
    struct summed part[MANY];
    unsigned parts, blocks;
};

/* Launch the sums so far. */
static void
run_many(struct cuda *c, struct many *m)
{
    struct summed *table = (struct summed *)c->q.partials;
    double *sums = (double *)(table + m->parts);
    if (m->parts == 0)
        return;
    cuda_upload(&c->k, table, m->part, m->parts * sizeof *table);
    squares_of_many<<<m->blocks, THREADS, 0, c->q.stream>>>(sums, table, m->parts);
    cuda_launched(c, "sum_squares");
    sums_of_many<<<m->parts, THREADS, 0, c->q.stream>>>(sums, table);
    cuda_launched(c, "sum_squares");
    m->parts = m->blocks = 0;
}

void
cuda_sum_squares(struct kernels *k, double *out, const struct matrix *g, size_t count)
{
    struct cuda *c = cuda_of(k);
    struct many m;
    m.parts = m.blocks = 0;
    if (count == 1 && g->data) {
        squares_of_one(c, out, g);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        size_t n = g[i].rows * g[i].cols;
        unsigned blocks = squares_blocks(n);
        if (!g[i].data)
            continue;
        if (m.parts == MANY || m.blocks + blocks > MANY_BLOCKS)
            run_many(c, &m);
        m.part[m.parts++] = { g[i].data, out + i, n,
                              m.blocks,  blocks,  g[i].dtype == DT_F32 };
        m.blocks += blocks;
    }
    run_many(c, &m);
}

void
cuda_block_squares(struct kernels *k, double *out, const struct matrix *g, size_t count)
{
    struct cuda *c = cuda_of(k);
    struct summed *table = (struct summed *)c->q.partials, part[MANY];
    while (count) {
        unsigned parts = 0, blocks = 0;
        for (; count && parts < MANY; count--, g++) {
            size_t n = g->rows * g->cols;
            part[parts++] = {
                g->data, NULL, n, blocks, n ? squares_blocks(n) : 0, g->dtype == DT_F32
            };
            blocks += part[parts - 1].blocks;
        }
        cuda_upload(k, table, part, parts * sizeof *table);
        if (blocks)
            squares_of_many<<<blocks, THREADS, 0, c->q.stream>>>(out, table, parts);
        cuda_launched(c, "sum_squares");
        out += blocks;
    }
}

static __global__ void
clip_kernel(float *out, const double *squares, float factor, float limit, double max,
            const float *before)
{
    cuda_take_over();
    double norm = __dsqrt_rn(*squares), c = (double)factor;
    if (limit > 0)
        c = fmin(1.0, __ddiv_rn((double)limit, __dadd_rn(norm, 1e-6)));
    bool go = __dmul_rn(norm, c) <= max && !(before && isnan(*before));
    *out = go ? __double2float_rn(c) : __uint_as_float(0x7fc00000);
}

void
cuda_clip(struct kernels *k, float *out, const double *squares, float factor,
          float limit, double max, const float *before)
{
    cuda_start_kind(cuda_of(k), EARLY_UPDATES, "clip", 1, clip_kernel, 1, 1, 0, out,
                    squares, factor, limit, max, before);
}
