/* SPDX-License-Identifier: MIT */
/* quant_kernel: the implementations of nvfp4_quant.  Private to lib/nvfp4. */
#ifndef NIBBLE_NVFP4_QUANT_KERNEL_H
#define NIBBLE_NVFP4_QUANT_KERNEL_H

#include "lib/nvfp4/quant.h"

/* quant.c: nvfp4_quant block by block, for any spec->isa. */
void nvfp4_quant_scalar(uint8_t *codes, uint8_t *scales, const float *x, size_t rows,
                        size_t cols, uint64_t first, const struct quant_spec *spec,
                        const struct quant_scale *t, struct quant_error *e);

/* The magnitude code nearest to a/s, ties to even: products of a threshold and s are
 * exact, so no rounding decides. */
static inline unsigned
quant_nearest(float a, float s)
{
    return (unsigned)((a > 0.25F * s) + (a >= 0.75F * s) + (a > 1.25F * s) +
                      (a >= 1.75F * s) + (a > 2.5F * s) + (a >= 3.5F * s) +
                      (a > 5.0F * s));
}

enum { QUANT_LAST_SCALE = 0x7e };

/* The scale byte that a sweep tries after c; above QUANT_LAST_SCALE there is none. */
static inline int
quant_next_scale(enum quant kind, int c)
{
    do
        c++;
    while (kind == QUANT_SWEEPFP8 && c <= QUANT_LAST_SCALE &&
           !quant_fp8_scale((unsigned)c));
    return c;
}

/* The scale bytes that a sweep tries: low, and by quant_next_scale up to high. */
struct quant_range {
    int low, high;
};

/* c0 is nearest to amax/6.  From two bytes below it, where values clip, to six above: a
 * scale twice as large has no grid point that amax/6 lacks.  The scales of sweepfp8 are
 * further apart: from three below, so that there is always one. */
static inline struct quant_range
quant_range(enum quant kind, int c0, bool exhaustive)
{
    bool fp8 = kind == QUANT_SWEEPFP8;
    c0 = fp8 && c0 < QUANT_FP8_FIRST ? QUANT_FP8_FIRST : c0;
    int below = exhaustive ? 0 : c0 - (fp8 ? 3 : 2) - 1;
    int high = exhaustive || c0 + 6 > QUANT_LAST_SCALE ? QUANT_LAST_SCALE : c0 + 6;
    return (struct quant_range){ quant_next_scale(kind, below < 0 ? 0 : below), high };
}

/* The power of two that brings T to 1 .. 2; the smallest values stay below. */
float quant_unit(const struct quant_scale *t);
/* Add the error, in units, of 16 values of a block with scale byte c. */
void quant_add_costs(struct quant_error *e, float noise, float signal, float largest,
                     float amax, uint8_t c, float scale2, float unit);

/* quant_kernel.c: whole rows of blocks, for all but square and stochastic; with weights,
 * blocks of one row.  Costs: a float a block, in units, or all NULL. */
struct quant_costs {
    float *noise, *signal, *largest, *amax;
    float unit; // values are multiplied by it
};
typedef void quant_kernel_fn(uint8_t *codes, uint8_t *scales, const float *x,
                             size_t blocks, const struct quant_spec *spec,
                             const struct quant_scale *t,
                             const struct quant_costs *costs);
#if defined __x86_64__
quant_kernel_fn nvfp4_kernel_avx2, nvfp4_kernel_avx512;
#elif defined __aarch64__
quant_kernel_fn nvfp4_kernel_neon;
#endif

#endif
