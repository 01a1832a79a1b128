/* SPDX-License-Identifier: MIT */
/* adamw: the GPU's optimizer gives the CPU's bytes, whatever the state and the chunks;
 * the gradient norm is right and deterministic. --time: speed, as TSV. */
#include "tests/gpu/pair.h"

#include <float.h>

/* ---- states ---------------------------------------------------------------------- */

enum { PARTS_OF_STATE = 5 }; // master, m, v, and the scales of both

struct state {
    struct adam_state s;
    size_t bytes[PARTS_OF_STATE];
    void *part[PARTS_OF_STATE];
};

static struct state
state_open(struct kernels *k, enum dtype dtype, enum moments moments, size_t n)
{
    static const size_t sizes[] = { 4, 2, 1 };
    size_t groups = moments == MOMENTS_INT8 ? (n + 31) / 32 : 0;
    struct state x = { .bytes = { n * (dtype == DT_F32 ? 4 : 2), n * sizes[moments],
                                  n * sizes[moments], groups * 2, groups * 2 } };
    for (int i = 0; i < PARTS_OF_STATE; i++)
        NEED((x.part[i] = kernels_alloc(k, MEMORY_WORK, x.bytes[i] + 64)));
    x.s = (struct adam_state){ x.part[0], dtype,     moments,   x.part[1],
                               x.part[2], x.part[3], x.part[4], 0 };
    return x;
}

static void
state_close(struct kernels *k, struct state *x)
{
    for (int i = 0; i < PARTS_OF_STATE; i++)
        kernels_free(k, x->part[i]);
}

/* Copy a state from the CPU to the GPU. */
static void
state_upload(struct state *to, const struct state *from)
{
    for (int i = 0; i < PARTS_OF_STATE; i++)
        kernels_upload(gpu, to->part[i], from->part[i], from->bytes[i] + 64);
}

/* Whether the bytes are equal; any two NaN in f32 are. */
static bool
same_part(const struct state *x, int i, const uint8_t *found)
{
    const uint8_t *want = x->part[i];
    bool full = i == 0 ? x->s.dtype == DT_F32 : i < 3 && x->s.moments == MOMENTS_F32;
    if (check_equal(want, found, x->bytes[i] + 64))
        return true;
    for (size_t at = 0; full && at < x->bytes[i]; at += 4) {
        float a, b;
        memcpy(&a, want + at, sizeof a);
        memcpy(&b, found + at, sizeof b);
        if (!check_equal(&a, &b, sizeof a) && !(isnan(a) && isnan(b)))
            return false;
    }
    return full;
}

static void
check_state(const struct state *want, const struct state *found, const char *what,
            size_t n, uint32_t step)
{
    static const char *const parts[] = { "master", "m", "v", "scales of m",
                                         "scales of v" };
    static const char *const moments[] = { "f32", "bf16", "int8" };
    for (int i = 0; i < PARTS_OF_STATE; i++) {
        uint8_t *bytes = malloc(want->bytes[i] + 64);
        NEED(bytes);
        CHECK(kernels_download(gpu, bytes, found->part[i], want->bytes[i] + 64) == 0);
        size_t at = 0;
        const uint8_t *right = want->part[i];
        while (at < want->bytes[i] && bytes[at] == right[at])
            at++;
        CHECK_SAY(same_part(want, i, bytes),
                  "%s, master %s, moments %s, %zu elements, step %u: %s differ at byte "
                  "%zu: %02x, %02x is right",
                  what, dtype_name(want->s.dtype), moments[want->s.moments], n, step,
                  parts[i], at, bytes[at], right[at]);
        free(bytes);
    }
}

/* ---- steps ----------------------------------------------------------------------- */

static float
uniform(uint64_t i)
{
    return (float)((double)check_random(i) * 0x1p-31 - 1);
}

enum kind { PLAIN, ALL_SIZES, BAD, KINDS };

static const char *const kinds[] = { "ordinary", "all sizes and zeros", "not finite" };

/* Values for bf16 gradients are rounded, so that the CPU gets the same. */
static void
make_gradients(float *g, size_t n, enum kind kind, enum dtype dtype, uint32_t step)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t at = i + 1000003 * (uint64_t)step;
        g[i] = 1e-3F * uniform(at) * uniform(at + n);
        if (kind != PLAIN) {
            float size = ldexpf(1, (int)(check_random(i / 7 + step) % 80) - 60);
            g[i] = i / 32 % 5 == 3 ? 0 : size * uniform(at);
        }
        if (kind == BAD && i % 97 == 13)
            g[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -FLT_MAX;
        if (dtype == DT_BF16)
            g[i] = num_from_bf16(num_to_bf16(g[i]));
    }
}

