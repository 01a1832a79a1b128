/* SPDX-License-Identifier: MIT */
/* fp8: matrices in E4M3 and products of them.  Both forms and the scale are the CPU's
 * bytes; what norms and swiglu write themselves has the bytes of a conversion; products are
 * close to the CPU's.  --time: norms and swiglu with their conversion, and in one; codes; and what a
 * layer of Qwen3-4B takes, in bf16 and FP8; as TSV. */
#include "tests/gpu/pair.h"

#include "lib/nvfp4/e4m3.h"

#include <float.h>

/* ---- forms ----------------------------------------------------------------------- */

/* A matrix on the CPU and on the GPU, with both forms; the GPU's memory is poisoned. */
struct both {
    struct matrix cpu, gpu;
    float *amax;
};

static size_t
padded(size_t rows)
{
    return (rows + FP8_UNIT - 1) / FP8_UNIT * FP8_UNIT;
}

static void
both_open(struct both *b, size_t rows, size_t cols)
{
    size_t n = padded(rows) * cols;
    b->cpu = matrix_of(DT_F8_E4M3, malloc(n + 1), rows, cols);
    b->cpu.transposed = malloc(n + 1);
    b->cpu.scale2 = malloc(sizeof *b->cpu.scale2);
    b->cpu.transposed_stride = padded(rows);
    NEED(b->cpu.data && b->cpu.transposed && b->cpu.scale2);
    b->gpu = b->cpu;
    b->gpu.data = pair_poisoned(n);
    b->gpu.transposed = pair_poisoned(n);
    b->gpu.scale2 = pair_poisoned(sizeof(float));
    b->amax = pair_poisoned(sizeof *b->amax);
}

static void
both_close(struct both *b)
{
    free(b->cpu.data);
    free(b->cpu.transposed);
    free(b->cpu.scale2);
    kernels_free(gpu, b->gpu.data);
    kernels_free(gpu, b->gpu.transposed);
    kernels_free(gpu, b->gpu.scale2);
    kernels_free(gpu, b->amax);
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
    CHECK_SAY(at == n, "%s: byte %zu of %zu: %02x, want %02x", what, at, n,
              at < n ? found[at] : 0, at < n ? ((const uint8_t *)want)[at] : 0);
    free(found);
}

static void
check_forms(const char *what, const struct both *b)
{
    size_t rows = b->cpu.rows, cols = b->cpu.cols;
    float scale2;
    check_bytes(what, b->gpu.data, b->cpu.data, rows * cols);
    check_bytes(what, b->gpu.transposed, b->cpu.transposed, padded(rows) * cols);
    CHECK(kernels_download(gpu, &scale2, b->gpu.scale2, sizeof scale2) == 0);
    CHECK_SAY(scale2 == *b->cpu.scale2 || (isnan(scale2) && isnan(*b->cpu.scale2)),
              "%s: scale %a, the CPU's is %a", what, (double)scale2,
              (double)*b->cpu.scale2);
}

/* What a conversion has counted on both. */
struct counts {
    float amax;
    uint64_t lost;
    struct fp8_found on_gpu;
};

static struct fp8_found
counts_open(struct counts *c)
{
    const float before = 0x1p-30F; // is to grow
    const uint64_t ten = 10;       // is to be added to
    c->amax = before;
    c->lost = ten;
    c->on_gpu.amax = pair_bytes(&before, sizeof before);
    c->on_gpu.lost = pair_bytes(&ten, sizeof ten);
    return (struct fp8_found){ &c->amax, &c->lost };
}

static void
counts_check(const char *what, struct counts *c)
{
    float amax;
    uint64_t lost;
    CHECK(kernels_download(gpu, &amax, c->on_gpu.amax, sizeof amax) == 0);
    CHECK(kernels_download(gpu, &lost, c->on_gpu.lost, sizeof lost) == 0);
    CHECK_SAY(amax == c->amax || (isnan(amax) && isnan(c->amax)),
              "%s: amax %a, the CPU's is %a", what, (double)amax, (double)c->amax);
    CHECK_SAY(lost == c->lost, "%s: %llu lost, the CPU's are %llu", what,
              (unsigned long long)lost, (unsigned long long)c->lost);
    kernels_free(gpu, c->on_gpu.amax);
    kernels_free(gpu, c->on_gpu.lost);
}

/* Values x of activations on both. */
static void
convert(struct both *b, const float *x, const void *on_gpu)
{
    struct matrix from = matrix_of(DT_F32, x, b->cpu.rows, b->cpu.cols),
                  on = kernels_act(gpu, on_gpu, b->cpu.rows, b->cpu.cols);
    float amax;
    op_amax(cpu, &amax, &from);
    op_to_fp8(cpu, &b->cpu, &from, &amax, 1, NULL);
    op_amax(gpu, b->amax, &on);
    op_to_fp8(gpu, &b->gpu, &on, b->amax, 1, NULL);
}

