/* SPDX-License-Identifier: MIT */
/* adamw: the optimizer of the CPU against one written here from numerics.md 7.3 and 7.5,
 * an element at a time; the same bits on every instruction set, for any threads and any
 * chunks, also of a state that begins inside the tensor; and what its randomness is for:
 * nothing is lost that is too small for a code. */
#include "kernels/kernels.h"

#include "lib/base/num.h"
#include "tests/unit/check.h"

#include <math.h>

enum { MAX = 100000, GUARD = 64 };

/* ---- state --------------------------------------------------------------------------- */

struct state {
    struct adam_state s;
    size_t n;
    size_t bytes[5];
    void *part[5]; // master, m, v and the scales
};

static void
state_open(struct state *x, enum dtype dtype, enum moments moments, size_t n)
{
    static const size_t sizes[] = { 4, 2, 1 };
    size_t groups = moments == MOMENTS_INT8 ? (n + 31) / 32 : 0;
    *x = (struct state){ .n = n,
                         .bytes = { n * (dtype == DT_F32 ? 4 : 2), n * sizes[moments],
                                    n * sizes[moments], groups * 2, groups * 2 } };
    for (int i = 0; i < 5; i++) {
        NEED((x->part[i] = calloc(1, x->bytes[i] + GUARD)));
        memset((char *)x->part[i] + x->bytes[i], 0xa5, GUARD);
    }
    x->s = (struct adam_state){ x->part[0], dtype,      moments,    x->part[1],
                                x->part[2], x->part[3], x->part[4], 0 };
}

static void
state_close(struct state *x)
{
    for (int i = 0; i < 5; i++)
        free(x->part[i]);
}

static bool
state_equal(const struct state *a, const struct state *b)
{
    bool same = true;
    for (int i = 0; i < 5; i++)
        same = same && check_equal(a->part[i], b->part[i], a->bytes[i] + GUARD);
    return same;
}

static void
set_master(struct state *x, size_t i, float w)
{
    if (x->s.dtype == DT_F32)
        ((float *)x->s.master)[i] = w;
    else
        ((uint16_t *)x->s.master)[i] = num_to_bf16(w);
}

static float
at(const void *p, enum dtype dtype, size_t i)
{
    return dtype == DT_F32 ? ((const float *)p)[i]
                           : num_from_bf16(((const uint16_t *)p)[i]);
}

static float
master(const struct state *x, size_t i)
{
    return at(x->s.master, x->s.dtype, i);
}

/* ---- the definition --------------------------------------------------------------------- */

static uint32_t
random16(const struct adam_step *a, uint64_t element, uint32_t use)
{
    const uint32_t key[2] = { a->seed, a->step };
    uint64_t index = element / 8;
    const uint32_t counter[4] = { (uint32_t)index, (uint32_t)(index >> 32), a->row,
                                  use };
    uint32_t word[4];
    philox4x32(word, counter, key);
    return word[element % 8 / 2] >> (element % 2 ? 16 : 0) & 0xffff;
}

static uint16_t
to_bf16(float x, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return 0x7fc0;
    if (isinf(num_from_bf16((uint16_t)((bits + random) >> 16))))
        return (uint16_t)(bits >> 16);
    return (uint16_t)((bits + random) >> 16);
}

