/* SPDX-License-Identifier: MIT */
/* layers: all layers of one token in one launch, a block on each multiprocessor; with its
 * embedding, the last norm, the head and the largest logit, if they are asked for.
 *
 * One warp of a block, the loader, copies weights into a ring of stages in shared memory. It
 * waits for free stages only, so that weights arrive while blocks wait for each other; one
 * stage at a time is on its way, since what blocks exchange would wait behind more; of the
 * head, behind which nothing is exchanged, it is several.  Groups
 * of the other warps multiply, a stage each.  Attention's keys and values have places in the
 * same ring, which the warps that read them fill.
 *
 * Blocks have no barrier.  What a product gives goes to memory that was all ones, a NaN
 * that no rounding gives: who reads it polls until each word is there.  Layers take
 * ROTATIONS memories in turn, also from one launch to the next.  Who writes an element in
 * layer i sets the one of layer i + AHEAD to ones.  That memory had the vectors of layer
 * i + AHEAD - ROTATIONS = i - 2, which no block reads any more: the last of them is the input
 * of layer i - 1, and all blocks have given something that was made of it.  The ones are
 * seen before layer i + AHEAD since each block has a fence in layer i + 1.
 *
 * All sums have the order of gemv_one.cu, norm.h and attend.cu, so the bits are those of
 * separate launches. */
#include "kernels/cuda/layers.h"

#include "kernels/cuda/codes.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/swiglu.h"

/* ---- the loader ------------------------------------------------------------------ */

/* Copies of a stage: rows that are adjacent, of one weight or two, and their scales. */
struct stage_copies {
    const void *codes[2], *scales[2];
    unsigned code_bytes, scale_bytes; // of a weight's
    bool two;
};

static __device__ __forceinline__ struct stage_copies
copies_of(const struct stack &s, const struct one_layer &l, int product, unsigned stage)
{
    const struct weight_plan &p = s.plan[product];
    struct stage_copies c;
    unsigned all = p.rows, row = stage * all;
    unsigned w = product == PRODUCT_O      ? W_O
                 : product == PRODUCT_HEAD ? W_Q
                                           : W_DOWN,
             codes = p.code_row, scales = p.scale_row;
    c.two = product == PRODUCT_GATED;
    if (product == PRODUCT_QKV) {
        w = row < s.q ? W_Q : row < s.q + s.kv ? W_K : W_V;
        row -= w == W_Q ? 0 : w == W_K ? s.q : s.q + s.kv;
    } else if (c.two) {
        all /= 2;
        row /= 2;
        w = W_GATE;
    }
    c.code_bytes = all * codes;
    c.scale_bytes = all * scales;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        c.codes[i] = l.codes[w + (i && c.two)] + (size_t)row * codes;
        c.scales[i] = l.scales[w + (i && c.two)] + (size_t)row * scales;
    }
    return c;
}

/* A thread asks for them. */
static __device__ __forceinline__ void
load_stage(const struct stage_copies &c, char *to, uint32_t barrier)
{
    unsigned n = c.two ? 2 : 1;
    char *scales = to + n * c.code_bytes;
    mbarrier_arrive_expect(barrier, n * (c.code_bytes + c.scale_bytes));
    bulk_load_once(to, c.codes[0], c.code_bytes, barrier);
    bulk_load_once(scales, c.scales[0], c.scale_bytes, barrier);
    if (c.two) {
        bulk_load_once(to + c.code_bytes, c.codes[1], c.code_bytes, barrier);
        bulk_load_once(scales + c.scale_bytes, c.scales[1], c.scale_bytes, barrier);
    }
}

/* A thread asks for the gains of one of a layer's norms. */
static __device__ __forceinline__ void
load_gains(const struct stack &s, struct block_state &b, float *gains, int which,
           const float *from)
{
    uint32_t barrier = shared_address(&b.gains[which]);
    mbarrier_arrive_expect(barrier, s.hidden * 4);
    bulk_load(gains + (size_t)which * s.hidden, from, s.hidden * 4, barrier);
}

/* What a lane copies of a layer: a word of its addresses and, some lanes, a factor. */
enum { LAYER_WORDS = sizeof(struct one_layer) / 8 };
static_assert(LAYER_WORDS <= 32, "a lane has one");
struct layer_word {
    uint64_t word;
    float scale2;

    __device__ __forceinline__ void
    fetch(const struct one_layer &l, int lane)
    {
        if (lane < LAYER_WORDS)
            word = ((const uint64_t *)&l)[lane];
        if (lane < LAYER_WEIGHTS)
            scale2 = *l.scale2[lane];
    }
    __device__ __forceinline__ void
    put(struct block_state &b, unsigned layer, int lane) const
    {
        if (lane < LAYER_WORDS)
            ((uint64_t *)&b.layer[layer % 2])[lane] = word;
        if (lane < LAYER_WEIGHTS)
            b.multiplier[layer % 2][lane] = unscale * scale2;
    }
};

/* Of the head more stages are on their way, since nothing is exchanged meanwhile.  Not more
 * than slots - groups: who waits for a stage has had the one that is `groups` before it, and
 * so the one that was in its slot has come. */
static __device__ __forceinline__ void
load_head(const struct stack &s, struct block_state &b, char *stages, struct ring at,
          int lane)
{
    const struct weight_plan &p = s.plan[PRODUCT_HEAD];
    const struct one_layer &l = b.layer[s.layers % 2];
    struct share mine = share_of(p);
    struct ring came = at;
#pragma unroll 1
    for (unsigned i = 0; i < mine.n; i++, at.next(1)) {
        struct stage_copies copies =
            copies_of(s, l, PRODUCT_HEAD, mine.first + i * mine.step);
        mbarrier_wait(shared_address(&b.empty[at.slot]), at.phase);
        if (i >= s.slots - p.groups) {
            mbarrier_wait(shared_address(&b.full[came.slot]), came.phase ^ 1);
            came.next(1);
        }
        if (lane == 0)
            load_stage(copies, stages + at.slot * s.stage,
                       shared_address(&b.full[at.slot]));
        __syncwarp();
    }
}

/* The loader asks for all stages in the order in which they are read. */
static __device__ __forceinline__ void
run_loader(const struct stack &s, struct block_state &b, char *stages, float *gains,
           int lane)
{
    struct ring at = { 0, 1, s.slots };
    uint32_t before = 0; // the last stage's barrier
    unsigned phase = 0;
    int keys = (b.item.pieces + 1) / 2;
    unsigned all_layers = s.layers + (s.logits != NULL);
    if (lane == 0)
        load_gains(s, b, gains, 0, b.layer[0].input_gain);
    for (unsigned layer = 0; layer < s.layers; layer++) {
        const struct one_layer &l = b.layer[layer % 2];
        bool more = layer + 1 < all_layers;
        struct layer_word next = {};
        if (more)
            next.fetch(s.layer[layer + 1], lane);
#pragma unroll 1
        for (int product = 0; product < PRODUCTS; product++) {
            struct share mine = share_of(s.plan[product]);
            int weights = (int)mine.n,
                all = weights + (product == PRODUCT_QKV ? keys : 0);
            if (product == PRODUCT_QKV) {
                if (layer > 0)
                    mbarrier_wait(shared_address(&b.gains_read[1]), (layer - 1) % 2);
                if (lane == 0)
                    load_gains(s, b, gains, 1, l.mid_gain);
            } else if (product == PRODUCT_DOWN && more) {
                // Then no warp needs anything of the layer before.
                mbarrier_wait(shared_address(&b.gains_read[0]), layer % 2);
                next.put(b, layer + 1, lane);
                __syncwarp();
                if (lane == 0)
                    load_gains(s, b, gains, 0, b.layer[(layer + 1) % 2].input_gain);
            }
            for (int i = 0; i < all; i++, at.next(1)) {
                // Before it is known that there is place, since the next one waits for this.
                struct stage_copies copies = {};
                if (i < weights)
                    copies =
                        copies_of(s, l, product, mine.first + (unsigned)i * mine.step);
                uint32_t full = shared_address(&b.full[at.slot]);
                char *to = stages + at.slot * s.stage;
                mbarrier_wait(shared_address(&b.empty[at.slot]), at.phase);
                if (before)
                    mbarrier_wait(before, phase);
                before = full;
                phase = at.phase ^ 1;
                if (lane == 0) {
                    if (i < weights)
                        load_stage(copies, to, full);
                    else // a place that attention fills
                        mbarrier_arrive(full);
                }
                __syncwarp();
            }
        }
    }
    if (s.logits)
        load_head(s, b, stages, at, lane);
}

