/* SPDX-License-Identifier: MIT */
/* gemm: products with weights in every form, few tokens and many, against the CPU's.
 *
 * --few: nothing computed by cuBLASLt. --time: TFLOP/s for the shapes of a 4B model,
 * and for few tokens the bytes of the weight per second. */
#include "tests/gpu/pair.h"

#include "lib/nvfp4/quant.h"

/* A weight on the CPU and on the GPU. */
struct both {
    struct matrix cpu, gpu;
    void *host[4], *device[4];
};

static void
make_plain(struct both *b, enum dtype dtype, size_t out, size_t in, uint32_t seed)
{
    size_t n = out * in;
    float *x = pair_random(n, 0.05F, DT_BF16, seed); // also exact in f16, or nearly
    *b = (struct both){ 0 };
    b->device[0] = pair_put(x, dtype, n);
    float *same = pair_get(b->device[0], dtype, n);
    free(x);
    b->host[0] = same;
    b->cpu = (struct matrix){ .dtype = DT_F32, .data = same, .rows = out, .cols = in };
    b->gpu = (struct matrix){
        .dtype = dtype, .data = b->device[0], .rows = out, .cols = in
    };
}

/* Codes times scales. */
static uint16_t *
products_of(const uint8_t *codes, const uint8_t *scales, size_t n)
{
    uint16_t *product = malloc(n * 2 + 1);
    NEED(product);
    for (size_t i = 0; i < n; i++) {
        float v = e2m1_value(codes[i / 2] >> (i % 2 * 4) & 15) *
                  e4m3_value(scales[i / NVFP4_BLOCK]);
        product[i] = num_to_bf16(v);
        NEED(num_from_bf16(product[i]) == v);
    }
    return product;
}

/* form 0: packed; 1: packed and expanded; 2: expanded only. */
static void
make_nvfp4(struct both *b, int form, size_t out, size_t in, uint32_t seed)
{
    size_t n = out * in, bad;
    float *x = pair_random(n, 0.05F, DT_BF16, seed), *scale2 = malloc(sizeof *scale2);
    uint8_t *codes = malloc(n / 2 + 1), *scales = malloc(n / NVFP4_BLOCK + 1);
    struct quant_spec spec = { .kind = QUANT_SWEEP, .isa = isa_best() };
    NEED(codes && scales && scale2);
    struct quant_scale t = nvfp4_scale(&spec, nvfp4_amax(DT_F32, x, n, &bad));
    nvfp4_quant(codes, scales, x, out, in, 0, &spec, &t, NULL);
    free(x);
    *b = (struct both){ .host = { codes, scales, scale2, NULL } };
    b->host[3] = products_of(codes, scales, n);
    *scale2 = t.scale2;
    b->cpu = (struct matrix){ .dtype = DT_NVFP4,
                              .data = codes,
                              .scales = scales,
                              .scale2 = scale2,
                              .rows = out,
                              .cols = in };
    b->gpu = (struct matrix){ .dtype = DT_NVFP4, .rows = out, .cols = in };
    b->gpu.scale2 = b->device[2] = pair_bytes(scale2, sizeof *scale2);
    if (form < 2) {
        b->gpu.data = b->device[0] = pair_bytes(codes, n / 2);
        b->gpu.scales = b->device[1] = pair_bytes(scales, n / NVFP4_BLOCK);
    }
    if (form > 0)
        b->gpu.expanded = b->device[3] = pair_bytes(b->host[3], n * 2);
    if (form == 1 && gpu->is.expands) {
        uint16_t *found = malloc(n * 2);
        NEED(found);
        op_zero(gpu, b->gpu.expanded, n * 2);
        op_expand(gpu, &b->gpu);
        CHECK(kernels_download(gpu, found, b->gpu.expanded, n * 2) == 0 &&
              check_equal(found, b->host[3], n * 2));
        free(found);
    }
}

