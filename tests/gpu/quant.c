/* SPDX-License-Identifier: MIT */
/* quant: the GPU's quantizers give the CPU's bytes, and amax is the CPU's. --time:
 * speed, as TSV. */
#include "tests/gpu/pair.h"

#include <float.h>

static const struct {
    const char *name;
    struct quant_spec spec;
    bool weights; // column weights
} cases[] = {
    { "torchao", { .kind = QUANT_TORCHAO }, false },
    { "native", { .kind = QUANT_NATIVE }, false },
    { "sweep1", { .kind = QUANT_SWEEP1 }, false },
    { "sweep1 exhaustive", { .kind = QUANT_SWEEP1, .exhaustive = true }, false },
    { "max", { .kind = QUANT_MAX }, false },
    { "max modelopt", { .kind = QUANT_MAX, .modelopt = true }, false },
    { "max by chance",
      { .kind = QUANT_MAX, .stochastic = true, .seed = 5, .step = 9, .row = 2 },
      false },
    { "max square", { .kind = QUANT_MAX, .square = true }, false },
    { "4over6", { .kind = QUANT_4OVER6 }, false },
    { "4over6 mae", { .kind = QUANT_4OVER6, .mae = true }, false },
    { "4over6 weighted", { .kind = QUANT_4OVER6 }, true },
    { "4over6 square", { .kind = QUANT_4OVER6, .square = true }, false },
    { "sweep", { .kind = QUANT_SWEEP }, false },
    { "sweep exhaustive", { .kind = QUANT_SWEEP, .exhaustive = true }, false },
    { "sweep weighted", { .kind = QUANT_SWEEP }, true },
    { "sweep square", { .kind = QUANT_SWEEP, .square = true }, false },
    { "sweepfp8", { .kind = QUANT_SWEEPFP8 }, false },
    { "sweepfp8 exhaustive", { .kind = QUANT_SWEEPFP8, .exhaustive = true }, false },
    { "sweepfp8 weighted", { .kind = QUANT_SWEEPFP8 }, true },
    { "sweepfp8 square", { .kind = QUANT_SWEEPFP8, .square = true }, false },
};

enum { CASES = sizeof cases / sizeof *cases };

static const enum dtype types[] = { DT_F32, DT_BF16, DT_F16 };

/* ---- values ---------------------------------------------------------------------- */

static float
uniform(uint64_t i)
{
    return (float)((double)check_random(i) * 0x1p-31 - 1);
}

static float
bell(uint64_t i)
{
    return uniform(4 * i) + uniform(4 * i + 1) + uniform(4 * i + 2) +
           uniform(4 * i + 3);
}

static float
from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum kind {
    WEIGHTS,
    TAILS,
    OUTLIERS,
    TIES,
    SIZES,
    ZEROS,
    TINY,
    HUGE_ONES,
    ANY_BITS,
    KINDS
};

static const char *const kinds[] = {
    "weights",      "heavy tails",         "outliers",
    "many ties",    "blocks of all sizes", "zeros of both signs",
    "the smallest", "the largest",         "any bits"
};

static float
value(enum kind kind, uint64_t i)
{
    float b = bell(i);
    switch (kind) {
    case WEIGHTS:
        return 0.02F * b;
    case TAILS:
        return 0.01F * b * b * b * b * b;
    case OUTLIERS:
        return b * (i % 64 ? 0.02F : 0.4F);
    case TIES:
        return (float)((int)(check_random(i) % 25) - 12) * 0.25F;
    case SIZES:
        return ldexpf(b, -(int)(check_random(i / 16) % 30));
    case ZEROS:
        return check_random(i / 16) % 3 ? check_random(i) % 2 ? 0.0F : -0.0F : b;
    case TINY:
        return uniform(i) * 1e-40F;
    case HUGE_ONES:
        return i % 3 ? uniform(i) * FLT_MAX : FLT_MAX;
    default:
        return from_bits(check_random(i) & 0xff7fffff);
    }
}