/* ---- x --------------------------------------------------------------------------- */

/* What all warps need of a layer. */
struct now {
    const struct stack *s;
    struct block_state *b;
    char *stages;
    uint4 *x, *normed;  // in shared memory
    const float *gains; // of both norms
    unsigned rotation;  // offset of this layer's memory
    int warp, lane;
    unsigned layer;
};

/* The vectors of the layer that comes `ahead` of this one, at most ROTATIONS - 1. */
static __device__ __forceinline__ bf16 *
vectors_of(const struct now &n, unsigned ahead)
{
    unsigned at = n.rotation + ahead * n.s->rotation, all = ROTATIONS * n.s->rotation;
    return (bf16 *)(n.s->exchange + HEADER + (at < all ? at : at - all));
}

static __device__ __forceinline__ bf16 *
vectors_here(const struct now &n)
{
    return (bf16 *)(n.s->exchange + HEADER + n.rotation);
}

static __device__ __forceinline__ void
stage_x(const struct now &n, const bf16 *x, unsigned in)
{
    // All blocks wait long for these, and what they load again and again delays the rest.
    enum { EACH = 3, PAUSE = 200 };
    unsigned packs = in / 8;
    for (unsigned first = (unsigned)n.warp * 32; first < packs;
         first += EACH * 32 * WARPS) {
        unsigned i = first + (unsigned)n.lane;
        uint4 v[EACH];
        poll16<EACH, PAUSE>(v, (const uint4 *)x, i, 32 * WARPS, packs);
#pragma unroll
        for (unsigned k = 0; k < EACH; k++)
            if (i + k * 32 * WARPS < packs)
                n.x[place_of(i + k * 32 * WARPS)] = arrange(v[k]);
    }
}

/* The same of what norm_rows makes of x, bit by bit; x is new, or that of the token, in
 * n.x. */
static __device__ __forceinline__ void
stage_normed(const struct now &n, const bf16 *x, bool is_new, int which)
{
    typedef pack<bf16, 8> P;
    const struct stack &s = *n.s;
    unsigned packs = s.hidden / 8;
    struct norm_shape shape = s.norm;
    unsigned warps = shape.threads / 32;
    // The last ones, which multiply less.
    unsigned warp = (unsigned)(WARPS - 1 - n.warp);
    if (warp >= warps)
        return;
    unsigned first = warp * 32 + (unsigned)n.lane;
    const float *gain = n.gains + (size_t)which * s.hidden;
    uint4 v[2] = {};
    float g[2][8] = {};
    bool there[2];
#pragma unroll
    for (unsigned k = 0; k < 2; k++) {
        there[k] = k < shape.per && first + k * shape.threads < packs;
        if (there[k] && !is_new)
            v[k] = n.x[first + k * shape.threads];
    }
    mbarrier_wait(shared_address(&n.b->gains[which]), n.layer % 2);
#pragma unroll
    for (unsigned k = 0; k < 2; k++)
        if (there[k])
            load(g[k], gain + (first + k * shape.threads) * 8);
    if (is_new) {
        // One warp polls a word at first: what all blocks load again and again delays what
        // they wait for.
        if (warp == 0)
            poll4(x + s.hidden / 2);
        barrier_of(NORM_BARRIER, (int)shape.threads);
        poll16(v, (const uint4 *)x, first, shape.threads,
               shape.per > 1 ? packs : min(packs, shape.threads));
    }
    float sum = 0;
#pragma unroll
    for (unsigned k = 0; k < 2; k++)
        if (there[k]) {
            P p = *(P *)&v[k];
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum = fmaf(to_f32(p.v[e]), to_f32(p.v[e]), sum);
        }
    sum = warp_sum(sum);
    if (n.lane == 0)
        n.b->squares[warp] = sum;
    barrier_of(NORM_BARRIER, (int)shape.threads);
    float scale = norm_scale(
        warp_sum((unsigned)n.lane < warps ? n.b->squares[n.lane] : 0), s.hidden, s.eps);
#pragma unroll
    for (unsigned k = 0; k < 2; k++)
        if (there[k]) {
            P p = *(P *)&v[k];
#pragma unroll
            for (int e = 0; e < 8; e++)
                g[k][e] = to_f32(p.v[e]) * scale * g[k][e];
            store((bf16 *)&v[k], g[k]);
            n.normed[place_of(first + k * shape.threads)] = arrange(v[k]);
        }
}

/* ---- products -------------------------------------------------------------------- */

/* A thread's two rows of a warp's 16 sums, relative to a stage. */
struct part {
    unsigned code[2], scale[2], units[2]; // offsets; number of units
    unsigned x, x_units;                  // the units of x that this lane has
    unsigned all;                         // max. units of the warp's rows
    int which[2], sum[2]; // of an mma's sums, and where it goes; < 0: not this lane's
};

static __device__ __forceinline__ struct part
part_of(const struct weight_plan &p, int tile, int lane)
{
    struct part t;
    unsigned group = (unsigned)lane / 4, quarter = (unsigned)lane % 4;
    unsigned base = (unsigned)tile * TILE, all = p.rows * p.slices;
    unsigned slice0 = min(base, all - 1) * p.per_rows >> 16;
    unsigned last = (min(base + TILE, all) - 1) * p.per_rows >> 16;
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        unsigned at = base + group + 8 * i;
        bool there = at < all;
        at = min(at, all - 1);
        unsigned slice = at * p.per_rows >> 16, row = at - slice * p.rows;
        unsigned first = p.first[slice];
        t.units[i] = p.count[slice];
        unsigned column = slice - slice0;
        t.which[i] = (int)(column % 2);
        t.sum[i] = there && quarter == column / 2 ? (int)(base + group + 8 * i) : -1;
        t.code[i] = row * p.code_row + first * (COLUMNS / 2) + quarter * 16;
        t.scale[i] = p.rows * p.code_row + row * p.scale_row +
                     first * (COLUMNS / NVFP4_BLOCK) + quarter * 2;
    }
    t.all = __reduce_max_sync(0xffffffffU, max(t.units[0], t.units[1]));
    unsigned of_x = min(slice0 + group, p.slices - 1);
    t.x_units = base < all && slice0 + group <= last ? p.count[of_x] : 0;
    t.x = p.first[of_x] * 16U + quarter;
    return t;
}

