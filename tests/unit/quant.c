/* SPDX-License-Identifier: MIT */
/* quant: the golden row of the specification for each quantizer, E4M3 rounding against
 * a search over all bytes, idempotence where it is promised. */
#include "lib/nvfp4/quant.h"

#include "lib/core/num.h"
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
        float amax = nvfp4_amax(x, 48, &bad);
        struct quant_scale t = nvfp4_scale(&golden[g].spec, amax);
        nvfp4_quant_row(codes, scales, x, 48, &golden[g].spec, &t);
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
        nvfp4_quant_block(codes[0], &scale[0], x, 0, &spec, &t);
        nvfp4_decode(y, codes[0], &scale[0], 1, 16);
        nvfp4_quant_block(codes[1], &scale[1], y, 0, &spec, &t);
        float z[16];
        nvfp4_decode(z, codes[1], &scale[1], 1, 16);
        for (int i = 0; i < 16; i++)
            CHECK(y[i] == z[i] && signbit(y[i]) == signbit(z[i]));
    }
}

static void
check_finite(void)
{
    float x[20] = { 1, -3, 2 };
    size_t bad;
    CHECK(nvfp4_amax(x, 20, &bad) == 3 && bad == 20);
    x[7] = -INFINITY;
    x[9] = NAN;
    nvfp4_amax(x, 20, &bad);
    CHECK(bad == 7);
}

int
main(void)
{
    check_golden();
    check_e4m3();
    check_idempotent();
    check_finite();
    return check_end();
}
