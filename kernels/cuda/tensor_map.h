/* SPDX-License-Identifier: MIT */
/* tensor_map: describes a matrix in global memory to box_load (ptx.h; sm_90 and later).  Its
 * form is the driver's. */
#ifndef NIBBLE_KERNELS_CUDA_TENSOR_MAP_H
#define NIBBLE_KERNELS_CUDA_TENSOR_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda;

struct alignas(128) tensor_map {
    uint64_t words[16];
};

enum { BOX_COLUMNS = 64 };

/* Describe a contiguous (rows, columns) of bf16, to be read in boxes of box_rows rows, at most
 * 256.  Its address and the bytes of a row are multiples of 16.  False, with the error set, if
 * the driver refuses. */
bool tensor_map_of(struct cuda *c, struct tensor_map *m, const void *data, size_t rows,
                   size_t columns, unsigned box_rows);

#endif