static void
drop(struct both *b)
{
    for (int i = 0; i < 4; i++) {
        free(b->host[i]);
        kernels_free(gpu, b->device[i]);
    }
}

/* ---- correctness ----------------------------------------------------------------- */

/* Tolerance: f32 sums in another order; bf16 rounds the result once, and once a weight
 * of another type. */
static double
limit(enum dtype weight)
{
    bool wide = gpu->is.act == DT_F32;
    return wide ? 1e-5 : weight == DT_F32 || weight == DT_F16 ? 6e-3 : 4e-3;
}

static void
check_linear(const struct both *b, const char *name, size_t tokens)
{
    enum dtype act = gpu->is.act;
    size_t in = b->cpu.cols, out = b->cpu.rows, n = tokens * out;
    char what[200];
    float *x = pair_random(tokens * in, 1, act, 5), *c = pair_random(n, 1, act, 6);
    float *want = calloc(n + 1, sizeof *want);
    void *gx = pair_put(x, act, tokens * in), *gc = pair_put(c, act, n);
    void *y = pair_poisoned(n * 4);
    NEED(want);
    for (int pass = 0; pass < 5; pass++) {
        const void *add = pass == 1 ? gc : pass == 2 ? y : NULL;
        bool wide = pass >= 3;
        if (pass == 2)
            op_copy(gpu, y, gc, n * dtype_bits(act) / 8);
        if (wide)
            pair_logits(gpu, y, gx, &b->gpu, tokens);
        else
            pair_linear(gpu, y, gx, &b->gpu, tokens, add);
        pair_linear(cpu, want, x, &b->cpu, tokens, add ? c : NULL);
        float *found = pair_get(y, wide ? DT_F32 : act, n);
        snprintf(what, sizeof what, "%s, %s, %zu tokens (%zu, %zu), way %d", name,
                 dtype_name(act), tokens, out, in, pass);
        PAIR_NEAR(what, found, want, n, limit(b->gpu.dtype));
        free(found);
    }
    kernels_free(gpu, gx);
    kernels_free(gpu, gc);
    kernels_free(gpu, y);
    free(x);
    free(c);
    free(want);
}

/* Several products of one x have the bits of single ones. */
static void
check_many(int form, size_t in, size_t tokens)
{
    static const size_t outs[LINEAR_MAX] = { 1024, 72, 300 };
    enum dtype act = gpu->is.act;
    float *x = pair_random(tokens * in, 1, act, 5);
    void *gx = pair_put(x, act, tokens * in), *y[LINEAR_MAX], *alone[LINEAR_MAX];
    const struct matrix *w[LINEAR_MAX];
    struct both b[LINEAR_MAX];
    free(x);
    for (int i = 0; i < LINEAR_MAX; i++) {
        if (form < 0)
            make_plain(&b[i], DT_BF16, outs[i], in, 3 + (uint32_t)i);
        else
            make_nvfp4(&b[i], form, outs[i], in, 3 + (uint32_t)i);
        w[i] = &b[i].gpu;
        y[i] = pair_poisoned(tokens * outs[i] * 4);
        alone[i] = pair_poisoned(tokens * outs[i] * 4);
        pair_linear(gpu, alone[i], gx, w[i], tokens, NULL);
    }
    pair_linear_many(gpu, y, gx, w, LINEAR_MAX, tokens);
    for (int i = 0; i < LINEAR_MAX; i++) {
        size_t n = tokens * outs[i];
        float *found = pair_get(y[i], act, n), *want = pair_get(alone[i], act, n);
        CHECK_SAY(memcmp(found, want, n * sizeof *found) == 0,
                  "%s, form %d, %zu tokens (%zu, %zu): not what it is alone",
                  dtype_name(act), form, tokens, outs[i], in);
        free(found);
        free(want);
        kernels_free(gpu, y[i]);
        kernels_free(gpu, alone[i]);
        drop(&b[i]);
    }
    kernels_free(gpu, gx);
}

