/* SPDX-License-Identifier: MIT */
/* fp4: activations in NVFP4 and their products with NVFP4 weights.  Codes, scales and
 * tiles are the CPU's bytes; products are close to the CPU's, emulated on every GPU,
 * and by 4-bit tensor cores if it has them.  Prints what was not run. */
#include "tests/gpu/pair.h"

#include "lib/nvfp4/quant.h"
#include "lib/nvfp4/tiles.h"

enum { FORMS = 2 }; // planes of rows: expanded; codes, scales and tiles

static const char *const forms[FORMS] = { "expanded", "codes" };

/* ---- rows ------------------------------------------------------------------------ */

/* Rows on the CPU and on the GPU, whose memory is poisoned. */
struct both_rows {
    struct matrix cpu, gpu;
};

static void
rows_open(struct both_rows *b, int form, size_t rows, size_t in)
{
    size_t whole = tiles_rows(rows), n = whole * in;
    b->cpu = (struct matrix){ .rows = rows, .cols = in };
    b->cpu.data = malloc(n / 2 + 1);
    b->cpu.scales = malloc(n / NVFP4_BLOCK + 1);
    b->cpu.scale2 = malloc(rows * sizeof(float) + 1);
    NEED(b->cpu.data && b->cpu.scales && b->cpu.scale2);
    b->gpu = (struct matrix){ .rows = rows, .cols = in };
    b->gpu.scale2 = pair_poisoned(rows * sizeof(float));
    if (form == 0) {
        b->gpu.expanded = pair_poisoned(n * (dtype_bits(gpu->is.act) / 8));
        return;
    }
    b->gpu.data = pair_poisoned(n / 2);
    b->gpu.scales = pair_poisoned(n / NVFP4_BLOCK);
    b->gpu.tiles = pair_poisoned(tiles_bytes(rows, in / NVFP4_BLOCK));
}

static void
rows_close(struct both_rows *b)
{
    free(b->cpu.data);
    free(b->cpu.scales);
    free(b->cpu.scale2);
    kernels_free(gpu, b->gpu.data);
    kernels_free(gpu, b->gpu.scales);
    kernels_free(gpu, b->gpu.scale2);
    kernels_free(gpu, b->gpu.expanded);
    kernels_free(gpu, b->gpu.tiles);
}

static void
check_bytes(const char *what, const void *on_gpu, const void *want, size_t n)
{
    uint8_t *found = malloc(n + 1);
    size_t at = 0;
    NEED(found);
    CHECK(kernels_download(gpu, found, on_gpu, n) == 0);
    while (at < n && found[at] == ((const uint8_t *)want)[at])
        at++;
    CHECK_SAY(at == n, "%s: byte %zu of %zu: %02x, the CPU's is %02x", what, at, n,
              at < n ? found[at] : 0, at < n ? ((const uint8_t *)want)[at] : 0);
    free(found);
}

static const uint8_t *
codes_of(const struct matrix *m)
{
    return m->data;
}

/* Codes times scales. */
static void
check_expanded(const char *what, const struct both_rows *b)
{
    size_t n = b->cpu.rows * b->cpu.cols, wrong = 0;
    float *found = pair_get(b->gpu.expanded, gpu->is.act, n);
    for (size_t i = 0; i < n; i++) {
        unsigned code = codes_of(&b->cpu)[i / 2] >> (i % 2 * 4) & 15;
        wrong += found[i] != e2m1_value(code) * e4m3_value(b->cpu.scales[i / 16]);
    }
    CHECK_SAY(wrong == 0, "%s: %zu of %zu products are wrong", what, wrong, n);
    free(found);
}

/* Values rounded to the type of activations, the same on both sides. */
static float *
make_rows(size_t rows, size_t in)
{
    enum dtype act = gpu->is.act;
    float *x = pair_random(rows * in, 1, act, (uint32_t)(rows + in));
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < in; i++) {
            float *v = &x[r * in + i];
            if (r % 7 == 1)
                *v = i % 37 == 5 ? 64 * *v : *v;
            else if (r % 7 == 2)
                *v = (float)((int)(i * 31 % 25) - 12) * 0.25F;
            else if (r % 7 == 3)
                *v = i / 16 % 2 ? *v : i % 2 ? -0.0F : 0;
            else if (r % 7 == 4)
                *v = ldexpf(*v, (int)(r % 40) - 20 - (int)(i / 16 % 9));
            else if (r % 7 == 5 && r > 60)
                *v = 0;
        }
    if (rows > 100) {
        x[99 * in + in / 2] = NAN;
        x[98 * in] = -INFINITY;
    }
    return x;
}