/* As a type; overflow becomes the largest finite value. */
static void *
make(enum kind kind, enum dtype dtype, size_t n)
{
    float *x = malloc(n * sizeof *x);
    uint16_t *half = malloc(n * sizeof *half);
    NEED(x && half);
    for (size_t i = 0; i < n; i++) {
        x[i] = value(kind, i);
        half[i] = dtype == DT_BF16 ? num_to_bf16(x[i]) : num_to_f16(x[i]);
        if (dtype == DT_BF16 && (half[i] & 0x7fff) >= 0x7f80)
            half[i] = 0x7f7f;
        if (dtype == DT_F16 && (half[i] & 0x7fff) >= 0x7c00)
            half[i] = 0xfbff;
    }
    free(dtype == DT_F32 ? (void *)half : x);
    return dtype == DT_F32 ? (void *)x : half;
}

/* ---- codes ----------------------------------------------------------------------- */

struct planes {
    uint8_t *data, *scales;
    uint16_t *expanded;
    float scale2;
};

static struct planes
planes_open(size_t n)
{
    struct planes p = { malloc(n / 2), malloc(n / 16), malloc(n * 2), 0 };
    NEED(p.data && p.scales && p.expanded);
    return p;
}

static void
planes_close(struct planes *p)
{
    free(p->data);
    free(p->scales);
    free(p->expanded);
}

/* Expand codes times scales. */
static void
expand(struct planes *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned code = p->data[i / 2] >> (i % 2 * 4) & 15;
        p->expanded[i] = num_to_bf16(e2m1_value(code) * e4m3_value(p->scales[i / 16]));
    }
}

static void
on_gpu(struct planes *p, int c, const void *x, enum dtype dtype, size_t rows,
       size_t cols, const float *amax, size_t n_amax, const float *weights, bool codes,
       bool expanded)
{
    size_t n = rows * cols;
    struct quant_spec spec = cases[c].spec;
    void *values = pair_bytes(x, n * dtype_bits(dtype) / 8);
    float *peak = pair_bytes(amax, n_amax * sizeof *amax);
    float *column =
        cases[c].weights ? pair_bytes(weights, cols * sizeof *weights) : NULL;
    struct matrix to = { .scale2 = pair_poisoned(sizeof(float)) };
    if (codes) {
        to.data = pair_poisoned(n / 2);
        to.scales = pair_poisoned(n / 16);
    }
    if (expanded)
        to.expanded = pair_poisoned(n * 2);
    spec.column_weight = column;
    pair_quantize(gpu, &to, values, dtype, rows, cols, peak, n_amax, &spec);
    if (codes) {
        CHECK(kernels_download(gpu, p->data, to.data, n / 2) == 0);
        CHECK(kernels_download(gpu, p->scales, to.scales, n / 16) == 0);
    }
    if (expanded)
        CHECK(kernels_download(gpu, p->expanded, to.expanded, n * 2) == 0);
    CHECK(kernels_download(gpu, &p->scale2, to.scale2, sizeof p->scale2) == 0);
    kernels_free(gpu, values);
    kernels_free(gpu, peak);
    kernels_free(gpu, column);
    kernels_free(gpu, to.data);
    kernels_free(gpu, to.scales);
    kernels_free(gpu, to.expanded);
    kernels_free(gpu, to.scale2);
}

