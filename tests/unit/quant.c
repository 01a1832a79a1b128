/* SPDX-License-Identifier: MIT */
/* quant: the golden row of the specification for each quantizer, E4M3 rounding against
 * a search over all bytes, idempotence where it is promised. */
#include "lib/nvfp4/quant.h"

#include "lib/base/num.h"
#include "tests/unit/check.h"

#include <math.h>
#include <string.h>

/* Three blocks of bf16 values; the expected bytes come from the original programs. */
static const uint16_t row[48] = {
    0x0000, 0x3a83, 0xbb03, 0x3b65, 0x3ba4, 0xbbf6, 0x3c24, 0x3c4d, 0x3c76, 0xbca4,
    0x3ccd, 0x3cf6, 0x3d0f, 0x3d24, 0xbd4d, 0x3d76, 0x38d2, 0xb952, 0x3a03, 0x3a83,
    0xba90, 0x3aaa, 0x3ac5, 0xbadf, 0x3b03, 0x3b10, 0xbb24, 0x3b38, 0x3b45, 0x3b58,
    0xbb6c, 0x3b83, 0x0000, 0x8000, 0x0000, 0x8000, 0x0000, 0x8000, 0x0000, 0x8000,
    0x0000, 0x8000, 0x0000, 0x8000, 0x0000, 0x8000, 0x0000, 0x8000,
};

static const struct {
    struct quant_spec spec;
    uint32_t scale2;
    uint8_t scales[3];
    uint8_t codes[24];
} golden[] = {
    { { .kind = QUANT_TORCHAO, .source = DT_BF16 },
      0x3f800000,
      { 0x08, 0x08, 0x08 },
      { 0x00, 0x08, 0x91, 0x21, 0xb2, 0x43, 0x54, 0x6d, 0x80, 0x00, 0x08, 0x80,
        0x00, 0x08, 0x00, 0x18, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80 } },
    { { .kind = QUANT_NATIVE, .source = DT_BF16 },
      0x3f800000,
      { 0x05, 0x00, 0x00 },
      { 0x00, 0x18, 0xa1, 0x32, 0xc3, 0x55, 0x66, 0x7f, 0xf7, 0x77, 0x7f, 0xf7,
        0x77, 0x7f, 0x77, 0x7f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00 } },
    { { .kind = QUANT_MAX, .source = DT_BF16 },
      0x37bb6db7,
      { 0x7e, 0x5f, 0x00 },
      { 0x00, 0x18, 0xa1, 0x22, 0xc3, 0x54, 0x65, 0x7e, 0x90, 0x31, 0x4b, 0xd4,
        0x55, 0x6e, 0x66, 0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80 } },
    { { .kind = QUANT_MAX, .modelopt = true, .source = DT_BF16 },
      0x37bb6db7,
      { 0x7e, 0x5f, 0x38 },
      { 0x00, 0x18, 0xa1, 0x22, 0xc3, 0x54, 0x65, 0x7e, 0x90, 0x31, 0x4b, 0xd4,
        0x55, 0x6e, 0x66, 0x7f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00 } },
    { { .kind = QUANT_4OVER6, .source = DT_BF16 },
      0x38240000,
      { 0x7c, 0x5d, 0x00 },
      { 0x00, 0x08, 0x91, 0x21, 0xb2, 0x43, 0x54, 0x6d, 0x80, 0x21, 0x3a, 0xb3,
        0x44, 0x5c, 0x55, 0x6e, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80 } },
    { { .kind = QUANT_SWEEP, .source = DT_BF16 },
      0x38240000,
      { 0x77, 0x5c, 0x00 },
      { 0x00, 0x18, 0xa1, 0x32, 0xc3, 0x55, 0x66, 0x7f, 0x80, 0x21, 0x3a, 0xc3,
        0x44, 0x5d, 0x65, 0x6e, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80 } },
};

static void
check_golden(void)
{
    float x[48];
    for (int i = 0; i < 48; i++)
        x[i] = num_from_bf16(row[i]);
    for (size_t g = 0; g < sizeof golden / sizeof *golden; g++) {
        uint8_t codes[24], scales[3];
        uint32_t bits;
        size_t bad;
        float amax = nvfp4_amax(DT_BF16, row, 48, &bad);
        struct quant_scale t = nvfp4_scale(&golden[g].spec, amax);
        nvfp4_quant(codes, scales, x, 1, 48, 0, &golden[g].spec, &t, NULL);
        memcpy(&bits, &t.scale2, sizeof bits);
        CHECK(bad == 48);
        CHECK(bits == golden[g].scale2);
        CHECK(memcmp(scales, golden[g].scales, sizeof scales) == 0);
        CHECK(memcmp(codes, golden[g].codes, sizeof codes) == 0);
    }
}