static struct adam_step
step_of(uint32_t t, float lr, float decay)
{
    struct adam_step a = {
        .lr = lr, .beta1 = 0.9F, .beta2 = 0.999F, .eps = 1e-8F, .decay = decay
    };
    a.bias_correction1 = (float)(1 - pow((double)a.beta1, t));
    a.bias_correction2 = (float)(1 - pow((double)a.beta2, t));
    a.seed = 42;
    a.step = t;
    a.row = 7;
    return a;
}

/* *amax: of the master after an update; else 0. */
static void
run(struct kernels *k, const struct state *x, const void *grad, enum dtype dtype,
    size_t n, size_t chunk, struct adam_step a, const float *clip, float *amax)
{
    struct matrix g = matrix_of(dtype, grad, 1, n);
    a.clip = clip;
    a.amax = kernels_alloc(k, MEMORY_WORK, sizeof *a.amax);
    for (size_t first = 0; first < n; first += chunk)
        pair_adamw(k, &x->s, &g, first, n - first < chunk ? n - first : chunk, &a);
    CHECK(kernels_download(k, amax, a.amax, sizeof *amax) == 0);
    kernels_free(k, a.amax);
}

static void
fill_master(const struct state *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float w = i % 1000 == 500   ? -0.0F
                  : i % 1000 == 600 ? 3.38e38F
                                    : 0.02F * uniform(i);
        if (x->s.dtype == DT_F32)
            ((float *)x->s.master)[i] = w;
        else
            ((uint16_t *)x->s.master)[i] = num_to_bf16(w);
    }
}

static void
check_steps(enum dtype master, enum moments moments, enum dtype dtype, size_t n,
            enum kind kind, float lr, size_t chunk)
{
    static const float clips[] = { 1, 0.75F, NAN, 1 };
    struct state want = state_open(cpu, master, moments, n);
    struct state found = state_open(gpu, master, moments, n);
    float *grad = malloc(n * sizeof *grad);
    NEED(grad);
    fill_master(&want, n);
    state_upload(&found, &want);
    for (uint32_t t = 1; t <= 4; t++) {
        struct adam_step a = step_of(t == 4 ? 1000 : t, lr, t % 2 ? 0.1F : 0);
        make_gradients(grad, n, t < 3 ? PLAIN : kind, dtype, t);
        void *theirs = pair_put(grad, dtype, n);
        float *clip = pair_bytes(&clips[t - 1], sizeof *clip);
        float right, amax;
        run(cpu, &want, grad, DT_F32, n, SIZE_MAX / 2, a, &clips[t - 1], &right);
        run(gpu, &found, theirs, dtype, n, chunk, a, clip, &amax);
        CHECK_SAY(check_equal(&right, &amax, sizeof amax) ||
                      (isnan(right) && isnan(amax)),
                  "amax %g, %g is right", (double)amax, (double)right);
        check_state(&want, &found, kinds[kind], n, t);
        state_upload(&found, &want); // so that an error is not reported again
        kernels_free(gpu, theirs);
        kernels_free(gpu, clip);
    }
    free(grad);
    state_close(cpu, &want);
    state_close(gpu, &found);
}

static void
check_all(size_t n, size_t chunk)
{
    static const float rates[] = { 1e-5F, 1e-3F, 0.3F };
    for (int master = 0; master < 2; master++)
        for (int moments = 0; moments < 3; moments++)
            for (int grad = 0; grad < 2; grad++)
                for (int kind = 0; kind < KINDS; kind++)
                    check_steps(master ? DT_F32 : DT_BF16, (enum moments)moments,
                                grad ? DT_F32 : DT_BF16, n, (enum kind)kind,
                                rates[(n + (size_t)kind) % 3], chunk);
}

/* Several tensors in a row without other work in between, one of them twice in
 * succession: kernels that start before the previous one has ended. norms: with a norm
 * and a clip before each update. */
