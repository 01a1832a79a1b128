/* SPDX-License-Identifier: MIT */
/* quant: what the quantizers cost, on data of known shapes.
 *
 *   quant sqnr    TSV: SQNR in dB of each quantizer on four distributions, 2^20 bf16
 *                 values each, beside reference figures; what searching all scales
 *                 would give; and the relative error of the one-level ones; exit 1 if one
 *                 is off by more than its tolerance
 *   quant speed   CSV: elements a second of each quantizer and instruction set, one thread
 */
#include "lib/nvfp4/quant.h"
#include "lib/base/num.h"
#include "lib/base/os.h"
#include "lib/base/philox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 1024, COLS = 1024, COUNT = ROWS * COLS, CHANNEL = 100 };

static float x[COUNT];
static uint8_t codes[COUNT / 2], scales[COUNT / 16];

/* ---- data -------------------------------------------------------------------------- */

static double
uniform(uint32_t use, uint64_t i)
{
    uint32_t counter[4] = { (uint32_t)i, (uint32_t)(i >> 32), use, 77 }, out[4];
    const uint32_t key[2] = { 1, 2 };
    philox4x32(out, counter, key);
    return ((double)out[0] + 0.5) * 0x1p-32;
}

static double
gauss(uint32_t use, uint64_t i)
{
    return sqrt(-2 * log(uniform(use, i))) *
           cos(2 * 3.14159265358979323846 * uniform(use + 1, i));
}

enum shape { GAUSS, LAPLACE, STUDENT, OUTLIERS, SHAPES };
static const char *const shape_names[] = { "gauss", "laplace", "student-t4",
                                           "outlier-channels" };

static double
draw(enum shape shape, uint64_t i)
{
    double u = uniform(10, i) - 0.5;
    switch (shape) {
    case LAPLACE:
        return (u < 0 ? 1 : -1) * log(1 - 2 * fabs(u));
    case STUDENT: // a chi-square of four degrees is a sum of two exponentials
        return gauss(20, i) /
               sqrt(-2 * (log(uniform(30, i)) + log(uniform(31, i))) / 4);
    case OUTLIERS:
        return gauss(40, i) * (i % COLS % CHANNEL == 37 ? 20 : 1);
    default:
        return gauss(0, i);
    }
}

static void
fill(enum shape shape, double sigma)
{
    for (uint64_t i = 0; i < COUNT; i++)
        x[i] = num_from_bf16(num_to_bf16((float)(sigma * draw(shape, i))));
}

/* ---- sqnr --------------------------------------------------------------------------- */

static struct quant_error
cost(const struct quant_spec *spec)
{
    struct quant_error e = { 0 };
    size_t bad;
    float amax = nvfp4_amax(DT_F32, x, COUNT, &bad);
    struct quant_scale t = nvfp4_scale(spec, amax);
    nvfp4_quant(codes, scales, x, ROWS, COLS, 0, spec, &t, &e);
    return e;
}

static double
sqnr(const struct quant_spec *spec)
{
    struct quant_error e = cost(spec);
    return 10 * log10(e.signal / e.noise);
}

static const struct {
    const char *name;
    struct quant_spec spec;
    bool transform;
    double want[SHAPES]; // 0: no reference
} rows[] = {
    { "max", { .kind = QUANT_MAX }, false, { 20.44, 20.66, 20.73, 20.90 } },
    { "max modelopt", { .kind = QUANT_MAX, .modelopt = true }, false, { 0 } },
    { "4over6", { .kind = QUANT_4OVER6 }, false, { 21.21, 21.19, 21.21, 21.06 } },
    { "4over6 mae", { .kind = QUANT_4OVER6, .mae = true }, false, { 0 } },
    { "sweep", { .kind = QUANT_SWEEP }, false, { 21.81, 21.68, 21.64, 21.18 } },
    { "sweepfp8", { .kind = QUANT_SWEEPFP8 }, false, { 20.93, 20.66, 20.58, 19.85 } },
    { "max 16x16",
      { .kind = QUANT_MAX, .square = true },
      false,
      { 19.07, 17.79, 16.42, 15.05 } },
    { "4over6 16x16",
      { .kind = QUANT_4OVER6, .square = true },
      false,
      { 19.08, 17.79, 16.42, 15.07 } },
    { "sweep 16x16",
      { .kind = QUANT_SWEEP, .square = true },
      false,
      { 19.46, 18.27, 16.95, 15.43 } },
    { "max stochastic",
      { .kind = QUANT_MAX, .stochastic = true },
      false,
      { 17.25, 17.38, 17.44, 17.18 } },
    { "max of RHT16", { .kind = QUANT_MAX }, true, { 20.43, 20.34, 20.31, 18.93 } },
    { "torchao", { .kind = QUANT_TORCHAO, .source = DT_BF16 }, false, { 0 } },
    { "native", { .kind = QUANT_NATIVE, .source = DT_BF16 }, false, { 0 } },
    { "sweep1", { .kind = QUANT_SWEEP1 }, false, { 0 } },
};

