/* SPDX-License-Identifier: MIT */
/* matrix: NVFP4 matrices of constant planes, for operations that only read them. */
#ifndef NIBBLE_TESTS_UNIT_MATRIX_H
#define NIBBLE_TESTS_UNIT_MATRIX_H

#include "kernels/kernels.h"

/* scale2: NULL: 1. */
static inline struct matrix
matrix_of_nvfp4(const void *codes, const uint8_t *scales, const float *scale2,
                size_t rows, size_t cols)
{
    struct matrix m = matrix_of(DT_NVFP4, codes, rows, cols);
    m.scales = (uint8_t *)(uintptr_t)scales;
    m.scale2 = (float *)(uintptr_t)scale2;
    return m;
}

#endif
