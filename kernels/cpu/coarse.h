/* SPDX-License-Identifier: MIT */
/* coarse: a few rows of x by a weight in NVFP4, with integers.
 *
 * x is rounded to 16-bit integers times a power of two for each block of 16, chosen by the
 * block's largest magnitude.  Products with codes, which are multiples of 1/2, are summed
 * without rounding, eight columns at a time; such a sum times the block's scale and the
 * power of two, which is exact, is added to one of 16 floats, and these are added as a
 * tree.  Last comes the tensor scale.  So weights are exact, and x is rounded to 2^-15 of
 * its block's largest magnitude, or 2^-101.  The bits do not depend on the instruction set
 * or the number of threads, but differ from those of a product of many tokens, which rounds
 * each weight and each step of its sum.
 *
 * A block with a value that is not finite gives NaN; sums before the tensor scale must fit
 * f32. */
#ifndef NIBBLE_KERNELS_CPU_COARSE_H
#define NIBBLE_KERNELS_CPU_COARSE_H

#include "kernels/cpu/gemm.h"

enum {
    COARSE_MAX = 4,    // rows of x
    COARSE_PART = 128, // columns of a part; the last is padded with 0
    COARSE_WORDS = COARSE_PART / 4,
    COARSE_SUMS = COARSE_PART / 8,
};

/* A part of a row of x, quantized.  16 bits of the weight have the codes of four columns, so
 * column 4 i + j is at x[j][i]. */
struct coarse {
    _Alignas(64) int16_t x[4][COARSE_WORDS];
    float scale[COARSE_SUMS]; // of each 8 columns; times 2^-9, see coarse_kernel.c
};

/* Whether this is faster than gemv_run. */
bool coarse_pays(enum isa isa);
/* Bytes of workspace for coarse_run. */
size_t coarse_workspace(size_t tokens, size_t in);
/* g: of COARSE_MAX tokens at most; workspace: aligned to 64 bytes. */
int coarse_run(const struct gemv *g, enum isa isa, struct par *pool, void *workspace,
               struct err *err);

/* ---- private to coarse.c and coarse_kernel.c ------------------------------------------- */

struct coarse_job {
    const struct gemv *g;
    const struct coarse *x; // parts of the first token, then those of the next
    size_t parts;
};
typedef void coarse_quantize_fn(struct coarse *to, const float *x, size_t in);
typedef void coarse_rows_fn(const struct coarse_job *j, size_t row, size_t rows);
extern coarse_quantize_fn coarse_quantize_scalar, coarse_quantize_avx2,
    coarse_quantize_avx512, coarse_quantize_neon;
extern coarse_rows_fn coarse_rows_scalar, coarse_rows_avx2, coarse_rows_avx512,
    coarse_rows_neon;

#endif
