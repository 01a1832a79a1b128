/* SPDX-License-Identifier: MIT */
/* e4m3: NVFP4 weights as E4M3, for products in FP8.
 *
 * A weight is E2M1 times its block's scale times the tensor scale.  Each of the first two
 * products, times 2^k, becomes an E4M3 number; the tensor scale and 2^-k are left to whoever
 * multiplies.  Of sweepfp8 every one is exact; of other quantizers some are rounded. */
#ifndef NIBBLE_NVFP4_E4M3_H
#define NIBBLE_NVFP4_E4M3_H

#include "lib/nvfp4/quant.h"

/* The k that brings a quantizer's largest product into E4M3's range: 1728 (bound 256) to 432
 * by -2, 2688 (bound 448, or one level) to 336 by -3.  Scales of one level are as small as
 * the weights, though: at a deviation of 0.02 -3 leaves 12 dB, and a larger k of the
 * tensor's own would be better. */
int nvfp4_e4m3_exponent(enum quant q);

/* rows x cols weights, cols a multiple of 16, codes and scales as nvfp4_quant gives them:
 * out (rows, cols) and transposed (cols, rows), either of them NULL if it is not wanted.
 * Ties to even, saturating at 448, with the sign of the code, so that there is a -0.
 * Returns how many values are not the products. */
uint64_t nvfp4_e4m3(uint8_t *out, uint8_t *transposed, const uint8_t *codes,
                    const uint8_t *scales, size_t rows, size_t cols, int k);

#endif