/* x from row `first` on, n rows: whether y has the bits of those rows of `whole`. */
static void
check_part(const struct both *b, const char *name, const void *x, const void *add,
           size_t first, size_t n, const float *whole)
{
    enum dtype act = gpu->is.act;
    size_t in = b->cpu.cols, out = b->cpu.rows;
    void *y = pair_poisoned(n * out * 4);
    pair_linear(gpu, y, dtype_at(act, x, first * in), &b->gpu, n,
                add ? dtype_at(act, add, first * out) : NULL);
    float *found = pair_get(y, act, n * out);
    CHECK_SAY(memcmp(found, whole + first * out, n * out * sizeof *found) == 0,
              "%s, %s, rows %zu to %zu (%zu, %zu)%s: not those of all", name,
              dtype_name(act), first, first + n, out, in, add ? ", added" : "");
    free(found);
    kernels_free(gpu, y);
}

/* A row has the same bits with any others, if they are few each time, or many. */
static void
check_rows(const struct both *b, const char *name, size_t rows)
{
    static const size_t many[] = { 65,  66,  67,  100, 127,  128, 129,
                                   200, 256, 333, 512, 1000, 1024 },
                        few[] = { 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64 };
    enum dtype act = gpu->is.act;
    const size_t most = gpu->is.alike, in = b->cpu.cols, out = b->cpu.rows;
    float *x = pair_random(rows * in, 1, act, 5),
          *c = pair_random(rows * out, 1, act, 6);
    void *gx = pair_put(x, act, rows * in), *gc = pair_put(c, act, rows * out);
    void *y = pair_poisoned(rows * out * 4);
    pair_begins(name);
    for (int way = 0; way < 2; way++) {
        const void *add = way ? gc : NULL;
        pair_linear(gpu, y, gx, &b->gpu, rows, add);
        float *all = pair_get(y, act, rows * out);
        for (size_t i = 0; i < sizeof many / sizeof *many && many[i] < rows; i++) {
            check_part(b, name, gx, add, 0, many[i], all);
            check_part(b, name, gx, add, (rows - many[i]) / 3 * 2, many[i], all);
            check_part(b, name, gx, add, rows - many[i], many[i], all);
        }
        free(all);
        pair_linear(gpu, y, gx, &b->gpu, most, add);
        all = pair_get(y, act, most * out);
        for (size_t i = 0; i < sizeof few / sizeof *few; i++) {
            check_part(b, name, gx, add, 0, few[i], all);
            check_part(b, name, gx, add, most - few[i], few[i], all);
        }
        free(all);
    }
    kernels_free(gpu, gx);
    kernels_free(gpu, gc);
    kernels_free(gpu, y);
    free(x);
    free(c);
}

/* Of a small weight, and of those of a 4B model. */
static void
check_alike(void)
{
    static const size_t shapes[][2] = {
        { 72, 608 },    { 4096, 2560 }, { 1024, 2560 },
        { 2560, 4096 }, { 9728, 2560 }, { 2560, 9728 },
    };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int form = 0; form < 2 && pair_takes(shapes[s][0] * shapes[s][1]);
             form++) {
            struct both b;
            if (form)
                make_nvfp4(&b, 0, shapes[s][0], shapes[s][1], 4);
            else
                make_plain(&b, DT_BF16, shapes[s][0], shapes[s][1], 3);
            check_rows(&b, form ? "packed" : "bf16", pair_small ? 260 : 1100);
            drop(&b);
        }
}

/* Rows of several weights: narrow and wide ones. */
struct many {
    size_t outs[LINEAR_MAX], n;
};
static const struct many narrow = { { 256, 96, 40 }, 3 }, wide = { { 2048, 2176 }, 2 };

/* Backward of several products against the CPU; together: weights and gradients are
 * contiguous. */
