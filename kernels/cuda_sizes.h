/* SPDX-License-Identifier: MIT */
/* cuda_sizes: of the CUDA backend, for it and for those who do not load it. */
#ifndef NIBBLE_KERNELS_CUDA_SIZES_H
#define NIBBLE_KERNELS_CUDA_SIZES_H

/* Bytes that it allocates for itself. */
enum {
    WORKSPACE = 64 << 20, // of cuBLASLt
    PARTIALS = 16 << 20,  // of sums that go over rows, and of attention's pieces
    EXCHANGE = 2 << 20,   // of blocks that compute all layers
    EXPANDED = 128 << 20, // of weights that a product takes as bf16
};

/* Up to so many tokens a product reads a weight as it is stored, and gives each token the bits
 * that it has alone. */
enum { GEMV_MAX = 64 };

#endif
