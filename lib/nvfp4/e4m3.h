/* SPDX-License-Identifier: MIT */
/* e4m3: NVFP4 weights as E4M3, for products in FP8.
 *
 * A weight is E2M1 times its block's scale times the tensor scale.  Each of the first two
 * products, times 2^k, becomes an E4M3 number; the tensor scale and 2^-k are left to whoever
 * multiplies.  Of sweepfp8 every one is exact; of other quantizers some are rounded. */
#ifndef NIBBLE_NVFP4_E4M3_H
#define NIBBLE_NVFP4_E4M3_H

#include "lib/nvfp4/quant.h"

/* rows x cols weights, cols a multiple of 16, codes and scales as nvfp4_quant gives them:
 * out (rows, cols) and transposed (cols, stride), either of them NULL if it is not wanted.
 * k: e4m3_exponent of six times the largest scale, or less; scales of one level are as small
 * as the weights, and no k would do for all tensors.
 * Ties to even, saturating at 448, with the sign of the code, so that there is a -0.
 * Returns how many values are not the products. */
uint64_t nvfp4_e4m3(uint8_t *out, uint8_t *transposed, size_t stride,
                    const uint8_t *codes, const uint8_t *scales, size_t rows,
                    size_t cols, int k);

#endif
