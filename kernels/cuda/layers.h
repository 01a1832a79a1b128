/* SPDX-License-Identifier: MIT */
/* layers: how layers.cu divides products and memory, and how its blocks exchange what they
 * compute. */
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_H
#define NIBBLE_KERNELS_CUDA_LAYERS_H

#include "kernels/cuda/argmax.h"
#include "kernels/cuda/attend.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/ops.h"

enum {
    TILE = 16,                        // rows of an mma
    COLUMNS = 128,                    // of a unit
    WARPS = 15,                       // that multiply
    ALL_THREADS = 32 * (WARPS + 1),   // with the loader: 128 registers for each
    TILES = 8,                        // max. of a stage, even
    MOST_STAGE = TILE * (1280 + 160), // bytes: as many columns as Qwen3-4B's hidden has
    SLOTS = 8,                        // max. stages of the ring
    SLICES = 16,                      // max. of a row
    ROUNDS = 10,                      // max. stages of a group of warps in a product
    OWN = 128,                        // max. rows of o and down of a block
    DIM = 128,                        // of a head
    JOINS = DIM / 32,                 // parts of a head that a warp combines
    GROUP = 8,                        // max. query heads of a kv head
    LIMIT = 32,                       // max. slices of keys
    KEY_ROW = 2 * DIM + 16,           // bytes of a key in a stage
    PIECE = 2 * ATTEND_KEYS * KEY_ROW,
    ROTATIONS = 6, // memories for a layer's vectors
    AHEAD = 4,     // layers from that which clears vectors to that which writes them
    MOST_LAYERS = 96,
    CHUNK = ROUNDS / 2, // stages of a group of warps between two ends, in the head
};

enum weight { W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN };

enum { NORM_BARRIER = 1, ITEM_BARRIER, BLOCK_BARRIER };

/* Of a layer; and the head behind all of them. */
enum { PRODUCT_QKV, PRODUCT_O, PRODUCT_GATED, PRODUCT_DOWN, PRODUCTS };
enum { PRODUCT_HEAD = PRODUCTS, ALL_PRODUCTS };

struct one_layer {
    const char *codes[LAYER_WEIGHTS];
    const uint8_t *scales[LAYER_WEIGHTS];
    const float *scale2[LAYER_WEIGHTS], *input_gain, *mid_gain, *q_gain, *k_gain;
    bf16 *key, *value;
};

/* How a product is divided.  A row has slices of columns; from a slice's unit to its next
 * one are `step` units.  A stage has some rows, whose sums of slices are made 16 at a time,
 * a tile, in the order of slices and then rows. */
struct weight_plan {
    unsigned in, units, slices, step;
    uint8_t first[SLICES], count[SLICES]; // units of a slice
    unsigned rows, tiles;                 // of a stage
    unsigned stages;                      // of all blocks
    unsigned each;      // adjacent stages of a block; 0: blocks take stages in turn
    unsigned even, odd; // in turn: stages of a block, one more for the first `odd`
    unsigned groups;    // of warps that make a stage each
    unsigned code_row, scale_row; // bytes of a row
    unsigned place, out;          // in a rotation's vectors; elements of a stage
    // 2^16 / rows, tiles, and groups, rounded up
    unsigned per_rows, per_tiles, per_groups;
};

/* What the kernel is given. */
struct stack {
    struct weight_plan plan[ALL_PRODUCTS];
    unsigned layers, slots, stage, rotation; // stage, rotation: bytes
    unsigned hidden, q, kv, ffn, query, kv_heads, group;
    int limit; // max. slices of keys
    struct norm_shape norm;
    float eps, scale2;
    const float *table;
    int32_t *position, *id;
    const void *x;    // with logits: the embedding, of which the id's row is x
    enum dtype embed; // of x
    bf16 *y;          // without logits
    float *logits;    // NULL: not wanted
    int32_t *best;    // as in struct token_ends
    char *exchange;
    // One more than the last: its input_gain is the last norm's, its W_Q the head.
    struct one_layer layer[MOST_LAYERS + 1];
};

/* Offsets in elements of a rotation's vectors; partial results of attention behind
 * them. */
struct places {
    unsigned qkv, att, mid, act, out, end;
};

static __host__ __device__ __forceinline__ struct places
places_of(const struct stack &s)
{
    struct places p;
    p.qkv = 0;
    p.att = s.q + 2 * s.kv;
    p.mid = p.att + s.q;
    p.act = p.mid + s.hidden;
    p.out = p.act + s.ffn;
    p.end = (p.out + s.hidden + 63) / 64 * 64;
    return p;
}

enum {
    PART = DIM + 4, // floats of a partial result
    HEADER = 4096,  // bytes
    MOST_BLOCKS = 500,
};