static void
check_chain(size_t n, bool norms)
{
    enum { TENSORS = 3, STEPS = 3 };
    struct state want[TENSORS], found[TENSORS];
    void *grads[TENSORS];
    float *grad[TENSORS], *clips = kernels_alloc(gpu, MEMORY_WORK, sizeof *clips), clip;
    double *squares = kernels_alloc(gpu, MEMORY_WORK, sizeof *squares);
    kernels_upload(gpu, clips, &(float){ 1 }, sizeof *clips);
    for (size_t i = 0; i < TENSORS; i++) {
        want[i] = state_open(cpu, DT_BF16, MOMENTS_INT8, n);
        found[i] = state_open(gpu, DT_BF16, MOMENTS_INT8, n);
        fill_master(&want[i], n);
        state_upload(&found[i], &want[i]);
        NEED((grad[i] = malloc(n * sizeof *grad[i])));
        make_gradients(grad[i], n, ALL_SIZES, DT_BF16, (uint32_t)i);
        grads[i] = pair_put(grad[i], DT_BF16, n);
    }
    for (uint32_t k = 0; k < STEPS * TENSORS * 2; k++) {
        size_t i = k / 2 % TENSORS;
        struct adam_step a = step_of(k + 1, 1e-3F, 0.1F);
        struct matrix g = matrix_of(DT_BF16, grads[i], 1, n);
        if (norms) {
            pair_sum_squares(gpu, squares, &g, &n, 1);
            op_clip(gpu, clips, squares, 1, 0.5F, 1e30, NULL);
        }
        a.clip = clips;
        pair_adamw(gpu, &found[i].s, &g, 0, n, &a);
    }
    for (uint32_t k = 0; k < STEPS * TENSORS * 2; k++) {
        size_t i = k / 2 % TENSORS;
        struct adam_step a = step_of(k + 1, 1e-3F, 0.1F);
        if (norms) {
            double sum;
            pair_sum_squares(gpu, squares,
                             &(struct matrix){ .dtype = DT_BF16, .data = grads[i] }, &n,
                             1);
            CHECK(kernels_download(gpu, &sum, squares, sizeof sum) == 0);
            op_clip(cpu, &clip, &sum, 1, 0.5F, 1e30, NULL);
        } else {
            clip = 1;
        }
        a.clip = &clip;
        pair_adamw(cpu, &want[i].s,
                   &(struct matrix){ .dtype = DT_F32, .data = grad[i] }, 0, n, &a);
    }
    for (size_t i = 0; i < TENSORS; i++) {
        check_state(&want[i], &found[i], "one after the other", n, (uint32_t)i);
        state_close(cpu, &want[i]);
        state_close(gpu, &found[i]);
        kernels_free(gpu, grads[i]);
        free(grad[i]);
    }
    kernels_free(gpu, clips);
    kernels_free(gpu, squares);
}

/* More tensors at once than a launch takes, of all kinds and sizes: some without gradients that
 * are finite, some of another step, some with arrays that are not aligned. */
