/* SPDX-License-Identifier: MIT */
/* cuda_sizes: numbers of the CUDA backend, for it and for plans, which do not load it. */
#ifndef NIBBLE_KERNELS_CUDA_SIZES_H
#define NIBBLE_KERNELS_CUDA_SIZES_H

/* Bytes that it allocates for itself. */
enum {
    WORKSPACE = 64 << 20, // of cuBLASLt
    PARTIALS = 16 << 20,  // of sums that go over rows, and of attention's pieces
    EXCHANGE = 2 << 20,   // of blocks that compute all layers
    EXPANDED = 128 << 20, // of weights that a product takes as bf16
};

/* Max. number of tokens of a product that reads the weight as it is stored: the result of each
 * token has the same bits with any others. */
enum { GEMV_MAX = 64 };

/* Tokens that a warp of attention computes together, at most, if they are many: from a multiple of
 * it on the others are the same as if the tokens before were computed, too. */
enum { ATTENTION_CUT = 32 };

#endif