/* In front of the vectors. */
struct header {
    unsigned rotation;                     // offset of that which comes next
    unsigned ended;                        // blocks whose largest logit is there
    struct candidate largest[MOST_BLOCKS]; // of a block
};
static_assert(sizeof(struct header) <= HEADER, "there is place for it");

static __host__ __device__ __forceinline__ size_t
rotation_bytes(const struct stack &s)
{
    return places_of(s).end * 2 + (size_t)s.limit * s.query * PART * 4;
}

/* ---- exchange -------------------------------------------------------------------- */

static __device__ __forceinline__ bool
is_there(const uint4 &v)
{
    return v.x != ~0U && v.y != ~0U && v.z != ~0U && v.w != ~0U;
}

static __device__ __forceinline__ uint32_t
poll4(const void *p)
{
    uint32_t v;
    do
        v = load_exchanged4(p);
    while (v == ~0U);
    return v;
}

/* N packs of 16 bytes, `step` apart, up to `end`: a warp loads them until all of all lanes
 * are there.  PAUSE: nanoseconds between two loads. */
template <int N, int PAUSE = 0>
static __device__ __forceinline__ void
poll16(uint4 (&v)[N], const uint4 *p, unsigned i, unsigned step, unsigned end)
{
    bool wait = true;
#pragma unroll
    for (int k = 0; k < N; k++)
        v[k] = make_uint4(~0U, 0, 0, 0);
    while (wait) {
        wait = false;
#pragma unroll
        for (int k = 0; k < N; k++)
            if (i + k * step < end && !is_there(v[k]))
                v[k] = load_exchanged16(p + i + k * step);
#pragma unroll
        for (int k = 0; k < N; k++)
            wait = wait || (i + k * step < end && !is_there(v[k]));
        wait = __any_sync(0xffffffffU, wait);
        if (PAUSE && wait)
            __nanosleep(PAUSE);
    }
}

/* Where piece i of x belongs: as in gemv_one.cu. */
static __device__ __forceinline__ unsigned
place_of(unsigned i)
{
    return (i / 16 * 4 + i % 4) * 4 + i / 4 % 4;
}

/* This block's part of attention. */
struct item {
    int kv, slice;          // slice < 0: none
    int begin, end, pieces; // keys
    bool newest;
};

/* A block's shared memory besides the ring and x. */
struct block_state {
    uint64_t full[SLOTS], empty[SLOTS], gains[2], gains_read[2];
    struct weight_plan plan[ALL_PRODUCTS];
    struct one_layer layer[2]; // fetched a layer ahead
    float multiplier[2][LAYER_WEIGHTS + 1];
    struct item item;
    int slices, past;
    float sums[ROUNDS][WARPS * TILE]; // ones until they are there
    alignas(16) uint4 zeros[16];
    float own[OWN]; // the residual stream's rows that are this block's
    float squares[NORM_THREADS / 32];
    struct candidate largest[WARPS];
    float table[DIM];
    float all_max[ATTEND_WARPS][ATTEND_ROWS], all_sum[ATTEND_WARPS][ATTEND_ROWS];
    alignas(16) char heads[ATTEND_ROWS * KEY_ROW]; // rows past the heads are 0
    alignas(16) bf16 key[DIM], value[DIM];         // the token's own
};

/* This block's stages of a product: the first, and their number. */
struct share {
    unsigned first, step, n;
};

static __device__ __forceinline__ struct share
share_of(const struct weight_plan &p)
{
    if (!p.each)
        return { blockIdx.x, gridDim.x, p.even + (blockIdx.x < p.odd) };
    unsigned first = blockIdx.x * p.each;
    return { first, 1, p.stages > first ? min(p.each, p.stages - first) : 0 };
}

/* The last blocks, which multiply less, have the first ones. */
static __device__ __forceinline__ struct item
item_of(const struct stack &s, int past, const struct cut &cut)
{
    int i = (int)(gridDim.x - 1 - blockIdx.x);
    struct item t = { i % (int)s.kv_heads, i / (int)s.kv_heads, 0, 0, 0, false };
    if (t.slice >= cut.n) {
        t.slice = -1; // and no pieces
        return t;
    }
    t.begin = t.slice * cut.keys;
    t.end = min(t.begin + cut.keys, past + 1);
    t.pieces = (t.end - t.begin + ATTEND_KEYS - 1) / ATTEND_KEYS;
    t.newest = t.slice == cut.n - 1;
    return t;
}

/* A position in the ring. */
struct ring {
    unsigned slot, phase, slots;

    __device__ __forceinline__ void
    next(unsigned n)
    {
        for (slot += n; slot >= slots; slot -= slots)
            phase ^= 1;
    }
};

#endif