static __device__ __forceinline__ void
multiply_part(float *sums, unsigned step, const struct part &t, const char *stage,
              const uint4 *x, const uint4 *zeros)
{
    float sum[4] = { 0, 0, 0, 0 };
    const uint4 *from = x + t.x;
    unsigned code = 0, scale = 0;
    // Past a row's last unit x is 0, and the weight does not matter.
#pragma unroll 1
    for (unsigned u = 0; u < t.all; u++) {
        uint4 codes[2], v[4];
        uint32_t scales[2];
        const uint4 *at = u < t.x_units ? from : zeros;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            codes[i] = *(const uint4 *)(stage + t.code[i] + code);
            scales[i] = *(const uint16_t *)(stage + t.scale[i] + scale);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            v[e] = at[4 * e];
        from += step * 16;
        code += step * (COLUMNS / 2);
        scale += step * (COLUMNS / NVFP4_BLOCK);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t a[4][4];
            fp4_operand(a, codes, scales, half);
            add_products(sum, a, v + half * 2);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (t.sum[i] >= 0)
            store_polled(&sums[t.sum[i]],
                         __float_as_uint(t.which[i] ? sum[2 * i + 1] : sum[2 * i]));
}

/* The weight that a lane's row of a stage belongs to. */
static __device__ __forceinline__ unsigned
weight_of(const struct stack &s, int product, unsigned stage, int lane)
{
    unsigned row = stage * TILE;
    if (product == PRODUCT_QKV)
        return row < s.q ? W_Q : row < s.q + s.kv ? W_K : W_V;
    return product == PRODUCT_O       ? W_O
           : product == PRODUCT_GATED ? W_GATE + (unsigned)lane / (TILE / 2) % 2
                                      : W_DOWN;
}

/* What a lane needs to end a row of a stage. */
struct ending {
    float multiplier, more;
    unsigned to;
    float *own;
};

/* i: of the block's stages */
static __device__ __forceinline__ struct ending
ending_of(const struct now &n, const struct weight_plan &p, int product,
          const struct share &mine, unsigned i)
{
    struct ending e;
    unsigned stage = mine.first + i * mine.step, r = min((unsigned)n.lane, p.rows - 1);
    bool adds = product == PRODUCT_O || product == PRODUCT_DOWN;
    e.multiplier =
        n.b->multiplier[n.layer % 2][weight_of(*n.s, product, stage, n.lane)];
    e.own = &n.b->own[adds ? i * p.rows + r : 0];
    e.more = adds ? *e.own : 0;
    e.to = p.place + stage * p.out + r;
    return e;
}

/* The sum of a row's slices, which a warp waits for. */
static __device__ __forceinline__ float
sum_of(const float *sums, unsigned rows, unsigned slices)
{
    enum { EACH = 5 };
    float all = 0;
#pragma unroll 1
    for (unsigned i = 0; i < slices; i += EACH) {
        uint32_t v[EACH];
        bool wait = true;
        while (wait) {
            wait = false;
#pragma unroll
            for (unsigned k = 0; k < EACH; k++)
                v[k] = load_polled(sums + min(i + k, slices - 1) * rows);
#pragma unroll
            for (unsigned k = 0; k < EACH; k++)
                wait = wait || v[k] == ~0U;
            wait = __any_sync(0xffffffffU, wait);
        }
#pragma unroll
        for (unsigned k = 0; k < EACH; k++)
            if (i + k < slices)
                all += __uint_as_float(v[k]);
    }
    return all;
}

static __device__ __forceinline__ void
forget_sums(float *sums, unsigned rows, unsigned slices)
{
#pragma unroll 4
    for (unsigned i = 0; i < slices; i++)
        store_polled(sums + i * rows, ~0U);
}

/* The sums of a stage's rows become elements of the vector. */
static __device__ __forceinline__ void
end_stage(const struct now &n, const struct weight_plan &p, int product,
          const struct ending &e, float *sums)
{
    unsigned lane = (unsigned)n.lane, rows = p.rows, slices = p.slices, out = p.out;
    bool last = product == PRODUCT_DOWN && n.layer + 1 == n.s->layers && n.s->y;
    sums += min(lane, rows - 1);
    float all = sum_of(sums, rows, slices) * e.multiplier + e.more;
    if (product == PRODUCT_GATED)
        all = swiglu_of_rounded(all, __shfl_xor_sync(0xffffffffU, all, TILE / 2));
    bf16 y = from_f32<bf16>(all);
    uint32_t bits = *(uint16_t *)&y;
    bits |= __shfl_xor_sync(0xffffffffU, bits, 1) << 16;
    if (lane < out && lane % 2 == 0) {
        store_exchanged4(vectors_here(n) + e.to, bits);
        store_exchanged4(vectors_of(n, AHEAD) + e.to, ~0U);
    }
    if (lane < out && (product == PRODUCT_O || product == PRODUCT_DOWN))
        *e.own = to_f32(y);
    if (lane < out && last)
        n.s->y[e.to - p.place] = y;
    forget_sums(sums, rows, slices);
}

static __device__ __forceinline__ void
stage_input(const struct now &n, int product)
{
    const struct stack &s = *n.s;
    struct places at = places_of(s);
    bool gated = product == PRODUCT_GATED;
    if (gated || product == PRODUCT_QKV || product == PRODUCT_HEAD)
        stage_normed(
            n, gated ? vectors_here(n) + at.mid : vectors_of(n, ROTATIONS - 1) + at.out,
            gated || n.layer, gated);
    else
        stage_x(n, vectors_here(n) + (product == PRODUCT_O ? at.att : at.act),
                product == PRODUCT_O ? s.q : s.ffn);
}

/* A warp's piece j of keys and values: its place in the ring. */
static __device__ __forceinline__ char *
piece_at(const struct now &n, const struct ring &r, int j)
{
    return n.stages + r.slot * n.s->stage + j % 2 * PIECE;
}

/* A warp asks for a piece of keys and values, without the token's own. */
static __device__ __forceinline__ void
load_piece(const struct now &n, const struct ring &ring, const struct item &t, int past,
           int j)
{
    const struct one_layer &l = n.b->layer[n.layer % 2];
    struct ring r = ring;
    r.next((unsigned)(j / 2));
    mbarrier_wait(shared_address(&n.b->full[r.slot]), r.phase);
    size_t ld = (size_t)n.s->kv_heads * DIM;
    int first = t.begin + j * ATTEND_KEYS, lane = n.lane;
    int rows = min(min(t.end, past) - first, +ATTEND_KEYS);
    uint32_t to = shared_address(piece_at(n, r, j)) + (uint32_t)lane % 16 * 16;
    size_t at = (size_t)first * ld + (size_t)t.kv * DIM + (size_t)(lane % 16) * 8;
#pragma unroll 2
    for (int i = 0; i < ATTEND_KEYS / 2; i++) {
        int row = 2 * i + lane / 16;
        bool there = row < rows;
        size_t from = at + (size_t)(there ? row : 0) * ld;
        copy16(to + (uint32_t)row * KEY_ROW, l.key + from, there);
        copy16(to + (uint32_t)(ATTEND_KEYS + row) * KEY_ROW, l.value + from, there);
    }
    copies_commit();
}

/* A warp asks for its first two pieces.  The ring has places for the stages of q, k and v and
 * for some pieces: early, while the block waits for x, it is these pieces that are asked for,
 * later the rest. */
static __device__ __forceinline__ void
ask_for_keys(const struct now &n, struct ring ring, bool early)
{
    const struct item t = n.b->item;
    unsigned stages = share_of(n.b->plan[PRODUCT_QKV]).n, slots = n.s->slots;
    if (n.warp >= ATTEND_WARPS || n.warp >= t.pieces)
        return;
    if (early) {
        // All stages of the product before have come then: see plan_memory.
        mbarrier_wait(shared_address(&n.b->full[ring.slot]), ring.phase);
        ring.next(stages);
    }
#pragma unroll 1
    for (int j = n.warp; j < min(t.pieces, 2 * ATTEND_WARPS); j += ATTEND_WARPS) {
        unsigned place = (unsigned)j / 2;
        if (place < slots && (stages + place < slots) == early)
            load_piece(n, ring, t, n.b->past, j);
    }
}

/* A warp has read its part of a stage. */
static __device__ __forceinline__ void
release_stage(const struct now &n, const struct ring &r, unsigned tile, unsigned tiles)
{
    __syncwarp();
    // The first one arrives for those, too, that the stage does not have.
    if (n.lane == 0 || (tile == 0 && n.lane <= TILES - (int)tiles))
        mbarrier_arrive(shared_address(&n.b->empty[r.slot]));
}

/* A group of warps makes a stage at a time.  When all are multiplied each warp ends one of
 * them, the first warp the last one. */
static __device__ __forceinline__ void
run_product(const struct now &n, struct ring &ring, int product)
{
    const struct weight_plan &p = n.b->plan[product];
    struct share mine = share_of(p);
    unsigned tiles = p.tiles, groups = p.groups, step = p.step;
    unsigned group = (unsigned)n.warp * p.per_tiles >> 16;
    unsigned tile = (unsigned)n.warp - group * tiles;
    bool works = group < groups && group < mine.n;
    int rounds = works ? (int)((mine.n - group + groups - 1) * p.per_groups >> 16) : 0;
    int last = rounds - 1 - (int)tile; // this warp's last round to end
    bool normed = product == PRODUCT_QKV || product == PRODUCT_GATED;
    const uint4 *x = normed ? n.normed : n.x;
    struct part t = part_of(p, (int)tile, n.lane);
    struct ending e = {};
    struct ring r = ring;
    r.next(group);
    if (last >= 0) {
        if (product ==
            PRODUCT_QKV) // the layer's factors are there when its first stage is
            mbarrier_wait(shared_address(&n.b->full[ring.slot]), ring.phase);
        e = ending_of(n, p, product, mine, group + (unsigned)last * groups);
    }
    if (product == PRODUCT_QKV)
        ask_for_keys(n, ring, true);
    stage_input(n, product);
    barrier_of(BLOCK_BARRIER, 32 * WARPS);
    if (normed && threadIdx.x == 0)
        mbarrier_arrive(shared_address(&n.b->gains_read[product == PRODUCT_GATED]));
    float *sums = n.b->sums[0] + group * tiles * TILE;
#pragma unroll 1
    for (int round = 0; round < rounds; round++) {
        mbarrier_wait(shared_address(&n.b->full[r.slot]), r.phase);
        multiply_part(sums + round * WARPS * TILE, step, t,
                      n.stages + r.slot * n.s->stage, x, n.b->zeros);
        release_stage(n, r, tile, tiles);
        r.next(groups);
    }
#pragma unroll 1
    for (; last >= 0; last -= (int)tiles) {
        end_stage(n, p, product, e, sums + last * WARPS * TILE);
        if (last >= (int)tiles)
            e = ending_of(n, p, product, mine,
                          group + (unsigned)(last - (int)tiles) * groups);
    }
    ring.next(mine.n);
}

/* ---- attention ------------------------------------------------------------------- */

/* A lane's elements of a head: lane, lane + 32, and so on. */
static __device__ __forceinline__ void
poll_head(float (&v)[4], const bf16 *x, int lane)
{
    uint32_t word[4] = { ~0U, ~0U, ~0U, ~0U };
    bool wait = true;
    while (wait) {
        wait = false;
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = load_exchanged4(x + (lane & ~1) + 32 * i);
#pragma unroll
        for (int i = 0; i < 4; i++)
            wait = wait || word[i] == ~0U;
        wait = __any_sync(0xffffffffU, wait);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = lane & 1 ? high_bf16(word[i]) : low_bf16(word[i]);
}

static __device__ __forceinline__ float *
partial_of(const struct now &n, bf16 *vectors, int slice, unsigned head)
{
    float *all = (float *)(vectors + places_of(*n.s).end);
    return all + ((size_t)slice * n.s->query + head) * PART;
}

/* A warp norms and rotates a head, or takes the token's own value. */
static __device__ __forceinline__ void
take_head(const struct now &n, const struct item &t, int past, int h)
{
    float g[2][2];
    const struct stack &s = *n.s;
    const struct one_layer &l = n.b->layer[n.layer % 2];
    struct places at = places_of(s);
    int group = (int)s.group, lane = n.lane;
    unsigned from = h < group    ? (unsigned)(t.kv * group + h) * DIM
                    : h == group ? s.q + (unsigned)t.kv * DIM
                                 : s.q + s.kv + (unsigned)t.kv * DIM;
    const bf16 *x = vectors_here(n) + at.qkv + from;
    bf16 *to = h < group    ? (bf16 *)(n.b->heads + h * KEY_ROW)
               : h == group ? n.b->key
                            : n.b->value;
    float v[4];
    const float *gain = h < group ? l.q_gain : l.k_gain;
#pragma unroll
    for (int p = 0; p < 2; p++) {
        g[0][p] = gain[lane + 32 * p];
        g[1][p] = gain[64 + lane + 32 * p];
    }
    struct angles<DIM> angles(n.b->table, lane);
    poll_head(v, x, lane);
    const float a[2] = { v[0], v[1] }, b[2] = { v[2], v[3] };
    if (h <= group) {
        turn_head<DIM>(to, a, b, g, angles, s.eps, lane);
    } else {
#pragma unroll
        for (int p = 0; p < 2; p++) {
            to[lane + 32 * p] = from_f32<bf16>(a[p]);
            to[64 + lane + 32 * p] = from_f32<bf16>(b[p]);
        }
    }
    if (h < group)
        return;
    __syncwarp();
    size_t cell = (size_t)past * s.kv_heads * DIM + (size_t)t.kv * DIM;
    *(uint2 *)((h == group ? l.key : l.value) + cell + 4 * lane) =
        *(const uint2 *)(to + 4 * lane);
}

static __device__ __forceinline__ void
run_item(const struct now &n, const struct ring &ring, const struct item &t, int past)
{
    const struct stack &s = *n.s;
    struct block_state &b = *n.b;
    int warp = n.warp, lane = n.lane, group = (int)s.group;
    struct places at = places_of(s);
    // A second piece, too, has been asked for, if there is a place for it.
    int second = warp + ATTEND_WARPS;
    bool early = second < t.pieces && second / 2 < (int)s.slots;
    uint32_t rows = shared_address(b.heads) + (uint32_t)(lane & 15) * KEY_ROW +
                    ((uint32_t)lane >> 4) * 16;
    float o[1][DIM / 8][4] = {};
    struct softmax<1> x;
    begin_softmax(x);
    for (int j = warp; j < t.pieces; j += ATTEND_WARPS) {
        struct ring r = ring;
        r.next((unsigned)(j / 2));
        char *piece = piece_at(n, r, j);
        if (j > second || (j == second && !early))
            load_piece(n, ring, t, past, j);
        if (j == warp && early)
            copies_wait<1>();
        else
            copies_wait<0>();
        __syncwarp();
        int first = t.begin + j * ATTEND_KEYS;
        bool last = first + ATTEND_KEYS > past; // has the token's own
        if (last) {
            char *values = piece + ATTEND_KEYS * KEY_ROW;
            int row = past - first;
            *(uint2 *)(piece + row * KEY_ROW + 8 * lane) =
                *(const uint2 *)(b.key + 4 * lane);
            *(uint2 *)(values + row * KEY_ROW + 8 * lane) =
                *(const uint2 *)(b.value + 4 * lane);
            __syncwarp();
        }
        uint32_t keys = shared_address(piece) +
                        (uint32_t)((lane & 7) + ((lane >> 4) << 3)) * KEY_ROW +
                        (((uint32_t)lane >> 3) & 1) * 16;
        uint32_t values = shared_address(piece) + ATTEND_KEYS * KEY_ROW +
                          (uint32_t)(lane & 15) * KEY_ROW + ((uint32_t)lane >> 4) * 16;
        float score[1][2][4] = {};
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            uint32_t a[4], y[4];
            load4(a, rows + k * 32);
            load4(y, keys + k * 32);
            mma(score[0][0], a, y[0], y[1]);
            mma(score[0][1], a, y[2], y[3]);
        }
        int k0 = first + lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (k0 + e / 4 * 8 + e % 2 > past)
                score[0][e / 4][e % 4] = -INFINITY;
        update_max(x, o, score, s.scale2);
#pragma unroll
        for (int e = 0; e < 8; e++)
            to_weight(score[0][e / 4][e % 4], x.sum[0][e % 4 / 2], x.max[0][e % 4 / 2],
                      s.scale2);
        uint32_t p[1][4];
        as_a(p[0], score[0][0], score[0][1]);
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            uint32_t y[4];
            load4_trans(y, values + k * 32);
            mma(o[0][2 * k], p[0], y[0], y[1]);
            mma(o[0][2 * k + 1], p[0], y[2], y[3]);
        }
        bulk_fence(); // before a bulk copy overwrites what was written
        __syncwarp();
        // A stage is two pieces, or one, of a warp each.
        bool alone = j % 2 == 0 && j + 1 >= t.pieces;
        if (lane < (alone ? TILES : TILES / 2))
            mbarrier_arrive(shared_address(&b.empty[r.slot]));
    }

    float *all = (float *)n.x, *mine = all + warp * group * DIM;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = lane / 4 + 8 * h;
        float sum = x.sum[0][h];
        sum += __shfl_xor_sync(0xffffffffU, sum, 1);
        sum += __shfl_xor_sync(0xffffffffU, sum, 2);
        if (lane % 4 == 0) {
            b.all_max[warp][r] = x.max[0][h];
            b.all_sum[warp][r] = sum;
        }
        if (r < group)
#pragma unroll
            for (int d = 0; d < DIM / 8; d++)
                *(float2 *)(mine + r * DIM + 8 * d + lane % 4 * 2) =
                    make_float2(o[0][d][2 * h], o[0][d][2 * h + 1]);
    }
    barrier_of(ITEM_BARRIER, 32 * ATTEND_WARPS);
    bool alone = b.slices == 1;
    for (int i = warp * 32 + lane; i < group * DIM / 2; i += 32 * ATTEND_WARPS) {
        int h = i / (DIM / 2), d = i % (DIM / 2) * 2;
        unsigned head = (unsigned)(t.kv * group + h);
        float top = -INFINITY, sum = 0, y[2] = { 0, 0 };
#pragma unroll
        for (int w = 0; w < ATTEND_WARPS; w++)
            top = fmaxf(top, b.all_max[w][h]);
#pragma unroll
        for (int w = 0; w < ATTEND_WARPS; w++) {
            float weight = exp2_fast(b.all_max[w][h] - top);
            float2 v = *(const float2 *)(all + (w * group + h) * DIM + d);
            sum = fmaf(weight, b.all_sum[w][h], sum);
            y[0] = fmaf(weight, v.x, y[0]);
            y[1] = fmaf(weight, v.y, y[1]);
        }
        if (alone) {
            unsigned to = at.att + head * DIM + (unsigned)d;
            store_exchanged4(vectors_here(n) + to, two_bf16(y[0] / sum, y[1] / sum));
            store_exchanged4(vectors_of(n, AHEAD) + to, ~0U);
            continue;
        }
        float *to = partial_of(n, vectors_here(n), t.slice, head);
        store_exchanged4(to + d, __float_as_uint(y[0]));
        store_exchanged4(to + d + 1, __float_as_uint(y[1]));
        if (d == 0) {
            store_exchanged4(to + DIM, __float_as_uint(top));
            store_exchanged4(to + DIM + 1, __float_as_uint(sum));
        }
    }
}

