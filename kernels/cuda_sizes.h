/* SPDX-License-Identifier: MIT */
/* cuda_sizes: what the CUDA backend allocates for itself, for it and for plans. */
#ifndef NIBBLE_KERNELS_CUDA_SIZES_H
#define NIBBLE_KERNELS_CUDA_SIZES_H

enum {
    WORKSPACE = 64 << 20, // of cuBLASLt
    PARTIALS = 16 << 20,  // of sums that go over rows, and of attention's pieces
    EXCHANGE = 2 << 20,   // of blocks that compute all layers
    EXPANDED = 128 << 20, // of weights that a product takes as bf16
};

#endif
