/* SPDX-License-Identifier: MIT */
/* gemv: shared by the products of few tokens: gemv.cu divides a weight and takes care of
 * what tensor cores do not do, gemv_one.cu has one token, gemv_few.cu 2 to GEMV_FEW,
 * gemv_many.cu up to GEMV_MAX. */
#ifndef NIBBLE_KERNELS_CUDA_GEMV_H
#define NIBBLE_KERNELS_CUDA_GEMV_H

#include "kernels/cuda/codes.h"
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

struct gemv_job {
    struct product part[LINEAR_MAX];
    const void *x;
    size_t in;
    int tokens, parts;
    unsigned tiles;    // of all parts
    bool wide;         // y is f32
    const float *gain; // x is normed first; NULL: it is not
    float eps;
    bool gated; // two parts, gate and up: y of the first is silu(gate) * up
};

/* The addend of one row and token. */
template <typename A>
static __device__ __forceinline__ float
added(const struct gemv_job &j, const struct product &w, int token, size_t row)
{
    size_t at = (size_t)token * w.out + row;
    if (!w.add)
        return 0;
    return j.wide ? ((const float *)w.add)[at] : to_f32(((const A *)w.add)[at]);
}

template <typename A>
static __device__ __forceinline__ void
put(const struct gemv_job &j, const struct product &w, int token, size_t row, float sum)
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
    DEPTH = 4,      // units in flight per warp
    MANY_WARPS = 8, // max. that divide a row in a block
    GEMV_FEW = 8,
    STAGED = 40 << 10, // max. bytes of one token's x in shared memory
};

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
        fp4_operand(to, u.codes, u.scales, half);
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

/* 16 rows of a part, from `first` on: a block's unit of work.  Gated: 8 of gate and the
 * same of up. */
struct tile {
    int part;
    size_t first;
};

static __device__ __forceinline__ struct tile
tile_of(const struct gemv_job &j, unsigned i)
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
row_of(const struct gemv_job &j, const struct tile &t, int r)
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
begin_tile(F &form, const struct gemv_job &j, const struct tile &t, int group,
           int quarter)
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
span_of(const struct gemv_job &j, unsigned rank, int quarter)
{
    unsigned units = (unsigned)((j.in + F::COLUMNS - 1) / F::COLUMNS);
    struct span s = { units * rank / SPLIT, units * (rank + 1) / SPLIT, 0 };
    s.mine = (unsigned)((j.in + F::COLUMNS - 1 - (unsigned)quarter * (F::PIECES * 8)) /
                        F::COLUMNS);
    s.mine = s.mine < s.to ? s.mine : s.to;
    return s;
}

/* bytes: of x in shared memory, at most STAGED */
void cuda_gemv_one(struct cuda *c, const struct gemv_job &j, enum dtype dtype,
                   const struct division &d, size_t bytes);
void cuda_gemv_few(struct cuda *c, const struct gemv_job &j, enum dtype dtype,
                   const struct division &d);
/* more than GEMV_FEW tokens */
void cuda_gemv_several(struct cuda *c, const struct gemv_job &j, enum dtype dtype,
                       const struct division &d);

#endif