static void
check_case(const char *what, int c, const void *x, enum dtype dtype, size_t rows,
           size_t cols, const float *amax, size_t n_amax)
{
    size_t n = rows * cols;
    struct planes want = planes_open(n), found = planes_open(n);
    struct quant_spec spec = cases[c].spec;
    float *weights = malloc(cols * sizeof *weights);
    NEED(weights);
    for (size_t i = 0; i < cols; i++)
        weights[i] = fabsf(bell(i + 7)) + 0.01F;
    spec.column_weight = cases[c].weights ? weights : NULL;
    pair_quantize(cpu,
                  &(struct matrix){ .data = want.data,
                                    .scales = want.scales,
                                    .scale2 = &want.scale2 },
                  x, dtype, rows, cols, amax, n_amax, &spec);
    expand(&want, n);
    for (int planes = 1; planes < 4; planes++) {
        on_gpu(&found, c, x, dtype, rows, cols, amax, n_amax, weights, planes & 1,
               planes & 2);
        size_t bad = 0;
        while (planes & 1 && bad < n / 16 && want.scales[bad] == found.scales[bad] &&
               check_equal(want.data + bad * 8, found.data + bad * 8, 8))
            bad++;
        CHECK_SAY(!(planes & 1) || bad == n / 16,
                  "%s, %s, %s, %zu x %zu: block %zu: scale %02x, %02x is right", what,
                  cases[c].name, dtype_name(dtype), rows, cols, bad, found.scales[bad],
                  want.scales[bad]);
        CHECK_SAY(!(planes & 2) || check_equal(want.expanded, found.expanded, n * 2),
                  "%s, %s, %s, %zu x %zu: products, %d", what, cases[c].name,
                  dtype_name(dtype), rows, cols, planes);
        CHECK_SAY(check_equal(&want.scale2, &found.scale2, sizeof(float)),
                  "%s, %s, %s: scale2 %a, %a is right", what, cases[c].name,
                  dtype_name(dtype), (double)found.scale2, (double)want.scale2);
    }
    free(weights);
    planes_close(&want);
    planes_close(&found);
}

static void
check_kind(enum kind kind, enum dtype dtype, size_t rows, size_t cols)
{
    void *x = make(kind, dtype, rows * cols);
    size_t bad, n = rows * cols;
    float own = nvfp4_amax(dtype, x, n, &bad);
    NEED(bad == n);
    float amax[3] = { own / 3, own, own / 2 };
    for (int c = 0; c < CASES; c++) {
        bool slow = cases[c].spec.exhaustive && n > 20000;
        for (int larger = 0; larger < 2 && !slow; larger++) {
            amax[2] = larger ? fminf(own * 40, FLT_MAX) : own / 2;
            check_case(kinds[kind], c, x, dtype, rows, cols, amax, 3);
        }
    }
    free(x);
}

/* Several tensors in a row without other work in between, so that kernels start early:
 * of different sizes, the last two to one destination, and one whose amax is not
 * finite, so that its codes stay. */
