/* SPDX-License-Identifier: MIT */
/* quant_paths: the vector paths give the bytes of the scalar truth, and its costs. */
#include "lib/nvfp4/quant.h"

#include "lib/base/num.h"
#include "tests/unit/check.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { ROUND = 4096, MOST = ROUND * 16 };

static float weights[MOST]; // of columns

static const struct quant_spec specs[] = {
    { .kind = QUANT_TORCHAO },
    { .kind = QUANT_NATIVE, .source = DT_F16 },
    { .kind = QUANT_NATIVE, .source = DT_BF16 },
    { .kind = QUANT_NATIVE, .source = DT_F32 },
    { .kind = QUANT_SWEEP1 },
    { .kind = QUANT_SWEEP1, .exhaustive = true },
    { .kind = QUANT_MAX },
    { .kind = QUANT_MAX, .modelopt = true },
    { .kind = QUANT_4OVER6 },
    { .kind = QUANT_4OVER6, .mae = true },
    { .kind = QUANT_SWEEP },
    { .kind = QUANT_SWEEP, .exhaustive = true },
    { .kind = QUANT_SWEEPFP8 },
    { .kind = QUANT_SWEEPFP8, .exhaustive = true },
    { .kind = QUANT_4OVER6, .column_weight = weights },
    { .kind = QUANT_4OVER6, .mae = true, .column_weight = weights },
    { .kind = QUANT_SWEEP1, .column_weight = weights },
    { .kind = QUANT_SWEEP, .column_weight = weights },
    { .kind = QUANT_SWEEP, .exhaustive = true, .column_weight = weights },
    { .kind = QUANT_SWEEPFP8, .column_weight = weights },
    { .kind = QUANT_SWEEPFP8, .exhaustive = true, .column_weight = weights },
};

enum { N_SPECS = sizeof specs / sizeof *specs };

static float x[MOST];
static struct {
    uint8_t codes[MOST / 2], scales[MOST / 16];
    struct quant_error e;
} truth, fast;

static void
quantize(const struct quant_spec *spec, enum isa isa, size_t n, float amax,
         uint8_t *codes, uint8_t *scales, struct quant_error *e)
{
    struct quant_spec s = *spec;
    s.isa = isa;
    struct quant_scale t = nvfp4_scale(&s, amax);
    *e = (struct quant_error){ 0 };
    memset(codes, 0xee, n / 2);
    memset(scales, 0xee, n / 16);
    nvfp4_quant(codes, scales, x, 1, n, 0, &s, &t, e);
}