static void
check_together(void)
{
    enum { TENSORS = 75 };
    static const size_t sizes[] = { 1, 2048, 40, 6400, 0, 2560, 31, 4096, 10003 };
    static const float clips[] = { 1, NAN, 0.5F };
    struct state want[TENSORS], found[TENSORS];
    struct adam_update u[TENSORS], v[TENSORS];
    float *amax = kernels_alloc(gpu, MEMORY_WORK, TENSORS * sizeof *amax);
    float *right = kernels_alloc(cpu, MEMORY_WORK, TENSORS * sizeof *right),
          theirs[TENSORS];
    float *clip = pair_bytes(clips, sizeof clips);
    for (size_t i = 0; i < TENSORS; i++) {
        size_t n = sizes[i % 9], room = n + 1;
        enum dtype master = i % 11 == 10 ? DT_F32 : DT_BF16;
        enum dtype dtype = i % 4 == 3 ? DT_F32 : DT_BF16;
        float *grad = malloc(room * sizeof *grad);
        NEED(grad);
        want[i] = state_open(cpu, master,
                             (enum moments)(i % 13 == 12 ? i % 2 : MOMENTS_INT8), room);
        found[i] = state_open(gpu, master, want[i].s.moments, room);
        fill_master(&want[i], room);
        state_upload(&found[i], &want[i]);
        make_gradients(grad, room, (enum kind)(i % KINDS), dtype, (uint32_t)i);
        void *copy = pair_put(grad, dtype, room);
        uint64_t first = i % 7 == 6 && n > 64 ? 32 : 0;
        v[i] = (struct adam_update){ want[i].s, matrix_of(DT_F32, grad, 1, room), first,
                                     n - (size_t)first,
                                     step_of(i < 70 ? 3 : 4, 1e-3F, i % 2 ? 0.1F : 0) };
        v[i].step.row = (uint32_t)i;
        u[i] = v[i];
        u[i].state = found[i].s;
        u[i].grad = matrix_of(dtype, copy, 1, room);
        v[i].step.clip = &clips[i / 5 % 3];
        u[i].step.clip = &clip[i / 5 % 3];
        v[i].step.amax = i % 6 == 5 ? NULL : &right[i];
        u[i].step.amax = i % 6 == 5 ? NULL : &amax[i];
    }
    op_adamw(gpu, u, TENSORS);
    op_adamw(cpu, v, TENSORS);
    CHECK(kernels_download(gpu, theirs, amax, sizeof theirs) == 0);
    for (size_t i = 0; i < TENSORS; i++) {
        CHECK_SAY(u[i].step.amax == NULL ||
                      check_equal(&right[i], &theirs[i], sizeof right[i]) ||
                      (isnan(right[i]) && isnan(theirs[i])),
                  "tensor %zu: amax %g, %g is right", i, (double)theirs[i],
                  (double)right[i]);
        check_state(&want[i], &found[i], "together", sizes[i % 9] + 1, (uint32_t)i);
        kernels_free(gpu, (void *)(uintptr_t)u[i].grad.data);
        free((void *)(uintptr_t)v[i].grad.data);
        state_close(cpu, &want[i]);
        state_close(gpu, &found[i]);
    }
    kernels_free(gpu, amax);
    kernels_free(gpu, clip);
    kernels_free(cpu, right);
}

/* ---- the norm -------------------------------------------------------------------- */

static void
check_squares(size_t n, enum dtype dtype)
{
    float *x = pair_random(n, 1e-3F, dtype, 11);
    void *values = pair_put(x, dtype, n);
    double *out = pair_poisoned(2 * sizeof *out), found[2], want;
    pair_sum_squares(cpu, &want, &(struct matrix){ .dtype = DT_F32, .data = x }, &n, 1);
    for (int i = 0; i < 2; i++)
        pair_sum_squares(gpu, out + i,
                         &(struct matrix){ .dtype = dtype, .data = values }, &n, 1);
    CHECK(kernels_download(gpu, found, out, sizeof found) == 0);
    CHECK_SAY(check_equal(&found[0], &want, sizeof want),
              "squares of %zu %s: %a, the CPU's are %a", n, dtype_name(dtype), found[0],
              want);
    CHECK_SAY(check_equal(&found[0], &found[1], sizeof *found),
              "squares of %zu: not twice", n);
    kernels_free(gpu, values);
    kernels_free(gpu, out);
    free(x);
}

/* Sums of the blocks of many at once have the CPU's bits. */
static void
check_blocks(void)
{
    enum {
        MANY = 1100,
        LONGEST = 40000,
        BLOCKS = MANY * (LONGEST / SQUARES_BLOCK + 1)
    };
    static const size_t sizes[] = { 1, 2560, SQUARES_BLOCK, 0, 33, LONGEST };
    static double want[BLOCKS], found[BLOCKS];
    float *x = pair_random(LONGEST, 1e-3F, DT_BF16, 13);
    void *values[] = { pair_put(x, DT_BF16, LONGEST), pair_put(x, DT_F32, LONGEST) };
    double *out = pair_poisoned(sizeof found);
    struct matrix here[MANY], there[MANY];
    size_t blocks = 0;
    for (size_t i = 0; i < MANY; i++) {
        size_t n = sizes[i % 6];
        here[i] = matrix_of(DT_F32, x, 1, n);
        there[i] = matrix_of(i % 4 ? DT_BF16 : DT_F32, values[i % 4 == 0], 1, n);
        blocks += (n + SQUARES_BLOCK - 1) / SQUARES_BLOCK;
    }
    op_block_squares(cpu, want, here, MANY);
    op_block_squares(gpu, out, there, MANY);
    CHECK(kernels_download(gpu, found, out, sizeof found) == 0);
    for (size_t i = 0; i < BLOCKS; i++)
        CHECK_SAY(i < blocks ? check_equal(&found[i], &want[i], sizeof *want)
                             : isnan(found[i]),
                  "squares of block %zu: %a, the CPU's are %a", i, found[i], want[i]);
    for (int i = 0; i < 2; i++)
        kernels_free(gpu, values[i]);
    kernels_free(gpu, out);
    free(x);
}