static void
check_many_bwd(int form, bool together, const struct many *many, size_t in,
               size_t tokens, enum dtype of_grad)
{
    const size_t *outs = many->outs, count = many->n;
    enum dtype act = gpu->is.act;
    size_t all = 0;
    for (size_t i = 0; i < count; i++)
        all += outs[i];
    size_t n = tokens * in, size = dtype_bits(of_grad) / 8;
    char what[200];
    float *dy = pair_random(tokens * all, 1, act, 7), *c = pair_random(n, 1, act, 8);
    float *x = pair_random(n, 1, act, 9), *want = calloc(n + 1, sizeof *want);
    void *gdy = pair_put(dy, act, tokens * all), *gc = pair_put(c, act, n);
    void *gx = pair_put(x, act, n), *dx = pair_poisoned(n * 4);
    char *place = pair_poisoned(all * in * size), *expanded = NULL;
    const struct matrix *w[LINEAR_MAX], *here[LINEAR_MAX];
    struct matrix dw[LINEAR_MAX], want_dw[LINEAR_MAX];
    const struct matrix *to[LINEAR_MAX], *want_to[LINEAR_MAX];
    struct both b[LINEAR_MAX];
    NEED(want && count > 0);
    bool shared = form >= 0 && together;
    if (form > 0 && together)
        expanded = pair_poisoned(all * in * 2);
    for (size_t i = 0, at = 0; i < count; at += outs[i++]) {
        if (form < 0)
            make_plain(&b[i], DT_BF16, outs[i], in, 3 + (uint32_t)i);
        else
            make_nvfp4(&b[i], form, outs[i], in, 3 + (uint32_t)i);
        if (shared) {
            b[i].gpu.scale2 = b[0].gpu.scale2;
            b[i].cpu.scale2 = b[0].cpu.scale2;
        }
        if (expanded) {
            op_copy(gpu, expanded + at * in * 2, b[i].gpu.expanded, outs[i] * in * 2);
            b[i].gpu.expanded = expanded + at * in * 2;
        }
        w[i] = &b[i].gpu;
        here[i] = &b[i].cpu;
        // Apart: adjacent, but in another order.
        size_t row = together ? at : i ? at - outs[0] : all - outs[0];
        dw[i] = matrix_of(of_grad, place + row * in * size, outs[i], in);
        want_dw[i] = matrix_of(DT_F32, calloc(outs[i] * in + 1, 4), outs[i], in);
        NEED(want_dw[i].data);
        to[i] = &dw[i];
        want_to[i] = &want_dw[i];
    }
    for (int pass = 0; pass < 3; pass++) {
        const void *add = pass == 1 ? gc : pass == 2 ? dx : NULL;
        if (pass == 2)
            op_copy(gpu, dx, gc, n * dtype_bits(act) / 8);
        pair_linear_many_dx(gpu, dx, gdy, w, count, tokens, add);
        pair_linear_many_dx(cpu, want, dy, here, count, tokens, add ? c : NULL);
        float *found = pair_get(dx, act, n);
        snprintf(what, sizeof what,
                 "dx of many, %s, form %d, %zu tokens of %zu, way %d", dtype_name(act),
                 form, tokens, in, pass);
        PAIR_NEAR(what, found, want, n, 2 * limit(b[0].gpu.dtype));
        free(found);
    }
    // Which form the weights have changes no bit.
    void *again = pair_poisoned(n * 4);
    void *had[LINEAR_MAX] = { NULL };
    for (size_t i = 0; i < count && form == 1; i++) { // one of them has both
        had[i] = b[i].gpu.expanded;
        b[i].gpu.expanded = i == 1 ? had[i] : NULL;
    }
    pair_linear_many_dx(gpu, again, gdy, w, count, tokens, NULL);
    pair_linear_many_dx(gpu, again, gdy, w, count, tokens, again);
    for (size_t i = 0; i < count && form == 1; i++)
        b[i].gpu.expanded = had[i];
    pair_linear_many_dx(gpu, dx, gdy, w, count, tokens, NULL);
    pair_linear_many_dx(gpu, dx, gdy, w, count, tokens, dx);
    float *first = pair_get(dx, act, n), *second = pair_get(again, act, n);
    CHECK_SAY(memcmp(first, second, n * sizeof *first) == 0,
              "dx of many, %s, form %d, %zu tokens of %zu: other bits packed",
              dtype_name(act), form, tokens, in);
    free(first);
    free(second);
    kernels_free(gpu, again);
    for (int add = 0; add < 2; add++) {
        pair_linear_many_dw(gpu, to, gdy, gx, w, count, tokens, add);
        pair_linear_many_dw(cpu, want_to, dy, x, here, count, tokens, add);
    }
    for (size_t i = 0; i < count; i++) {
        float *found = pair_get(dw[i].data, of_grad, outs[i] * in);
        snprintf(what, sizeof what, "dw %zu of many, %s, %zu tokens of %zu%s", i,
                 dtype_name(of_grad), tokens, in, together ? "" : ", apart");
        PAIR_NEAR(what, found, (float *)want_dw[i].data, outs[i] * in,
                  of_grad == DT_F32 ? 1e-5 : 5e-3);
        free(found);
        free(want_dw[i].data);
    }
    for (size_t i = 0; i < count; i++)
        drop(&b[i]);
    kernels_free(gpu, expanded);
    kernels_free(gpu, place);
    kernels_free(gpu, gdy);
    kernels_free(gpu, gc);
    kernels_free(gpu, gx);
    kernels_free(gpu, dx);
    free(dy);
    free(c);
    free(x);
    free(want);
}