/* A warp combines the slices of a quarter of a head, an element a lane, in order.  All that it
 * waits for is asked for at once, of AT_ONCE slices. */
template <int AT_ONCE>
static __device__ __forceinline__ void
join_slices(const struct now &n, unsigned item, int slices)
{
    unsigned lane = (unsigned)n.lane, head = item / JOINS, d = item % JOINS * 32 + lane;
    size_t step = (size_t)n.s->query * PART;
    const float *from = partial_of(n, vectors_here(n), 0, head);
    uint32_t top = ~0U, part = ~0U;
    float x = 0, sum = 0, weight = 0;
#pragma unroll 1
    for (int first = 0; first < slices; first += AT_ONCE) {
        uint32_t v[AT_ONCE];
        bool wait = true, ends = first == 0 && n.lane < slices;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            v[k] = ~0U;
        while (wait) {
            if (ends && (top == ~0U || part == ~0U)) {
                top = load_exchanged4(from + lane * step + DIM);
                part = load_exchanged4(from + lane * step + DIM + 1);
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (first + k < slices && v[k] == ~0U)
                    v[k] = load_exchanged4(from + (unsigned)(first + k) * step + d);
            wait = ends && (top == ~0U || part == ~0U);
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                wait = wait || (first + k < slices && v[k] == ~0U);
            wait = __any_sync(0xffffffffU, wait);
        }
        if (first == 0) {
            float own = ends ? __uint_as_float(top) : -INFINITY;
            weight = exp2_fast((ends ? own : 0) - warp_max(own));
            sum = warp_sum(ends ? fmaf(weight, __uint_as_float(part), 0) : 0);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            float w = __shfl_sync(0xffffffffU, weight, (first + k) % 32);
            if (first + k < slices)
                x = fmaf(w, __uint_as_float(v[k]), x);
        }
    }
    x /= sum;
    float next = __shfl_xor_sync(0xffffffffU, x, 1);
    unsigned to = places_of(*n.s).att + head * DIM + d;
    if (lane % 2 == 0) {
        store_exchanged4(vectors_here(n) + to, two_bf16(x, next));
        store_exchanged4(vectors_of(n, AHEAD) + to, ~0U);
    }
}

/* Partial results are cleared for the layer AHEAD, also those of slices that this token
 * does not have. */
static __device__ __forceinline__ void
clear_partials(const struct now &n)
{
    const struct stack &s = *n.s;
    for (int i = (int)blockIdx.x; i < s.limit * (int)s.query; i += (int)gridDim.x) {
        float *to = partial_of(n, vectors_of(n, AHEAD), 0, (unsigned)i);
        for (int k = n.lane; k < DIM + 2; k += 32)
            store_exchanged4(to + k, ~0U);
    }
}

static __device__ __forceinline__ void
run_attention(const struct now &n, struct ring &ring)
{
    const struct stack &s = *n.s;
    int past = n.b->past;
    struct item t = n.b->item;
    int slices = n.b->slices;
    if (t.slice >= 0) {
        ask_for_keys(n, ring, false);
        // By the last warps, since most of them end no stage of q, k and v.
        for (int h = WARPS - 1 - n.warp; h < (int)s.group + 2 * t.newest; h += WARPS)
            take_head(n, t, past, h);
        barrier_of(BLOCK_BARRIER, 32 * WARPS);
        if (n.warp < ATTEND_WARPS)
            run_item(n, ring, t, past);
        ring.next((unsigned)(t.pieces + 1) / 2);
        barrier_of(BLOCK_BARRIER, 32 * WARPS); // its scratch is the memory of o's x
    }
    // What this block has stored for the layers before, and read of them, comes before
    // what it stores from here on.
    if (n.warp == WARPS - 1 && n.lane == 0)
        __threadfence();
    if (s.limit > 1 && n.warp == WARPS - 2)
        clear_partials(n);
    if (slices > 1 && n.warp == WARPS - 3)
        for (unsigned i = blockIdx.x; i < s.query * JOINS; i += gridDim.x)
            slices <= 4 ? join_slices<4>(n, i, slices) : join_slices<16>(n, i, slices);
}

/* ---- the head -------------------------------------------------------------------- */

/* This block's logits: stages as in run_product, but in chunks, since the sums have no room
 * for all.  A chunk's have the place of those of the chunk before the last, which are read:
 * a warp is at most as many stages before another of its group as the ring has, whose slots
 * are filled in order; see plan_memory. */
static __device__ __forceinline__ struct candidate
run_head(const struct now &n, const struct ring &ring)
{
    const struct weight_plan &p = n.b->plan[PRODUCT_HEAD];
    struct share mine = share_of(p);
    struct candidate largest = no_candidate();
    unsigned tiles = p.tiles, groups = p.groups, step = p.step, rows = p.rows;
    unsigned group = (unsigned)n.warp * p.per_tiles >> 16;
    unsigned tile = (unsigned)n.warp - group * tiles;
    bool works = group < groups && group < mine.n;
    int rounds = works ? (int)((mine.n - group + groups - 1) / groups) : 0;
    struct part t = part_of(p, (int)tile, n.lane);
    struct ring r = ring;
    r.next(group);
    stage_input(n, PRODUCT_HEAD);
    barrier_of(BLOCK_BARRIER, 32 * WARPS);
    // The head's factor is there when a stage of it is.  This warp's own: another group may
    // have multiplied the block's first one, and its slot have another.
    if (works)
        mbarrier_wait(shared_address(&n.b->full[r.slot]), r.phase);
    float multiplier = n.b->multiplier[n.layer % 2][W_Q];
    float *chunk = n.b->sums[0] + group * tiles * TILE;
#pragma unroll 1
    for (int done = 0; done < rounds; done += CHUNK) {
        int more = min(rounds - done, +CHUNK);
        float *sums = chunk + done / CHUNK % 2 * CHUNK * WARPS * TILE;
#pragma unroll 1
        for (int round = 0; round < more; round++) {
            mbarrier_wait(shared_address(&n.b->full[r.slot]), r.phase);
            multiply_part(sums + round * WARPS * TILE, step, t,
                          n.stages + r.slot * n.s->stage, n.normed, n.b->zeros);
            release_stage(n, r, tile, tiles);
            r.next(groups);
        }
#pragma unroll 1
        for (int round = (int)tile; round < more; round += (int)tiles) {
            float *from = sums + round * WARPS * TILE + min((unsigned)n.lane, rows - 1);
            unsigned stage = mine.first + (group + (done + round) * groups) * mine.step;
            unsigned row = stage * rows + (unsigned)n.lane;
            float logit = sum_of(from, rows, p.slices) * multiplier + 0;
            if ((unsigned)n.lane < rows) {
                n.s->logits[row] = logit;
                largest = larger(largest, candidate_of(logit, row));
            }
            forget_sums(from, rows, p.slices);
        }
    }
    return largest;
}

/* The largest logit of all blocks, by that which ends last, becomes the token. */
static __device__ __forceinline__ void
take_largest(const struct now &n, struct header *header, struct candidate largest)
{
    unsigned all = gridDim.x, before = 0;
    largest = warp_argmax(largest);
    if (n.lane == 0)
        n.b->largest[n.warp] = largest;
    barrier_of(BLOCK_BARRIER, 32 * WARPS);
    if (n.warp > 0)
        return;
    largest = warp_argmax(n.lane < WARPS ? n.b->largest[n.lane] : no_candidate());
    if (n.lane == 0) {
        header->largest[blockIdx.x] = largest;
        __threadfence();
        before = atomicAdd(&header->ended, 1U);
    }
    if (__shfl_sync(0xffffffffU, before, 0) != all - 1)
        return;
    __threadfence();
    largest = no_candidate();
    for (unsigned i = (unsigned)n.lane; i < all; i += 32) {
        const volatile struct candidate *of = &header->largest[i];
        largest = larger(largest, { of->value, of->at });
    }
    largest = warp_argmax(largest);
    if (n.lane == 0) {
        header->ended = 0;
        int past = n.b->past;
        *n.s->id = n.s->best[past % 2] = (int32_t)largest.at;
        *n.s->position = past + 1;
    }
}

/* ---- all ------------------------------------------------------------------------- */

/* The token's x: as given, or as op_embed looks it up. */
template <typename W>
static __device__ __forceinline__ void
take_x(const struct stack &s, int id, bf16 *x)
{
    // -1: there was no largest logit; what is made of it is not used.
    const W *from = (const W *)s.x + (size_t)max(id, 0) * s.hidden;
#pragma unroll 1
    for (unsigned i = threadIdx.x * 8; i < s.hidden; i += ALL_THREADS * 8) {
        float v[8];
        load(v, from + i);
        store(x + i, v);
    }
}

static __global__ void __launch_bounds__(ALL_THREADS, 1)
    all_layers(const __grid_constant__ struct stack s)
{
    extern __shared__ __align__(128) char shared[];
    __shared__ struct block_state b;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    struct header *header = (struct header *)s.exchange;
    unsigned rotation = *(const volatile unsigned *)&header->rotation;
    int past = *s.position, id = s.logits ? *s.id : 0;
    const struct weight_plan &down = s.plan[PRODUCT_DOWN];
    unsigned own = blockIdx.x * down.each * down.rows;
    if (threadIdx.x == 0) {
        struct cut cut = cut_of(past + 1, s.limit);
        for (unsigned i = 0; i < s.slots; i++) {
            mbarrier_init(shared_address(&b.full[i]), 1);
            mbarrier_init(shared_address(&b.empty[i]), TILES);
        }
        for (int i = 0; i < 2; i++) {
            mbarrier_init(shared_address(&b.gains[i]), 1);
            mbarrier_init(shared_address(&b.gains_read[i]), 1);
        }
        mbarrier_init_fence();
        b.past = past;
        b.slices = cut.n;
        b.item = item_of(s, past, cut);
    }
    for (unsigned i = threadIdx.x; i < sizeof b.plan / 4; i += ALL_THREADS)
        ((uint32_t *)b.plan)[i] = ((const uint32_t *)s.plan)[i];
    for (unsigned i = threadIdx.x; i < ROUNDS * WARPS * TILE; i += ALL_THREADS)
        ((uint32_t *)b.sums)[i] = ~0U;
    for (unsigned i = threadIdx.x; i < ATTEND_ROWS * KEY_ROW / 4; i += ALL_THREADS)
        ((uint32_t *)b.heads)[i] = 0;
    if (warp == 1) {
        struct layer_word first = {};
        first.fetch(s.layer[0], lane);
        first.put(b, 0, lane);
    }
    if (threadIdx.x < 16)
        b.zeros[threadIdx.x] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x < DIM)
        b.table[threadIdx.x] = s.table[(size_t)past * DIM + threadIdx.x];
    float *gains = (float *)(shared + s.slots * s.stage);
    uint4 *normed = (uint4 *)(gains + 2 * s.hidden);
    bf16 *x = (bf16 *)(normed + s.hidden / 8); // before any product has its own there
    if (s.embed == DT_F16)
        take_x<__half>(s, id, x);
    else if (s.embed == DT_F32)
        take_x<float>(s, id, x);
    else
        take_x<bf16>(s, id, x);
    __syncthreads();
    if (warp == WARPS) {
        run_loader(s, b, shared, gains, lane);
        return;
    }
    // A barrier of all products comes before the first use.
    for (unsigned i = threadIdx.x; i < down.each * down.rows; i += 32 * WARPS)
        if (own + i < s.hidden)
            b.own[i] = to_f32(x[own + i]);
    struct ring ring = { 0, 0, s.slots };
    struct now n = {};
    n.s = &s;
    n.b = &b;
    n.stages = shared;
    n.gains = gains;
    n.normed = normed;
    n.x = (uint4 *)x;
    n.warp = warp;
    n.lane = lane;
    n.rotation = rotation;
    for (; n.layer < s.layers; n.layer++) {
#pragma unroll 1
        for (int product = 0; product < PRODUCTS; product++) {
            if (product == PRODUCT_O)
                run_attention(n, ring);
            run_product(n, ring, product);
        }
        n.rotation += s.rotation;
        if (n.rotation == ROTATIONS * s.rotation)
            n.rotation = 0;
    }
    if (s.logits) {
        struct candidate largest = run_head(n, ring);
        if (s.best)
            take_largest(n, header, largest);
    }
    // All blocks have begun, since the last layer took what they gave: see all_give.
    if (blockIdx.x == 0 && threadIdx.x == 0)
        header->rotation = n.rotation;
}