/* The same by a scale that is not theirs, as one of the step before, and counted. */
static void
convert_counting(struct both *b, const float *x, const void *on_gpu, int shift,
                 const char *what)
{
    struct matrix from = matrix_of(DT_F32, x, b->cpu.rows, b->cpu.cols),
                  on = kernels_act(gpu, on_gpu, b->cpu.rows, b->cpu.cols);
    struct counts c;
    struct fp8_found found = counts_open(&c);
    float amax;
    op_amax(cpu, &amax, &from);
    amax = isnan(amax) ? 1 : ldexpf(amax, -shift);
    kernels_upload(gpu, b->amax, &amax, sizeof amax);
    op_to_fp8(cpu, &b->cpu, &from, &amax, 1, &found);
    op_to_fp8(gpu, &b->gpu, &on, b->amax, 1, &c.on_gpu);
    counts_check(what, &c);
}

enum kind { ORDINARY, MANY_SIZES, ZEROS, SMALLEST, LARGEST, NOT_FINITE, KINDS };

static float *
make(enum kind kind, size_t n)
{
    float *x = pair_random(n, 1, gpu->is.act, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        if (kind == MANY_SIZES)
            x[i] = ldexpf(x[i], -(int)(i * 7 % 40));
        else if (kind == ZEROS)
            x[i] = i % 3 ? -0.0F : 0;
        else if (kind == SMALLEST)
            x[i] = ldexpf(x[i], -130);
        else if (kind == LARGEST)
            x[i] = i % 5 ? 0x1.fep127F : -0x1.8p100F;
    if (kind == NOT_FINITE)
        x[n / 2] = NAN;
    return x;
}

static void
check_activations(enum kind kind, size_t rows, size_t cols)
{
    char what[80];
    struct both b;
    float *x = make(kind, rows * cols);
    void *on_gpu = pair_put(x, gpu->is.act, rows * cols);
    float *rounded = pair_get(on_gpu, gpu->is.act, rows * cols);
    snprintf(what, sizeof what, "%s, values %d, %zu x %zu", dtype_name(gpu->is.act),
             (int)kind, rows, cols);
    both_open(&b, rows, cols);
    convert(&b, rounded, on_gpu);
    check_forms(what, &b);
    for (int shift = 0; shift <= 6; shift += 3) {
        convert_counting(&b, rounded, on_gpu, shift, what);
        check_forms(what, &b);
    }
    both_close(&b);
    kernels_free(gpu, on_gpu);
    free(rounded);
    free(x);
}

/* ---- forms that operations write themselves ------------------------------------- */

/* A conversion of what an operation wrote, and what one that writes E4M3 itself has given, on
 * the GPU. */
struct written {
    struct matrix to[2];
    struct fp8_found found[2];
};

enum planes { BOTH_PLANES, ONLY_ROWS, ONLY_COLUMNS, PLANES };

static void
written_open(struct written *w, size_t rows, size_t cols, enum planes planes)
{
    const float before = 0x1p-30F;
    const uint64_t ten = 10;
    for (int i = 0; i < 2; i++) {
        struct matrix *m = &w->to[i];
        *m = matrix_of(DT_F8_E4M3, NULL, rows, cols);
        m->data = planes == ONLY_COLUMNS ? NULL : pair_poisoned(rows * cols);
        m->transposed = planes == ONLY_ROWS ? NULL : pair_poisoned(padded(rows) * cols);
        m->transposed_stride = padded(rows);
        m->scale2 = pair_poisoned(sizeof *m->scale2);
        w->found[i] = (struct fp8_found){ pair_bytes(&before, sizeof before),
                                          pair_bytes(&ten, sizeof ten) };
    }
}

static void
check_equal_bytes(const char *what, const void *a, const void *b, size_t n)
{
    uint8_t *want = malloc(n + 1);
    NEED(want);
    if (a && b) {
        CHECK(kernels_download(gpu, want, b, n) == 0);
        check_bytes(what, a, want, n);
    }
    free(want);
}

/* Neither is needed any more. */
static void
written_check(const char *what, struct written *w)
{
    const struct matrix *a = &w->to[0], *b = &w->to[1];
    check_equal_bytes(what, b->data, a->data, a->rows * a->cols);
    check_equal_bytes(what, b->transposed, a->transposed, padded(a->rows) * a->cols);
    check_equal_bytes(what, b->scale2, a->scale2, sizeof(float));
    check_equal_bytes(what, w->found[1].amax, w->found[0].amax, sizeof(float));
    check_equal_bytes(what, w->found[1].lost, w->found[0].lost, sizeof(uint64_t));
    for (int i = 0; i < 2; i++) {
        kernels_free(gpu, w->to[i].data);
        kernels_free(gpu, w->to[i].transposed);
        kernels_free(gpu, w->to[i].scale2);
        kernels_free(gpu, w->found[i].amax);
        kernels_free(gpu, w->found[i].lost);
    }
}

/* Inputs of the operations under test on the GPU, and memory for their results. */
struct writing {
    size_t rows, cols;
    void *x, *up, *d, *y, *both; // both: (rows, 2 cols)
    float *gain, *rstd, *amax, *peak;
};

static struct matrix
act_matrix(const struct writing *w, void *p)
{
    return kernels_act(gpu, p, w->rows, w->cols);
}

static void
writing_open(struct writing *w, enum kind kind, size_t rows, size_t cols)
{
    size_t n = rows * cols, bytes = 4 * n;
    float *x = make(kind, n), *up = pair_random(n, 2, gpu->is.act, 7),
          *gain = pair_random(cols, 1, DT_F32, 8),
          *d = pair_random(n, 1e-4F, gpu->is.act, 9);
    *w = (struct writing){ rows,
                           cols,
                           pair_put(x, gpu->is.act, n),
                           pair_put(up, gpu->is.act, n),
                           pair_put(d, gpu->is.act, n),
                           pair_poisoned(bytes),
                           pair_poisoned(2 * bytes),
                           pair_bytes(gain, cols * sizeof *gain),
                           pair_poisoned(rows * sizeof(float)),
                           pair_poisoned(sizeof(float)),
                           pair_poisoned(sizeof(float)) };
    free(x);
    free(up);
    free(d);
    free(gain);
}

static void
writing_close(struct writing *w)
{
    void *all[] = {
        w->x, w->up, w->d, w->y, w->both, w->gain, w->rstd, w->amax, w->peak
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kernels_free(gpu, all[i]);
}

/* From zero: the largest magnitude that comes next, of a result that is written, and not. */
static void
begin_amax(const struct writing *w)
{
    op_zero(gpu, w->amax, sizeof *w->amax);
    op_zero(gpu, w->peak, sizeof *w->peak);
}

/* Both are the same; amax becomes that of a step before, whose values were smaller. */
static void
end_amax(const char *what, const struct writing *w, int shift)
{
    float amax;
    check_equal_bytes(what, w->peak, w->amax, sizeof amax);
    CHECK(kernels_download(gpu, &amax, w->amax, sizeof amax) == 0);
    if (shift)
        amax = isnan(amax) ? 1 : ldexpf(amax, -shift);
    kernels_upload(gpu, w->amax, &amax, sizeof amax);
}

static void
check_norm_written(const char *what, const struct writing *w, int shift,
                   enum planes planes)
{
    struct matrix x = act_matrix(w, w->x), y = act_matrix(w, w->y),
                  none = act_matrix(w, NULL);
    struct written of;
    written_open(&of, w->rows, w->cols, planes);
    begin_amax(w);
    y.amax = w->amax;
    none.amax = w->peak;
    op_norm(gpu, &y, w->rstd, &x, w->gain, 1e-6F);
    op_norm(gpu, &none, w->rstd, &x, w->gain, 1e-6F);
    end_amax(what, w, shift);
    op_to_fp8(gpu, &of.to[0], &y, w->amax, 1, &of.found[0]);
    if (planes == ONLY_ROWS) {
        float *rstd = pair_poisoned(w->rows * sizeof *rstd);
        op_norm_to_fp8(gpu, &of.to[1], rstd, &x, w->gain, 1e-6F, w->amax, &of.found[1]);
        check_equal_bytes(what, rstd, w->rstd, w->rows * sizeof *rstd);
        kernels_free(gpu, rstd);
    } else {
        op_norm_again_to_fp8(gpu, &of.to[1], w->rstd, &x, w->gain, w->amax,
                             &of.found[1]);
    }
    written_check(what, &of);
}

static void
check_swiglu_written(const char *what, const struct writing *w, int shift,
                     enum planes planes)
{
    struct matrix gate = act_matrix(w, w->x), up = act_matrix(w, w->up),
                  y = act_matrix(w, w->y), none = act_matrix(w, NULL);
    struct written of;
    written_open(&of, w->rows, w->cols, planes);
    begin_amax(w);
    y.amax = w->amax;
    none.amax = w->peak;
    op_swiglu(gpu, &y, &gate, &up);
    op_swiglu(gpu, &none, &gate, &up);
    end_amax(what, w, shift);
    op_to_fp8(gpu, &of.to[0], &y, w->amax, 1, &of.found[0]);
    op_swiglu_to_fp8(gpu, &of.to[1], &gate, &up, w->amax, &of.found[1]);
    written_check(what, &of);
}

/* The scale of what swiglu gives is that of the forward pass, and is not counted again. */
static void
check_swiglu_bwd_written(const char *what, const struct writing *w, int shift,
                         enum planes planes)
{
    size_t n = w->rows * w->cols;
    struct matrix gate = act_matrix(w, w->x), up = act_matrix(w, w->up),
                  d = act_matrix(w, w->d), y = act_matrix(w, w->y),
                  both = kernels_act(gpu, w->both, w->rows, 2 * w->cols), none = both;
    float *y_amax = pair_poisoned(sizeof *y_amax);
    struct written of, of_y;
    written_open(&of, w->rows, 2 * w->cols, planes);
    written_open(&of_y, w->rows, w->cols, planes);
    begin_amax(w);
    both.amax = w->amax;
    none.amax = w->peak;
    none.data = NULL;
    op_copy(gpu, y.data, d.data, n * dtype_bits(gpu->is.act) / 8);
    op_swiglu_bwd(gpu, &both, &y, &gate, &up);
    op_swiglu_bwd(gpu, &none, &d, &gate, &up);
    end_amax(what, w, shift);
    op_amax(gpu, y_amax, &y);
    op_to_fp8(gpu, &of.to[0], &both, w->amax, 1, &of.found[0]);
    op_to_fp8(gpu, &of_y.to[0], &y, y_amax, 1, NULL);
    op_swiglu_bwd_to_fp8(gpu, &of.to[1], w->amax, &of.found[1], &of_y.to[1], y_amax, &d,
                         &gate, &up);
    written_check(what, &of);
    written_check(what, &of_y);
    kernels_free(gpu, y_amax);
}

static void
check_written(enum kind kind, size_t rows, size_t cols)
{
    struct writing w;
    char what[100];
    for (int shift = 0; shift <= 3; shift += 3)
        for (enum planes planes = 0; planes < PLANES; planes++) {
            snprintf(what, sizeof what, "%s, values %d, %zu x %zu, shift %d, planes %d",
                     dtype_name(gpu->is.act), (int)kind, rows, cols, shift,
                     (int)planes);
            writing_open(&w, kind, rows, cols);
            check_norm_written(what, &w, shift, planes);
            check_swiglu_written(what, &w, shift, planes);
            check_swiglu_bwd_written(what, &w, shift, planes);
            writing_close(&w);
        }
}

/* The same forms once more, each alone, and nothing is counted. */
static void
convert_alone(struct both *b, const struct matrix *x)
{
    size_t n = x->rows * x->cols;
    struct matrix to = b->gpu;
    op_zero(gpu, to.data, n);
    op_zero(gpu, to.transposed, n);
    to.transposed = NULL;
    op_to_fp8(gpu, &to, x, b->amax, 1, NULL);
    to = b->gpu;
    to.data = NULL;
    op_to_fp8(gpu, &to, x, b->amax, 1, NULL);
}

/* A weight in NVFP4 on both, and its FP8 form. */
static void
weight_open(struct both *b, enum quant kind, size_t rows, size_t cols, bool alone)
{
    size_t n = rows * cols, bad;
    float *x = pair_random(n, 0.02F, DT_F32, (uint32_t)rows), amax;
    struct quant_spec spec = { .kind = kind, .isa = isa_best() };
    struct quant_scale t = nvfp4_scale(&spec, nvfp4_amax(DT_F32, x, n, &bad));
    uint8_t *codes = malloc(n / 2), *scales = malloc(n / 16);
    NEED(codes && scales);
    nvfp4_quant(codes, scales, x, rows, cols, 0, &spec, &t, NULL);
    struct matrix from = matrix_of(DT_NVFP4, codes, rows, cols), on = from;
    from.scales = scales;
    from.scale2 = &t.scale2;
    on.data = pair_bytes(codes, n / 2);
    on.scales = pair_bytes(scales, n / 16);
    on.scale2 = pair_bytes(&t.scale2, sizeof t.scale2);
    both_open(b, rows, cols);
    struct counts c;
    struct fp8_found found = counts_open(&c);
    op_amax(cpu, &amax, &from);
    found.amax = NULL;
    op_to_fp8(cpu, &b->cpu, &from, &amax, 1, &found);
    op_amax(gpu, b->amax, &on);
    const struct fp8_found only_lost = { NULL, c.on_gpu.lost };
    op_to_fp8(gpu, &b->gpu, &on, b->amax, 1, &only_lost);
    CHECK_SAY(kind != QUANT_SWEEPFP8 || c.lost == 10, "of sweepfp8 %llu are not exact",
              (unsigned long long)c.lost - 10);
    counts_check(quant_name(kind), &c);
    if (alone)
        convert_alone(b, &on);
    kernels_free(gpu, on.data);
    kernels_free(gpu, on.scales);
    kernels_free(gpu, on.scale2);
    free(codes);
    free(scales);
    free(x);
}

static void
check_weight(enum quant kind, size_t rows, size_t cols)
{
    char what[80];
    struct both b;
    for (int alone = 0; alone < 2; alone++) {
        snprintf(what, sizeof what, "%s, %zu x %zu, alone %d", quant_name(kind), rows,
                 cols, alone);
        weight_open(&b, kind, rows, cols, alone);
        check_forms(what, &b);
        both_close(&b);
    }
}

/* ---- products -------------------------------------------------------------------- */

/* f32 sums as tensor cores have them: 2.1e-3 of 9728 products on an H200; bf16 rounds once
 * besides. */
static double
limit(enum dtype out)
{
    return out == DT_F32 ? 3e-3 : 5e-3;
}

static void
near(const char *what, const struct matrix *m, const float *want, size_t rows,
     size_t out, size_t in)
{
    char words[120];
    size_t n = m->rows * m->cols;
    float *found = pair_get(m->data, m->dtype, n);
    snprintf(words, sizeof words, "%s, %s, %zu rows, %zu x %zu", what,
             dtype_name(m->dtype), rows, out, in);
    PAIR_NEAR(words, found, want, n, limit(m->dtype));
    free(found);
}

/* Values of activations in both forms on both. */
static void
input_open(struct both *b, size_t rows, size_t cols, float size)
{
    float *x = pair_random(rows * cols, size, gpu->is.act, (uint32_t)cols);
    void *on_gpu = pair_put(x, gpu->is.act, rows * cols);
    both_open(b, rows, cols);
    convert(b, x, on_gpu);
    kernels_free(gpu, on_gpu);
    free(x);
}

/* y = x W' + c, dx = dy W, and dw = dy' x of both types. */
static void
check_products(size_t rows, size_t out, size_t in)
{
    enum dtype act = gpu->is.act;
    size_t most = out > in ? out : in,
           n = rows * most > out * in ? rows * most : out * in;
    struct both w, x, dy;
    float *want = calloc(n + 1, sizeof *want), *c = pair_random(rows * out, 1, act, 6);
    void *on = pair_poisoned(n * sizeof(float)), *gc = pair_put(c, act, rows * out);
    NEED(want);
    weight_open(&w, QUANT_SWEEP, out, in, false);
    input_open(&x, rows, in, 1);
    input_open(&dy, rows, out, 1e-6F);
    for (int add = 0; add < 2; add++) {
        struct matrix to = matrix_of(DT_F32, want, rows, out),
                      y = kernels_act(gpu, on, rows, out),
                      more = matrix_of(DT_F32, c, rows, out),
                      gmore = kernels_act(gpu, gc, rows, out);
        op_linear(cpu, 1, &to, &x.cpu, &w.cpu, add ? &more : NULL);
        op_linear(gpu, 1, &y, &x.gpu, &w.gpu, add ? &gmore : NULL);
        near(add ? "y + c" : "y", &y, want, rows, out, in);
    }
    struct matrix to = matrix_of(DT_F32, want, rows, in),
                  dx = kernels_act(gpu, on, rows, in);
    op_linear_dx(cpu, 1, &to, &dy.cpu, &w.cpu, NULL);
    op_linear_dx(gpu, 1, &dx, &dy.gpu, &w.gpu, NULL);
    near("dx", &dx, want, rows, out, in);
    to = matrix_of(DT_F32, want, out, in);
    op_linear_dw(cpu, 1, &to, &dy.cpu, &x.cpu, false);
    for (int wide = 0; wide < 2; wide++) {
        struct matrix dw = matrix_of(wide ? DT_F32 : act, on, out, in);
        op_linear_dw(gpu, 1, &dw, &dy.gpu, &x.gpu, false);
        near("dw", &dw, want, rows, out, in);
    }
    both_close(&w);
    both_close(&x);
    both_close(&dy);
    kernels_free(gpu, on);
    kernels_free(gpu, gc);
    free(want);
    free(c);
}

/* Two weights of one scale, whose transposed forms are columns of one matrix. */
static void
check_together(size_t rows, size_t out, size_t in)
{
    struct both w, dy;
    float *want = calloc(rows * in + 1, sizeof *want);
    void *on = pair_poisoned(rows * in * sizeof(float));
    NEED(want);
    weight_open(&w, QUANT_MAX, 2 * out, in, false);
    input_open(&dy, rows, 2 * out, 1);
    struct matrix of_cpu[] = { matrix_rows(&w.cpu, 0, out),
                               matrix_rows(&w.cpu, out, out) },
                  of_gpu[] = { matrix_rows(&w.gpu, 0, out),
                               matrix_rows(&w.gpu, out, out) };
    struct matrix to = matrix_of(DT_F32, want, rows, in),
                  dx = kernels_act(gpu, on, rows, in);
    op_linear_dx(cpu, 2, &to, &dy.cpu, of_cpu, NULL);
    op_linear_dx(gpu, 2, &dx, &dy.gpu, of_gpu, NULL);
    near("dx of two", &dx, want, rows, out, in);
    // As two products, since the scales are two.
    float *other = pair_bytes(w.cpu.scale2, sizeof *other);
    of_gpu[1].scale2 = other;
    op_linear_dx(gpu, 2, &dx, &dy.gpu, of_gpu, NULL);
    near("dx of two with a scale each", &dx, want, rows, out, in);
    both_close(&w);
    both_close(&dy);
    kernels_free(gpu, other);
    kernels_free(gpu, on);
    free(want);
}

static void
check(enum dtype act)
{
    static const size_t rows[] = { 1, 15, 16, 129, 260 };
    static const size_t wide[] = { 16, 48, 144, 2560 };
    const size_t step = pair_small ? 2 : 1;
    pair_open(act);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t w = 0; w < sizeof wide / sizeof *wide; w += step)
            for (enum kind k = 0; k < KINDS; k++) {
                check_activations(k, rows[r], wide[w]);
                check_written(k, rows[r], wide[w]);
            }
    check_written(ORDINARY, 1, 20496); // rows that do not stay in registers
    for (enum quant q = 0; q < QUANT_COUNT; q++) {
        check_weight(q, 144, 80);
        check_weight(q, 16, 16);
    }
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r += step) {
        check_products(rows[r], 48, 80);
        check_together(rows[r], 32, 48);
        if (!pair_small) {
            check_products(rows[r], 1024, 2560);
            check_products(rows[r], 2560, 9728);
        }
    }
    if (!pair_small)
        check_products(2048, 4096, 2560);
    pair_close();
}

