/* SPDX-License-Identifier: MIT */
/* sizes: how work is divided. */
#ifndef NIBBLE_KERNELS_CPU_SIZES_H
#define NIBBLE_KERNELS_CPU_SIZES_H

#include <stddef.h>

static inline size_t
min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* 0 if unit is. */
static inline size_t
ceil_div(size_t n, size_t unit)
{
    return unit ? (n + unit - 1) / unit : 0;
}

/* The next multiple of unit at or above n. */
static inline size_t
pad_to(size_t n, size_t unit)
{
    return ceil_div(n, unit) * unit;
}

#endif