static void
check_bwd(const struct both *b, const char *name, size_t tokens)
{
    enum dtype act = gpu->is.act;
    size_t in = b->cpu.cols, out = b->cpu.rows, n = tokens * in;
    char what[200];
    float *dy = pair_random(tokens * out, 1, act, 7), *c = pair_random(n, 1, act, 8);
    float *x = pair_random(n, 1, act, 9), *want = calloc(n + out * in, sizeof *want);
    void *gdy = pair_put(dy, act, tokens * out), *gc = pair_put(c, act, n);
    void *gx = pair_put(x, act, n), *dx = pair_poisoned(n * 4);
    NEED(want);
    for (int pass = 0; pass < 2; pass++) {
        pair_linear_dx(gpu, dx, gdy, &b->gpu, tokens, pass ? gc : NULL);
        pair_linear_dx(cpu, want, dy, &b->cpu, tokens, pass ? c : NULL);
        float *found = pair_get(dx, act, n);
        snprintf(what, sizeof what, "dx of %s, %s, %zu tokens (%zu, %zu), way %d", name,
                 dtype_name(act), tokens, out, in, pass);
        PAIR_NEAR(what, found, want, n, limit(b->gpu.dtype));
        free(found);
    }
    struct matrix want_dw = matrix_of(DT_F32, want, out, in);
    for (int pass = 0; pass < 4; pass++) {
        enum dtype dtype = pass < 2 ? DT_F32 : DT_BF16;
        struct matrix dw = matrix_of(dtype, pair_poisoned(out * in * 4), out, in);
        pair_linear_dw(gpu, &dw, gdy, gx, out, in, tokens, false);
        pair_linear_dw(cpu, &want_dw, dy, x, out, in, tokens, false);
        if (pass % 2) {
            pair_linear_dw(gpu, &dw, gdy, gx, out, in, tokens, true);
            pair_linear_dw(cpu, &want_dw, dy, x, out, in, tokens, true);
        }
        float *found = pair_get(dw.data, dtype, out * in);
        snprintf(what, sizeof what, "dw as %s, %s, %zu tokens (%zu, %zu), way %d",
                 dtype_name(dtype), dtype_name(act), tokens, out, in, pass);
        if (act == DT_BF16 || dtype == DT_F32)
            PAIR_NEAR(what, found, want, out * in, dtype == DT_F32 ? 1e-5 : 5e-3);
        free(found);
        kernels_free(gpu, dw.data);
        if (act == DT_F32 && pass == 1)
            break; // gradients of f32 activations are f32
    }
    kernels_free(gpu, gdy);
    kernels_free(gpu, gc);
    kernels_free(gpu, gx);
    kernels_free(gpu, dx);
    free(dy);
    free(c);
    free(x);
    free(want);
}