static bool
same_cost(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* The first n values, under their own largest magnitude times `more`. */
static void
check_paths(const char *what, size_t n, float more)
{
    float amax = 0;
    for (size_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    amax = fminf(amax * more, FLT_MAX);
    for (int s = 0; s < N_SPECS; s++) {
        if (specs[s].exhaustive && n > 4096)
            continue;
        quantize(&specs[s], ISA_SCALAR, n, amax, truth.codes, truth.scales, &truth.e);
        for (int isa = 1; isa < ISA_COUNT; isa++) {
            if (!isa_have((enum isa)isa))
                continue;
            quantize(&specs[s], (enum isa)isa, n, amax, fast.codes, fast.scales,
                     &fast.e);
            for (size_t b = 0; b < n / 16; b++)
                CHECK_SAY(truth.scales[b] == fast.scales[b] &&
                              memcmp(truth.codes + b * 8, fast.codes + b * 8, 8) == 0,
                          "%s, %s, case %d, block %zu of %zu: scale %02x, truth %02x",
                          what, isa_name((enum isa)isa), s, b, n / 16, fast.scales[b],
                          truth.scales[b]);
            CHECK_SAY(same_cost(truth.e.noise, fast.e.noise) &&
                          same_cost(truth.e.signal, fast.e.signal) &&
                          same_cost((double)truth.e.max, (double)fast.e.max) &&
                          truth.e.zero_scales == fast.e.zero_scales &&
                          truth.e.saturated == fast.e.saturated,
                      "%s, %s, case %d: costs %a %a, truth %a %a", what,
                      isa_name((enum isa)isa), s, fast.e.noise, (double)fast.e.max,
                      truth.e.noise, (double)truth.e.max);
        }
    }
}

static float
uniform(uint64_t seed)
{
    return (float)((double)check_random(seed) * 0x1p-32 * 2 - 1);
}

/* Sum of uniforms: near enough to a Gaussian. */
static float
bell(uint64_t seed)
{
    return uniform(4 * seed) + uniform(4 * seed + 1) + uniform(4 * seed + 2) +
           uniform(4 * seed + 3);
}

/* From equal ones to far apart, some of them 0. */
static void
make_column_weights(void)
{
    for (size_t i = 0; i < MOST; i++) {
        float w = bell(i + 3 * MOST);
        weights[i] = i % 512 < 16     ? 1
                     : i % 512 < 32   ? 0
                     : i % 64 == 5    ? 0
                     : i % 4096 < 512 ? w * w * w * w * 1e-6F
                                      : w * w;
    }
}

static void
check_weights(void)
{
    for (size_t i = 0; i < MOST; i++)
        x[i] = 0.02F * bell(i);
    check_paths("f32 weights", MOST, 1);
    check_paths("f32 weights, larger tensor", MOST, 37);
    for (size_t i = 0; i < MOST; i++)
        x[i] = num_from_bf16(num_to_bf16(0.02F * bell(i)));
    check_paths("bf16 weights", MOST, 1);
    for (size_t i = 0; i < MOST; i++)
        x[i] = num_from_f16(num_to_f16(bell(i) * (i % 64 ? 0.02F : 0.4F)));
    check_paths("f16 weights with outliers", MOST, 1);
    for (size_t i = 0; i < MOST; i++) // few distinct values: many ties
        x[i] = (float)((int)(check_random(i) % 25) - 12) * 0.25F;
    check_paths("multiples of a quarter", MOST, 1);
    check_paths("multiples of a quarter, exact scales", MOST, 1536 / 3.0F);
    for (size_t i = 0; i < MOST; i++)
        x[i] = check_random(i) % 7 ? 0.0F : bell(i);
    check_paths("mostly zeros", MOST, 1);
}

/* Every f16 and bf16 in a block with a larger one, magnitudes of all sizes. */
static void
check_all_halves(bool bf16)
{
    for (int part = 0; part < 2; part++) {
        uint32_t limit = bf16 ? 0x7f80 : 0x7c00;
        size_t n = 0;
        for (uint32_t h = 0; h < limit; h++) {
            uint32_t bits = part ? h | 0x8000 : h;
            if (n % 16 == 0)
                x[n++] = bf16 ? num_from_bf16((uint16_t)(h + 40 < limit ? h + 40 : h))
                              : num_from_f16((uint16_t)(h + 400 < limit ? h + 400 : h));
            x[n++] =
                bf16 ? num_from_bf16((uint16_t)bits) : num_from_f16((uint16_t)bits);
        }
        while (n % 16)
            x[n++] = 0;
        check_paths(bf16 ? "all bf16" : "all f16", n, 1);
        check_paths(bf16 ? "all bf16, larger tensor" : "all f16, larger tensor", n,
                    100);
    }
}

/* Values at, just below and just above each threshold of each scale. */
static void
check_thresholds(void)
{
    static const float thresholds[] = { 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5, 6 };
    size_t n = 0;
    for (int c = 0; c <= 0x7e && n + 32 <= MOST; c++)
        for (int k = 0; k < 2; k++) {
            float s = e4m3_value((uint8_t)c);
            for (int i = 0; i < 16; i++) {
                float t = thresholds[i % 8] * s;
                float v = k == 0 ? t : nextafterf(t, i < 8 ? 0 : FLT_MAX);
                x[n++] = i % 3 ? v : -v;
            }
        }
    check_paths("thresholds", n, 1);
    x[0] = 2688; // so that scales of max come out as they are
    check_paths("thresholds under 2688", n, 1);
}

static void
check_extremes(void)
{
    static const float sizes[] = { 1e-45F, 1e-40F, 1e-38F, 1e-30F, 1e-10F,
                                   1e10F,  1e30F,  3e38F,  0 };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (size_t i = 0; i < 4096; i++)
            x[i] = uniform(i) * sizes[k];
        check_paths("extremes", 4096, 1);
        for (size_t i = 0; i < 4096; i += 5)
            x[i] = uniform(i);
        check_paths("extremes among ordinary ones", 4096, 1);
    }
    for (size_t i = 0; i < 4096; i++) { // any finite bits
        uint32_t bits = check_random(i) & 0xff7fffff;
        memcpy(&x[i], &bits, sizeof bits);
    }
    check_paths("any bits", 4096, 1);
    for (size_t i = 0; i < 4096; i++) // bf16 of the largest ones is infinite
        x[i] = i % 3 ? uniform(i) * FLT_MAX : FLT_MAX;
    check_paths("the largest floats", 4096, 1);
    for (size_t i = 0; i < 4096; i++) // scales times scale2 are 0
        x[i] = i % 5 ? 0.0F : (float)(check_random(i) % 3) * 0x1p-149F;
    x[0] = 0x1.6p-135F;
    check_paths("the smallest floats", 4096, 1);
    for (size_t i = 0; i < 4096; i++) // zeros of both signs
        x[i] = check_random(i) % 2 ? 0.0F : -0.0F;
    check_paths("zeros", 4096, 1);
}

/* Fewer blocks than a vector has lanes, and some more. */
static void
check_tails(void)
{
    for (size_t i = 0; i < 1024; i++)
        x[i] = bell(i);
    for (size_t blocks = 1; blocks <= 40; blocks++)
        check_paths("tail", blocks * 16, 1);
}

int
main(void)
{
    for (int isa = 0; isa < ISA_COUNT; isa++)
        printf("%s: %s\n", isa_name((enum isa)isa),
               isa_have((enum isa)isa) ? "checked" : "not here");
    make_column_weights();
    check_weights();
    check_all_halves(false);
    check_all_halves(true);
    check_thresholds();
    check_extremes();
    check_tails();
    return check_end();
}