/* Divide a product's rows into slices of columns as gemv.cu does; false: it is not possible
 * here. */
static bool
plan_slices(struct weight_plan *p, size_t in, unsigned tiles)
{
    struct division d = cuda_gemv_division(tiles, (unsigned)(in / COLUMNS), DT_NVFP4);
    *p = {};
    p->in = (unsigned)in;
    p->units = (unsigned)(in / COLUMNS);
    p->step = (unsigned)d.warps;
    p->slices = (unsigned)(d.split * d.warps);
    p->code_row = p->in / 2;
    p->scale_row = p->in / NVFP4_BLOCK;
    if (in % (2 * COLUMNS) || p->slices > SLICES || p->units > UINT8_MAX)
        return false;
    for (unsigned i = 0; i < p->slices; i++) {
        unsigned rank = i / p->step, split = (unsigned)d.split;
        unsigned at = p->units * rank / split + i % p->step;
        unsigned to = p->units * (rank + 1) / split;
        p->count[i] = (uint8_t)(at < to ? (to - at + p->step - 1) / p->step : 0);
        p->first[i] = (uint8_t)(at < to ? at : 0);
    }
    return true;
}

static void
set_stage(struct weight_plan *p, unsigned rows, size_t all)
{
    p->rows = rows;
    p->stages = (unsigned)(all / rows);
    p->tiles = blocks_of(rows * p->slices, TILE);
    p->groups = WARPS / p->tiles;
    p->per_rows = (65536 + rows - 1) / rows;
    p->per_tiles = (65536 + p->tiles - 1) / p->tiles;
}

