/* SPDX-License-Identifier: MIT */
/* dtype: the element types, their names and sizes.  Codes of containers live with the
 * containers. */
#ifndef NIBBLE_CORE_DTYPE_H
#define NIBBLE_CORE_DTYPE_H

#include "lib/core/text.h"

#include <stdbool.h>
#include <stdint.h>

enum dtype {
    DT_NONE,
    DT_F16,
    DT_BF16,
    DT_F32,
    DT_F64,
    DT_U8,
    DT_I8,
    DT_I16,
    DT_I32,
    DT_I64,
    DT_U16,
    DT_U32,
    DT_U64,
    DT_BOOL,
    DT_C64,
    DT_C128,
    DT_F8_E4M3,
    DT_F8_E5M2,
    DT_F8_E8M0,
    DT_F8_E4M3FNUZ,
    DT_F8_E5M2FNUZ,
    DT_F6_E2M3,
    DT_F6_E3M2,
    DT_F4_E2M1,
    DT_NVFP4, // a logical type: codes and scales together, see lib/format/view.h
    DT_COUNT
};

const char *dtype_name(enum dtype t);
/* DT_NONE when there is no such name. */
enum dtype dtype_from_name(struct slice name);
/* Bits of one element; 0 for DT_NONE and DT_NVFP4. */
unsigned dtype_bits(enum dtype t);
bool dtype_is_float(enum dtype t);

/* *numel = product of dims (0 if one of them is), *nbytes = its size.  False if the
 * product over the non-zero dims, or that size, is above 2^63-1, or if the bits do not
 * fill whole bytes. */
bool dtype_size(uint64_t *numel, uint64_t *nbytes, enum dtype t, const uint64_t *dims,
                unsigned rank);

#endif