/* The smallest bf16 that is not below the largest of n magnitudes; finite ones only. */
static uint16_t
scale_above(const float *x, size_t n)
{
    float max = 0;
    for (size_t i = 0; i < n; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    unsigned up = 0; // the finite ones are in order
    while (up < 0x7f7f && num_from_bf16((uint16_t)up) < max)
        up += max > num_from_bf16((uint16_t)(up + 255)) && up + 255 < 0x7f80 ? 255 : 1;
    return (uint16_t)up;
}

static float
read_m(const struct state *x, size_t i)
{
    if (x->s.moments != MOMENTS_INT8)
        return at(x->s.m, x->s.moments == MOMENTS_F32 ? DT_F32 : DT_BF16, i);
    int q = (int)((const int8_t *)x->s.m)[i];
    // y = q / 127, s y / (2 - |y|)
    return num_from_bf16(x->s.m_scale[i / 32]) * (float)q / (float)(254 - abs(q));
}

static float
read_v(const struct state *x, size_t i)
{
    if (x->s.moments != MOMENTS_INT8)
        return at(x->s.v, x->s.moments == MOMENTS_F32 ? DT_F32 : DT_BF16, i);
    uint8_t q = ((const uint8_t *)x->s.v)[i];
    float r = (float)q * (num_from_bf16(x->s.v_scale[i / 32]) / 255), v = r * r;
    return q && v == 0 ? 0x1p-149F : v;
}

static void
write_m8(struct state *x, size_t first, const float *m, size_t n,
         const struct adam_step *a)
{
    uint16_t scale = scale_above(m, n);
    float s = num_from_bf16(scale);
    x->s.m_scale[first / 32] = scale;
    for (size_t i = 0; i < n; i++) {
        // 2^16 * 127 y as a whole number; y = 2 n / (1 + |n|), n = m / s
        float y = scale ? fabsf(m[i]) / (s + fabsf(m[i])) * (254 * 65536) : 0;
        double whole = fmin(rint((double)y), 127.0 * 65536);
        whole = m[i] < 0 ? -whole : whole;
        double q = floor((whole + random16(a, first + i, 3)) / 65536);
        ((int8_t *)x->s.m)[first + i] = scale ? (int8_t)q : 0;
    }
}

static void
write_v8(struct state *x, size_t first, const float *v, size_t n)
{
    float r[32];
    for (size_t i = 0; i < n; i++)
        r[i] = sqrtf(v[i]);
    uint16_t scale = scale_above(r, n);
    float inverse = 255 / num_from_bf16(scale);
    x->s.v_scale[first / 32] = scale;
    for (size_t i = 0; i < n; i++) {
        double q = v[i] > 0 ? rint((double)(r[i] * inverse)) : 0;
        q = v[i] > 0 ? fmax(1, fmin(255, q)) : 0;
        ((uint8_t *)x->s.v)[first + i] = (uint8_t)q;
    }
}

/* m and v of one element; returns the new master. */
static float
plain_element(struct state *x, size_t i, float grad, const struct adam_step *a,
              float *m, float *v)
{
    float g = *a->clip * grad, w = master(x, i);
    *m = a->beta1 * read_m(x, i) + (1 - a->beta1) * g;
    *v = a->beta2 * read_v(x, i) + (1 - a->beta2) * (g * g);
    float u = *m / a->bias_correction1 / (sqrtf(*v / a->bias_correction2) + a->eps);
    return w - a->lr * (u + a->decay * w);
}

static void
plain(struct state *x, const float *grad, const struct adam_step *a)
{
    for (size_t group = 0; group < x->n; group += 32) {
        size_t n = x->n - group < 32 ? x->n - group : 32;
        float m[32] = { 0 }, v[32] = { 0 };
        for (size_t i = 0; i < n; i++) {
            size_t e = group + i;
            float w = plain_element(x, e, grad[e], a, &m[i], &v[i]);
            if (x->s.dtype == DT_F32)
                ((float *)x->s.master)[e] = w;
            else
                ((uint16_t *)x->s.master)[e] = to_bf16(w, random16(a, e, 2));
        }
        if (x->s.moments == MOMENTS_INT8) {
            write_m8(x, group, m, n, a);
            write_v8(x, group, v, n);
        }
        for (size_t i = 0; i < n; i++) {
            size_t e = group + i;
            if (x->s.moments == MOMENTS_F32) {
                ((float *)x->s.m)[e] = m[i];
                ((float *)x->s.v)[e] = v[i];
            } else if (x->s.moments == MOMENTS_BF16) {
                ((uint16_t *)x->s.m)[e] = to_bf16(m[i], random16(a, e, 3));
                ((uint16_t *)x->s.v)[e] = to_bf16(v[i], random16(a, e, 6));
            }
        }
    }
}

/* ---- the device ---------------------------------------------------------------------------- */

static struct err err;

static void
run(const struct state *x, const float *grad, const struct adam_step *a, enum isa isa,
    unsigned threads, size_t chunk)
{
    struct kernels *k = kernels_cpu(&(struct cpu_kind){ DT_F32, isa, threads }, &err);
    struct matrix g = matrix_of(DT_F32, grad, 1, x->n);
    NEED(k);
    for (size_t i = 0; i < x->n; i += chunk) {
        size_t n = x->n - i < chunk ? x->n - i : chunk;
        op_adamw(k, &(struct adam_update){ x->s, g, x->s.first + i, n, *a }, 1);
    }
    kernels_close(k);
}

static const float no_clip = 1, some_clip = 0.75F;

static struct adam_step
step_of(uint32_t t, float lr)
{
    struct adam_step a = { .lr = lr, .beta1 = 0.9F, .beta2 = 0.999F, .eps = 1e-8F };
    a.bias_correction1 = (float)(1 - pow((double)a.beta1, t));
    a.bias_correction2 = (float)(1 - pow((double)a.beta2, t));
    a.clip = &no_clip;
    a.seed = 42;
    a.step = t;
    a.row = 7;
    return a;
}

/* Between -1 and 1. */
static float
value(uint64_t i)
{
    return (float)((double)check_random(i) * 0x1p-31 - 1);
}

static const char *const names[] = { "f32", "bf16", "int8" };

/* ---- the same bits ---------------------------------------------------------------------------- */

/* What amax finds in the master. */
static float
max_of(const struct state *x)
{
    float max = 0;
    for (size_t i = 0; i < x->n; i++) {
        float w = fabsf(at(x->s.master, x->s.dtype, i));
        if (!isfinite(w))
            return NAN;
        max = w > max ? w : max;
    }
    return max;
}

/* Gradients of many sizes, and groups of zeros. */
static void
make_gradients(float *g, size_t n, uint32_t step)
{
    for (size_t i = 0; i < n; i++) {
        float size = ldexpf(1, (int)(check_random(i / 7 + step) % 80) - 60);
        g[i] = i / 32 % 5 == 3 ? 0 : size * value(i + 1000003 * (uint64_t)step);
    }
}

static void
check_same(enum dtype dtype, enum moments moments, size_t n)
{
    static const size_t chunks[] = { 32, 160, 4096, SIZE_MAX / 2 };
    static float grad[MAX];
    struct state want;
    state_open(&want, dtype, moments, n);
    for (size_t i = 0; i < n; i++)
        set_master(&want, i, value(i));
    for (uint32_t t = 1; t <= 4; t++) {
        struct adam_step a = step_of(t, 1e-3F);
        struct state before = want;
        for (int i = 0; i < 5; i++) {
            NEED((before.part[i] = malloc(want.bytes[i] + GUARD)));
            memcpy(before.part[i], want.part[i], want.bytes[i] + GUARD);
        }
        a.decay = 0.1F;
        a.clip = &some_clip;
        make_gradients(grad, n, t);
        plain(&want, grad, &a);
        for (int isa = 0; isa < ISA_COUNT; isa++)
            for (unsigned c = 0; c < 4 && isa_have((enum isa)isa); c++) {
                struct state x;
                float amax = 0, right = max_of(&want);
                state_open(&x, dtype, moments, n);
                for (int i = 0; i < 5; i++)
                    memcpy(x.part[i], before.part[i], x.bytes[i] + GUARD);
                a.amax = &amax;
                run(&x, grad, &a, (enum isa)isa, c + 1, chunks[c]);
                CHECK_SAY(check_equal(&amax, &right, sizeof amax),
                          "amax %g, %g is right", (double)amax, (double)right);
                CHECK_SAY(state_equal(&x, &want),
                          "%s, moments %s, %zu elements, step %u: %s, chunks of %zu",
                          dtype_name(dtype), names[moments], n, t,
                          isa_name((enum isa)isa), chunks[c]);
                state_close(&x);
            }
        state_close(&before);
    }
    state_close(&want);
}

/* The elements from one in the middle on, in arrays of their own. */
static void
check_span(enum dtype dtype, enum moments moments, enum isa isa)
{
    enum { N = 1000, FIRST = 416 };
    static float grad[N];
    struct adam_step a = step_of(3, 1e-3F);
    struct state all, part;
    state_open(&all, dtype, moments, N);
    state_open(&part, dtype, moments, N - FIRST);
    part.s.first = FIRST;
    for (size_t i = 0; i < N; i++)
        set_master(&all, i, value(i));
    for (size_t i = FIRST; i < N; i++)
        set_master(&part, i - FIRST, value(i));
    make_gradients(grad, N, 3);
    run(&all, grad, &a, isa, 2, N);
    run(&part, grad + FIRST, &a, isa, 2, 96);
    for (int i = 0; i < 5; i++) {
        size_t skip = all.bytes[i] - part.bytes[i];
        CHECK_SAY(check_equal((char *)all.part[i] + skip, part.part[i], part.bytes[i]),
                  "%s, moments %s, array %d from element %d on, %s", dtype_name(dtype),
                  names[moments], i, (int)FIRST, isa_name(isa));
    }
    state_close(&all);
    state_close(&part);
}

/* What is not finite stays so and touches no other group; what is finite stays finite. */
static void
check_edges(enum isa isa)
{
    static const float edges[] = { 3.4028235e38F, -3.4028235e38F, INFINITY, -INFINITY,
                                   NAN };
    enum { N = 64 };
    float grad[N] = { 0 };
    for (int moments = 0; moments < 3; moments++) {
        struct state x;
        float amax = 0;
        struct adam_step a = step_of(1, 0);
        a.amax = &amax;
        state_open(&x, DT_BF16, (enum moments)moments, N);
        for (size_t i = 0; i < 5; i++)
            set_master(&x, i, edges[i]);
        ((uint16_t *)x.s.master)[0] = 0x7f7f;
        ((uint16_t *)x.s.master)[1] = 0xff7f;
        run(&x, grad, &a, isa, 1, N);
        const uint16_t *w = x.s.master;
        CHECK(w[0] == 0x7f7f && w[1] == 0xff7f && isnan(num_from_bf16(w[4])));
        CHECK(isnan(amax));
        // A gradient that is not finite poisons what its group remembers, no other.
        grad[3] = NAN;
        run(&x, grad, &a, isa, 1, N);
        CHECK(isnan(read_m(&x, 3)) && isnan(read_v(&x, 3)));
        CHECK(read_m(&x, 33) == 0 && read_v(&x, 33) == 0);
        grad[3] = 0;
        state_close(&x);
    }
    // A master between the largest bf16 and infinity: truncated whatever the bits say.
    struct state x;
    struct adam_step a = step_of(1, -5e35F);
    state_open(&x, DT_BF16, MOMENTS_F32, N);
    for (size_t i = 0; i < N; i++) {
        ((uint16_t *)x.s.master)[i] = 0x7f7f;
        grad[i] = 0.097F;
    }
    run(&x, grad, &a, isa, 1, N);
    for (size_t i = 0; i < N; i++)
        CHECK(((uint16_t *)x.s.master)[i] == 0x7f7f);
    state_close(&x);
}

/* ---- what the randomness is for ------------------------------------------------------------ */

/* numerics.md 7.5: 100 equal updates of lr move the master by 100 lr within 1 %. */
static void
check_movement(enum dtype dtype, enum moments moments)
{
    static float grad[MAX];
    struct state x;
    double moved = 0, lr = 1e-5;
    state_open(&x, dtype, moments, MAX);
    for (size_t i = 0; i < MAX; i++) {
        set_master(&x, i, 0.02F * value(i));
        float size = 0.5F + 0.5F * fabsf(value(i + 5 * MAX));
        grad[i] = 1e-3F * (check_random(i) & 1 ? size : -size);
        moved -= (grad[i] > 0 ? 1 : -1) * (double)master(&x, i);
    }
    for (uint32_t t = 1; t <= 100; t++) {
        struct adam_step a = step_of(t, (float)lr);
        run(&x, grad, &a, isa_best(), 2, MAX);
    }
    for (size_t i = 0; i < MAX; i++)
        moved += (grad[i] > 0 ? 1 : -1) * (double)master(&x, i);
    double share = -moved / MAX / (100 * lr);
    printf("master %s, moments %s: moved by %.4f of 100 lr\n", dtype_name(dtype),
           names[moments], share);
    CHECK_SAY(fabs(share - 1) < 0.01, "moved by %g of 100 lr", share);
    state_close(&x);
}

/* The mean of codes is what was to be stored: of m that are all far below a code. */
static void
check_unbiased(enum moments moments)
{
    static float grad[MAX];
    struct state x;
    double sum = 0, want = 0;
    state_open(&x, DT_F32, moments, MAX);
    for (size_t i = 0; i < MAX; i++) {
        grad[i] = i % 32 == 0 ? 1.0F : 1e-3F * (1 + value(i)); // a code is 0.004
        want += i % 32 == 0 ? 0 : 0.1 * (double)grad[i];
    }
    struct adam_step a = step_of(1, 0);
    run(&x, grad, &a, isa_best(), 2, MAX);
    for (size_t i = 0; i < MAX; i++)
        sum += i % 32 == 0 ? 0 : (double)read_m(&x, i);
    CHECK_SAY(fabs(sum / want - 1) < 0.01, "moments %s: mean of m off by %g",
              names[moments], sum / want - 1);
    state_close(&x);
}

/* Gradients that are tiny beside one in their group, for many steps: the mean of m is
 * theirs, no v is 0, and when the large one has gone m decays. */
static void
check_small(enum moments moments)
{
    enum { N = 16000, STEPS = 150 };
    static float grad[N];
    struct state x;
    double sum = 0;
    size_t zeros = 0;
    state_open(&x, DT_BF16, moments, N);
    for (uint32_t t = 1; t <= STEPS; t++) {
        struct adam_step a = step_of(t, 1e-5F);
        for (size_t i = 0; i < N; i++)
            grad[i] = i % 32 == 0 ? 1e-4F : 1e-9F;
        run(&x, grad, &a, isa_best(), 1, N);
        for (size_t i = 0; i < N && t > STEPS / 2; i++)
            sum += i % 32 == 0 ? 0 : (double)read_m(&x, i);
        for (size_t i = 0; i < N; i++)
            zeros += read_v(&x, i) <= 0;
    }
    double mean = sum / (STEPS / 2.0) / (N - N / 32.0);
    // Some 300 times a code of 1 was drawn, each for some steps.
    CHECK_SAY(fabs(mean / 1e-9 - 1) < 0.3, "moments %s: m of 1e-9 is %g on average",
              names[moments], mean);
    CHECK_SAY(zeros == 0, "moments %s: %zu times v was 0", names[moments], zeros);
    for (uint32_t t = STEPS + 1; t <= 2 * STEPS; t++) {
        struct adam_step a = step_of(t, 1e-5F);
        memset(grad, 0, sizeof grad);
        run(&x, grad, &a, isa_best(), 1, N);
    }
    for (size_t i = 0; i < N; i++)
        CHECK_SAY(fabsf(read_m(&x, i)) < 1e-9F && read_v(&x, i) > 0,
                  "moments %s: m %g, v %g after %d steps without gradient",
                  names[moments], (double)read_m(&x, i), (double)read_v(&x, i),
                  (int)STEPS);
    state_close(&x);
}

int
main(void)
{
    static const size_t sizes[] = { 1, 31, 32, 33, 127, 1000, 16384, 50001 };
    for (int moments = 0; moments < 3; moments++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            check_same(DT_F32, (enum moments)moments, sizes[i]);
            check_same(DT_BF16, (enum moments)moments, sizes[i]);
        }
        check_movement(DT_BF16, (enum moments)moments);
        check_unbiased((enum moments)moments);
        check_small((enum moments)moments);
    }
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (!isa_have((enum isa)isa))
            continue;
        check_edges((enum isa)isa);
        for (int moments = 0; moments < 3; moments++) {
            check_span(DT_F32, (enum moments)moments, (enum isa)isa);
            check_span(DT_BF16, (enum moments)moments, (enum isa)isa);
        }
    }
    CHECK_SAY(!err.kind, "%s", err.msg);
    return check_end();
}
