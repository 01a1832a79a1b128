/* SPDX-License-Identifier: MIT */
/* e4m3: see e4m3.h. */
#include "lib/nvfp4/e4m3.h"

#include <math.h>

enum { N = NVFP4_BLOCK, MAGNITUDES = 8 };

/* What the magnitude codes are at one scale. */
struct products {
    uint8_t byte[MAGNITUDES];
    bool inexact[MAGNITUDES];
};

static struct products
products_of(uint8_t scale, int k)
{
    struct products p;
    for (unsigned m = 0; m < MAGNITUDES; m++) {
        float exact = ldexpf(e2m1_value(m) * e4m3_value(scale), k);
        p.byte[m] = e4m3_from(exact);
        p.inexact[m] = e4m3_value(p.byte[m]) != exact;
    }
    return p;
}

uint64_t
nvfp4_e4m3(uint8_t *out, uint8_t *transposed, size_t stride, const uint8_t *codes,
           const uint8_t *scales, size_t rows, size_t cols, int k)
{
    uint64_t inexact = 0;
    for (size_t i = 0; i < rows * cols; i += N) {
        struct products p = products_of(scales[i / N], k);
        size_t row = i / cols, column = i % cols;
        for (size_t j = 0; j < N; j++) {
            unsigned code = codes[(i + j) / 2] >> j % 2 * 4 & 15;
            uint8_t byte = (uint8_t)(p.byte[code & 7] | (code & 8) << 4);
            inexact += p.inexact[code & 7];
            if (out)
                out[i + j] = byte;
            if (transposed)
                transposed[(column + j) * stride + row] = byte;
        }
    }
    return inexact;
}