static bool
fits_stage(const struct weight_plan *p, unsigned rows)
{
    return rows <= TILE && rows * (p->code_row + p->scale_row) <= MOST_STAGE &&
           rows * p->slices <= TILES * TILE;
}

/* Blocks take tiles in turn. */
static bool
plan_tiles(struct weight_plan *p, const struct cuda *c, size_t rows, size_t in,
           unsigned tiles)
{
    unsigned sms = (unsigned)c->sms;
    if (!plan_slices(p, in, tiles) || rows % TILE || !fits_stage(p, TILE))
        return false;
    set_stage(p, TILE, rows);
    p->even = p->stages / sms;
    p->odd = p->stages % sms;
    // With more slices many warps would have nothing to do.
    return p->groups * p->tiles >= WARPS - 3;
}

/* A block has the fewest rows, in as few stages, of an even number each. */
static bool
plan_own(struct weight_plan *p, const struct cuda *c, size_t rows, size_t in)
{
    unsigned least = blocks_of(rows, (unsigned)c->sms);
    if (!plan_slices(p, in, blocks_of(rows, TILE)))
        return false;
    for (unsigned own = least; own <= OWN; own++)
        for (unsigned n = 1; n <= SLOTS; n++) {
            unsigned r = own / n;
            if (own % n || r % 2 || rows % r || !fits_stage(p, r))
                continue;
            set_stage(p, r, rows);
            p->each = n;
            return true;
        }
    return false;
}