/* ---- times ----------------------------------------------------------------------- */

enum { TIMES = 10 };

/* Waits for the GPU, too. */
static double
now(const void *p)
{
    float one;
    CHECK(kernels_download(gpu, &one, p, sizeof one) == 0);
    return os_seconds();
}

enum operation {
    AMAX,
    ROWS,
    COLUMNS,
    BOTH,
    FORWARD,
    DX,
    DW,
    PLAIN,
    PLAIN_DX,
    PLAIN_DW
};
static const char *const operations[] = { "amax",   "rows",         "columns",
                                          "both",   "forward",      "dx",
                                          "dw",     "bf16 forward", "bf16 dx",
                                          "bf16 dw" };

struct timing {
    struct matrix w, x, dy, y, dx, dw, plain_w, plain_x, plain_dy;
    float *amax;
};

static void
operate(const struct timing *t, enum operation op)
{
    struct matrix to = t->x;
    to.data = op == COLUMNS ? NULL : to.data;
    to.transposed = op == ROWS ? NULL : to.transposed;
    if (op == AMAX)
        op_amax(gpu, t->amax, &t->plain_x);
    else if (op <= BOTH)
        op_to_fp8(gpu, &to, &t->plain_x, t->amax, 1, NULL);
    else if (op == FORWARD)
        op_linear(gpu, 1, &t->y, &t->x, &t->w, NULL);
    else if (op == DX)
        op_linear_dx(gpu, 1, &t->dx, &t->dy, &t->w, NULL);
    else if (op == DW)
        op_linear_dw(gpu, 1, &t->dw, &t->dy, &t->x, false);
    else if (op == PLAIN)
        op_linear(gpu, 1, &t->y, &t->plain_x, &t->plain_w, NULL);
    else if (op == PLAIN_DX)
        op_linear_dx(gpu, 1, &t->dx, &t->plain_dy, &t->plain_w, NULL);
    else
        op_linear_dw(gpu, 1, &t->dw, &t->plain_dy, &t->plain_x, false);
}