/* The nearest byte by search, ties to the even one. */
static uint8_t
nearest_byte(float x)
{
    int best = 0;
    for (int c = 1; c <= 0x7e; c++) {
        double d = fabs((double)e4m3_value((uint8_t)c) - (double)x);
        double least = fabs((double)e4m3_value((uint8_t)best) - (double)x);
        if (d < least || (d == least && c % 2 == 0))
            best = c;
    }
    return (uint8_t)best;
}

static void
check_e4m3(void)
{
    for (int c = 0; c < 0x7e; c++) {
        float a = e4m3_value((uint8_t)c), b = e4m3_value((uint8_t)(c + 1));
        float mid = (a + b) / 2; // exact
        float around[] = { a,   nextafterf(a, 500),   nextafterf(mid, 0),
                           mid, nextafterf(mid, 500), nextafterf(b, 0) };
        for (size_t i = 0; i < sizeof around / sizeof *around; i++)
            CHECK(e4m3_from(around[i]) == nearest_byte(around[i]));
    }
    CHECK(e4m3_from(448) == 0x7e && e4m3_from(464) == 0x7e && e4m3_from(1e30F) == 0x7e);
    CHECK(e4m3_from(INFINITY) == 0x7e && e4m3_from(NAN) == 0x7f);
    CHECK(e4m3_from(1e-40F) == 0 && e4m3_from(0) == 0);
}

/* The bytes whose products with all E2M1 values, divided by 4, E4M3 has; numbers beyond
 * 448 are left out, since they do not occur. */
static void
check_fp8_set(void)
{
    int count = 0;
    for (unsigned c = 0; c < 256; c++) {
        bool exact = c > 0 && c < 0x7f;
        for (unsigned code = 0; code < 8 && exact; code++) {
            float y = e2m1_value(code) * e4m3_value((uint8_t)c) / 4;
            float half = y > 448 ? y / 2 : y; // has as many bits
            exact = e4m3_value(e4m3_from(half)) == half;
        }
        count += exact;
        CHECK_SAY(quant_fp8_scale(c) == exact, "scale %02x", c);
    }
    CHECK(count == 42);
}

/* How many of n values by q E4M3 has not when divided by 4. */
static size_t
inexact(const float *x, size_t n, enum quant q, bool exhaustive)
{
    enum { MOST = 4096 };
    uint8_t codes[MOST / 2], scales[MOST / 16];
    float y[MOST];
    size_t bad, wrong = 0;
    struct quant_spec spec = { .kind = q, .exhaustive = exhaustive };
    struct quant_scale t = nvfp4_scale(&spec, nvfp4_amax(DT_F32, x, n, &bad));
    NEED(n <= MOST && bad == n);
    nvfp4_quant(codes, scales, x, 1, n, 0, &spec, &t, NULL);
    nvfp4_decode(y, codes, scales, 0.25F, n);
    for (size_t i = 0; i < n; i++)
        wrong += e4m3_value(e4m3_from(fabsf(y[i]))) != fabsf(y[i]);
    return wrong;
}

/* Blocks of all sizes, some as large as the tensor's largest value, some of zeros. */
static void
check_fp8_values(void)
{
    static float x[4096];
    for (size_t round = 0; round < 50; round++) {
        for (size_t i = 0; i < 4096; i++) {
            uint32_t r = check_random(i + 4096 * round), block = check_random(i / 16);
            float a = (float)(r >> 8) * 0x1p-23F - 1;
            int size = (int)(block % 40) - 20;
            x[i] = block % 37 == 1 ? 0 : size > 0 ? a : ldexpf(a, size);
        }
        CHECK(inexact(x, 4096, QUANT_SWEEPFP8, false) == 0);
        CHECK(inexact(x, 4096, QUANT_SWEEPFP8, true) == 0);
        CHECK(inexact(x, 4096, QUANT_SWEEP, false) > 100);
        for (size_t i = 0; i < 4096; i++)
            x[i] *= 0x1p-120F;
        CHECK(inexact(x, 4096, QUANT_SWEEPFP8, false) == 0);
    }
}

/* torchao of its own result changes nothing; every f16 as the largest of a block. */
static void
check_idempotent(void)
{
    struct quant_spec spec = { .kind = QUANT_TORCHAO, .source = DT_F16 };
    struct quant_scale t = nvfp4_scale(&spec, 1);
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float x[16], y[16];
        uint8_t codes[2][8], scale[2];
        for (int i = 0; i < 16; i++)
            x[i] = num_from_f16((uint16_t)h) * (float)(i - 8) / 8;
        nvfp4_quant(codes[0], &scale[0], x, 1, 16, 0, &spec, &t, NULL);
        nvfp4_decode(y, codes[0], &scale[0], 1, 16);
        nvfp4_quant(codes[1], &scale[1], y, 1, 16, 0, &spec, &t, NULL);
        float z[16];
        nvfp4_decode(z, codes[1], &scale[1], 1, 16);
        for (int i = 0; i < 16; i++)
            CHECK(y[i] == z[i] && signbit(y[i]) == signbit(z[i]));
    }
}

