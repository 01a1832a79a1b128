/* SPDX-License-Identifier: MIT */
/* rows: row-wise operations against the CPU's, with f32 and bf16 activations.
 *
 *   rows           compare
 *   rows --time    a table of times for 16384 tokens of a 4B model
 *
 * The GPU gets the same inputs as the CPU; activations are rounded to its type first.
 * Limits: in f32 the two differ by the order of sums and an ulp or two of exp, at most
 * 2e-6 of a tensor.  A bf16 result is rounded once, by at most 2^-8 of itself: 4e-3.
 * Losses, scales and weight gradients are always f32.  What is moved, converted or
 * added in a fixed order is equal. */
#include "tests/gpu/pair.h"

enum { HELD = 64, VOCAB = 1000 };

static enum dtype act;
static double near_act_limit;
static const double near_f32_limit = 2e-6;
static size_t off; // activations start at this element of their allocation

/* ---- memory, freed after each run ------------------------------------------------ */

static void *held[HELD], *hosts[HELD];
static size_t n_held, n_hosts;

static void *
hold(void *p)
{
    NEED(n_held < HELD);
    return held[n_held++] = p;
}

static void *
host(void *p)
{
    NEED(p && n_hosts < HELD);
    return hosts[n_hosts++] = p;
}

static void
free_all(void)
{
    while (n_held)
        kernels_free(gpu, held[--n_held]);
    while (n_hosts)
        free(hosts[--n_hosts]);
}

static float *
zeros(size_t n)
{
    return host(calloc(n + 1, sizeof(float)));
}

/* Pseudo-random values, rounded to the type of activations. */
static float *
normal(size_t n, float size, uint32_t seed)
{
    return host(pair_random(n, size, act, seed));
}

static size_t
act_bytes(void)
{
    return dtype_bits(act) / 8;
}

/* Upload activations. */
static void *
put(const float *x, size_t n)
{
    float *moved = zeros(n + off);
    memcpy(moved + off, x, n * sizeof *x);
    return (char *)hold(pair_put(moved, act, n + off)) + off * act_bytes();
}

static void *
poisoned(size_t n)
{
    return (char *)hold(pair_poisoned((n + off) * act_bytes())) + off * act_bytes();
}

static float *
put_f32(const float *x, size_t n)
{
    return hold(pair_put(x, DT_F32, n));
}

static float *
poisoned_f32(size_t n)
{
    return hold(pair_poisoned(n * sizeof(float)));
}

static int32_t *
put_ids(const int32_t *x, size_t n)
{
    return hold(pair_bytes(x, n * sizeof *x));
}

/* ---- comparing ------------------------------------------------------------------- */

static uint64_t digest; // hash of all results of this run
static const char *doing;
static char shape_text[160];

static void
add_digest(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        digest = (digest ^ bits) * 0x100000001b3U;
    }
}

static void
near(const char *what, const float *found, const float *want, size_t n, double limit)
{
    double is = pair_off(found, want, n);
    CHECK_SAY(is <= limit, "%s, %s: %s is off by %g, at most %g is right", doing,
              shape_text, what, is, limit);
}

/* Limit for results that sum n values in f32: the CPU adds many of them sequentially,
 * and loses small ones in a large sum. */
static double
summed(size_t n)
{
    return near_f32_limit + 5e-8 * sqrt((double)n);
}

static float *
near_act_sum(const char *what, const void *found, const float *want, size_t n,
             size_t sum)
{
    float *x = host(pair_get(found, act, n));
    add_digest(x, n);
    near(what, x, want, n, fmax(near_act_limit, summed(sum)));
    return x;
}

static float *
near_act(const char *what, const void *found, const float *want, size_t n)
{
    return near_act_sum(what, found, want, n, 0);
}

static void
near_f32(const char *what, const float *found, const float *want, size_t n,
         double limit)
{
    float *x = host(pair_get(found, DT_F32, n));
    add_digest(x, n);
    near(what, x, want, n, limit);
}

struct shape {
    size_t rows, n, heads;
    bool add, no_gain, in_place; // of norm_bwd, rope_bwd
    enum dtype dtype;            // of operands other than activations
    int32_t ids;                 // number of different ids
    float scale;
};

/* Run a case twice: the bytes must be the same. */
static void
twice(const char *what, void (*go)(const struct shape *), struct shape s)
{
    uint64_t first = 0;
    if (!pair_takes((s.rows ? s.rows : 1) * (s.heads ? s.heads : 1) * s.n))
        return;
    doing = what;
    snprintf(
        shape_text, sizeof shape_text,
        "%s, rows %zu, n %zu, heads %zu, type %d, ids %d, scale %g, offset %zu%s%s%s",
        act == DT_F32 ? "f32" : "bf16", s.rows, s.n, s.heads, (int)s.dtype, s.ids,
        (double)s.scale, off, s.add ? ", add" : "", s.no_gain ? ", no gain" : "",
        s.in_place ? ", in place" : "");
    for (int run = 0; run < 2; run++) {
        digest = 0xcbf29ce484222325U;
        go(&s);
        free_all();
        if (run == 0)
            first = digest;
    }
    CHECK_SAY(first == digest, "%s, %s: the second run gives other bytes", doing,
              shape_text);
}

/* ---- moves ----------------------------------------------------------------------- */

/* Random token ids below count, uniform. */
static int32_t *
some_ids(size_t n, int32_t count)
{
    int32_t *ids = host(malloc((n + 1) * sizeof *ids));
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(check_random(i + 77) % (uint32_t)count);
    return ids;
}

/* A permutation of 0 .. n - 1: n has no factor 7919. */
static int32_t *
mixed(size_t n)
{
    int32_t *index = host(malloc((n + 1) * sizeof *index));
    NEED(n % 7919);
    for (size_t i = 0; i < n; i++)
        index[i] = (int32_t)(i * 7919 % n);
    return index;
}

static void
go_gather(const struct shape *s)
{
    size_t n = s->rows * s->n;
    float *x = normal(n, 1, 1), *want = zeros(n);
    int32_t *index = mixed(s->rows);
    pair_gather(cpu, want, x, index, s->rows, s->n);
    void *y = poisoned(n);
    pair_gather(gpu, y, put(x, n), put_ids(index, s->rows), s->rows, s->n);
    near("y", near_act("y", y, want, n), want, n, 0);
}