static struct matrix
fp8_of(size_t rows, size_t cols)
{
    struct matrix m = matrix_of(DT_F8_E4M3, NULL, rows, cols);
    m.data = kernels_alloc(gpu, MEMORY_WORK, rows * cols);
    m.transposed = kernels_alloc(gpu, MEMORY_WORK, rows * cols);
    m.transposed_stride = rows;
    m.scale2 = kernels_alloc(gpu, MEMORY_WORK, sizeof *m.scale2);
    return m;
}

enum { PATTERN = 1 << 20 };

/* Of the same random values again and again. */
static struct matrix
act_of(size_t rows, size_t cols, const void *pattern)
{
    size_t n = rows * cols;
    void *p = kernels_alloc(gpu, MEMORY_WORK, n * sizeof(uint16_t));
    for (size_t i = 0; i < n; i += PATTERN)
        op_copy(gpu, dtype_at(DT_BF16, p, i), pattern,
                (n - i < PATTERN ? n - i : PATTERN) * sizeof(uint16_t));
    return kernels_act(gpu, p, rows, cols);
}

static void
time_shape(size_t tokens, size_t out, size_t in, const void *pattern)
{
    struct timing t = { .w = fp8_of(out, in),
                        .x = fp8_of(tokens, in),
                        .dy = fp8_of(tokens, out),
                        .y = act_of(tokens, out, pattern),
                        .dx = act_of(tokens, in, pattern),
                        .dw = act_of(out, in, pattern),
                        .plain_w = act_of(out, in, pattern),
                        .plain_x = act_of(tokens, in, pattern),
                        .plain_dy = act_of(tokens, out, pattern) };
    t.amax = kernels_alloc(gpu, MEMORY_WORK, sizeof *t.amax);
    op_amax(gpu, t.amax, &t.plain_w);
    op_to_fp8(gpu, &t.w, &t.plain_w, t.amax, 1, NULL);
    op_amax(gpu, t.amax, &t.plain_dy);
    op_to_fp8(gpu, &t.dy, &t.plain_dy, t.amax, 1, NULL);
    op_amax(gpu, t.amax, &t.plain_x);
    op_to_fp8(gpu, &t.x, &t.plain_x, t.amax, 1, NULL);
    for (enum operation op = 0; op <= PLAIN_DW; op++) {
        operate(&t, op);
        double start = now(t.amax);
        for (int i = 0; i < TIMES; i++)
            operate(&t, op);
        double us = (now(t.amax) - start) * 1e6 / TIMES;
        double tera = 2.0 * (double)tokens * (double)out * (double)in / us / 1e6;
        printf("%s\t%zu\t%zu\t%zu\t%.1f\t%.1f\n", operations[op], tokens, out, in, us,
               op <= BOTH ? 0.0 : tera);
    }
    struct matrix *all[] = { &t.w,  &t.x,       &t.dy,      &t.y,       &t.dx,
                             &t.dw, &t.plain_w, &t.plain_x, &t.plain_dy };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        kernels_free(gpu, all[i]->data);
        kernels_free(gpu, all[i]->transposed);
        kernels_free(gpu, all[i]->scale2);
    }
    kernels_free(gpu, t.amax);
}