/* Many sums at once have the bits of single ones, and a matrix without data is
 * skipped. */
static void
check_many_squares(void)
{
    enum { MANY = 1100, LONGEST = 40000 };
    static const size_t sizes[] = { 1, 8, 128, 2560, 2048, 2049, 33, LONGEST };
    static const struct matrix none;
    float *x = pair_random(LONGEST, 1e-3F, DT_BF16, 12);
    void *values[] = { pair_put(x, DT_BF16, LONGEST), pair_put(x, DT_F32, LONGEST) };
    double *out = pair_poisoned(MANY * sizeof *out), *one = pair_poisoned(sizeof *one);
    double found[MANY], alone[2][8];
    struct matrix g[MANY];
    size_t n[MANY];
    for (int i = 0; i < 16; i++) {
        pair_sum_squares(gpu, one,
                         &(struct matrix){ .dtype = i / 8 ? DT_F32 : DT_BF16,
                                           .data = values[i / 8] },
                         &sizes[i % 8], 1);
        CHECK(kernels_download(gpu, &alone[i / 8][i % 8], one, sizeof *one) == 0);
    }
    for (size_t i = 0; i < MANY; i++) {
        g[i] = matrix_of(i % 3 == 0 ? DT_F32 : DT_BF16, values[i % 3 == 0], 1, 1);
        n[i] = sizes[i % 8];
        if (i % 5 == 4)
            g[i] = none;
    }
    pair_sum_squares(gpu, out, g, n, MANY);
    CHECK(kernels_download(gpu, found, out, sizeof found) == 0);
    for (size_t i = 0; i < MANY; i++)
        CHECK_SAY(i % 5 == 4 ? isnan(found[i])
                             : check_equal(&found[i], &alone[i % 3 == 0][i % 8],
                                           sizeof *found),
                  "squares of many: %zu of %zu: %g, alone %g", i, n[i], found[i],
                  alone[i % 3 == 0][i % 8]);
    for (int i = 0; i < 2; i++)
        kernels_free(gpu, values[i]);
    kernels_free(gpu, out);
    kernels_free(gpu, one);
    free(x);
}

static void
check_clip(void)
{
    static const double squares[] = { 0, 1e-30, 0.25, 1, 7.3, 1e30, INFINITY, NAN };
    static const float before[] = { 1, NAN };
    double *from = pair_bytes(squares, sizeof squares);
    float *earlier = pair_bytes(before, sizeof before);
    float *out = pair_poisoned(sizeof *out), want, found;
    for (int i = 0; i < 8; i++)
        for (int limit = 0; limit < 3; limit++)
            for (int bound = 0; bound < 2; bound++)
                for (int b = 0; b < 3; b++) {
                    const float limits[] = { 0, 1, 0.3F };
                    const double bounds[] = { INFINITY, 2.5 };
                    op_clip(cpu, &want, &squares[i], 0.7F, limits[limit], bounds[bound],
                            b ? &before[b - 1] : NULL);
                    op_clip(gpu, out, from + i, 0.7F, limits[limit], bounds[bound],
                            b ? earlier + b - 1 : NULL);
                    CHECK(kernels_download(gpu, &found, out, sizeof found) == 0);
                    CHECK_SAY(check_equal(&want, &found, sizeof want) ||
                                  (isnan(want) && isnan(found)),
                              "clip of %g, limit %g: %a, %a is right", squares[i],
                              (double)limits[limit], (double)found, (double)want);
                }
    kernels_free(gpu, from);
    kernels_free(gpu, earlier);
    kernels_free(gpu, out);
}

/* ---- timing ---------------------------------------------------------------------- */

struct timing {
    const struct state *x;
    struct matrix grad;
    struct adam_step a;
    const float *clip;
    double *squares;
    size_t n;
    bool together;
};

typedef void timed_fn(const struct timing *t, uint32_t i);

static void
run_adamw(const struct timing *t, uint32_t i)
{
    struct adam_step a = t->a;
    a.step += i;
    a.clip = t->clip;
    pair_adamw(gpu, &t->x->s, &t->grad, 0, t->n, &a);
}

static void
run_squares(const struct timing *t, uint32_t i)
{
    (void)i;
    pair_sum_squares(gpu, t->squares, &t->grad, &t->n, 1);
}

