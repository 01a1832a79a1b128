/* SPDX-License-Identifier: MIT */
/* quant: the NVFP4 quantizers, scalar truth.
 *
 * A tensor is quantized in two passes: its largest magnitude T gives the tensor scale
 * (nvfp4_scale), then every block of 16 consecutive columns gets a scale byte and 16
 * codes.  All quantizers have one signature, and each is one function of quant.c that
 * says what it does in the order in which it rounds; every operation is one binary32
 * operation, nothing is fused.
 *
 * Inputs are finite (nvfp4_amax tells); a NaN or an infinity has no place in a block.
 */
#ifndef NIBBLE_NVFP4_QUANT_H
#define NIBBLE_NVFP4_QUANT_H

#include "lib/core/dtype.h"
#include "lib/nvfp4/codec.h"

#include <stdbool.h>

enum quant {
    QUANT_TORCHAO, // one level, amax/6 with floor 2^-6: the seed's file maker
    QUANT_NATIVE,  // one level, amax/6 in the input's dtype: the seed's runtime
    QUANT_SWEEP1,  // one level, best of nine scales
    QUANT_MAX,     // two levels, bound 448, amax/6
    QUANT_4OVER6,  // two levels, bound 256, better of max -> 6 and max -> 4
    QUANT_SWEEP,   // two levels, bound 256, best of nine scales
    QUANT_COUNT
};

struct quant_spec {
    enum quant kind;
    bool modelopt;     // max: ModelOpt's order of operations
    bool mae;          // 4over6: sum of magnitudes, not of squares
    bool exhaustive;   // sweep, sweep1: all 126 scales
    enum dtype source; // native rounds in it: f16, bf16 or f32
    /* sweep, sweep1: a weight for each squared error, by column; NULL: all 1. */
    const float *column_weight;
};

/* What is common to the blocks of a tensor. */
struct quant_scale {
    float amax;   // T
    float enc;    // S: what sweep and 4over6 multiply by
    float scale2; // the multiplier that is stored; 1 with one level
};

const char *quant_name(enum quant q);
/* QUANT_COUNT when there is no such name. */
enum quant quant_named(const char *name);
int quant_levels(enum quant q);
/* Whether one tensor scale for fused projections is this quantizer's default. */
bool quant_shares_scale(enum quant q);

/* The tensor scale for a largest magnitude T. */
struct quant_scale nvfp4_scale(const struct quant_spec *spec, float amax);

/* Largest magnitude of n values; *bad is the index of the first that is not finite, n
 * if there is none. */
float nvfp4_amax(const float *x, size_t n, size_t *bad);

/* One block at a column that is a multiple of 16.  codes: even column in the low
 * nibble. */
void nvfp4_quant_block(uint8_t codes[NVFP4_BLOCK / 2], uint8_t *scale,
                       const float x[NVFP4_BLOCK], size_t column,
                       const struct quant_spec *spec, const struct quant_scale *t);
/* n values, a multiple of 16, from column 0 on: a row, or rows without weights. */
void nvfp4_quant_row(uint8_t *codes, uint8_t *scales, const float *x, size_t n,
                     const struct quant_spec *spec, const struct quant_scale *t);

#endif
