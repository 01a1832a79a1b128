/* SPDX-License-Identifier: MIT */
/* codec: every value of the small float types by its formula, and the decoding of the
 * published rows of codes. */
#include "lib/nvfp4/codec.h"

#include "lib/base/num.h"
#include "tests/unit/check.h"

#include <math.h>
#include <stdbool.h>

/* (-1)^s 2^(e-bias) (1 + m/2^man), without the 1 and one exponent up for e == 0. */
static double
by_formula(unsigned bits, int exp_bits, int man_bits, int bias)
{
    int sign = (int)(bits >> (exp_bits + man_bits)) & 1;
    int e = (int)(bits >> man_bits) & ((1 << exp_bits) - 1);
    int m = (int)bits & ((1 << man_bits) - 1);
    double fraction = m / pow(2, man_bits);
    double v = e ? pow(2, e - bias) * (1 + fraction) : pow(2, 1 - bias) * fraction;
    return sign ? -v : v;
}

static void
check_value(const char *what, unsigned bits, float found, double want)
{
    bool same = isnan(want)
                    ? isnan(found)
                    : (double)found == want && !signbit(found) == !signbit(want);
    CHECK_SAY(same, "%s of 0x%02x: expected %g, found %g", what, bits, want,
              (double)found);
}

static void
check_values(void)
{
    for (unsigned i = 0; i < 256; i++) {
        uint8_t b = (uint8_t)i;
        bool e5_top = (i & 0x7c) == 0x7c;
        double e5 = by_formula(i, 5, 2, 15);
        check_value("E2M1", i, e2m1_value(i), by_formula(i & 15, 2, 1, 1));
        check_value("E4M3", i, e4m3_value(b),
                    (i & 0x7f) == 0x7f ? NAN : by_formula(i, 4, 3, 7));
        check_value("E5M2", i, e5m2_value(b),
                    !e5_top   ? e5
                    : (i & 3) ? NAN
                              : copysign(INFINITY, e5));
    }
    // The table of the definition.
    static const struct {
        uint8_t byte;
        float value;
    } e4m3[] = { { 0x00, 0 },       { 0x01, 0x1p-9F }, { 0x07, 0x7p-9F },
                 { 0x08, 0x1p-6F }, { 0x20, 0.125F },  { 0x38, 1 },
                 { 0x78, 256 },     { 0x7e, 448 } };
    for (size_t i = 0; i < sizeof e4m3 / sizeof *e4m3; i++)
        check_value("E4M3", e4m3[i].byte, e4m3_value(e4m3[i].byte),
                    (double)e4m3[i].value);
    CHECK(e5m2_value(0x7b) == 57344 && e5m2_value(0x01) == 0x1p-16F);
    CHECK(e2m1_value(7) == 6 && e2m1_value(15) == -6);
}

/* The row of three blocks that the definition of the quantizers gives, as bf16. */
static const uint16_t row[48] = {
    0x0000, 0x3a83, 0xbb03, 0x3b65, 0x3ba4, 0xbbf6, 0x3c24, 0x3c4d, 0x3c76, 0xbca4,
    0x3ccd, 0x3cf6, 0x3d0f, 0x3d24, 0xbd4d, 0x3d76, 0x38d2, 0xb952, 0x3a03, 0x3a83,
    0xba90, 0x3aaa, 0x3ac5, 0xbadf, 0x3b03, 0x3b10, 0xbb24, 0x3b38, 0x3b45, 0x3b58,
    0xbb6c, 0x3b83, 0x0000, 0x8000, 0x0000, 0x8000, 0x0000, 0x8000, 0x0000, 0x8000,
    0x0000, 0x8000, 0x0000, 0x8000, 0x0000, 0x8000, 0x0000, 0x8000
};

/* Its codes by each quantizer.  `near`: blocks whose values must come back with an error
 * of at most half the widest gap (2, between 4 and 6) of their scale. */
static const struct golden {
    const char *name;
    uint32_t scale2;
    uint8_t scales[3], codes[24];
    bool near[3];
} golden[] = {
    { "torchao",
      0x3f800000,
      { 0x08, 0x08, 0x08 },
      { 0x00, 0x08, 0x91, 0x21, 0xb2, 0x43, 0x54, 0x6d, 0x80, 0x00, 0x08, 0x80,
        0x00, 0x08, 0x00, 0x18, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80 },
      { true, true, true } },
    { "native",
      0x3f800000,
      { 0x05, 0x00, 0x00 },
      { 0x00, 0x18, 0xa1, 0x32, 0xc3, 0x55, 0x66, 0x7f, 0xf7, 0x77, 0x7f, 0xf7,
        0x77, 0x7f, 0x77, 0x7f, 0,    0,    0,    0,    0,    0,    0,    0 },
      { true, false, true } },
    { "max",
      0x37bb6db7,
      { 0x7e, 0x5f, 0x00 },
      { 0x00, 0x18, 0xa1, 0x22, 0xc3, 0x54, 0x65, 0x7e, 0x90, 0x31, 0x4b, 0xd4,
        0x55, 0x6e, 0x66, 0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80 },
      { true, true, true } },
    { "4over6",
      0x38240000,
      { 0x7c, 0x5d, 0x00 },
      { 0x00, 0x08, 0x91, 0x21, 0xb2, 0x43, 0x54, 0x6d, 0x80, 0x21, 0x3a, 0xb3,
        0x44, 0x5c, 0x55, 0x6e, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80 },
      { true, true, true } },
    { "sweep",
      0x38240000,
      { 0x77, 0x5c, 0x00 },
      { 0x00, 0x18, 0xa1, 0x32, 0xc3, 0x55, 0x66, 0x7f, 0x80, 0x21, 0x3a, 0xc3,
        0x44, 0x5d, 0x65, 0x6e, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80 },
      { true, true, true } },
};