static void
time_all(void)
{
    static const size_t shapes[][2] = {
        { 4096, 2560 }, { 1024, 2560 }, { 6144, 2560 },  { 2560, 4096 },
        { 9728, 2560 }, { 2560, 9728 }, { 19456, 2560 },
    };
    pair_open(DT_BF16);
    float *x = pair_random(PATTERN, 1, DT_BF16, 5);
    void *pattern = pair_put(x, DT_BF16, PATTERN);
    free(x);
    puts("operation\ttokens\tout\tin\tus\ttflops");
    for (size_t tokens = 4096; tokens <= 16384; tokens *= 4)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            time_shape(tokens, shapes[s][0], shapes[s][1], pattern);
    pair_close();
}

/* ---- times of what operations write ---------------------------------------------- */

struct written_timing {
    size_t tokens, cols;
    struct matrix x, up, d, y, both; // activations
    struct matrix rows, columns, gradient;
    float *gain, *rstd, *dgain, *amax;
};

static void
norm_rows(const struct written_timing *t)
{
    struct matrix y = t->y;
    y.amax = t->amax;
    op_norm(gpu, &y, t->rstd, &t->x, t->gain, 1e-6F);
    op_to_fp8(gpu, &t->rows, &y, t->amax, 1, NULL);
}

static void
norm_amax(const struct written_timing *t)
{
    struct matrix y = t->y;
    y.data = NULL;
    y.amax = t->amax;
    op_norm(gpu, &y, t->rstd, &t->x, t->gain, 1e-6F);
}