static void
run_copy(const struct timing *t, uint32_t i)
{
    (void)i;
    op_copy(gpu, t->x->s.m, t->x->s.v, t->n * 4);
}

/* bytes: traffic per element. */
static void
report(const char *name, timed_fn *fn, const struct timing *t, double bytes)
{
    uint32_t times = t->n < 1 << 26 ? 50 : 20;
    double out;
    for (uint32_t i = 0; i < 3; i++)
        fn(t, i);
    CHECK(kernels_download(gpu, &out, t->squares, sizeof out) == 0);
    double from = os_seconds();
    for (uint32_t i = 0; i < times; i++)
        fn(t, 3 + i);
    CHECK(kernels_download(gpu, &out, t->squares, sizeof out) == 0);
    double each = (os_seconds() - from) / times, moved = bytes * (double)t->n;
    printf("%s\t%zu\t%.1f\t%.0f\t%.0f\n", name, t->n, each * 1e6, moved,
           moved / each * 1e-9);
    fflush(stdout);
}

static void
time_adamw(const char *name, size_t n, enum dtype master, enum moments moments,
           const struct timing *like, double bytes)
{
    struct state x = state_open(gpu, master, moments, n);
    struct timing t = *like;
    float *w = pair_random(n, 0.02F, DT_F32, 5);
    void *values = pair_put(w, master, n);
    op_copy(gpu, x.s.master, values, x.bytes[0]);
    kernels_free(gpu, values);
    free(w);
    t.x = &x;
    report(name, run_adamw, &t, bytes);
    if (moments == MOMENTS_F32 && master == DT_F32)
        report("copy", run_copy, &t, 8);
    state_close(gpu, &x);
}

static void
time_size(size_t n)
{
    const float one = 1;
    float *g = pair_random(n, 1e-4F, DT_BF16, 4), *clip = pair_bytes(&one, sizeof one);
    void *full = pair_put(g, DT_F32, n), *half = pair_put(g, DT_BF16, n);
    struct timing t = { .grad = { .dtype = DT_F32, .data = full },
                        .a = step_of(100, 1e-5F, 0),
                        .n = n };
    free(g);
    t.clip = clip;
    t.squares = kernels_alloc(gpu, MEMORY_WORK, sizeof *t.squares);
    time_adamw("f32, moments f32, gradient f32", n, DT_F32, MOMENTS_F32, &t, 28);
    time_adamw("bf16, moments int8, gradient f32", n, DT_BF16, MOMENTS_INT8, &t, 12.25);
    report("sum of squares f32", run_squares, &t, 4);
    t.grad = matrix_of(DT_BF16, half, 1, n);
    time_adamw("bf16, moments int8, gradient bf16", n, DT_BF16, MOMENTS_INT8, &t,
               10.25);
    time_adamw("bf16, moments bf16, gradient bf16", n, DT_BF16, MOMENTS_BF16, &t, 14);
    time_adamw("bf16, moments f32, gradient bf16", n, DT_BF16, MOMENTS_F32, &t, 22);
    report("sum of squares bf16", run_squares, &t, 2);
    kernels_free(gpu, clip);
    kernels_free(gpu, full);
    kernels_free(gpu, half);
    kernels_free(gpu, t.squares);
}

/* The projections of four layers of a 4B model, each by itself or all together. */
enum { LAYERS = 4, PROJECTIONS = 7 };

static const size_t projections[PROJECTIONS] = { 4096 * 2560, 1024 * 2560, 1024 * 2560,
                                                 4096 * 2560, 9728 * 2560, 9728 * 2560,
                                                 9728 * 2560 };

static void
run_layers(const struct timing *t, uint32_t i)
{
    struct adam_update u[LAYERS * PROJECTIONS];
    const uint16_t *grad = NULL;
    for (size_t k = 0; k < LAYERS * PROJECTIONS; k++) {
        size_t n = projections[k % PROJECTIONS];
        grad = k % PROJECTIONS ? grad : t->grad.data;
        u[k] = (struct adam_update){ t->x[k].s, matrix_of(DT_BF16, grad, 1, n), 0, n,
                                     t->a };
        u[k].step.step += i;
        u[k].step.row = (uint32_t)k;
        u[k].step.clip = t->clip;
        grad += n;
    }
    if (t->together)
        op_adamw(gpu, u, LAYERS * PROJECTIONS);
    else
        for (size_t k = 0; k < LAYERS * PROJECTIONS; k++)
            op_adamw(gpu, &u[k], 1);
}