/* To two of three rows. */
static void
go_scatter(const struct shape *s)
{
    size_t rows = s->rows + s->rows / 2, n = rows * s->n;
    float *x = normal(s->rows * s->n, 1, 1), *want = normal(n, 1, 2);
    int32_t *index = mixed(rows);
    void *y = put(want, n);
    pair_scatter(cpu, want, x, index, s->rows, s->n);
    pair_scatter(gpu, y, put(x, s->rows * s->n), put_ids(index, s->rows), s->rows,
                 s->n);
    near("y", near_act("y", y, want, n), want, n, 0);
}

/* Values as a type, on the host. */
static void *
of_type(const float *x, enum dtype dtype, size_t n)
{
    uint16_t *half = host(malloc(n * sizeof(float) + 1));
    if (dtype == DT_F32)
        return memcpy(half, x, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        half[i] = dtype == DT_BF16 ? num_to_bf16(x[i]) : num_to_f16(x[i]);
    return half;
}

static void
go_convert(const struct shape *s)
{
    float *x = host(pair_random(s->n + 8, 1, DT_F32, 3)), *want = zeros(s->n);
    char *there = hold(pair_put(x, s->dtype, s->n + 8));
    float *y = poisoned_f32(s->n);
    pair_convert(cpu, want, of_type(x + off, s->dtype, s->n), s->dtype, s->n);
    pair_convert(gpu, y, there + off * dtype_bits(s->dtype) / 8, s->dtype, s->n);
    near_f32("y", y, want, s->n, 0);
}

/* rows: how many are added. */
static void
go_sum(const struct shape *s)
{
    float *y = host(pair_random(s->n + 8, 1, DT_F32, 5));
    float *sum = hold(pair_put(y, DT_F32, s->n + 8));
    size_t size = dtype_bits(s->dtype) / 8;
    struct matrix here[SUM_MAX + 1], there[SUM_MAX + 1];
    for (size_t i = 0; i < s->rows; i++) {
        float *x = host(pair_random(s->n + 8, 1, s->dtype, 6 + (unsigned)i));
        char *p = hold(pair_put(x, s->dtype, s->n + 8));
        here[i] = matrix_of(DT_F32, x + off, 1, s->n);
        there[i] = matrix_of(s->dtype, p + off * size, 1, s->n);
    }
    struct matrix to = matrix_of(DT_F32, y + off, 1, s->n);
    op_sum(cpu, &to, s->rows, here, s->add);
    to.data = sum + off;
    op_sum(gpu, &to, s->rows, there, s->add);
    near_f32("y", sum, y, s->n + 8, 0);
}

static void
moves(void)
{
    static const struct shape shapes[] = {
        { .rows = 1, .n = 1 },      { .rows = 3, .n = 7 },
        { .rows = 5, .n = 8 },      { .rows = 37, .n = 333 },
        { .rows = 100, .n = 2560 }, { .rows = 64, .n = 9728 },
        { .rows = 70000, .n = 12 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        twice("gather", go_gather, shapes[i]);
        twice("scatter", go_scatter, shapes[i]);
    }
    static const enum dtype types[] = { DT_F32, DT_BF16, DT_F16 };
    for (int t = 0; t < 3; t++) {
        twice("convert", go_convert, (struct shape){ .n = 1, .dtype = types[t] });
        twice("convert", go_convert, (struct shape){ .n = 1003, .dtype = types[t] });
        twice("convert", go_convert, (struct shape){ .n = 1 << 20, .dtype = types[t] });
    }
    static const size_t terms[] = { 1, 2, 3, SUM_MAX + 1 };
    for (int t = 0; t < 16; t++) {
        struct shape s = { .rows = terms[t % 4],
                           .dtype = types[t / 4 % 2],
                           .add = t & 8 };
        for (int i = 0; i < 3; i++) {
            s.n = (const size_t[]){ 1, 1003, 1 << 20 }[i];
            twice("sum", go_sum, s);
        }
    }
}

/* ---- embedding ------------------------------------------------------------------- */

static void
go_embed(const struct shape *s)
{
    size_t n = s->rows * s->n, of = (size_t)s->ids * s->n;
    float *w = host(pair_random(of, 1, DT_F32, 4)), *want = zeros(n);
    struct matrix here = { .dtype = s->dtype, .rows = (size_t)s->ids, .cols = s->n },
                  there = here;
    int32_t *ids = some_ids(s->rows, s->ids);
    here.data = of_type(w, s->dtype, of);
    there.data = hold(pair_put(w, s->dtype, of));
    pair_embed(cpu, want, &here, ids, s->rows);
    void *y = poisoned(n);
    pair_embed(gpu, y, &there, put_ids(ids, s->rows), s->rows);
    near_act("y", y, want, n);
}

static void
go_embed_dw(const struct shape *s)
{
    size_t n = s->rows * s->n, of = (size_t)s->ids * s->n;
    float *dy = normal(n, 1, 5), *want = normal(of, 1, 6);
    int32_t *ids = some_ids(s->rows, s->ids);
    float *dw = put_f32(want, of);
    pair_embed_dw(cpu, want, dy, ids, s->rows, s->n);
    pair_embed_dw(gpu, dw, put(dy, n), put_ids(ids, s->rows), s->rows, s->n);
    near_f32("dw", dw, want, of, 0);
}

static void
go_l1(const struct shape *s)
{
    size_t n = s->rows * s->n, of = (size_t)s->ids * s->n;
    float *w = host(pair_random(of, 1, DT_F32, 7)), *x = normal(n, 1, 8);
    float *loss = zeros(s->rows), *dx = zeros(n), *dw = normal(of, 1, 9);
    struct matrix here = { .dtype = s->dtype, .rows = (size_t)s->ids, .cols = s->n },
                  there = here;
    int32_t *ids = some_ids(s->rows, s->ids);
    for (size_t i = 0; i < s->n; i++) // equal rows: sign(0)
        x[i] = w[(size_t)ids[0] * s->n + i] = num_from_bf16(num_to_bf16(x[i]));
    here.data = of_type(w, s->dtype, of);
    there.data = hold(pair_put(w, s->dtype, of));
    bool bwd = s->scale != 0;
    float *found_loss = poisoned_f32(s->rows), *found_dw = put_f32(dw, of);
    void *found_dx = poisoned(n);
    pair_l1(cpu, loss, bwd ? dx : NULL, bwd && !s->no_gain ? dw : NULL, x, &here, ids,
            s->rows, s->scale);
    pair_l1(gpu, found_loss, bwd ? found_dx : NULL,
            bwd && !s->no_gain ? found_dw : NULL, put(x, n), &there,
            put_ids(ids, s->rows), s->rows, s->scale);
    near_f32("loss", found_loss, loss, s->rows, near_f32_limit);
    near_f32("dw", found_dw, dw, of, 0);
    if (bwd)
        near_act("dx", found_dx, dx, n);
}

static void
embeddings(void)
{
    static const enum dtype types[] = { DT_F32, DT_BF16, DT_F16 };
    static const struct shape shapes[] = {
        { .rows = 1, .n = 1, .ids = 1 },       { .rows = 3, .n = 7, .ids = 2 },
        { .rows = 65, .n = 333, .ids = 40 },   { .rows = 300, .n = 2560, .ids = VOCAB },
        { .rows = 300, .n = 2560, .ids = 1 },  { .rows = 2000, .n = 64, .ids = 3 },
        { .rows = 70000, .n = 12, .ids = 50 }, { .rows = 70000, .n = 5, .ids = VOCAB },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct shape s = shapes[i];
        if (pair_tiny && s.rows > 65536 && (off || act == DT_F32))
            continue; // the sort is quadratic
        twice("embed_dw", go_embed_dw, s);
        if (pair_tiny && s.rows > 65536)
            continue;
        for (int t = 0; t < 3; t++) {
            s.dtype = types[t];
            s.scale = 0;
            twice("embed", go_embed, s);
            twice("l1", go_l1, s);
            s.scale = 0.37F;
            twice("l1", go_l1, s);
        }
        s.no_gain = true;
        twice("l1", go_l1, s);
    }
    // All tokens have one id: this must not take seconds.
    twice("embed_dw", go_embed_dw, (struct shape){ .rows = 16384, .n = 256, .ids = 1 });
}

/* ---- norms ----------------------------------------------------------------------- */

/* With few elements the gradient would be mostly rounding error of a difference. */
static float
eps_of(size_t n)
{
    return n < 16 ? 8 : 1e-6F;
}

static void
go_norm(const struct shape *s)
{
    size_t n = s->rows * s->n;
    float *x = normal(n, 2, 10), *gain = host(pair_random(s->n, 1, DT_F32, 11));
    float *y = zeros(n), *scale = zeros(s->rows);
    pair_norm(cpu, y, scale, x, gain, s->rows, s->n, eps_of(s->n));
    void *found = poisoned(n);
    float *found_scale = poisoned_f32(s->rows);
    pair_norm(gpu, found, found_scale, put(x, n), put_f32(gain, s->n), s->rows, s->n,
              eps_of(s->n));
    near_act_sum("y", found, y, n, s->n);
    near_f32("scale", found_scale, scale, s->rows, summed(s->n));
}

static void
go_norm_bwd(const struct shape *s)
{
    size_t n = s->rows * s->n;
    float *x = normal(n, 2, 12), *gain = host(pair_random(s->n, 1, DT_F32, 13));
    float *y = zeros(n), *scale = zeros(s->rows), *dy = normal(n, 1, 14);
    float *dx = normal(n, 1, 15), *dgain = host(pair_random(s->n, 1, DT_F32, 16));
    pair_norm(cpu, y, scale, x, gain, s->rows, s->n, eps_of(s->n));
    void *found = s->add ? put(dx, n) : poisoned(n), *found_dy = put(dy, n);
    float *found_dgain = put_f32(dgain, s->n);
    if (s->in_place) {
        found = found_dy;
        dx = dy;
    }
    pair_norm_bwd(cpu, dx, s->no_gain ? NULL : dgain, NULL, dy, x, scale, gain, s->rows,
                  s->n, s->add ? dx : NULL);
    void *there = put(x, n), *normed = poisoned(n), *again = poisoned(n);
    float *found_scale = poisoned_f32(s->rows), *found_gain = put_f32(gain, s->n);
    pair_norm(gpu, normed, found_scale, there, found_gain, s->rows, s->n, eps_of(s->n));
    pair_norm_bwd(gpu, found, s->no_gain ? NULL : found_dgain, s->add ? again : NULL,
                  found_dy, there, found_scale, found_gain, s->rows, s->n,
                  s->add ? found : NULL);
    if (s->add) { // bit for bit
        float *a = near_act_sum("y", normed, y, n, s->n);
        float *b = host(pair_get(again, act, n));
        CHECK_SAY(memcmp(a, b, n * sizeof *a) == 0, "%s, %s: y has other bytes", doing,
                  shape_text);
    }
    near_act_sum("dx", found, dx, n, s->n);
    near_f32("dgain", found_dgain, dgain, s->n, s->no_gain ? 0 : summed(s->rows));
}

static void
norms(void)
{
    static const struct shape shapes[] = {
        { .rows = 1, .n = 1 },      { .rows = 3, .n = 7 },
        { .rows = 5, .n = 64 },     { .rows = 1, .n = 2560 },
        { .rows = 37, .n = 333 },   { .rows = 700, .n = 1024 },
        { .rows = 600, .n = 2560 }, { .rows = 9, .n = 5120 },
        { .rows = 9, .n = 9728 },   { .rows = 3, .n = 20488 },
        { .rows = 2, .n = 70001 },  { .rows = 70000, .n = 32 },
        { .rows = 70000, .n = 9 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct shape s = shapes[i];
        twice("norm", go_norm, s);
        twice("norm_bwd", go_norm_bwd, s);
        s.add = true;
        twice("norm_bwd", go_norm_bwd, s);
        s.no_gain = true;
        twice("norm_bwd", go_norm_bwd, s);
        s.add = false;
        s.no_gain = false;
        s.in_place = true;
        twice("norm_bwd", go_norm_bwd, s);
    }
}

/* ---- heads ----------------------------------------------------------------------- */

enum { POSITIONS = 50 };

static struct pair_rope
rope_of(const struct shape *s, struct pair_rope *there)
{
    size_t half = s->n / 2;
    float *table = zeros(POSITIONS * s->n);
    int32_t *position = some_ids(s->rows, POSITIONS);
    for (size_t p = 0; p < POSITIONS; p++)
        for (size_t i = 0; i < half; i++) {
            float angle = (float)p * powf(1e4F, -(float)i / (float)half);
            table[p * s->n + i] = cosf(angle);
            table[p * s->n + half + i] = sinf(angle);
        }
    struct pair_rope t = { { table, position, s->heads, s->n, eps_of(s->n) },
                           s->rows,
                           0 };
    *there = t;
    there->r.table = put_f32(table, POSITIONS * s->n);
    there->r.position = put_ids(position, s->rows);
    return t;
}

static void
go_rope(const struct shape *s)
{
    size_t all = s->rows * s->heads, n = all * s->n;
    float *x = normal(n, 2, 20), *gain = host(pair_random(s->n, 1, DT_F32, 21));
    float *y = zeros(n), *scale = zeros(all);
    struct pair_rope there, here = rope_of(s, &there);
    pair_qk_norm_rope(cpu, y, scale, x, gain, &here);
    void *found = poisoned(n);
    float *found_scale = poisoned_f32(all);
    pair_qk_norm_rope(gpu, found, found_scale, put(x, n), put_f32(gain, s->n), &there);
    near_act_sum("y", found, y, n, s->n);
    near_f32("scale", found_scale, scale, all, summed(s->n));
}

static void
go_rope_bwd(const struct shape *s)
{
    size_t all = s->rows * s->heads, n = all * s->n;
    float *x = normal(n, 2, 22), *gain = host(pair_random(s->n, 1, DT_F32, 23));
    float *y = zeros(n), *scale = zeros(all), *d = normal(n, 1, 24);
    float *dgain = host(pair_random(s->n, 1, DT_F32, 25));
    struct pair_rope there, here = rope_of(s, &there);
    pair_qk_norm_rope(cpu, y, scale, x, gain, &here);
    void *found = put(d, n);
    float *found_dgain = put_f32(dgain, s->n);
    pair_qk_norm_rope_bwd(cpu, d, s->no_gain ? NULL : dgain, x, scale, gain, &here);
    pair_qk_norm_rope_bwd(gpu, found, s->no_gain ? NULL : found_dgain, put(x, n),
                          put_f32(scale, all), put_f32(gain, s->n), &there);
    near_act_sum("d", found, d, n, s->n);
    near_f32("dgain", found_dgain, dgain, s->n, s->no_gain ? 0 : summed(all));
}

/* In columns of a wider matrix: the same values, and other columns are unchanged. */
static void
go_rope_columns(const struct shape *s)
{
    size_t width = s->heads * s->n, wide = width + 24, n = s->rows * width;
    float *x = normal(n, 2, 22), *gain = host(pair_random(s->n, 1, DT_F32, 23));
    float *y = zeros(n), *scale = zeros(s->rows * s->heads), *d = normal(n, 1, 24);
    float *many = zeros(s->rows * wide), *dgain = zeros(s->n);
    struct pair_rope there, here = rope_of(s, &there);
    pair_qk_norm_rope(cpu, y, scale, x, gain, &here);
    for (size_t t = 0; t < s->rows; t++)
        for (size_t i = 0; i < wide; i++)
            many[t * wide + i] = i >= 8 && i < width + 8 ? d[t * width + i - 8] : 7;
    char *found = put(many, s->rows * wide);
    float *found_dgain = put_f32(dgain, s->n);
    here.stride = there.stride = wide;
    pair_qk_norm_rope_bwd(cpu, many + 8, dgain, x, scale, gain, &here);
    pair_qk_norm_rope_bwd(gpu, found + 8 * act_bytes(), found_dgain, put(x, n),
                          put_f32(scale, s->rows * s->heads), put_f32(gain, s->n),
                          &there);
    here.stride = 0;
    pair_qk_norm_rope_bwd(cpu, d, NULL, x, scale, gain, &here);
    for (size_t t = 0; t < s->rows; t++)
        for (size_t i = 0; i < wide; i++)
            CHECK(many[t * wide + i] ==
                  (i >= 8 && i < width + 8 ? d[t * width + i - 8] : 7));
    near_act_sum("d", found, many, s->rows * wide, s->n);
    near_f32("dgain", found_dgain, dgain, s->n, summed(s->rows * s->heads));
}

static void
heads(void)
{
    static const struct shape shapes[] = {
        { .rows = 1, .heads = 1, .n = 16 },     { .rows = 3, .heads = 5, .n = 2 },
        { .rows = 1, .heads = 32, .n = 128 },   { .rows = 70, .heads = 8, .n = 128 },
        { .rows = 333, .heads = 32, .n = 128 }, { .rows = 40, .heads = 3, .n = 128 },
        { .rows = 17, .heads = 6, .n = 64 },    { .rows = 33, .heads = 2, .n = 256 },
        { .rows = 29, .heads = 7, .n = 80 },    { .rows = 29, .heads = 4, .n = 96 },
        { .rows = 31, .heads = 3, .n = 34 },    { .rows = 31, .heads = 2, .n = 250 },
        { .rows = 70000, .heads = 2, .n = 32 }, { .rows = 70000, .heads = 1, .n = 18 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct shape s = shapes[i];
        twice("rope", go_rope, s);
        twice("rope_bwd", go_rope_bwd, s);
        if (s.rows < 1000)
            twice("rope_bwd of columns", go_rope_columns, s);
        s.no_gain = true;
        twice("rope_bwd", go_rope_bwd, s);
    }
}

/* ---- SwiGLU ---------------------------------------------------------------------- */

static void
go_swiglu(const struct shape *s)
{
    float *gate = normal(s->n, 4, 30), *up = normal(s->n, 1, 31), *y = zeros(s->n);
    pair_swiglu(cpu, y, gate, up, s->n);
    void *found = poisoned(s->n);
    pair_swiglu(gpu, found, put(gate, s->n), put(up, s->n), s->n);
    near_act("y", found, y, s->n);
}

static void
go_swiglu_bwd(const struct shape *s)
{
    size_t n = s->rows * s->n;
    float *gate = normal(n, 4, 32), *up = normal(n, 1, 33), *d = normal(n, 1, 34);
    float *both = zeros(2 * n);
    void *found = put(d, n), *found_both = poisoned(2 * n);
    pair_swiglu_bwd(cpu, both, d, gate, up, s->rows, s->n);
    pair_swiglu_bwd(gpu, found_both, found, put(gate, n), put(up, n), s->rows, s->n);
    near_act("gate, up", found_both, both, 2 * n);
    near_act("y", found, d, n);
}

/* Large magnitudes must not give NaN. */
static void
go_far(const struct shape *s)
{
    float *gate = zeros(s->n), *up = zeros(s->n), *y = zeros(s->n);
    for (size_t i = 0; i < s->n; i++) {
        gate[i] = ldexpf(i % 2 ? 1 : -1, (int)i / 2 + 3);
        up[i] = 1;
    }
    pair_swiglu(cpu, y, gate, up, s->n);
    void *found = poisoned(s->n);
    pair_swiglu(gpu, found, put(gate, s->n), put(up, s->n), s->n);
    near_act("y", found, y, s->n);
}

static void
swiglus(void)
{
    static const struct shape shapes[] = {
        { .rows = 1, .n = 1 },
        { .rows = 3, .n = 7 },
        { .rows = 5, .n = 8 },
        { .rows = 2, .n = 4097 },
        { .rows = 3, .n = 512 },
        { .rows = 1, .n = 9728 },
        { .rows = 50, .n = 9728 },
        { .rows = 700, .n = 776 },
        { .rows = 1, .n = (1 << 20) + 3 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        twice("swiglu", go_swiglu, (struct shape){ .n = shapes[i].rows * shapes[i].n });
        twice("swiglu_bwd", go_swiglu_bwd, shapes[i]);
    }
    twice("swiglu, far from zero", go_far, (struct shape){ .n = 40 });
}

/* ---- cross-entropy --------------------------------------------------------------- */

static void
go_cross_entropy(const struct shape *s)
{
    size_t n = s->rows * s->n;
    float *x = normal(n, 4, 40), *loss = zeros(s->rows);
    int32_t *label = some_ids(s->rows, (int32_t)s->n);
    for (size_t r = 1; r < s->rows; r += 5)
        label[r] = -1;
    for (size_t r = 2; r < s->rows; r += 7) // large logits
        for (size_t i = 0; i < s->n; i++)
            x[r * s->n + i] += 512;
    if (act == DT_BF16)
        for (size_t i = 0; i < n; i++)
            x[i] = num_from_bf16(num_to_bf16(x[i]));
    void *found = put(x, n);
    float *found_loss = poisoned_f32(s->rows);
    pair_cross_entropy(cpu, loss, x, label, s->rows, s->n, s->scale);
    pair_cross_entropy(gpu, found_loss, found, put_ids(label, s->rows), s->rows, s->n,
                       s->scale);
    near_f32("loss", found_loss, loss, s->rows, near_f32_limit);
    float *d = near_act_sum("gradient", found, x, n, s->n);
    for (size_t r = 0; r < s->rows; r++) {
        size_t wrong = 0;
        if (label[r] >= 0)
            d[r * s->n + (size_t)label[r]] = x[r * s->n + (size_t)label[r]] = 0;
        for (size_t i = 0; label[r] < 0 && i < s->n; i++)
            wrong += d[r * s->n + i] != 0;
        CHECK_SAY(wrong == 0, "%s, %s: row %zu without a label has a gradient", doing,
                  shape_text, r);
    }
    near("gradient without that of labels", d, x, n,
         fmax(near_act_limit, summed(s->n)));
}

static void
cross_entropies(void)
{
    static const struct shape shapes[] = {
        { .rows = 3, .n = 2 },      { .rows = 9, .n = 7 },
        { .rows = 40, .n = 256 },   { .rows = 20, .n = 1003 },
        { .rows = 11, .n = 32000 }, { .rows = 11, .n = 151936 },
        { .rows = 3, .n = 151939 }, { .rows = 2, .n = 262144 },
        { .rows = 70000, .n = 24 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct shape s = shapes[i];
        twice("cross_entropy", go_cross_entropy, s);
        s.scale = 0.125F;
        twice("cross_entropy", go_cross_entropy, s);
    }
}

/* ---- distillation ----------------------------------------------------------------- */

static void
round_act(float *x, size_t n)
{
    for (size_t i = 0; i < n && act == DT_BF16; i++)
        x[i] = num_from_bf16(num_to_bf16(x[i]));
}

/* A teacher of other logits or, in every third row, of nearly or exactly the same. */
static void
go_distill(const struct shape *s)
{
    const struct distill how[] = { { 1, 1 }, { 0.3F, 2.5F } };
    size_t n = s->rows * s->n;
    int32_t *label = some_ids(s->rows, (int32_t)s->n);
    for (size_t r = 1; r < s->rows; r += 5)
        label[r] = -1;
    for (int h = 0; h < 2; h++) {
        float *x = normal(n, 4, 41), *t = normal(n, 4, 42), *ce = zeros(s->rows),
              *kl = zeros(s->rows);
        for (size_t i = 0; i < n; i++)
            if (i / s->n % 3 == 2)
                t[i] = x[i] + (i / s->n % 2 ? 0 : 0.05F * t[i]);
        round_act(x, n);
        round_act(t, n);
        void *found = put(x, n), *theirs = put(t, n);
        float *found_ce = poisoned_f32(s->rows), *found_kl = poisoned_f32(s->rows);
        pair_distill(cpu, ce, kl, x, t, label, s->rows, s->n, &how[h], s->scale);
        pair_distill(gpu, found_ce, found_kl, found, theirs, put_ids(label, s->rows),
                     s->rows, s->n, &how[h], s->scale);
        near_f32("ce", found_ce, ce, s->rows, near_f32_limit);
        near_f32("kl", found_kl, kl, s->rows, 2e-5);
        float *d = near_act_sum("gradient", found, x, n, s->n);
        for (size_t i = 0; i < n; i++) {
            size_t r = i / s->n, same = r % 3 == 2 && r % 2 && h == 0;
            CHECK_SAY(d[i] == 0 || (label[r] >= 0 && !same),
                      "%s, %s: row %zu has a gradient", doing, shape_text, r);
        }
    }
}

static void
distills(void)
{
    static const struct shape shapes[] = {
        { .rows = 3, .n = 2 },      { .rows = 9, .n = 7 },
        { .rows = 40, .n = 256 },   { .rows = 20, .n = 1003 },
        { .rows = 11, .n = 32000 }, { .rows = 11, .n = 151936 },
        { .rows = 3, .n = 151939 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct shape s = shapes[i];
        s.scale = 0.125F;
        twice("distill", go_distill, s);
    }
}

/* ---- argmax ---------------------------------------------------------------------- */

static void
check_argmax(const char *what, const float *x, size_t n)
{
    int32_t want, found = -2;
    float *on_gpu = hold(pair_put(x, DT_F32, n));
    int32_t *id = hold(kernels_alloc(gpu, MEMORY_WORK, sizeof *id));
    pair_argmax(cpu, &want, x, 1, n);
    for (int i = 0; i < 2; i++) { // the second may start before the first has ended
        pair_argmax(gpu, id, on_gpu, 1, n);
        CHECK(kernels_download(gpu, &found, id, sizeof found) == 0);
        CHECK_SAY(found == want, "argmax of %zu, %s: %d, want %d", n, what, (int)found,
                  (int)want);
    }
}

/* Rows that are x from its r-th element on, around its end. */
static void
check_argmax_rows(const char *what, const float *x, size_t rows, size_t n)
{
    enum { MAX_ROWS = 64 };
    int32_t want[MAX_ROWS], found[MAX_ROWS] = { 0 };
    float *all = host(malloc(rows * n * sizeof *all));
    int32_t *id = hold(kernels_alloc(gpu, MEMORY_WORK, rows * sizeof *id));
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++)
            all[r * n + i] = x[(r + i) % n];
    pair_argmax(cpu, want, all, rows, n);
    pair_argmax(gpu, id, hold(pair_put(all, DT_F32, rows * n)), rows, n);
    CHECK(kernels_download(gpu, found, id, rows * sizeof *found) == 0);
    for (size_t r = 0; r < rows; r++)
        CHECK_SAY(found[r] == want[r], "argmax of %zux%zu, %s: row %zu: %d, want %d",
                  rows, n, what, r, (int)found[r], (int)want[r]);
}

static void
argmaxes(void)
{
    static const size_t sizes[] = { 1, 2, 31, 33, 257, 16384, 16385, 151936 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        float *x = normal(n, 4, 70 + (uint32_t)i);
        check_argmax("random", x, n);
        x[n - 1] = 100;
        check_argmax("the last", x, n);
        check_argmax_rows("the last", x, 3, n);
        check_argmax_rows("the last", x, 64, n);
        x[n / 2] = x[n / 3] = 100;
        check_argmax("equals", x, n);
        x[0] = -0.0F;
        for (size_t k = 1; k < n; k++)
            x[k] = k % 2 ? 0 : -0.0F;
        check_argmax("zeros", x, n);
        x[n / 2] = NAN;
        check_argmax("NaN", x, n);
        check_argmax_rows("NaN", x, 9, n);
        x[n / 2] = -INFINITY;
        check_argmax("-inf", x, n);
        x[n - 1] = INFINITY;
        check_argmax("inf", x, n);
        free_all();
    }
}

/* ---- what calibrates: sums in the order of rows, equal to the bit ------------------------ */

/* The rows twice: the second sums are added to the first. */
static void
check_calibration(size_t rows, size_t cols, size_t width)
{
    size_t n = cols * width;
    float *x = normal(rows * cols, 3, (uint32_t)(rows + cols));
    void *on_gpu = put(x, rows * cols);
    double *sum = host(calloc(n + cols, sizeof *sum)),
           *found = host(calloc(n + cols, sizeof *found));
    float *peak = zeros(cols), *found_peak = zeros(cols);
    double *to = hold(pair_bytes(sum, (n + cols) * sizeof *sum));
    float *to_peak = put_f32(peak, cols);
    for (int i = 0; i < 2; i++) {
        pair_block_gram(cpu, sum, width, x, rows, cols);
        pair_column_stats(cpu, sum + n, peak, x, rows, cols);
        pair_block_gram(gpu, to, width, on_gpu, rows, cols);
        pair_column_stats(gpu, to + n, to_peak, on_gpu, rows, cols);
    }
    CHECK(kernels_download(gpu, found, to, (n + cols) * sizeof *found) == 0);
    CHECK(kernels_download(gpu, found_peak, to_peak, cols * sizeof *found_peak) == 0);
    CHECK_SAY(memcmp(found, sum, n * sizeof *sum) == 0, "products of %zux%zu by %zu",
              rows, cols, width);
    CHECK_SAY(memcmp(found + n, sum + n, cols * sizeof *sum) == 0, "squares of %zux%zu",
              rows, cols);
    CHECK_SAY(memcmp(found_peak, peak, cols * sizeof *peak) == 0, "peaks of %zux%zu",
              rows, cols);
}

static void
calibrations(void)
{
    static const size_t rows[] = { 1, 31, 32, 70 };
    static const size_t shapes[][2] = {
        { 16, 16 }, { 48, 16 }, { 64, 64 }, { 384, 128 }
    }; // columns, of a block
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            check_calibration(rows[r], shapes[i][0], shapes[i][1]);
            free_all();
        }
}

/* ---- empty inputs ---------------------------------------------------------------- */

static void
nothing(void)
{
    float *p = hold(kernels_alloc(gpu, MEMORY_WORK, 64));
    int32_t *ids = hold(kernels_alloc(gpu, MEMORY_WORK, 64));
    struct matrix w = { .dtype = DT_F32, .data = p, .rows = 1, .cols = 4 };
    struct pair_rope t = { { p, ids, 1, 4, 1 }, 0, 0 };
    pair_embed(gpu, p, &w, ids, 0);
    pair_embed_dw(gpu, p, p, ids, 0, 4);
    pair_norm(gpu, p, p, p, p, 0, 4, 1);
    pair_norm_bwd(gpu, p, p, p, p, p, p, p, 0, 4, NULL);
    pair_qk_norm_rope(gpu, p, p, p, p, &t);
    pair_qk_norm_rope_bwd(gpu, p, p, p, p, p, &t);
    pair_swiglu(gpu, p, p, p, 0);
    pair_swiglu_bwd(gpu, p, p, p, p, 0, 4);
    pair_gather(gpu, p, p, ids, 0, 4);
    pair_scatter(gpu, p, p, ids, 0, 4);
    pair_convert(gpu, p, p, DT_F32, 0);
    pair_cross_entropy(gpu, p, p, ids, 0, 4, 1);
    pair_distill(gpu, p, p, p, p, ids, 0, 4, &(struct distill){ 1, 1 }, 1);
    pair_l1(gpu, p, p, p, p, &w, ids, 0, 1);
    free_all();
}

/* ---- times ----------------------------------------------------------------------- */

enum { TOKENS = 16384, HIDDEN = 2560, FFN = 9728, QWEN = 151936, LOGIT_ROWS = 1536 };

/* Random values; all operations may overwrite a, b and d. */
struct bench {
    void *a, *b, *d;     // (TOKENS, FFN)
    void *both, *logits; // (TOKENS, 2 FFN), (LOGIT_ROWS, QWEN)
    float *gain, *dgain, *scale, *loss, *dw;
    int32_t *ids, *same, *label; // (TOKENS): different ones, one, of few rows
    struct matrix w;             // (QWEN, HIDDEN), bf16
    struct pair_rope query, key;
};

static void
time_copy(const struct bench *b)
{
    op_copy(gpu, b->a, b->b, (size_t)TOKENS * FFN * act_bytes());
}

static void
time_embed(const struct bench *b)
{
    pair_embed(gpu, b->a, &b->w, b->ids, TOKENS);
}

static void
time_embed_dw(const struct bench *b)
{
    pair_embed_dw(gpu, b->dw, b->a, b->ids, TOKENS, HIDDEN);
}

static void
time_embed_dw_same(const struct bench *b)
{
    pair_embed_dw(gpu, b->dw, b->a, b->same, TOKENS, HIDDEN);
}

static void
time_norm(const struct bench *b)
{
    pair_norm(gpu, b->a, b->scale, b->b, b->gain, TOKENS, HIDDEN, 1e-6F);
}

static void
time_norm_1(const struct bench *b)
{
    pair_norm(gpu, b->a, b->scale, b->b, b->gain, 1, HIDDEN, 1e-6F);
}

static void
time_norm_bwd(const struct bench *b)
{
    pair_norm_bwd(gpu, b->a, b->dgain, b->both, b->b, b->d, b->scale, b->gain, TOKENS,
                  HIDDEN, b->a);
}

static void
time_rope_query(const struct bench *b)
{
    pair_qk_norm_rope(gpu, b->a, b->scale, b->b, b->gain, &b->query);
}

static void
time_rope_key(const struct bench *b)
{
    pair_qk_norm_rope(gpu, b->a, b->scale, b->b, b->gain, &b->key);
}

static void
time_rope_1(const struct bench *b)
{
    struct pair_rope t = b->query;
    t.tokens = 1;
    pair_qk_norm_rope(gpu, b->a, b->scale, b->b, b->gain, &t);
}

static void
time_rope_bwd_query(const struct bench *b)
{
    pair_qk_norm_rope_bwd(gpu, b->a, b->dgain, b->b, b->scale, b->gain, &b->query);
}

static void
time_rope_bwd_key(const struct bench *b)
{
    pair_qk_norm_rope_bwd(gpu, b->a, b->dgain, b->b, b->scale, b->gain, &b->key);
}

static void
time_swiglu(const struct bench *b)
{
    pair_swiglu(gpu, b->d, b->a, b->b, (size_t)TOKENS * FFN);
}

static void
time_swiglu_bwd(const struct bench *b)
{
    pair_swiglu_bwd(gpu, b->both, b->d, b->a, b->b, TOKENS, FFN);
}

static void
time_gather(const struct bench *b)
{
    pair_gather(gpu, b->a, b->b, b->label, TOKENS, HIDDEN);
}

static void
time_scatter(const struct bench *b)
{
    pair_scatter(gpu, b->a, b->b, b->label, TOKENS, HIDDEN);
}

static void
time_convert(const struct bench *b)
{
    pair_convert(gpu, b->dw, b->a, act, (size_t)TOKENS * FFN);
}

static void
time_cross_entropy(const struct bench *b)
{
    pair_cross_entropy(gpu, b->loss, b->logits, b->ids, LOGIT_ROWS, QWEN, 1);
}

static void
time_cross_entropy_0(const struct bench *b)
{
    pair_cross_entropy(gpu, b->loss, b->logits, b->ids, LOGIT_ROWS, QWEN, 0);
}

static void
time_distill(const struct bench *b)
{
    pair_distill(gpu, b->loss, b->scale, b->logits, b->both, b->ids, LOGIT_ROWS, QWEN,
                 &(struct distill){ 1, 1 }, 1);
}

static void
time_l1(const struct bench *b)
{
    pair_l1(gpu, b->loss, b->a, b->dw, b->b, &b->w, b->ids, TOKENS, 1);
}

/* Time many calls between two downloads, which synchronize; at least 0.2 s. */
static void
report(const struct bench *b, const char *op, const char *shape, double bytes,
       void (*go)(const struct bench *))
{
    float word;
    double took = 0;
    size_t calls = 5;
    while (took < 0.2 && pair_err.kind == ERR_NONE) {
        calls *= 2;
        go(b);
        kernels_download(gpu, &word, b->loss, sizeof word);
        double from = os_seconds();
        for (size_t i = 0; i < calls; i++)
            go(b);
        kernels_download(gpu, &word, b->loss, sizeof word);
        took = os_seconds() - from;
    }
    took /= (double)calls;
    printf("%s\t%s\t%s\t%.1f\t%.0f\t%.0f\n", op, act == DT_F32 ? "f32" : "bf16", shape,
           took * 1e6, bytes, bytes / took * 1e-9);
    fflush(stdout);
}

/* n activations with varying values. */
static void *
filled(size_t n)
{
    enum { PIECE = 1 << 20 };
    char *p = hold(kernels_alloc(gpu, MEMORY_WORK, n * act_bytes()));
    void *piece = pair_put(normal(PIECE, 1, 50), act, PIECE);
    NEED(p && n >= PIECE);
    for (size_t at = 0; at < n; at += PIECE) {
        size_t some = n - at < PIECE ? n - at : PIECE;
        op_copy(gpu, p + at * act_bytes(), piece, some * act_bytes());
    }
    kernels_free(gpu, piece);
    return p;
}

static void
all_times(void)
{
    const double t = TOKENS, a = (double)act_bytes(), c = HIDDEN, f = FFN;
    const double logits = (double)LOGIT_ROWS * QWEN * a;
    int32_t *ids = host(malloc(3 * TOKENS * sizeof *ids));
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)((int64_t)i * 7919 % QWEN);
        ids[TOKENS + i] = 5;
        ids[2 * TOKENS + i] = (int32_t)((int64_t)i * 7919 % TOKENS);
    }
    struct bench b = {
        .a = filled((size_t)TOKENS * FFN),
        .b = filled((size_t)TOKENS * FFN),
        .d = filled((size_t)TOKENS * FFN),
        .both = filled((size_t)TOKENS * 2 * FFN),
        .logits = filled((size_t)LOGIT_ROWS * QWEN),
        .gain = put_f32(normal(HIDDEN, 1, 51), HIDDEN),
        .dgain = put_f32(normal(HIDDEN, 1, 52), HIDDEN),
        .scale = put_f32(normal(32 * TOKENS, 1, 53), 32 * TOKENS),
        .loss = hold(kernels_alloc(gpu, MEMORY_WORK, TOKENS * sizeof(float))),
        .dw = hold(kernels_alloc(gpu, MEMORY_WORK, (size_t)QWEN * HIDDEN * 4)),
        .ids = put_ids(ids, TOKENS),
        .same = put_ids(ids + TOKENS, TOKENS),
        .label = put_ids(ids + 2 * TOKENS, TOKENS)
    };
    b.w = (struct matrix){ .dtype = DT_BF16, .rows = QWEN, .cols = HIDDEN };
    b.w.data = hold(kernels_alloc(gpu, MEMORY_WORK, (size_t)QWEN * HIDDEN * 2));
    float *table =
        hold(kernels_alloc(gpu, MEMORY_WORK, (size_t)TOKENS * 128 * sizeof *table));
    b.query = (struct pair_rope){ { table, b.label, 32, 128, 1e-6F }, TOKENS, 0 };
    b.key = b.query;
    b.key.r.heads = 8;
    NEED(b.w.data && table && b.dw && b.loss);
    report(&b, "copy", "16384x9728", 2 * t * f * a, time_copy);
    report(&b, "embed", "16384x2560", t * c * (2 + a), time_embed);
    report(&b, "embed_dw", "16384x2560", t * c * (8 + a), time_embed_dw);
    report(&b, "embed_dw", "16384x2560, one id", t * c * a, time_embed_dw_same);
    report(&b, "norm", "16384x2560", 2 * t * c * a, time_norm);
    report(&b, "norm", "1x2560", 2 * c * a, time_norm_1);
    report(&b, "norm_bwd", "16384x2560, add, norm", 5 * t * c * a, time_norm_bwd);
    report(&b, "rope", "16384x32x128", 2 * t * 4096 * a, time_rope_query);
    report(&b, "rope", "16384x8x128", 2 * t * 1024 * a, time_rope_key);
    report(&b, "rope", "1x32x128", 2 * 4096 * a, time_rope_1);
    report(&b, "rope_bwd", "16384x32x128", 3 * t * 4096 * a, time_rope_bwd_query);
    report(&b, "rope_bwd", "16384x8x128", 3 * t * 1024 * a, time_rope_bwd_key);
    report(&b, "swiglu", "16384x9728", 3 * t * f * a, time_swiglu);
    report(&b, "swiglu_bwd", "16384x9728", 6 * t * f * a, time_swiglu_bwd);
    report(&b, "gather", "16384x2560", 2 * t * c * a, time_gather);
    report(&b, "scatter", "16384x2560", 2 * t * c * a, time_scatter);
    report(&b, "convert", "16384x9728", t * f * (a + 4), time_convert);
    report(&b, "cross_entropy", "1536x151936", 2 * logits, time_cross_entropy);
    report(&b, "cross_entropy", "1536x151936, scale 0", 2 * logits,
           time_cross_entropy_0);
    report(&b, "distill", "1536x151936", 5 * logits, time_distill);
    report(&b, "l1", "16384x2560", t * c * (a + 2 + a + 8), time_l1);
    free_all();
}

/* ---- all ------------------------------------------------------------------------- */

static void
compare(void)
{
    nothing();
    for (off = 0; off < 2; off++) {
        moves();
        embeddings();
        norms();
        heads();
        swiglus();
        cross_entropies();
        distills();
        calibrations();
    }
    off = 0;
    argmaxes();
}

int
main(int argc, char **argv)
{
    static const enum dtype acts[] = { DT_BF16, DT_F32 };
    bool timed = pair_times = pair_option(argc, argv, "--time");
    pair_options(argc, argv);
    if (timed)
        printf("op\ttype\tshape\tus\tbytes\tGB/s\n");
    for (int i = 0; i < 2; i++) {
        act = acts[i];
        near_act_limit = act == DT_F32 ? near_f32_limit : 4e-3;
        pair_open(act);
        if (timed)
            all_times();
        else
            compare();
        pair_close();
    }
    return check_end();
}
