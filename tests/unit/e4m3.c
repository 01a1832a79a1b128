/* SPDX-License-Identifier: MIT */
/* e4m3: weights in E4M3 against a search over all of its numbers, for every code and
 * scale; exact for sweepfp8, and for other quantizers counted. */
#include "lib/nvfp4/e4m3.h"

#include "tests/unit/check.h"

#include <float.h>
#include <math.h>

enum { ROWS = 48, COLS = 80, COUNT = ROWS * COLS };

static float x[COUNT];
static uint8_t codes[COUNT / 2], scales[COUNT / 16], out[COUNT], transposed[COUNT];

/* The byte that is nearest to v, ties to the even one; -0 for negative zeros. */
static uint8_t
search(double v)
{
    int best = 0;
    for (int c = 1; c < 0x7f; c++) {
        double d = fabs((double)e4m3_value((uint8_t)c) - fabs(v));
        double least = fabs((double)e4m3_value((uint8_t)best) - fabs(v));
        if (d < least || (d == least && c % 2 == 0))
            best = c;
    }
    return (uint8_t)(best | (signbit(v) ? 0x80 : 0));
}

static double
product(size_t i, int k)
{
    unsigned code = codes[i / 2] >> i % 2 * 4 & 15;
    return ldexp((double)e2m1_value(code) * (double)e4m3_value(scales[i / 16]), k);
}

/* Both forms of what lies in codes and scales; how many are inexact. */
static uint64_t
check_weights(size_t rows, size_t cols, int k)
{
    uint64_t inexact = 0;
    memset(out, 0xee, sizeof out);
    memset(transposed, 0xee, sizeof transposed);
    uint64_t counted = nvfp4_e4m3(out, transposed, codes, scales, rows, cols, k);
    for (size_t i = 0; i < rows * cols; i++) {
        double v = product(i, k);
        uint8_t want = search(v);
        inexact += fabs(v) != (double)e4m3_value(want & 0x7f);
        CHECK_SAY(out[i] == want, "%a: %02x, want %02x", v, out[i], want);
        CHECK(transposed[i % cols * rows + i / cols] == want);
    }
    CHECK(counted == inexact);
    CHECK(nvfp4_e4m3(NULL, NULL, codes, scales, rows, cols, k) == inexact);
    return inexact;
}

/* All codes at all scales, a block each. */
static void
check_all(void)
{
    for (int k = -3; k <= -2; k++) {
        for (size_t c = 0; c < 0x7f; c++) {
            scales[c] = (uint8_t)c;
            for (size_t i = 0; i < 8; i++)
                codes[c * 8 + i] = (uint8_t)(2 * i | (2 * i + 1) << 4);
        }
        CHECK(check_weights(0x7f, 16, k) > 0);
    }
}

static void
quantize(enum quant q)
{
    struct quant_spec spec = { .kind = q, .source = DT_F32 };
    size_t bad;
    struct quant_scale t = nvfp4_scale(&spec, nvfp4_amax(DT_F32, x, COUNT, &bad));
    nvfp4_quant(codes, scales, x, ROWS, COLS, 0, &spec, &t, NULL);
}

static void
check_quantizers(void)
{
    for (size_t i = 0; i < COUNT; i++)
        x[i] = ldexpf((float)((double)check_random(i) * 0x1p-31 - 1),
                      -(int)(check_random(i / 16 + COUNT) % 12));
    for (enum quant q = 0; q < QUANT_COUNT; q++) {
        int k = nvfp4_e4m3_exponent(q);
        bool bound256 = q == QUANT_4OVER6 || q == QUANT_SWEEP || q == QUANT_SWEEPFP8;
        CHECK(k == (bound256 ? -2 : -3));
        quantize(q);
        uint64_t inexact = check_weights(ROWS, COLS, k);
        CHECK_SAY((q == QUANT_SWEEPFP8) == (inexact == 0), "%s: %llu are inexact",
                  quant_name(q), (unsigned long long)inexact);
    }
}

int
main(void)
{
    check_all();
    check_quantizers();
    return check_end();
}