static void
check_finite(void)
{
    static const struct {
        enum dtype dtype;
        uint32_t two, minus_three, infinity, nan;
    } types[] = {
        { DT_F16, 0x4000, 0xc200, 0xfc00, 0x7c01 },
        { DT_BF16, 0x4000, 0xc040, 0xff80, 0x7f81 },
        { DT_F32, 0x40000000, 0xc0400000, 0xff800000, 0x7f800001 },
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        enum { COUNT = 20 };
        uint32_t bits[COUNT] = { types[i].two, types[i].minus_three };
        uint16_t half[COUNT];
        bool wide = types[i].dtype == DT_F32;
        size_t bad;
        for (int round = 0; round < 3; round++) {
            bits[7] = round > 1 ? types[i].infinity : 0;
            bits[9] = round > 0 ? types[i].nan : 0;
            for (int k = 0; k < COUNT; k++)
                half[k] = (uint16_t)bits[k];
            const void *values = wide ? (const void *)bits : half;
            float amax = nvfp4_amax(types[i].dtype, values, COUNT, &bad);
            CHECK(bad == (round == 0 ? COUNT : round == 1 ? 9 : 7));
            CHECK(round > 0 || amax == 3);
        }
    }
}

/* Of each unit vector: a row of the matrix of numerics 3.8. */
static void
check_rht(void)
{
    static const float g[16] = { 1,  1,  1,  -1, 1,  -1, -1, -1,
                                 -1, -1, -1, 1,  -1, 1,  -1, -1 };
    for (int j = 0; j < 16; j++) { // a unit vector becomes a row of the matrix
        float x[16] = { 0 };
        x[j] = 4;
        nvfp4_rht16(x, 16);
        for (int i = 0; i < 16; i++)
            CHECK(x[i] ==
                  g[j] * (__builtin_popcount((unsigned)(i & j)) % 2 ? -1.0F : 1.0F));
    }
}

/* 16 rows share a scale, and it is the quantizer's of their 256 values in one row's
 * terms: the scale of the row that holds the largest. */
static void
check_square(void)
{
    enum { ROWS = 35, COLS = 48 };
    static float x[ROWS * COLS];
    uint8_t codes[ROWS * COLS / 2], scales[ROWS * COLS / 16];
    for (size_t i = 0; i < ROWS * COLS; i++)
        x[i] = (float)(check_random(i) % 2001) - 1000;
    struct quant_spec spec = { .kind = QUANT_MAX, .square = true, .source = DT_F32 };
    struct quant_scale t = nvfp4_scale(&spec, 1000);
    nvfp4_quant(codes, scales, x, ROWS, COLS, 0, &spec, &t, NULL);
    for (int at_row = 0; at_row < ROWS; at_row++)
        for (int b = 0; b < COLS / 16; b++) {
            float block[16] = { 0 };
            int first = at_row / 16 * 16;
            uint8_t c, unused[8];
            for (int r = first; r < first + 16 && r < ROWS; r++)
                for (int i = 0; i < 16; i++)
                    block[0] = fmaxf(block[0], fabsf(x[r * COLS + b * 16 + i]));
            struct quant_spec plain = { .kind = QUANT_MAX, .source = DT_F32 };
            nvfp4_quant(unused, &c, block, 1, 16, 0, &plain, &t, NULL);
            CHECK(scales[at_row * COLS / 16 + b] == c);
        }
}

/* The mean of many roundings is the value; the draws are those of the counter. */
static void
check_stochastic(void)
{
    enum { COLS = 16, ROUNDS = 4000 };
    static const float values[COLS] = { 6,    5.9F,  4.5F,  4,    3.3F, 2.1F,
                                        1.9F, 1.25F, 0.9F,  0.5F, 0.3F, 0.05F,
                                        0,    -1.1F, -2.5F, -6 };
    double sum[COLS] = { 0 };
    struct quant_spec spec = { .kind = QUANT_MAX, .stochastic = true, .seed = 7 };
    struct quant_scale t = { .amax = 6, .enc = 1, .scale2 = 1 };
    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint8_t codes[COLS / 2], scale;
        nvfp4_quant(codes, &scale, values, 1, COLS, i * COLS, &spec, &t, NULL);
        CHECK(scale == 0x38);
        for (int k = 0; k < COLS; k++)
            sum[k] += (double)e2m1_value(codes[k / 2] >> (k % 2 * 4) & 15);
    }
    for (int k = 0; k < COLS; k++) // a step is at most 2: sigma at most 1/sqrt(ROUNDS)
        CHECK_SAY(fabs(sum[k] / ROUNDS - (double)values[k]) < 5.0 / 63, "%g became %g",
                  (double)values[k], sum[k] / ROUNDS);
}

int
main(void)
{
    check_golden();
    check_e4m3();
    check_fp8_set();
    check_fp8_values();
    check_idempotent();
    check_finite();
    check_rht();
    check_square();
    check_stochastic();
    return check_end();
}