static void
check_chain(int c)
{
    enum { TENSORS = 7, NOT_FINITE = 3, TWICE = 5, COLS = 256, MAX_ROWS = 4096 };
    static const size_t rows[TENSORS] = { MAX_ROWS, 1, 1000, 64, MAX_ROWS, 512, 512 };
    struct matrix to[TENSORS];
    void *values[TENSORS];
    uint16_t *x[TENSORS];
    float *amax[TENSORS], own[TENSORS];
    struct quant_spec spec = cases[c].spec;
    for (size_t i = 0; i < TENSORS; i++) {
        size_t bad, n = rows[i] * COLS;
        x[i] = make(i % 2 ? SIZES : WEIGHTS, DT_BF16, n);
        own[i] = nvfp4_amax(DT_BF16, x[i], n, &bad) * (i == TWICE ? 3 : 1);
        own[i] = i == NOT_FINITE ? NAN : own[i];
        values[i] = pair_bytes(x[i], n * 2);
        amax[i] = pair_bytes(&own[i], sizeof *own);
        to[i] = (struct matrix){ .data = kernels_alloc(gpu, MEMORY_WORK, n / 2),
                                 .scales = kernels_alloc(gpu, MEMORY_WORK, n / 16),
                                 .expanded = kernels_alloc(gpu, MEMORY_WORK, n * 2),
                                 .scale2 = pair_poisoned(sizeof(float)) };
    }
    for (size_t i = 0; i < TENSORS; i++)
        pair_quantize(gpu, &to[i > TWICE ? TWICE : i], values[i], DT_BF16, rows[i],
                      COLS, amax[i], 1, &spec);
    for (size_t i = 0; i < TENSORS; i++) {
        size_t n = rows[i] * COLS;
        struct planes want = planes_open(n), found = planes_open(n);
        memset(want.data, 0, n / 2);
        memset(want.scales, 0, n / 16);
        if (i != NOT_FINITE)
            pair_quantize(cpu,
                          &(struct matrix){ .data = want.data,
                                            .scales = want.scales,
                                            .scale2 = &want.scale2 },
                          x[i], DT_BF16, rows[i], COLS, &own[i], 1, &spec);
        expand(&want, n);
        const struct matrix *p = &to[i > TWICE ? TWICE : i];
        CHECK(kernels_download(gpu, found.data, p->data, n / 2) == 0);
        CHECK(kernels_download(gpu, found.scales, p->scales, n / 16) == 0);
        CHECK(kernels_download(gpu, found.expanded, p->expanded, n * 2) == 0);
        CHECK(kernels_download(gpu, &found.scale2, p->scale2, sizeof found.scale2) ==
              0);
        if (i == NOT_FINITE) {
            CHECK(isnan(found.scale2));
            want.scale2 = found.scale2;
        }
        if (i != TWICE) // its destination was overwritten by the next
            CHECK_SAY(check_equal(want.data, found.data, n / 2) &&
                          check_equal(want.scales, found.scales, n / 16) &&
                          check_equal(want.expanded, found.expanded, n * 2) &&
                          check_equal(&want.scale2, &found.scale2, sizeof(float)),
                      "one after the other, %s: tensor %zu", cases[c].name, i);
        planes_close(&want);
        planes_close(&found);
    }
    for (size_t i = 0; i < TENSORS; i++) {
        kernels_free(gpu, values[i]);
        kernels_free(gpu, amax[i]);
        kernels_free(gpu, to[i].data);
        kernels_free(gpu, to[i].scales);
        kernels_free(gpu, to[i].expanded);
        kernels_free(gpu, to[i].scale2);
        free(x[i]);
    }
}

/* All finite bf16, grouped by exponent. */
static void
check_bf16(void)
{
    enum { N = 256 };
    for (unsigned e = 0; e < 255; e++) {
        uint16_t x[N];
        size_t bad;
        for (unsigned i = 0; i < N; i++)
            x[i] = (uint16_t)((i & 128) << 8 | e << 7 | ((i * 37) & 127));
        float own = nvfp4_amax(DT_BF16, x, N, &bad);
        for (int c = 0; c < CASES; c++) {
            if (cases[c].spec.exhaustive && e % 16)
                continue;
            check_case("all bf16", c, x, DT_BF16, 2, N / 2, &own, 1);
        }
    }
}

/* ---- amax ------------------------------------------------------------------------ */

