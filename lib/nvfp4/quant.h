/* SPDX-License-Identifier: MIT */
/* quant: the NVFP4 quantizers.
 *
 * A tensor is quantized in two passes: its largest magnitude T gives the tensor scale
 * (nvfp4_scale), then every block of 16 consecutive columns gets a scale byte and 16
 * codes.  Each quantizer is one function of quant.c, written in the order in which it
 * rounds; every operation is one binary32 operation, nothing is fused.  That file is
 * the truth; quant_kernel.c does the same for many blocks at a time and gives the same
 * bytes.
 *
 * Inputs are finite (nvfp4_amax checks it); a NaN or an infinity has no place in a
 * block.
 */
#ifndef NIBBLE_NVFP4_QUANT_H
#define NIBBLE_NVFP4_QUANT_H

#include "lib/base/dtype.h"
#include "lib/base/isa.h"
#include "lib/nvfp4/codec.h"

#include <stdbool.h>

enum quant {
    QUANT_TORCHAO,  // one level, amax/6 with floor 2^-6: of TorchSharp's file converter
    QUANT_NATIVE,   // one level, amax/6 in the input's dtype: of TorchSharp's runtime
    QUANT_SWEEP1,   // one level, best of nine scales
    QUANT_MAX,      // two levels, bound 448, amax/6
    QUANT_4OVER6,   // two levels, bound 256, better of max -> 6 and max -> 4
    QUANT_SWEEP,    // two levels, bound 256, best of nine scales
    QUANT_SWEEPFP8, // the same among the scales whose products are E4M3 numbers
    QUANT_COUNT
};

/* The 42 scale bytes of sweepfp8, a bit a byte: those below 0x20, and those of any 32
 * from there on.  Times 2^-2, the products of such a scale with all E2M1 values are E4M3
 * numbers.  For 1.5, 3 and 6 the significand of the scale must be 1, 1.25 or 1.5, since
 * 1.5 times another one has five bits; and 0.5 must not lose a bit below 2^-9: 1 from
 * 2^-6 on, 1.5 from 1.5 * 2^-5 on, 1.25 from 1.25 * 2^-4 on.  The largest number, 448,
 * is no limit: a tensor bound of 256 leaves no value that 320 or 384 makes a 6. */
enum { QUANT_FP8_LOW = 0x15110100, QUANT_FP8_HIGH = 0x15151515, QUANT_FP8_FIRST = 8 };

static inline bool
quant_fp8_scale(unsigned c)
{
    unsigned set = c < 32 ? QUANT_FP8_LOW : QUANT_FP8_HIGH;
    return c < 0x7f && (set >> c % 32 & 1);
}

struct quant_spec {
    /* sweep, sweep1, sweepfp8, 4over6: a weight for each error, by column; NULL: all 1. */
    const float *column_weight;
    enum quant kind;
    enum isa isa;      // how fast; changes no byte
    enum dtype source; // native rounds in it: f16, bf16 or f32
    /* stochastic: the draws' key and the tensor's row in the tensor table. */
    uint32_t seed, step, row;
    bool modelopt;   // max: ModelOpt's order of operations
    bool mae;        // 4over6: sum of magnitudes, not of squares
    bool exhaustive; // sweep, sweep1: all 126 scales; sweepfp8: all 42
    bool square;     // one scale for 16 rows of 16 columns; stored in each row
    bool stochastic; // max: elements rounded up or down by chance, not to nearest
    /* max: enc of struct quant_scale, whatever the largest magnitude is: what is beyond 2688 /
     * given saturates.  0: by the largest magnitude. */
    float given;
};

/* What is common to the blocks of a tensor. */
struct quant_scale {
    float amax;   // T
    float enc;    // S: what sweep and 4over6 multiply by
    float scale2; // the multiplier that is stored; 1 with one level
    /* max: 1 if enc was given.  Block scales are then enc (A / 6), A a block's largest
     * magnitude, as servers compute them; else A (enc / 6).  Where A enc / 6 lies between two
     * scale bytes, one of 1000 times with values of bf16, the two can differ. */
    uint32_t given;
};

/* The error of quantizing.  Sums go by blocks in order, in a block by columns, so that
 * they are the same on every path; values count in units of T's power of two, so that
 * squares stay in range. */
struct quant_error {
    double noise, signal; // sums of squares of x^ - x and of x
    float max;            // largest |x^ - x|
    uint64_t zero_scales; // blocks with scale byte 0
    uint64_t saturated;   // blocks that would need a scale byte above 0x7e
};

const char *quant_name(enum quant q);
/* QUANT_COUNT when there is no such name. */
enum quant quant_named(const char *name);
int quant_levels(enum quant q);
/* The largest block scale that the tensor scale aims at; 0 with one level. */
float quant_bound(enum quant q);
/* Whether it looks for the scale with the least error among many. */
bool quant_sweeps(enum quant q);
/* Whether one tensor scale for fused projections is this quantizer's default. */
bool quant_shares_scale(enum quant q);

/* The tensor scale for a largest magnitude T, or the one that spec gives. */
struct quant_scale nvfp4_scale(const struct quant_spec *spec, float amax);

/* Largest magnitude of n values of type f16, bf16 or f32 (aligned); *bad is the index
 * of the first that is not finite, n if there is none. */
float nvfp4_amax(enum dtype dtype, const void *values, size_t n, size_t *bad);

/* rows x cols values, cols a multiple of 16.  codes: even column in the low nibble, 8
 * bytes a block; scales: a byte a block.  first is the index of x[0] in its tensor, for
 * stochastic rounding.  A square block at the end may have fewer rows.  The
 * error is added to *e, if given. */
void nvfp4_quant(uint8_t *codes, uint8_t *scales, const float *x, size_t rows,
                 size_t cols, uint64_t first, const struct quant_spec *spec,
                 const struct quant_scale *t, struct quant_error *e);

/* Add the error of n values of one row that were quantized elsewhere to these bytes. */
void nvfp4_measure(const uint8_t *codes, const uint8_t *scales, const float *x,
                   size_t n, const struct quant_scale *t, struct quant_error *e);

/* Each 16 of n values in place of their random Hadamard transform; its own inverse up
 * to the signs.  Before nvfp4_amax: scales are those of transformed values. */
void nvfp4_rht16(float *x, size_t n);

#endif