/* given: of all rows, or 0: each has its own scale. */
static void
check_rows(int form, size_t rows, size_t in, enum quant kind, float given)
{
    enum dtype act = gpu->is.act;
    struct both_rows b;
    struct quant_spec spec = { .kind = kind, .source = act, .given = given };
    char what[120];
    size_t n = rows * in, blocks = in / NVFP4_BLOCK;
    float *x = make_rows(rows, in), *decoded = malloc(n * sizeof *decoded + 1);
    void *gx = pair_put(x, act, n),
         *gy = pair_poisoned(n * (dtype_bits(gpu->is.act) / 8));
    NEED(decoded);
    snprintf(what, sizeof what, "%s, %s, given %g, %s, %zu rows of %zu",
             dtype_name(act), quant_name(kind), (double)given, forms[form], rows, in);
    rows_open(&b, form, rows, in);
    pair_quantize_rows(cpu, &b.cpu, x, &spec);
    pair_quantize_rows(gpu, &b.gpu, gx, &spec);
    float *scale2 = pair_get(b.gpu.scale2, DT_F32, rows);
    for (size_t r = 0; r < rows; r++)
        CHECK_SAY(scale2[r] == b.cpu.scale2[r] ||
                      (isnan(scale2[r]) && isnan(b.cpu.scale2[r])),
                  "%s: scale of row %zu: %a, the CPU's is %a", what, r,
                  (double)scale2[r], (double)b.cpu.scale2[r]);
    free(scale2);
    if (form == 0) {
        check_expanded(what, &b);
    } else {
        uint8_t *tiles = malloc(tiles_bytes(rows, blocks) + 1);
        NEED(tiles);
        tiles_make(tiles, b.cpu.scales, rows, blocks);
        check_bytes(what, b.gpu.data, b.cpu.data, n / 2);
        check_bytes(what, b.gpu.scales, b.cpu.scales, n / NVFP4_BLOCK);
        check_bytes(what, b.gpu.tiles, tiles, tiles_bytes(rows, blocks));
        free(tiles);
    }
    pair_unpack_rows(cpu, decoded, &b.cpu);
    pair_unpack_rows(gpu, gy, &b.gpu);
    float *found = pair_get(gy, act, n);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        float want =
            act == DT_BF16 ? num_from_bf16(num_to_bf16(decoded[i])) : decoded[i];
        wrong += !(found[i] == want || (isnan(found[i]) && isnan(want)));
    }
    CHECK_SAY(wrong == 0, "%s: %zu of %zu values are wrong", what, wrong, n);
    rows_close(&b);
    kernels_free(gpu, gx);
    kernels_free(gpu, gy);
    free(found);
    free(decoded);
    free(x);
}

/* Quantizing a tensor also writes its scales as tiles. */
static void
check_tile(size_t rows, size_t blocks)
{
    size_t cols = blocks * NVFP4_BLOCK, n = tiles_bytes(rows, blocks), bad;
    struct quant_spec spec = { .kind = QUANT_MAX };
    uint8_t *scales = malloc(rows * blocks + 1), *want = malloc(n + 1);
    float *x = pair_random(rows * cols, 1, DT_F32, 9), amax;
    char what[80];
    NEED(scales && want);
    amax = nvfp4_amax(DT_F32, x, rows * cols, &bad);
    void *values = pair_put(x, DT_F32, rows * cols);
    float *max = pair_bytes(&amax, sizeof amax);
    struct matrix to = { .data = pair_poisoned(rows * cols / 2),
                         .scales = pair_poisoned(rows * blocks),
                         .scale2 = pair_poisoned(sizeof(float)),
                         .tiles = pair_poisoned(n) };
    pair_quantize(gpu, &to, values, DT_F32, rows, cols, max, 1, &spec);
    CHECK(kernels_download(gpu, scales, to.scales, rows * blocks) == 0);
    tiles_make(want, scales, rows, blocks);
    snprintf(what, sizeof what, "tiles of %zu x %zu", rows, blocks);
    check_bytes(what, to.tiles, want, n);
    void *const all[] = { values, max, to.data, to.scales, to.scale2, to.tiles };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kernels_free(gpu, all[i]);
    free(scales);
    free(want);
    free(x);
}

/* ---- products -------------------------------------------------------------------- */

struct both {
    struct matrix cpu, gpu;
    uint8_t *data, *scales;
    float scale2;
    void *device[4];
};

static void
weight_open(struct both *b, size_t out, size_t in)
{
    size_t n = out * in, bad;
    float *x = pair_random(n, 0.05F, DT_BF16, 3);
    struct quant_spec spec = { .kind = QUANT_SWEEP, .isa = isa_best() };
    struct quant_scale t = nvfp4_scale(&spec, nvfp4_amax(DT_F32, x, n, &bad));
    *b = (struct both){ .data = malloc(n / 2), .scales = malloc(n / 16) };
    NEED(b->data && b->scales);
    nvfp4_quant(b->data, b->scales, x, out, in, 0, &spec, &t, NULL);
    free(x);
    b->scale2 = t.scale2;
    b->cpu = (struct matrix){ .dtype = DT_NVFP4,
                              .data = b->data,
                              .scales = b->scales,
                              .scale2 = &b->scale2,
                              .rows = out,
                              .cols = in };
    b->device[0] = pair_bytes(b->data, n / 2);
    b->device[1] = pair_bytes(b->scales, n / 16);
    b->device[2] = pair_bytes(&t.scale2, sizeof t.scale2);
    b->device[3] = pair_poisoned(tiles_bytes(out, in / NVFP4_BLOCK));
    uint8_t *tiles = malloc(tiles_bytes(out, in / NVFP4_BLOCK));
    NEED(tiles);
    tiles_make(tiles, b->scales, out, in / NVFP4_BLOCK);
    kernels_upload(gpu, b->device[3], tiles, tiles_bytes(out, in / NVFP4_BLOCK));
    free(tiles);
    b->gpu = (struct matrix){ .dtype = DT_NVFP4,
                              .data = b->device[0],
                              .scales = b->device[1],
                              .scale2 = b->device[2],
                              .rows = out,
                              .cols = in,
                              .tiles = b->device[3] };
}