static void
check_amax(enum dtype dtype, size_t n)
{
    static const uint32_t bad[] = { 0x7f800000, 0xff800000, 0x7fc00000, 0xff800001 };
    size_t size = dtype_bits(dtype) / 8;
    uint8_t *x = make(WEIGHTS, dtype, n + 1);
    float *out = pair_poisoned(sizeof *out), want, found;
    for (int round = 0; round < 6; round++) {
        uint32_t bits = round < 2 ? 0 : bad[round - 2];
        size_t at = round % 2 && n ? n - 1 : n / 2;
        uint16_t half =
            dtype == DT_F16
                ? (uint16_t)((bits >> 16 & 0x8000) | 0x7c00 | (bits & 0x7fffff ? 1 : 0))
                : (uint16_t)(bits >> 16 | (bits & 1));
        if (round == 1 && n) // negative zeros, and few other values
            memset(x, 0x80, size * (n < 9 ? n : 9));
        if (round > 1 && n)
            memcpy(x + at * size, size == 4 ? (void *)&bits : &half, size);
        void *values = pair_bytes(x, n * size);
        pair_amax(gpu, out, values, dtype, n);
        CHECK(kernels_download(gpu, &found, out, sizeof found) == 0);
        pair_amax(cpu, &want, x, dtype, n);
        CHECK_SAY(check_equal(&want, &found, sizeof want) ||
                      (isnan(want) && isnan(found)),
                  "amax of %zu %s, round %d: %a, %a is right", n, dtype_name(dtype),
                  round, (double)found, (double)want);
        kernels_free(gpu, values);
    }
    // A NaN in amax reaches the tensor scale, nothing else.
    if (n >= 16 && n % 16 == 0) {
        struct quant_spec spec = { .kind = QUANT_SWEEP };
        void *values = pair_bytes(x, n * size);
        struct matrix to = { .data = kernels_alloc(gpu, MEMORY_WORK, n / 2),
                             .scales = kernels_alloc(gpu, MEMORY_WORK, n / 16),
                             .scale2 = pair_poisoned(sizeof(float)) };
        pair_quantize(gpu, &to, values, dtype, 1, n, out, 1, &spec);
        CHECK(kernels_download(gpu, &found, to.scale2, sizeof found) == 0 &&
              isnan(found));
        kernels_free(gpu, values);
        kernels_free(gpu, to.data);
        kernels_free(gpu, to.scales);
        kernels_free(gpu, to.scale2);
    }
    kernels_free(gpu, out);
    free(x);
}

/* Of a few ranks; one of the values is NaN. */
static void
check_largest(size_t n, size_t ranks)
{
    float *all = pair_random(n * ranks, 1, DT_F32, 7),
          *want = calloc(n + 1, sizeof *want);
    NEED(want);
    for (size_t i = 0; i < n * ranks; i++)
        all[i] = fabsf(all[i]);
    all[n * ranks / 2] = NAN;
    float *there = pair_bytes(all, n * ranks * sizeof *all),
          *out = pair_poisoned(n * sizeof *out);
    op_largest(gpu, out, there, n, ranks);
    op_largest(cpu, want, all, n, ranks);
    float *found = pair_get(out, DT_F32, n);
    for (size_t i = 0; i < n; i++)
        CHECK_SAY(isnan(want[i]) ? isnan(found[i]) : found[i] == want[i],
                  "largest of %zu ranks, %zu: %a, %a is right", ranks, i,
                  (double)found[i], (double)want[i]);
    CHECK(isnan(want[n * ranks / 2 % n]));
    free(all);
    free(want);
    free(found);
    kernels_free(gpu, there);
    kernels_free(gpu, out);
}

/* ---- timing ---------------------------------------------------------------------- */

struct timing {
    void *data, *other;
    struct matrix codes, products;
    float *amax;
    size_t rows, cols;
    const struct matrix *to;
    struct quant_spec spec;
};

typedef void timed_fn(const struct timing *t);

static void
run_quantize(const struct timing *t)
{
    pair_quantize(gpu, t->to, t->data, DT_BF16, t->rows, t->cols, t->amax, 1, &t->spec);
}

static void
run_amax(const struct timing *t)
{
    pair_amax(gpu, t->amax, t->data, DT_BF16, t->rows * t->cols);
}

static void
run_copy(const struct timing *t)
{
    op_copy(gpu, t->other, t->data, t->rows * t->cols * 2);
}

