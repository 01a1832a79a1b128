/* SPDX-License-Identifier: MIT */
/* still: an optimizer that keeps its weights in 4 bits, beside ours, an experiment.
 *
 * One matrix, no model: weights are drawn with a deviation of sigma and quantized; from
 * there each scheme takes STEPS steps of AdamW with equal gradients, 1e-3 times a fixed
 * sign of each element plus normal noise of the same size.  The schemes:
 *
 *   f32        f32 weights and moments; kernels/cpu/adamw.c
 *   bf16_int8  ours: bf16 weights with stochastic rounding, 8-bit moments; the same file
 *   w4         weights are read from NVFP4 and written to it in each step, by the
 *              quantizer "native" from bf16; moments in f32
 *   w4_mv4     moments are, too, by "native" from f32: the packed optimizer whose files
 *              "--compat seed" can read
 *
 * Codes are those of NVFP4 weights; those of f32 and bf16 weights are made by the same
 * quantizer in each step, to look at them.  Columns:
 *
 *   codes_step   percent of the 4-bit codes that differ from the step before, mean; the
 *                sign of a 0 does not count
 *   scales_step  the same of the block scales
 *   codes_all    percent of the codes that differ from the first, after all steps
 *   moved        sum of the movements against the fixed signs, in percent of f32's
 *   m_zero, v_zero   percent of moments that read back as 0, after all steps
 *
 * No randomness but Philox, no libm but sqrtf: equal everywhere.
 */
#include "kernels/kernels.h"
#include "lib/core/num.h"
#include "lib/core/philox.h"
#include "lib/nvfp4/quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 128, COLS = 1024, N = ROWS * COLS, STEPS = 100 };
enum scheme { F32, BF16_INT8, W4, W4_MV4, SCHEMES };

static const char *const names[] = { "f32", "bf16_int8", "w4", "w4_mv4" };

/* A matrix in NVFP4 of one level. */
struct packed4 {
    uint8_t codes[N / 2], scales[N / NVFP4_BLOCK];
};

struct optimizer {
    float w[N], m[N], v[N]; // as they read back; m and v of BF16_INT8 are not looked at
    struct packed4 now, before, first;
    struct adam_state state; // of F32 and BF16_INT8
};

static void *
get(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p) {
        fprintf(stderr, "still: no memory\n");
        exit(3);
    }
    return p;
}

/* About normal, deviation 1: the sum of eight numbers of 16 bits. */
static float
normal(uint32_t index, uint32_t step, uint32_t use)
{
    const uint32_t key[2] = { 2026, step }, counter[4] = { index, 0, 0, use };
    uint32_t word[4], sum = 0;
    philox4x32(word, counter, key);
    for (int i = 0; i < 4; i++)
        sum += (word[i] & 0xffff) + (word[i] >> 16);
    return ((float)sum - 4 * 65535.0F) / 53509.5F; // sqrt(8/12) 65536
}

static float
sign_of(uint32_t index)
{
    return normal(index, 0, 101) < 0 ? -1 : 1;
}

static void
pack(struct packed4 *to, const float *x, enum dtype source)
{
    const struct quant_spec spec = { .kind = QUANT_NATIVE, .source = source };
    const struct quant_scale scale = nvfp4_scale(&spec, 0);
    nvfp4_quant(to->codes, to->scales, x, ROWS, COLS, 0, &spec, &scale, NULL);
}

/* The nearest that NVFP4 has. */
static void
through(struct packed4 *p, float *x, enum dtype source)
{
    pack(p, x, source);
    nvfp4_decode(x, p->codes, p->scales, 1, N);
}

static void
to_bf16(float *x)
{
    for (size_t i = 0; i < N; i++)
        x[i] = num_from_bf16(num_to_bf16(x[i]));
}

static struct optimizer *
start(enum scheme scheme, float sigma)
{
    struct optimizer *o = get(sizeof *o);
    for (uint32_t i = 0; i < N; i++)
        o->w[i] = sigma * normal(i, 0, 100);
    to_bf16(o->w);
    /* Products of 2 and 4 significant bits: exact in bf16.  More than once, until they
     * stay: the scale of what was quantized may be another. */
    for (int i = 0; i < 10; i++)
        through(&o->now, o->w, DT_BF16);
    o->first = o->now;
    if (scheme == F32)
        o->state = (struct adam_state){ get(N * 4), DT_F32, MOMENTS_F32, get(N * 4),
                                        get(N * 4), NULL,   NULL };
    if (scheme == BF16_INT8)
        o->state = (struct adam_state){ get(N * 2), DT_BF16, MOMENTS_INT8, get(N),
                                        get(N),     get(N),  get(N) };
    for (size_t i = 0; i < N && scheme <= BF16_INT8; i++)
        if (scheme == F32)
            ((float *)o->state.master)[i] = o->w[i];
        else
            ((uint16_t *)o->state.master)[i] = num_to_bf16(o->w[i]);
    return o;
}

static void
end(struct optimizer *o)
{
    free(o->state.master);
    free(o->state.m);
    free(o->state.v);
    free(o->state.m_scale);
    free(o->state.v_scale);
    free(o);
}

/* One step of what keeps weights in 4 bits: numerics as in kernels/cpu/adamw.c, but all
 * comes out of NVFP4 and goes back to it. */