static int
print_sqnr(void)
{
    int off = 0;
    printf("quantizer\tdata\tsqnr_db\treference_db\tdifference\n");
    for (enum shape shape = GAUSS; shape < SHAPES; shape++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            double want = rows[r].want[shape];
            double tolerance = shape == OUTLIERS ? 0.1 : 0.05;
            struct quant_spec spec = rows[r].spec;
            spec.isa = isa_best();
            fill(shape, 0.02);
            if (rows[r].transform)
                nvfp4_rht16(x, COUNT);
            double db = sqnr(&spec);
            printf("%s\t%s\t%.2f\t", rows[r].name, shape_names[shape], db);
            if (want == 0) {
                printf("-\t-\n");
                continue;
            }
            printf("%.2f\t%+.2f\n", want, db - want);
            off |= fabs(db - want) > tolerance + 0.005;
        }
    return off;
}

/* A search around amax / 6 against all scales: 126, of sweepfp8 42. */
static int
print_exhaustive(void)
{
    static const enum quant kinds[] = { QUANT_SWEEP, QUANT_SWEEPFP8 };
    int off = 0;
    printf("quantizer\tdata\tsqnr_db\texhaustive_db\tdifference\n");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (enum shape shape = GAUSS; shape < SHAPES; shape++) {
            struct quant_spec spec = { .kind = kinds[k], .isa = isa_best() };
            fill(shape, 0.02);
            double db = sqnr(&spec);
            spec.exhaustive = true;
            double best = sqnr(&spec);
            printf("%s\t%s\t%.4f\t%.4f\t%+.4f\n", quant_name(spec.kind),
                   shape_names[shape], db, best, db - best);
            off |= best - db > 0.01;
        }
    return off;
}

/* Relative RMS error of the one-level quantizers on Gaussian weights. */
static int
print_relative(void)
{
    static const double sigma[] = { 0.01, 0.02, 0.03, 0.05 };
    static const struct {
        enum quant kind;
        double want[4];
    } one[] = {
        { QUANT_TORCHAO, { .226, .130, .112, .099 } },
        { QUANT_NATIVE, { .125, .103, .098, .096 } },
    };
    int off = 0;
    printf("quantizer\tsigma\trelative_rms\treference\tdifference\n");
    for (size_t k = 0; k < 2; k++)
        for (size_t s = 0; s < 4; s++) {
            struct quant_spec spec = { .kind = one[k].kind,
                                       .isa = isa_best(),
                                       .source = DT_BF16 };
            fill(GAUSS, sigma[s]);
            struct quant_error e = cost(&spec);
            double rms = sqrt(e.noise / e.signal);
            printf("%s\t%.2f\t%.4f\t%.3f\t%+.4f\n", quant_name(spec.kind), sigma[s],
                   rms, one[k].want[s], rms - one[k].want[s]);
            off |= fabs(rms - one[k].want[s]) > 0.0015;
        }
    return off;
}

/* ---- speed --------------------------------------------------------------------------- */

static void
print_speed(void)
{
    enum { RUNS = 7 };
    printf("isa,quantizer,elements_per_second,bytes_in_per_second_of_bf16\n");
    fill(GAUSS, 0.02);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (int k = 0; k < QUANT_COUNT && isa_have((enum isa)isa); k++) {
            struct quant_spec spec = { .kind = (enum quant)k,
                                       .isa = (enum isa)isa,
                                       .source = DT_BF16 };
            struct quant_scale t = nvfp4_scale(&spec, 0.1F);
            double best = INFINITY;
            for (int r = 0; r < RUNS && (r < 2 || isa); r++) {
                double start = os_seconds();
                nvfp4_quant(codes, scales, x, ROWS, COLS, 0, &spec, &t, NULL);
                best = fmin(best, os_seconds() - start);
            }
            printf("%s,%s,%.4g,%.4g\n", isa_name((enum isa)isa),
                   quant_name((enum quant)k), COUNT / best, 2 * COUNT / best);
        }
}

int
main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "sqnr") == 0) {
        int off = print_sqnr();
        off |= print_exhaustive();
        return off | print_relative();
    }
    if (argc == 2 && strcmp(argv[1], "speed") == 0) {
        print_speed();
        return 0;
    }
    fprintf(stderr, "usage: quant sqnr|speed\n");
    return 2;
}