static void
check(enum dtype act)
{
    static const size_t tokens[] = { 1, 2, 7, 8, 9, 33, 200 };
    static const size_t shapes[][2] = { { 64, 64 },     { 48, 16 },     { 1024, 2560 },
                                        { 100, 144 },   { 2560, 608 },  { 33000, 256 },
                                        { 40, 9728 },   { 24, 4096 },   { 16, 24000 },
                                        { 12008, 640 }, { 3210, 2560 }, { 3210, 4000 },
                                        { 3210, 5504 } };
    pair_open(act);
    if (!pair_few)
        check_alike();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int form = 0; form < 6 && pair_takes(shapes[s][0] * shapes[s][1]);
             form++) {
            static const char *const names[] = { "f32",    "bf16", "f16",
                                                 "packed", "both", "expanded" };
            static const enum dtype plain[] = { DT_F32, DT_BF16, DT_F16 };
            struct both b;
            if (form == 5 && act == DT_F32)
                continue; // with f32 activations the device does not expand
            if (form < 3)
                make_plain(&b, plain[form], shapes[s][0], shapes[s][1], 3);
            else
                make_nvfp4(&b, form - 3, shapes[s][0], shapes[s][1], 4);
            for (size_t t = 0; t < sizeof tokens / sizeof *tokens;
                 t += pair_small && !pair_few ? 2 : 1) {
                if (pair_few && tokens[t] > PAIR_FEW)
                    break;
                check_linear(&b, names[form], tokens[t]);
                if (!pair_few && (tokens[t] == 1 || tokens[t] >= 33))
                    check_bwd(&b, names[form], tokens[t]);
            }
            drop(&b);
        }
    for (int form = act == DT_F32 ? 0 : -1; form < 3 - (act == DT_F32); form++)
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            if (pair_takes(2560 * 608))
                check_many(form, 2560, tokens[t]);
            if (!pair_few || tokens[t] <= PAIR_FEW)
                check_many(form, 608, tokens[t]);
            if (pair_few)
                continue;
            check_many_bwd(form, true, &narrow, 608, tokens[t], act);
            check_many_bwd(form, false, &narrow, 96, tokens[t], DT_F32);
            check_many_bwd(form, true, &wide, 32, tokens[t], act);
        }
    pair_close();
}

/* ---- timing ---------------------------------------------------------------------- */

static void
wait_for(const void *p)
{
    float x;
    NEED(kernels_download(gpu, &x, p, sizeof x) == 0);
}

enum { POOL = 1 << 28 }; // random values, used for all operands