/* Whether other blocks wait for each block in each layer: then all are at most a layer
 * behind. */
static bool
all_give(const struct stack *s, unsigned sms)
{
    unsigned first = 0; // as many blocks multiply; the last ones have keys
    for (int i = 0; i < PRODUCTS; i++) {
        const struct weight_plan *p = &s->plan[i];
        first = max(first, p->each ? blocks_of(p->stages, p->each) : p->stages);
    }
    return first + s->kv_heads >= sms;
}

static bool
plan_weight(struct one_layer *to, int i, const struct matrix *w)
{
    to->codes[i] = (const char *)w->data;
    to->scales[i] = w->scales;
    to->scale2[i] = w->scale2;
    return w->dtype == DT_NVFP4 && w->data && w->scales && w->scale2 &&
           ((uintptr_t)w->data | (uintptr_t)w->scales) % 16 == 0;
}

static bool
plan_stack(struct cuda *c, struct stack *s, const struct layer_steps *l)
{
    const struct matrix *w = l->layer[0].w;
    unsigned rows = (unsigned)((l->query + 2 * l->kv) * DIM);
    s->layers = (unsigned)l->layers;
    s->hidden = (unsigned)w[0].cols;
    s->query = (unsigned)l->query;
    s->kv_heads = (unsigned)l->kv;
    s->q = s->query * DIM;
    s->kv = s->kv_heads * DIM;
    s->ffn = (unsigned)w[4].rows;
    s->group = s->query / s->kv_heads;
    s->limit = max(1, ATTEND_BLOCKS / (int)s->kv_heads);
    s->eps = l->eps;
    s->norm = norm_shape_of((unsigned)w[0].cols / 8);
    s->scale2 = 1 / sqrtf((float)DIM) * 1.44269504F;
    s->table = l->table;
    s->position = l->position;
    s->exchange = c->exchange;
    if (l->layers > MOST_LAYERS || l->dim != DIM || s->group > GROUP ||
        s->limit > LIMIT || s->norm.per > 2 || s->hidden % 8 || s->ffn % TILE)
        return false;
    struct weight_plan *p = s->plan;
    if (!plan_tiles(&p[PRODUCT_QKV], c, rows, s->hidden, blocks_of(rows, TILE)) ||
        !plan_own(&p[PRODUCT_O], c, s->hidden, s->q) ||
        !plan_tiles(&p[PRODUCT_GATED], c, 2 * s->ffn, s->hidden, s->ffn / (TILE / 2)) ||
        !plan_own(&p[PRODUCT_DOWN], c, s->hidden, s->ffn) ||
        p[PRODUCT_O].each * p[PRODUCT_O].rows !=
            p[PRODUCT_DOWN].each * p[PRODUCT_DOWN].rows)
        return false;
    struct places at = places_of(*s);
    const unsigned place[] = { at.qkv, at.mid, at.act, at.out };
    for (int i = 0; i < PRODUCTS; i++) {
        p[i].place = place[i];
        p[i].out = i == PRODUCT_GATED ? TILE / 2 : p[i].rows;
    }
    unsigned sms = (unsigned)c->sms;
    s->rotation = (unsigned)rotation_bytes(*s);
    unsigned most = (unsigned)most_slices((int)l->past, s->limit) * s->kv_heads;
    return most <= sms && all_give(s, sms) &&
           HEADER + ROTATIONS * (size_t)s->rotation <= EXCHANGE;
}

