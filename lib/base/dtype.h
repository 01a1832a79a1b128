/* SPDX-License-Identifier: MIT */
/* dtype: the element types, their names and sizes.  The codes of containers are in
 * their files. */
#ifndef NIBBLE_BASE_DTYPE_H
#define NIBBLE_BASE_DTYPE_H

#include "lib/base/text.h"

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
    // Blocks of a GGUF: some elements of the last dimension in some bytes.
    DT_NVFP4_GGUF, // codes and scales in one entry, see lib/nvfp4/gguf.h
    DT_Q4_0,       // this and the next ones: only their sizes are used
    DT_Q4_1,
    DT_Q5_0,
    DT_Q5_1,
    DT_Q8_0,
    DT_Q8_1,
    DT_Q2_K,
    DT_Q3_K,
    DT_Q4_K,
    DT_Q5_K,
    DT_Q6_K,
    DT_Q8_K,
    DT_IQ1_S,
    DT_IQ1_M,
    DT_IQ2_XXS,
    DT_IQ2_XS,
    DT_IQ2_S,
    DT_IQ3_XXS,
    DT_IQ3_S,
    DT_IQ4_NL,
    DT_IQ4_XS,
    DT_TQ1_0,
    DT_TQ2_0,
    DT_MXFP4,
    DT_Q1_0,
    DT_NVFP4, // a logical type: codes and scales together, see lib/format/view.h
    DT_COUNT
};

const char *dtype_name(enum dtype t);
/* DT_NONE when there is no such name. */
enum dtype dtype_from_name(struct slice name);
/* Bits of one element; 0 for DT_NONE, DT_NVFP4 and blocks. */
unsigned dtype_bits(enum dtype t);
/* Elements of a block; 0 for types that have none. */
unsigned dtype_block(enum dtype t);
bool dtype_is_float(enum dtype t);

/* *numel = product of dims (0 if one of them is), *nbytes = its size.  False if the
 * product over the non-zero dims, or that size, is above 2^63-1, or if the bits do not
 * fill whole bytes or the last dimension no whole blocks. */
bool dtype_size(uint64_t *numel, uint64_t *nbytes, enum dtype t, const uint64_t *dims,
                unsigned rank);

#endif