static void
check_golden(const struct golden *g)
{
    float out[48], scale2;
    memcpy(&scale2, &g->scale2, sizeof scale2);
    nvfp4_decode(out, g->codes, g->scales, scale2, 48);
    for (unsigned i = 0; i < 48; i++) {
        unsigned code = g->codes[i / 2] >> (i % 2 ? 4 : 0) & 15;
        double s = by_formula(g->scales[i / 16], 4, 3, 7);
        double q = by_formula(code, 2, 1, 1);
        float want = (float)(q * s) * scale2; // two roundings, the first exact
        CHECK_SAY(check_equal(&out[i], &want, sizeof want),
                  "%s: element %u: expected %a, found %a", g->name, i, (double)want,
                  (double)out[i]);
        double x = (double)num_from_bf16(row[i]);
        CHECK_SAY(!g->near[i / 16] || fabs(x - (double)out[i]) <= s * (double)scale2,
                  "%s: element %u: %g came back as %g", g->name, i, x, (double)out[i]);
    }
}

static void
check_decode(void)
{
    static const float first[16] = { 0, 0,     -0.0F, 0, .5F, -.5F, .5F, 1,
                                     1, -1.5F, 1.5F,  2, 2,   3,    -3,  4 };
    float out[48];
    nvfp4_decode(out, golden[0].codes, golden[0].scales, 1, 48);
    for (unsigned i = 0; i < 16; i++)
        check_value("torchao's first block", i, out[i], (double)(first[i] / 64));
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++)
        check_golden(&golden[i]);
    nvfp4_decode(out, NULL, NULL, 1, 0);

    // Every code with every legal scale; a tensor scale that makes products round.
    const float third = 0x1.555556p-2F;
    for (unsigned s = 0; s < 0x7f; s++) {
        uint8_t codes[8], scale = (uint8_t)s;
        for (unsigned i = 0; i < 8; i++)
            codes[i] = (uint8_t)(2 * i | (2 * i + 1) << 4);
        nvfp4_decode(out, codes, &scale, third, 16);
        for (unsigned i = 0; i < 16; i++) {
            float product = (float)(by_formula(i, 2, 1, 1) * by_formula(s, 4, 3, 7));
            check_value("a product", s << 4 | i, out[i], (double)(product * third));
        }
    }
}

/* The code nearest to x / s by comparison with t * s, which a double holds exactly. */
static unsigned
nearest(double x, double s, bool away)
{
    static const double threshold[7] = { 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5 };
    unsigned code = 0;
    for (int i = 0; i < 7; i++)
        code += x > threshold[i] * s || (x == threshold[i] * s && (away || i % 2));
    return code;
}

/* Every half under every scale: the rounded quotient lies on the right side of each
 * threshold, so that no code is off. */
static void
check_every_quotient(void)
{
    for (unsigned c = 1; c <= 0x7e; c++) {
        float s = e4m3_value((uint8_t)c);
        unsigned long wrong = 0;
        for (unsigned h = 0; h < 0x8000; h++) {
            float x[2] = { num_from_f16((uint16_t)h), num_from_bf16((uint16_t)h) };
            bool finite[2] = { h < 0x7c00, h < 0x7f80 };
            for (int k = 0; k < 2; k++)
                if (finite[k]) {
                    wrong += e2m1_code_even(x[k] / s) !=
                             nearest((double)x[k], (double)s, false);
                    wrong += e2m1_code_away(x[k] / s) !=
                             nearest((double)x[k], (double)s, true);
                }
        }
        CHECK_SAY(wrong == 0, "scale 0x%02x: %lu codes are wrong", c, wrong);
    }
}

/* Scales of every bf16 magnitude, as either program computes them, lead back. */
static void
check_swapped_scales(void)
{
    unsigned long wrong = 0;
    for (unsigned h = 0x1000; h < 0x7000; h++) {
        float amax = num_from_bf16((uint16_t)h);
        float d = 2688.0F / amax, m = amax / 2688.0F;
        wrong += nvfp4_swap_scale(nvfp4_swap_scale(d, false), true) != d;
        wrong += nvfp4_swap_scale(nvfp4_swap_scale(m, true), false) != m;
        // No further from the reciprocal than its neighbours.
        wrong += fabsf(nvfp4_swap_scale(d, false) * d - 1) > 0x1p-22F;
    }
    CHECK_SAY(wrong == 0, "%lu scales do not lead back", wrong);
    // Of no such magnitude: a round number that has a neighbour of the same reciprocal.
    CHECK(1 / 840.0F == 1 / nextafterf(840, 0));
    CHECK(nvfp4_swap_scale(nvfp4_swap_scale(840.0F, false), true) == 840.0F);
}

int
main(void)
{
    check_swapped_scales();
    check_values();
    check_decode();
    check_every_quotient();
    return check_end();
}