static void
time_layers(void)
{
    const float one = 1;
    size_t most = 0;
    for (size_t k = 0; k < PROJECTIONS; k++)
        most += projections[k];
    struct state x[LAYERS * PROJECTIONS];
    float *g = pair_random(most, 1e-4F, DT_BF16, 4),
          *clip = pair_bytes(&one, sizeof one);
    float *w = pair_random(most, 0.02F, DT_BF16, 5);
    void *half = pair_put(g, DT_BF16, most), *values = pair_put(w, DT_BF16, most);
    struct timing t = { .x = x,
                        .grad = matrix_of(DT_BF16, half, 1, most),
                        .a = step_of(100, 1e-5F, 0),
                        .clip = clip };
    t.squares = kernels_alloc(gpu, MEMORY_WORK, sizeof *t.squares);
    for (size_t k = 0; k < LAYERS * PROJECTIONS; k++) {
        size_t n = projections[k % PROJECTIONS];
        x[k] = state_open(gpu, DT_BF16, MOMENTS_INT8, n);
        op_copy(gpu, x[k].s.master, values, x[k].bytes[0]);
        t.n += n;
    }
    report("four layers, each tensor by itself", run_layers, &t, 10.25);
    t.together = true;
    report("four layers, together", run_layers, &t, 10.25);
    for (size_t k = 0; k < LAYERS * PROJECTIONS; k++)
        state_close(gpu, &x[k]);
    free(g);
    free(w);
    kernels_free(gpu, half);
    kernels_free(gpu, values);
    kernels_free(gpu, clip);
    kernels_free(gpu, t.squares);
}

int
main(int argc, char **argv)
{
    static const size_t sizes[] = { 1, 31, 32, 33, 127, 128, 1000, 100003 };
    static const size_t norms[] = {
        0, 1, 7, 8, 9, 4096, 16384, 40003, 100003, 5000000
    };
    pair_open(DT_BF16);
    pair_options(argc, argv);
    if (pair_option(argc, argv, "--time")) {
        printf("op\telements\tmicroseconds\tbytes\tGB/s\n");
        time_size(9728 * 2560);
        time_size((size_t)151936 * 2560);
        time_layers();
        pair_close();
        return check_end();
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!pair_small || sizes[i] == 33 || sizes[i] == 1000)
            check_all(sizes[i], SIZE_MAX / 2);
    check_all(1000, pair_small ? 320 : 32);
    // Full tiles, more than the blocks of a small device, and a partial one.
    check_steps(DT_BF16, MOMENTS_INT8, DT_BF16, 2048 * 100 + 300, ALL_SIZES, 1e-3F,
                SIZE_MAX / 2);
    check_steps(DT_BF16, MOMENTS_INT8, DT_F32, 2048 * 5 + 300, BAD, 1e-3F,
                2048 * 3 + 256);
    // Tiles not aligned for bulk copies, two per block of such a device.
    check_steps(DT_BF16, MOMENTS_INT8, DT_BF16, 2 * (2048 * 40 + 32), PLAIN, 1e-3F,
                2048 * 40 + 32);
    if (!pair_small) {
        check_all(100003, 160);
        check_all(100003, 4096 * 3 + 32);
        check_all(100003, 4096 * 3 + 256);
        check_all(100003, 4096 * 8);
        check_steps(DT_BF16, MOMENTS_INT8, DT_BF16, 2048 * 7000 + 31, PLAIN, 1e-3F,
                    SIZE_MAX / 2);
        check_steps(DT_BF16, MOMENTS_INT8, DT_F32, 2048 * 7000 + 33, ALL_SIZES, 1e-3F,
                    SIZE_MAX / 2);
    }
    for (size_t i = 0; i < 3; i++) {
        static const size_t chains[] = { 1000, 100003, 2560 * 1024 };
        if (!pair_takes(chains[i]))
            break;
        check_chain(chains[i], true);
        check_chain(chains[i], false);
    }
    for (size_t i = 0; i < sizeof norms / sizeof *norms && pair_takes(norms[i]); i++) {
        check_squares(norms[i], DT_F32);
        check_squares(norms[i], DT_BF16);
    }
    check_together();
    check_many_squares();
    check_blocks();
    check_clip();
    pair_close();
    return check_end();
}