static void
packed_step(struct optimizer *o, enum scheme scheme, const float *g,
            const struct adam_step *a)
{
    static struct packed4 moment;
    for (size_t i = 0; i < N; i++) {
        o->m[i] = a->beta1 * o->m[i] + (1 - a->beta1) * g[i];
        o->v[i] = a->beta2 * o->v[i] + (1 - a->beta2) * (g[i] * g[i]);
        float u = o->m[i] / a->rest1 / (sqrtf(o->v[i] / a->rest2) + a->eps);
        o->w[i] = o->w[i] - a->lr * u;
    }
    to_bf16(o->w);
    through(&o->now, o->w, DT_BF16);
    if (scheme == W4_MV4) {
        through(&moment, o->m, DT_F32);
        through(&moment, o->v, DT_F32);
    }
}

static void
step(struct kernels *k, struct optimizer *o, enum scheme scheme, const float *g,
     const struct adam_step *a)
{
    o->before = o->now;
    if (scheme == W4 || scheme == W4_MV4) {
        packed_step(o, scheme, g, a);
        return;
    }
    k->adamw(k, &o->state, g, 0, N, a);
    for (size_t i = 0; i < N; i++)
        o->w[i] = scheme == F32 ? ((const float *)o->state.master)[i]
                                : num_from_bf16(((const uint16_t *)o->state.master)[i]);
    static float look[N];
    memcpy(look, o->w, sizeof look);
    to_bf16(look);
    pack(&o->now, look, DT_BF16);
}

/* +0 and -0 are one value here. */
static unsigned
code_at(const struct packed4 *p, size_t i)
{
    unsigned c = p->codes[i / 2] >> (i % 2 ? 4 : 0) & 0xf;
    return c == 8 ? 0 : c;
}

static size_t
codes_that_differ(const struct packed4 *a, const struct packed4 *b)
{
    size_t n = 0;
    for (size_t i = 0; i < N; i++)
        if (code_at(a, i) != code_at(b, i))
            n++;
    return n;
}

static size_t
scales_that_differ(const struct packed4 *a, const struct packed4 *b)
{
    size_t n = 0;
    for (size_t i = 0; i < sizeof a->scales; i++)
        if (a->scales[i] != b->scales[i])
            n++;
    return n;
}

static size_t
zeros(const float *x)
{
    size_t n = 0;
    for (size_t i = 0; i < N; i++)
        if (x[i] == 0)
            n++;
    return n;
}

static void
gradients(float *g, uint32_t t)
{
    for (uint32_t i = 0; i < N; i++)
        g[i] = 1e-3F * (sign_of(i) + normal(i, t, 102));
}

/* All schemes with one sigma and one rate. */
static void
compare(struct kernels *k, float sigma, float lr)
{
    static float g[N], w0[N];
    struct optimizer *o[SCHEMES];
    double codes[SCHEMES] = { 0 }, scales[SCHEMES] = { 0 }, f32_moved = 0;
    for (int s = 0; s < SCHEMES; s++)
        o[s] = start((enum scheme)s, sigma);
    memcpy(w0, o[0]->w, sizeof w0);
    double b1 = 1, b2 = 1;
    for (uint32_t t = 1; t <= STEPS; t++) {
        struct adam_step a = { .lr = lr,
                               .beta1 = 0.9F,
                               .beta2 = 0.999F,
                               .eps = 1e-8F,
                               .clip = 1,
                               .seed = 2026,
                               .step = t,
                               .row = 1 };
        b1 *= (double)a.beta1;
        b2 *= (double)a.beta2;
        a.rest1 = (float)(1 - b1);
        a.rest2 = (float)(1 - b2);
        gradients(g, t);
        for (int s = 0; s < SCHEMES; s++) {
            step(k, o[s], (enum scheme)s, g, &a);
            codes[s] += (double)codes_that_differ(&o[s]->now, &o[s]->before);
            scales[s] += (double)scales_that_differ(&o[s]->now, &o[s]->before);
        }
    }
    for (int s = 0; s < SCHEMES; s++) {
        double moved = 0;
        for (uint32_t i = 0; i < N; i++)
            moved -= (double)(sign_of(i) * (o[s]->w[i] - w0[i]));
        if (s == F32)
            f32_moved = moved;
        printf("%g\t%g\t%s\t%.4f\t%.4f\t%.3f\t%.2f", (double)sigma, (double)lr,
               names[s], 100 * codes[s] / N / STEPS,
               100 * scales[s] / sizeof o[s]->now.scales / STEPS,
               100 * (double)codes_that_differ(&o[s]->now, &o[s]->first) / N,
               100 * moved / f32_moved);
        if (s == W4 || s == W4_MV4)
            printf("\t%.2f\t%.2f\n", 100 * (double)zeros(o[s]->m) / N,
                   100 * (double)zeros(o[s]->v) / N);
        else
            printf("\t-\t-\n");
        end(o[s]);
    }
}

int
main(void)
{
    static const float sigmas[] = { 0.01F, 0.02F, 0.05F };
    static const float rates[] = { 1e-5F, 1e-4F, 3e-4F, 1e-3F };
    struct err err = { 0 };
    struct kernels *k = kernels_cpu(DT_F32, isa_best(), 1, &err);
    if (!k) {
        fprintf(stderr, "still: %s\n", err.msg);
        return 2;
    }
    printf("sigma\tlr\tscheme\tcodes_step\tscales_step\tcodes_all\tmoved\tm_zero\tv_"
           "zero\n");
    for (size_t i = 0; i < sizeof sigmas / sizeof *sigmas; i++)
        for (size_t j = 0; j < sizeof rates / sizeof *rates; j++)
            compare(k, sigmas[i], rates[j]);
    k->close(k);
    return fflush(stdout) || ferror(stdout) ? 2 : 0;
}
