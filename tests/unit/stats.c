/* SPDX-License-Identifier: MIT */
/* stats: every instruction set gives the bits of the scalar loops, and those are right
 * by a plain loop in long double. */
#include "lib/load/stats.h"

#include "lib/base/num.h"
#include "tests/unit/check.h"

#include <math.h>
#include <stdbool.h>

static const struct stats_isa *isas[8];
static size_t n_isas;

static void
find_isas(void)
{
    for (int i = 0; i < ISA_COUNT; i++)
        if (isa_have((enum isa)i))
            isas[n_isas++] = stats_isa((enum isa)i);
}

/* Kinds of numbers; WILD are any bits. */
enum kind { WILD, PLAIN, ZEROS, TINY, SAME, NANS, SOME_ODD, KINDS };

static double
one(enum kind kind, uint64_t r)
{
    uint32_t u = check_random(r);
    double x = ((double)u - 0x1p31) * 0x1p-30;
    switch (kind) {
    case ZEROS:
        return u % 4 == 0 ? 0.0 : u % 4 == 1 ? -0.0 : x;
    case TINY:
        return x * 0x1p-130; // subnormal as a float
    case SAME:
        return -3.25;
    case NANS:
        return NAN;
    case SOME_ODD:
        return u % 16 == 0   ? NAN
               : u % 16 == 1 ? INFINITY
               : u % 16 == 2 ? -INFINITY
               : u % 16 == 3 ? 0
                             : x * 1000;
    default:
        return x;
    }
}

static void
fill_f32(float *x, size_t n, enum kind kind, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u = check_random(seed + i);
        x[i] = (float)one(kind, seed + i);
        if (kind == WILD)
            memcpy(&x[i], &u, sizeof u);
    }
}

static void
fill_f64(double *x, size_t n, enum kind kind, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t u =
            (uint64_t)check_random(seed + 2 * i) << 32 | check_random(seed + 2 * i + 1);
        x[i] = one(kind, seed + i);
        if (kind == TINY)
            x[i] *= 0x1p-930; // subnormal as a double
        if (kind == WILD)
            memcpy(&x[i], &u, sizeof u);
    }
}

/* Sums that overflow make NaNs, of which only that they are there is asked. */
static struct stats
canonical(struct stats s)
{
    s.mean = isnan(s.mean) ? (double)NAN : s.mean;
    s.m2 = isnan(s.m2) ? (double)NAN : s.m2;
    return s;
}

static void
check_same(const struct stats *a, const struct stats *b, const char *isa,
           const char *type, enum kind kind, size_t n)
{
    struct stats x = canonical(*a), y = canonical(*b);
    CHECK_SAY(check_equal(&x, &y, sizeof x),
              "%s, %s, kind %d, %zu numbers: mean %a, m2 %a, scalar has %a, %a", isa,
              type, (int)kind, n, b->mean, b->m2, a->mean, a->m2);
}

/* x as doubles, by the definition. */
static void
check_right(const struct stats *s, const double *x, size_t n, const char *type,
            enum kind kind)
{
    struct stats w = { .min = INFINITY, .max = -INFINITY };
    long double sum = 0, sq = 0;
    for (size_t i = 0; i < n; i++) {
        w.nans += isnan(x[i]) != 0;
        w.infs += isinf(x[i]) != 0;
        if (!isfinite(x[i]))
            continue;
        w.n++;
        w.zeros += x[i] == 0;
        w.min = x[i] < w.min ? x[i] : w.min;
        w.max = x[i] > w.max ? x[i] : w.max;
        sum += x[i];
    }
    CHECK_SAY(s->n == w.n && s->zeros == w.zeros && s->nans == w.nans &&
                  s->infs == w.infs,
              "%s, kind %d, %zu numbers: counts", type, (int)kind, n);
    if (w.n == 0)
        return;
    long double mean = sum / (long double)w.n;
    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]))
            sq += (x[i] - mean) * (x[i] - mean);
    double top = stats_absmax(s);
    CHECK_SAY(s->min == w.min && s->max == w.max, "%s, kind %d, %zu numbers: min, max",
              type, (int)kind, n);
    CHECK(top == fmax(fabs(w.min), fabs(w.max)));
    // Both sums are pairwise within 256 steps: an error of some hundred roundings.
    CHECK_SAY(fabsl(s->mean - mean) <= 1e-13L * top + 0x1p-1074L,
              "%s, kind %d, %zu numbers: mean %a", type, (int)kind, n, s->mean);
    CHECK_SAY(fabsl(s->m2 - sq) <= 1e-12L * sq + 1e-24L * top * top + 0x1p-1070L,
              "%s, kind %d, %zu numbers: m2 %a, expected %La", type, (int)kind, n,
              s->m2, sq);
    CHECK(!(s->m2 >= 0) || stats_std(s) == sqrt(s->m2 / (double)s->n));
}