/* bytes: traffic per element. */
static void
report(const char *name, timed_fn *fn, const struct timing *t, double bytes)
{
    size_t n = t->rows * t->cols, times = n < 1 << 26 ? 100 : 20;
    float out;
    fn(t);
    fn(t);
    CHECK(kernels_download(gpu, &out, t->amax, sizeof out) == 0);
    double from = os_seconds();
    for (size_t i = 0; i < times; i++)
        fn(t);
    CHECK(kernels_download(gpu, &out, t->amax, sizeof out) == 0);
    double each = (os_seconds() - from) / (double)times, moved = bytes * (double)n;
    printf("%s\t%zu\t%.1f\t%.0f\t%.0f\n", name, n, each * 1e6, moved,
           moved / each * 1e-9);
    fflush(stdout);
}

static void
time_size(size_t rows, size_t cols)
{
    static const struct {
        const char *name;
        enum quant kind;
    } named[] = { { "max", QUANT_MAX },
                  { "4over6", QUANT_4OVER6 },
                  { "sweep", QUANT_SWEEP },
                  { "sweepfp8", QUANT_SWEEPFP8 } };
    size_t n = rows * cols;
    struct timing t = { .rows = rows, .cols = cols };
    float *x = pair_random(n, 0.02F, DT_BF16, 3);
    t.data = pair_put(x, DT_BF16, n);
    t.other = kernels_alloc(gpu, MEMORY_WORK, n * 2);
    t.amax = kernels_alloc(gpu, MEMORY_WORK, sizeof(float));
    float *scale2 = kernels_alloc(gpu, MEMORY_WORK, sizeof(float));
    t.codes = (struct matrix){ .data = kernels_alloc(gpu, MEMORY_WORK, n / 2),
                               .scales = kernels_alloc(gpu, MEMORY_WORK, n / 16),
                               .scale2 = scale2 };
    t.products = (struct matrix){ .scale2 = scale2,
                                  .expanded = kernels_alloc(gpu, MEMORY_WORK, n * 2) };
    free(x);
    report("copy", run_copy, &t, 4);
    report("amax", run_amax, &t, 2);
    for (size_t q = 0; q < sizeof named / sizeof *named; q++) {
        char text[64];
        t.spec = (struct quant_spec){ .kind = named[q].kind };
        t.to = &t.codes;
        snprintf(text, sizeof text, "%s to codes", named[q].name);
        report(text, run_quantize, &t, 2.5625);
        t.to = &t.products;
        snprintf(text, sizeof text, "%s to products", named[q].name);
        report(text, run_quantize, &t, 4);
    }
    kernels_free(gpu, t.data);
    kernels_free(gpu, t.other);
    kernels_free(gpu, t.amax);
    kernels_free(gpu, scale2);
    kernels_free(gpu, t.codes.data);
    kernels_free(gpu, t.codes.scales);
    kernels_free(gpu, t.products.expanded);
}

int
main(int argc, char **argv)
{
    static const size_t shapes[][2] = {
        { 1, 16 }, { 3, 48 }, { 35, 64 }, { 17, 2560 }, { 128, 1024 }
    };
    static const size_t sizes[] = { 0, 1, 7, 8, 16, 1000, 4096, 100003, 3000000 };
    pair_open(DT_BF16);
    pair_options(argc, argv);
    if (pair_option(argc, argv, "--time")) {
        printf("op\telements\tmicroseconds\tbytes\tGB/s\n");
        time_size(9728, 2560);
        time_size(151936, 2560);
        pair_close();
        return check_end();
    }
    for (int t = 0; t < 3; t++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && pair_takes(sizes[i]);
             i++)
            check_amax(types[t], sizes[i]);
        check_largest(1, 1);
        check_largest(399, 2);
        check_largest(257, 5);
        for (int kind = 0; kind < KINDS; kind += pair_small ? 4 : 1)
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                if (!pair_small || i == 1 || i == 2)
                    check_kind((enum kind)kind, types[t], shapes[i][0], shapes[i][1]);
    }
    for (int c = 0; c < CASES; c++)
        if (!cases[c].weights && !cases[c].spec.exhaustive)
            check_chain(c);
    if (!pair_small)
        check_bf16();
    pair_close();
    return check_end();
}