static void
norm_to_rows(const struct written_timing *t)
{
    op_norm_to_fp8(gpu, &t->rows, t->rstd, &t->x, t->gain, 1e-6F, t->amax, NULL);
}

static void
norm_bwd_columns(const struct written_timing *t)
{
    op_norm_bwd(gpu, &t->d, t->dgain, &t->y, &t->up, &t->x, t->rstd, t->gain, &t->d);
    op_to_fp8(gpu, &t->columns, &t->y, t->amax, 1, NULL);
}

static void
norm_bwd_to_columns(const struct written_timing *t)
{
    op_norm_again_to_fp8(gpu, &t->columns, t->rstd, &t->x, t->gain, t->amax, NULL);
    op_norm_bwd(gpu, &t->d, t->dgain, NULL, &t->up, &t->x, t->rstd, t->gain, &t->d);
}

static void
swiglu_rows(const struct written_timing *t)
{
    struct matrix y = t->y;
    y.amax = t->amax;
    op_swiglu(gpu, &y, &t->x, &t->up);
    op_to_fp8(gpu, &t->rows, &y, t->amax, 1, NULL);
}

static void
swiglu_amax(const struct written_timing *t)
{
    struct matrix y = t->y;
    y.data = NULL;
    y.amax = t->amax;
    op_swiglu(gpu, &y, &t->x, &t->up);
}

