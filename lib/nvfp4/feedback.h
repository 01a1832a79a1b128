/* SPDX-License-Identifier: MIT */
/* feedback: sweep with error feedback.
 *
 * A product adds the errors of a row's columns, each times its input.  Inputs go together, so
 * what rounding one column does wrong can be made up for in columns behind it (GPTQ, arXiv
 * 2210.17323).  How they go together is known for blocks of FEEDBACK_WIDTH columns: H, the mean
 * products of inputs.  Columns are quantized in their order; the scale of 16 of them is the one
 * whose codes, each with the errors before it made up for, cost least.
 */
#ifndef NIBBLE_NVFP4_FEEDBACK_H
#define NIBBLE_NVFP4_FEEDBACK_H

#include "lib/nvfp4/quant.h"

enum { FEEDBACK_WIDTH = 128 };

/* Columns of a block: the largest power of two, up to FEEDBACK_WIDTH, that divides cols. */
size_t feedback_width(size_t cols);

/* The factor (w, w) of one block of columns: element (j, j) is what the square of column j's
 * error costs, element (j, k) for k > j what column k is to take of it.  h (w, w), symmetric, is
 * used up.  False: it is not the matrix of mean products of anything. */
bool feedback_factor(float *factor, double *h, size_t w);

/* n values that begin in column `column` of a matrix of `cols`, both multiples of the width;
 * factor: (cols / width, width, width).  kind: of quant_sweeps, t its scale; codes, scales and
 * *e as of nvfp4_quant. */
void nvfp4_feedback(uint8_t *codes, uint8_t *scales, const float *x, size_t n,
                    size_t column, size_t cols, const float *factor, enum quant kind,
                    const struct quant_scale *t, struct quant_error *e);

#endif
