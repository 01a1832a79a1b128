/* SPDX-License-Identifier: MIT */
/* random_kernel: weights of --init, compiled once for each instruction set (ISA).
 *
 * z is the sum of a counter's eight 16-bit halves, centred and scaled to variance 1: no
 * libm, whole numbers up to the last two operations, so the same bits everywhere.
 */
#include "lib/convert/random.h"

#include "lib/base/philox.h"

#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define NAME(x)      PASTE(PASTE(x, _), ISA)

void
NAME(random_weights)(float *out, uint64_t first, size_t n, uint32_t seed, uint32_t row,
                     double scale)
{
    const uint32_t key[2] = { seed, 0 };
    for (size_t i = 0; i < n; i++) {
        uint64_t index = first + i;
        uint32_t counter[4] = { (uint32_t)index, (uint32_t)(index >> 32), row,
                                PHILOX_INIT };
        uint32_t w[4];
        philox4x32(w, counter, key);
        uint32_t sum = 0;
        for (int k = 0; k < 4; k++)
            sum += (w[k] & 0xffff) + (w[k] >> 16);
        // The mean of eight halves is 8 * 32767.5; their variance 8 * (2^32 - 1) / 12.
        out[i] = (float)((double)((int32_t)sum - 262140) * scale);
    }
}