static void
swiglu_to_rows(const struct written_timing *t)
{
    op_swiglu_to_fp8(gpu, &t->rows, &t->x, &t->up, t->amax, NULL);
}

static void
swiglu_bwd_forms(const struct written_timing *t)
{
    struct matrix both = t->both;
    both.amax = t->amax;
    op_swiglu_bwd(gpu, &both, &t->d, &t->x, &t->up);
    op_to_fp8(gpu, &t->columns, &t->d, t->amax, 1, NULL);
    op_to_fp8(gpu, &t->gradient, &both, t->amax, 1, NULL);
}

static void
swiglu_bwd_amax(const struct written_timing *t)
{
    struct matrix both = t->both;
    both.data = NULL;
    both.amax = t->amax;
    op_swiglu_bwd(gpu, &both, &t->d, &t->x, &t->up);
}

static void
swiglu_bwd_to_forms(const struct written_timing *t)
{
    op_swiglu_bwd_to_fp8(gpu, &t->gradient, t->amax, NULL, &t->columns, t->amax, &t->d,
                         &t->x, &t->up);
}

/* As with current scales. */
static void
norm_twice(const struct written_timing *t)
{
    norm_amax(t);
    norm_to_rows(t);
}

static void
swiglu_twice(const struct written_timing *t)
{
    swiglu_amax(t);
    swiglu_to_rows(t);
}

static void
swiglu_bwd_twice(const struct written_timing *t)
{
    swiglu_bwd_amax(t);
    swiglu_bwd_to_forms(t);
}

/* Bytes of an element of (tokens, cols) that each reads and writes. */
static const struct {
    const char *name;
    void (*go)(const struct written_timing *t);
    bool wide; // of ffn columns, else of hidden
    int bytes;
} writers[] = {
    { "norm, conversion to rows", norm_rows, false, 7 },
    { "norm, amax alone, and to rows", norm_twice, false, 5 },
    { "norm to rows", norm_to_rows, false, 3 },
    { "norm_bwd with norm, conversion to columns", norm_bwd_columns, false, 13 },
    { "norm to columns, norm_bwd", norm_bwd_to_columns, false, 11 },
    { "swiglu, conversion to rows", swiglu_rows, true, 9 },
    { "swiglu, amax alone, and to rows", swiglu_twice, true, 9 },
    { "swiglu to rows", swiglu_to_rows, true, 5 },
    { "swiglu_bwd, conversions", swiglu_bwd_forms, true, 23 },
    { "swiglu_bwd, amax alone, and to forms", swiglu_bwd_twice, true, 17 },
    { "swiglu_bwd to forms", swiglu_bwd_to_forms, true, 11 },
};

