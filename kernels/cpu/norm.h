/* SPDX-License-Identifier: MIT */
/* norm: RMSNorm of rows, for norms of tokens and of heads. */
#ifndef NIBBLE_KERNELS_CPU_NORM_H
#define NIBBLE_KERNELS_CPU_NORM_H

#include "kernels/cpu/cpu.h"

/* Rows of n at y and x; rstd: (rows). */
void cpu_norm_rows(struct cpu *c, float *y, float *rstd, const float *x,
                   const float *gain, size_t rows, size_t n, float eps);

struct norm_bwd {
    float *dx, *dgain, *y; // dgain, y: NULL: not wanted
    const float *dy, *x, *rstd, *gain;
    size_t rows, n;
    size_t heads, stride; // dx and dy have so many rows of n in one of stride
    bool add;             // dx += ...
};
void cpu_norm_bwd_rows(struct cpu *c, const struct norm_bwd *b);

#endif