/* Divide shared memory, of which the result is the size; 0: it is too small. */
static size_t
plan_memory(struct stack *s, const struct cuda *c)
{
    size_t widest = max(s->q, s->ffn) * 2, scratch = ATTEND_WARPS * s->group * DIM * 4;
    size_t fixed = s->hidden * 10 + max(widest, scratch); // gains, normed x, x
    size_t beside = sizeof(struct block_state) + 1024;
    s->stage = 2 * PIECE;
    for (int i = 0; i < ALL_PRODUCTS; i++) {
        const struct weight_plan *p = &s->plan[i];
        s->stage = max(s->stage, p->rows * (p->code_row + p->scale_row));
    }
    s->stage = (s->stage + 127) / 128 * 128;
    if (fixed + beside > c->shared)
        return 0;
    s->slots = (unsigned)min_size((c->shared - fixed - beside) / s->stage, SLOTS);
    // A wait knows a phase by its parity, so it may not begin before the stage that was in
    // the slot last has come.  Stages come in order, and a group has had one that is
    // `groups` before the one that it waits for, or the product has just begun.
    for (int i = 0; i < ALL_PRODUCTS; i++) {
        struct weight_plan *p = &s->plan[i];
        p->groups = min(p->groups, s->slots);
        p->per_groups = p->groups ? (65536 + p->groups - 1) / p->groups : 0;
        if (i == PRODUCT_HEAD)
            continue;
        if (blocks_of(p->each ? p->each : p->even + (p->odd > 0), p->groups) > ROUNDS)
            return 0;
    }
    // The same of a warp's first keys, at most ATTEND_WARPS / 2 stages past the last of q,
    // k and v; its second ones are as many stages past the first.  The first stage of q, k
    // and v may be waited for when those of gate and up have come, but not those of down.
    if (s->slots < s->plan[PRODUCT_QKV].groups + ATTEND_WARPS / 2 - 1 ||
        s->slots <= s->plan[PRODUCT_DOWN].each)
        return 0;
    const struct weight_plan *head = &s->plan[PRODUCT_HEAD];
    if (s->logits &&
        (head->groups >= s->slots || blocks_of(s->slots, head->groups) > CHUNK))
        return 0;
    return s->slots * s->stage + fixed;
}

/* What other shapes have exchanged would be taken for vectors.  A recording that has an
 * older shape is not launched again: its key is another. */
static void
clear_exchange(struct cuda *c, const struct stack *s)
{
    size_t vectors = places_of(*s).end;
    if (c->exchanged[0] == s->rotation && c->exchanged[1] == vectors)
        return;
    c->exchanged[0] = s->rotation;
    c->exchanged[1] = vectors;
    cuda_check(c, cudaMemsetAsync(c->exchange, 0, HEADER, c->q.stream), "cudaMemset");
    cuda_check(c,
               cudaMemsetAsync(c->exchange + HEADER, 0xff, ROTATIONS * s->rotation,
                               c->q.stream),
               "cudaMemset");
}

static bool
plan_layer(struct one_layer *to, const struct layer_step *from)
{
    for (int m = 0; m < LAYER_WEIGHTS; m++)
        if (!plan_weight(to, m, &from->w[m]))
            return false;
    to->input_gain = from->input_gain;
    to->mid_gain = from->mid_gain;
    to->q_gain = from->q_gain;
    to->k_gain = from->k_gain;
    to->key = (bf16 *)from->key;
    to->value = (bf16 *)from->value;
    return ((uintptr_t)from->input_gain | (uintptr_t)from->mid_gain |
            (uintptr_t)from->key | (uintptr_t)from->value) %
               16 ==
           0;
}

/* The head has the place of W_Q in a layer behind the last one. */
static bool
plan_ends(struct cuda *c, struct stack *s, const struct token_ends *e)
{
    struct one_layer *to = &s->layer[s->layers];
    const struct matrix *embed = e->embed;
    size_t rows = e->head->rows;
    for (int m = 0; m < LAYER_WEIGHTS; m++)
        if (!plan_weight(to, m, e->head))
            return false;
    to->input_gain = e->gain;
    s->id = e->id;
    s->x = embed->data;
    s->embed = embed->dtype;
    s->logits = (float *)e->logits->data;
    s->best = e->best;
    bool plain =
        embed->dtype == DT_BF16 || embed->dtype == DT_F16 || embed->dtype == DT_F32;
    return plain && (uintptr_t)s->x % 16 == 0 && (uintptr_t)e->gain % 16 == 0 &&
           (unsigned)c->sms <= MOST_BLOCKS &&
           plan_tiles(&s->plan[PRODUCT_HEAD], c, rows, s->hidden,
                      blocks_of(rows, TILE));
}

static bool
start(struct cuda *c, struct stack *s, const struct layer_steps *l,
      const struct token_ends *ends)
{
    // Other chips: not tried.
    if (c->major != 9 || !plan_stack(c, s, l) || (ends && !plan_ends(c, s, ends)))
        return false;
    size_t shared = plan_memory(s, c);
    for (size_t i = 0; shared && i < l->layers; i++)
        if (!plan_layer(&s->layer[i], &l->layer[i]))
            return false;
    if (!shared)
        return false;
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.gridDim = (unsigned)c->sms;
    config.blockDim = ALL_THREADS;
    config.dynamicSmemBytes = shared;
    config.stream = c->q.stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    clear_exchange(c, s);
    attention_allow(c, (const void *)all_layers, shared);
    cuda_check(c, cudaLaunchKernelEx(&config, all_layers, *s), "all layers");
    cuda_launched(c, "all layers");
    c->q.early = NOT_EARLY;
    return true;
}

bool
cuda_layers(struct kernels *k, const struct matrix *y, const struct matrix *x,
            const struct layer_steps *l)
{
    struct stack s = {};
    s.x = x->data;
    s.embed = x->dtype;
    s.y = (bf16 *)y->data;
    return x->dtype == DT_BF16 && start(cuda_of(k), &s, l, NULL);
}

bool
cuda_token(struct kernels *k, const struct layer_steps *l, const struct token_ends *e)
{
    struct stack s = {};
    return k->is.act == DT_BF16 && start(cuda_of(k), &s, l, e);
}