static void
time_written_size(size_t tokens, size_t cols, bool wide, const void *pattern)
{
    struct written_timing t = { tokens,
                                cols,
                                act_of(tokens, cols, pattern),
                                act_of(tokens, cols, pattern),
                                act_of(tokens, cols, pattern),
                                act_of(tokens, cols, pattern),
                                act_of(tokens, 2 * cols, pattern),
                                fp8_of(tokens, cols),
                                fp8_of(tokens, cols),
                                fp8_of(tokens, 2 * cols),
                                kernels_alloc(gpu, MEMORY_WORK, cols * sizeof(float)),
                                kernels_alloc(gpu, MEMORY_WORK, tokens * sizeof(float)),
                                kernels_alloc(gpu, MEMORY_WORK, cols * sizeof(float)),
                                kernels_alloc(gpu, MEMORY_WORK, sizeof(float)) };
    void *owned[] = { t.x.data,
                      t.up.data,
                      t.d.data,
                      t.y.data,
                      t.both.data,
                      t.rows.data,
                      t.rows.transposed,
                      t.rows.scale2,
                      t.columns.data,
                      t.columns.transposed,
                      t.columns.scale2,
                      t.gradient.data,
                      t.gradient.transposed,
                      t.gradient.scale2,
                      t.gain,
                      t.rstd,
                      t.dgain,
                      t.amax };
    t.rows.transposed = NULL;
    t.columns.data = NULL;
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        if (writers[i].wide != wide)
            continue;
        writers[i].go(&t);
        double start = now(t.amax);
        for (int n = 0; n < TIMES; n++)
            writers[i].go(&t);
        double us = (now(t.amax) - start) * 1e6 / TIMES;
        double bytes = (double)writers[i].bytes * (double)tokens * (double)cols;
        printf("%s\t%zu\t%zu\t%.1f\t%.0f\n", writers[i].name, tokens, cols, us,
               bytes / us / 1e3);
    }
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        kernels_free(gpu, owned[i]);
}

static void
time_written(void)
{
    pair_open(DT_BF16);
    float *x = pair_random(PATTERN, 1, DT_BF16, 5);
    void *pattern = pair_put(x, DT_BF16, PATTERN);
    free(x);
    puts("operation\ttokens\tcolumns\tus\tgb_s");
    for (size_t tokens = 4096; tokens <= 16384; tokens *= 4) {
        time_written_size(tokens, 2560, false, pattern);
        time_written_size(tokens, 9728, true, pattern);
    }
    pair_close();
}

/* ---- times of codes to E4M3 -------------------------------------------------------- */

enum { COLD = 1 << 28 }; // codes, more than the L2 cache holds

/* Codes of another part of a memory each time, as those of another layer. */
static void
time_codes_shape(size_t rows, size_t cols, enum operation op, const uint8_t *codes,
                 const uint8_t *scales)
{
    size_t n = rows * cols, parts = COLD / n;
    struct matrix to = fp8_of(rows, cols), planes = to,
                  from = matrix_of(DT_NVFP4, codes, rows, cols);
    float *amax = kernels_alloc(gpu, MEMORY_WORK, sizeof *amax);
    double start = 0;
    to.data = op == COLUMNS ? NULL : to.data;
    to.transposed = op == ROWS ? NULL : to.transposed;
    for (size_t i = 0; i < 6 * TIMES; i++) {
        if (i == TIMES)
            start = now(amax);
        from.data = (uint8_t *)(uintptr_t)codes + i % parts * (n / 2);
        from.scales = (uint8_t *)(uintptr_t)scales + i % parts * (n / NVFP4_BLOCK);
        op_to_fp8(gpu, &to, &from, amax, 1, NULL);
    }
    double us = (now(amax) - start) * 1e6 / (5 * TIMES);
    double bytes = (op == BOTH ? 2.5625 : 1.5625) * (double)n;
    printf("codes to %s\t%zu\t%zu\t%.1f\t%.0f\n", operations[op], rows, cols, us,
           bytes / us / 1e3);
    kernels_free(gpu, planes.data);
    kernels_free(gpu, planes.transposed);
    kernels_free(gpu, planes.scale2);
    kernels_free(gpu, amax);
}

static void
time_codes(void)
{
    static const size_t shapes[][2] = {
        { 4096, 2560 }, { 1024, 2560 }, { 2560, 4096 }, { 9728, 2560 }, { 2560, 9728 }
    };
    pair_open(DT_BF16);
    uint8_t *codes = kernels_alloc(gpu, MEMORY_WORK, COLD / 2),
            *scales = kernels_alloc(gpu, MEMORY_WORK, COLD / NVFP4_BLOCK);
    puts("operation\trows\tcolumns\tus\tgb_s");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (enum operation op = ROWS; op <= BOTH; op++)
            time_codes_shape(shapes[s][0], shapes[s][1], op, codes, scales);
    kernels_free(gpu, codes);
    kernels_free(gpu, scales);
    pair_close();
}

int
main(int argc, char **argv)
{
    pair_options(argc, argv);
    if (pair_option(argc, argv, "--time")) {
        time_written();
        time_codes();
        time_all();
        return check_end();
    }
    check(DT_F32);
    check(DT_BF16);
    return check_end();
}