static void
weight_close(struct both *b)
{
    free(b->data);
    free(b->scales);
    for (int i = 0; i < 4; i++)
        kernels_free(gpu, b->device[i]);
}

/* Tolerance: f32 sums in another order; bf16 rounds once.  Tensor cores may sum with
 * fewer bits than f32; their precision is not specified. */
static double
limit(bool native)
{
    return gpu->is.act == DT_F32 ? native ? 1e-4 : 1e-5 : 4e-3;
}

static void
check_product(bool native, size_t rows, size_t out, size_t in)
{
    enum dtype act = gpu->is.act;
    enum fp4_path was = gpu->is.fp4;
    struct quant_spec spec = { .kind = QUANT_MAX, .source = act };
    struct both_rows x;
    struct both w;
    char what[120];
    size_t n = rows * out;
    float *plain = pair_random(rows * in, 1, act, 5), *c = pair_random(n, 1, act, 6);
    float *want = calloc(n + 1, sizeof *want);
    void *gx = pair_put(plain, act, rows * in), *gc = pair_put(c, act, n);
    void *y = pair_poisoned(n * (dtype_bits(gpu->is.act) / 8));
    NEED(want);
    rows_open(&x, native, rows, in);
    weight_open(&w, out, in);
    pair_quantize_rows(cpu, &x.cpu, plain, &spec);
    gpu->is.fp4 = native ? FP4_NATIVE : FP4_EXPANDED;
    pair_quantize_rows(gpu, &x.gpu, gx, &spec);
    for (int add = 0; add < 2; add++) {
        pair_linear_fp4(cpu, want, &x.cpu, &w.cpu, add ? c : NULL);
        pair_linear_fp4(gpu, y, &x.gpu, &w.gpu, add ? gc : NULL);
        float *found = pair_get(y, act, n);
        snprintf(what, sizeof what, "%s, %s, %zu rows (%zu, %zu)%s",
                 native ? "native" : "emulated", dtype_name(act), rows, out, in,
                 add ? ", added" : "");
        PAIR_NEAR(what, found, want, n, limit(native));
        free(found);
    }
    gpu->is.fp4 = was;
    weight_close(&w);
    rows_close(&x);
    kernels_free(gpu, gx);
    kernels_free(gpu, gc);
    kernels_free(gpu, y);
    free(plain);
    free(c);
    free(want);
}

static void
check(enum dtype act, bool native)
{
    static const size_t rows[] = { 1, 5, 8, 9, 127, 128, 129, 300 };
    static const size_t wide[] = { 16, 48, 128, 608, 2560, 9728 };
    static const size_t shapes[][2] = { { 48, 16 },    { 100, 144 },   { 128, 128 },
                                        { 256, 640 },  { 1024, 2560 }, { 2560, 9728 },
                                        { 9728, 2560 } };
    const size_t step = pair_small ? 3 : 1;
    pair_open(act);
    for (size_t w = 0; w < sizeof wide / sizeof *wide; w += step)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r += step)
            for (int form = 0; form < FORMS; form++) {
                check_rows(form, rows[r], wide[w], QUANT_MAX, 0);
                check_rows(form, rows[r], wide[w], QUANT_MAX, 9000);
                check_rows(form, rows[r], wide[w], QUANT_MAX, 384);
                check_rows(form, rows[r], wide[w], QUANT_MAX, 0.3F);
                check_rows(form, rows[r], wide[w], QUANT_NATIVE, 0);
            }
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t blocks = 1; blocks < 12; blocks += step)
            check_tile(rows[r], blocks);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r += step) {
            size_t out = shapes[s][0], in = shapes[s][1];
            if (!pair_takes(out * in) || (pair_few && rows[r] > PAIR_FEW))
                continue;
            check_product(false, rows[r], out, in);
            if (native && out % FP4_NATIVE_UNIT == 0 && in % FP4_NATIVE_UNIT == 0)
                check_product(true, rows[r], out, in);
        }
    // More rows than the buffer of sums holds.
    if (!pair_small)
        check_product(false, 5000, 9728, 128);
    if (native && !pair_small)
        check_product(true, 5000, 9728, 128);
    pair_close();
}

int
main(int argc, char **argv)
{
    char why[512], none[512];
    pair_options(argc, argv);
    bool native = kernels_cuda_native(0, why, sizeof why);
    if (!native && kernels_cuda_count(none, sizeof none) > 0)
        printf("not run: native products of NVFP4: %s\n", why);
    check(DT_F32, native);
    check(DT_BF16, native);
    return check_end();
}