static void
time_products(const uint16_t *pool)
{
    static const size_t shapes[][2] = {
        { 4096, 2560 }, { 1024, 2560 }, { 2560, 4096 }, { 9728, 2560 }, { 2560, 9728 }
    };
    static const size_t tokens[] = { 4096, 16384 };
    static const char *const names[] = { "linear", "linear +", "dx", "dw" };
    enum { TIMES = 20 };
    void *to = kernels_alloc(gpu, MEMORY_WORK, (size_t)16384 * 9728 * 2);
    const size_t grad_bytes = (size_t)9728 * 2560 * 2;
    const struct matrix dw = { .dtype = DT_BF16,
                               .data = kernels_alloc(gpu, MEMORY_WORK, grad_bytes) };
    float *one = pair_bytes(&(float){ 0.5F }, sizeof *one);
    puts("what\tout\tin\ttokens\tus\ttflops");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
            for (int what = 0; what < 4; what++) {
                size_t out = shapes[s][0], in = shapes[s][1], n = tokens[t];
                const struct matrix w = { .dtype = DT_NVFP4,
                                          .scale2 = one,
                                          .expanded = (void *)(uintptr_t)pool,
                                          .rows = out,
                                          .cols = in };
                const void *x = pool + POOL / 4;
                double start = 0;
                for (int i = -3; i < TIMES; i++) {
                    if (i == 0) {
                        wait_for(to);
                        start = os_seconds();
                    }
                    if (what == 0)
                        pair_linear(gpu, to, x, &w, n, NULL);
                    else if (what == 1)
                        pair_linear(gpu, to, x, &w, n, pool + POOL / 4 + 4096);
                    else if (what == 2)
                        pair_linear_dx(gpu, to, x, &w, n, NULL);
                    else
                        pair_linear_dw(gpu, &dw, pool + POOL / 4 + 4096, x, out, in, n,
                                       false);
                }
                wait_for(to);
                double us = (os_seconds() - start) / TIMES * 1e6;
                printf("%s\t%zu\t%zu\t%zu\t%.1f\t%.0f\n", names[what], out, in, n, us,
                       2e-6 * (double)n * (double)out * (double)in / us);
            }
}

/* Different weights in turn, more than the cache holds. */
static void
time_few(const uint16_t *pool)
{
    static const size_t shapes[][2] = {
        { 4096, 2560 }, { 1024, 2560 }, { 2560, 4096 },
        { 9728, 2560 }, { 2560, 9728 }, { 151936, 2560 }
    };
    enum { TIMES = 200, LIMIT = POOL / 2 * 2 - (1 << 20) }; // bytes
    static const size_t rows[] = { 1, 8, 16, 32, 64 };
    void *y = kernels_alloc(gpu, MEMORY_WORK, (size_t)64 * 151936 * 2);
    uint8_t *scales = kernels_alloc(gpu, MEMORY_WORK, (size_t)POOL / 8);
    puts("weight\tout\tin\ttokens\tus\tgb_s");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int form = 0; form < 2; form++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                size_t out = shapes[s][0], in = shapes[s][1], tokens = rows[r];
                size_t codes = form ? out * in * 2 : out * in / 2, at = 0;
                double start = 0;
                if (codes > LIMIT)
                    continue;
                for (int i = -8; i < TIMES; i++) {
                    if (i == 0) {
                        wait_for(y);
                        start = os_seconds();
                    }
                    const struct matrix w = { .dtype = form ? DT_BF16 : DT_NVFP4,
                                              .data = (char *)pool + at,
                                              .scales = scales + at / 8,
                                              .rows = out,
                                              .cols = in };
                    pair_linear(gpu, y, pool, &w, tokens, NULL);
                    at = at + 2 * codes <= LIMIT ? at + codes : 0;
                }
                wait_for(y);
                double us = (os_seconds() - start) / TIMES * 1e6;
                double bytes = (double)out * (double)in * (form ? 2 : 0.5625);
                printf("%s\t%zu\t%zu\t%zu\t%.2f\t%.0f\n", form ? "bf16" : "nvfp4", out,
                       in, tokens, us, bytes / us * 1e-3);
            }
}

int
main(int argc, char **argv)
{
    pair_options(argc, argv);
    if (pair_option(argc, argv, "--time")) {
        pair_open(DT_BF16);
        float *x = pair_random(POOL, 1, DT_BF16, 4);
        uint16_t *pool = pair_put(x, DT_BF16, POOL);
        free(x);
        time_products(pool);
        time_few(pool);
        pair_close();
        return check_end();
    }
    check(DT_F32);
    check(DT_BF16);
    return check_end();
}