static void
check_block(enum kind kind, size_t n, uint64_t seed)
{
    static float f[STATS_BLOCK];
    static double d[STATS_BLOCK], wide[STATS_BLOCK];
    fill_f32(f, n, kind, seed);
    fill_f64(d, n, kind, seed);
    for (size_t i = 0; i < n; i++)
        wide[i] = (double)f[i];
    struct stats f0 = { 0 }, d0 = { 0 };
    stats_scalar.f32(&f0, f, n);
    stats_scalar.f64(&d0, d, n);
    check_right(&f0, wide, n, "f32", kind);
    if (kind != WILD) // squares of those overflow
        check_right(&d0, d, n, "f64", kind);
    stats_scalar.f32(&f0, f, n / 2); // a second block
    stats_scalar.f64(&d0, d, n / 2);
    for (size_t i = 1; i < n_isas; i++) {
        struct stats f1 = { 0 }, d1 = { 0 };
        isas[i]->f32(&f1, f, n);
        isas[i]->f64(&d1, d, n);
        isas[i]->f32(&f1, f, n / 2);
        isas[i]->f64(&d1, d, n / 2);
        check_same(&f0, &f1, isas[i]->name, "f32", kind, n);
        check_same(&d0, &d1, isas[i]->name, "f64", kind, n);
    }
}

/* All halves, at an odd address, and in short runs. */
static void
check_conversions(const struct stats_isa *isa)
{
    enum { ALL = 1 << 16 };
    static uint8_t in[2 * ALL + 1];
    static float f16[ALL], bf16[ALL];
    for (uint32_t i = 0; i < ALL; i++)
        store_le16(in + 1 + 2 * (size_t)i, (uint16_t)i);
    for (size_t step = 1; step <= ALL; step = step < 33 ? step + 1 : step * 127) {
        size_t end = step < ALL ? 40 * step : ALL;
        for (size_t at = 0; at < end && at < ALL; at += step) {
            size_t n = ALL - at < step ? ALL - at : step;
            isa->from_f16(f16 + at, in + 1 + 2 * at, n);
            isa->from_bf16(bf16 + at, in + 1 + 2 * at, n);
        }
        for (uint32_t i = 0; i < end && i < ALL; i++) {
            float want = num_from_f16((uint16_t)i), wide = num_from_bf16((uint16_t)i);
            CHECK_SAY(check_equal(&f16[i], &want, 4), "%s: f16 %04x, %zu at a time",
                      isa->name, i, step);
            CHECK_SAY(check_equal(&bf16[i], &wide, 4), "%s: bf16 %04x, %zu at a time",
                      isa->name, i, step);
        }
    }
    isa->from_f16(f16, in + 1, ALL);
    isa->from_bf16(bf16, in + 1, ALL);
    for (uint32_t i = 0; i < ALL; i++) {
        float want = num_from_f16((uint16_t)i), wide = num_from_bf16((uint16_t)i);
        CHECK_SAY(check_equal(&f16[i], &want, 4), "%s: f16 %04x", isa->name, i);
        CHECK_SAY(check_equal(&bf16[i], &wide, 4), "%s: bf16 %04x", isa->name, i);
    }
}

static void
check_merge(void)
{
    struct stats a = { 0 }, b = { .nans = 2, .infs = 3 };
    struct stats c = { .n = 2, .zeros = 1, .min = 0, .max = 4, .mean = 2, .m2 = 8 };
    stats_merge(&a, &b);
    CHECK(a.n == 0 && a.nans == 2 && a.infs == 3);
    stats_merge(&a, &c);
    CHECK(a.n == 2 && a.min == 0 && a.max == 4 && a.mean == 2 && a.m2 == 8);
    stats_merge(&a, &b);
    CHECK(a.n == 2 && a.mean == 2 && a.nans == 4);
    stats_merge(&a, &c);
    CHECK(a.n == 4 && a.zeros == 2 && a.mean == 2 && a.m2 == 16 && stats_std(&a) == 2);
    struct stats low = { .n = 4, .min = -9, .max = -9, .mean = -9 };
    stats_merge(&a, &low);
    CHECK(a.n == 8 && a.min == -9 && a.max == 4 && a.mean == -3.5);
    CHECK(a.m2 == 16 + 11.0 * 11 * 2 && stats_absmax(&a) == 9);
}

int
main(void)
{
    static const size_t large[] = { 64, 127, 1000, STATS_BLOCK - 1, STATS_BLOCK };
    uint64_t seed = 0;
    find_isas();
    for (enum kind kind = WILD; kind < KINDS; kind++) {
        for (size_t n = 1; n <= 33; n++)
            for (int again = 0; again < 8; again++)
                check_block(kind, n, seed += 10007);
        for (size_t i = 0; i < sizeof large / sizeof *large; i++)
            for (int again = 0; again < 3; again++)
                check_block(kind, large[i], seed += 10007);
    }
    for (size_t i = 0; i < n_isas; i++)
        check_conversions(isas[i]);
    check_merge();
    return check_end();
}
