/* SPDX-License-Identifier: MIT */
/* coarse: a few rows of x with a weight in NVFP4, by integers.
 *
 * x is rounded to 16 bits, blocks of 16 with a power of two that the largest leaves room
 * for.  Products with codes, which are integers of halves, are then summed without any
 * rounding, eight columns at a time; such a sum, times the block's scale and the power of
 * two, which is exact as well, is added to one of 16 floats, and these by a tree.  Last
 * comes the tensor scale.  So the weight is not even rounded, x is to 2^-15 of its block's
 * largest, or 2^-101.  With all instruction sets and numbers of threads the bits are the
 * same, but not those of a product of many tokens, which rounds each weight and each step
 * of its sum.
 *
 * A block with a number that is not finite gives NaN; sums before the tensor scale must fit
 * f32. */
#ifndef NIBBLE_KERNELS_CPU_COARSE_H
#define NIBBLE_KERNELS_CPU_COARSE_H

#include "kernels/cpu/gemm.h"

enum {
    COARSE_MAX = 4,    // rows of x
    COARSE_PART = 128, // columns that are taken together, the last with zeros behind
    COARSE_WORDS = COARSE_PART / 4,
    COARSE_SUMS = COARSE_PART / 8,
};

/* A part of a row of x.  A word of the weight has the codes of four columns, so column
 * 4 i + j is at [j][i]. */
struct coarse {
    _Alignas(64) int16_t x[4][COARSE_WORDS];
    float scale[COARSE_SUMS]; // of each 8 columns; 2^-9 is in it, see coarse_kernel.c
};

/* Whether this is faster than gemv_run. */
bool coarse_pays(enum isa isa);
/* Bytes that coarse_run needs to work in. */
size_t coarse_workspace(size_t tokens, size_t in);
/* g: of COARSE_MAX tokens at most; room: aligned to 64 bytes. */
int coarse_run(const struct gemv *g, enum isa isa, struct par *pool, void *room,
               struct err *err);

/* ---- private to coarse.c and coarse_kernel.c ------------------------------------------- */

struct coarse_job {
    const struct gemv *g;
    const struct coarse *x; // parts of the first token, then those of the next
    size_t parts;
};
typedef void coarse_make_fn(struct coarse *to, const float *x, size_t in);
typedef void coarse_rows_fn(const struct coarse_job *j, size_t row, size_t rows);
extern coarse_make_fn coarse_make_scalar, coarse_make_avx2, coarse_make_avx512,
    coarse_make_neon;
extern coarse_rows_fn coarse_rows_scalar, coarse_rows_avx2, coarse_rows_avx512,
    coarse_rows_neon;

#endif
