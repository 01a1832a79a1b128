/* SPDX-License-Identifier: MIT */
/* sizes: how work is divided. */
#ifndef NIBBLE_KERNELS_CPU_SIZES_H
#define NIBBLE_KERNELS_CPU_SIZES_H

#include <stddef.h>

static inline size_t
least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Parts of that size, the last of which may be less; of size 0: none. */
static inline size_t
parts(size_t n, size_t part)
{
    return part ? (n + part - 1) / part : 0;
}

#endif
