/* SPDX-License-Identifier: MIT */
/* e4m3: weights in E4M3 against a search over all of its numbers, for every code and
 * scale; exact for sweepfp8, and for other quantizers counted. */
#include "lib/nvfp4/e4m3.h"

#include "lib/base/num.h"
#include "tests/unit/check.h"

#define E4M3_FN static inline
#include "lib/nvfp4/e4m3_scale.h"

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
    uint64_t counted = nvfp4_e4m3(out, transposed, rows, codes, scales, rows, cols, k);
    for (size_t i = 0; i < rows * cols; i++) {
        double v = product(i, k);
        uint8_t want = search(v);
        inexact += fabs(v) != (double)e4m3_value(want & 0x7f);
        CHECK_SAY(out[i] == want, "%a: %02x, want %02x", v, out[i], want);
        CHECK(transposed[i % cols * rows + i / cols] == want);
    }
    CHECK(counted == inexact);
    CHECK(nvfp4_e4m3(NULL, NULL, 0, codes, scales, rows, cols, k) == inexact);
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
        quantize(q);
        float most = 0;
        for (size_t i = 0; i < COUNT / 16; i++)
            most = fmaxf(most, 6 * e4m3_value(scales[i]));
        int k = e4m3_exponent(num_bits_f32(most));
        CHECK(ldexpf(most, k) <= 448 && ldexpf(most, k + 1) > 448);
        uint64_t inexact = check_weights(ROWS, COLS, k);
        CHECK_SAY((q == QUANT_SWEEPFP8) == (inexact == 0), "%s: %llu are inexact",
                  quant_name(q), (unsigned long long)inexact);
    }
}

/* amax, and the exponent that is right for it: by hand. */
static void
check_exponents(void)
{
    static const struct {
        float amax;
        int e;
    } right[] = { { 448, 0 },       { 448.00003F, -1 }, { 449, -1 },
                  { 1, 8 },         { 1.75F, 8 },       { 1.7500001F, 7 },
                  { 256, 0 },       { 3, 7 },           { 0x1.cp-52F, 60 },
                  { 0x1p-60F, 60 }, { 0x1p-149F, 60 },  { 0, 60 },
                  { 1728, -2 },     { 2688, -3 },       { 0x1.fffffep127F, -120 } };
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        int e = e4m3_exponent(num_bits_f32(right[i].amax));
        CHECK_SAY(e == right[i].e, "%a: 2^%d, want 2^%d", (double)right[i].amax, e,
                  right[i].e);
    }
}

int
main(void)
{
    check_exponents();
    check_all();
    check_quantizers();
    return check_end();
}
