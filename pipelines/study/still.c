/* SPDX-License-Identifier: MIT */
/* still: an optimizer that keeps its weights in 4 bits, beside ours, an experiment.
 *
 * One matrix, no model.  Weights are drawn with a deviation of sigma and quantized as
 * TorchSharp does it: into a file by "torchao", back into values, and into codes by
 * "native", which is what its optimizer keeps.  From there each scheme takes steps of AdamW
 * with equal gradients, 1e-3 times a fixed sign of each element plus normal noise of the same
 * size.  The schemes are operations of kernels/cpu as trainstep runs them:
 *
 *   f32        f32 weights and moments
 *   bf16_int8  ours: bf16 weights with stochastic rounding, 8-bit moments
 *   w4_mv4     TorchSharp's: weights and moments come out of NVFP4 in each step and go back
 *   w4_mv8     the same with its 8-bit moments
 *
 * Codes are those of NVFP4 weights; those of f32 and bf16 weights are made by "native" in
 * each step, to look at them.  Columns:
 *
 *   codes_first  percent of the 4-bit codes that the first step changes; in it, AdamW moves
 *                every weight by the rate.  The sign of a 0 does not count
 *   codes_step   the same, mean of all steps
 *   scales_step  the same of the block scales
 *   codes_all    percent of the codes that differ from those at the start, after all steps
 *   moved        sum of the movements against the fixed signs, in percent of f32's
 *   m_zero, v_zero   percent of moments that read back as 0, after all steps
 *
 *   still [STEPS]      as many steps (100)
 *
 * No randomness but Philox, no libm but sqrtf: equal everywhere.
 */
#include "kernels/kernels.h"
#include "lib/base/num.h"
#include "lib/base/philox.h"
#include "lib/nvfp4/quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 128, COLS = 1024, N = ROWS * COLS };
enum scheme { F32, BF16_INT8, W4_MV4, W4_MV8, SCHEMES };

static const char *const names[] = { "f32", "bf16_int8", "w4_mv4", "w4_mv8" };

/* A matrix in NVFP4 of one level. */
struct packed4 {
    uint8_t codes[N / 2], scales[N / NVFP4_BLOCK];
};

struct optimizer {
    enum scheme scheme;
    float w[N];                        // as it reads back
    struct packed4 now, before, first; // now: the weight itself, of W4_*
    struct adam_state state;           // of F32 and BF16_INT8
    struct torchsharp_state packed;    // of W4_*
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
pack(struct packed4 *to, const float *x, enum quant kind)
{
    const struct quant_spec spec = { .kind = kind, .source = DT_BF16 };
    const struct quant_scale scale = nvfp4_scale(&spec, 0);
    nvfp4_quant(to->codes, to->scales, x, ROWS, COLS, 0, &spec, &scale, NULL);
}

/* To the nearest that NVFP4 has; products of 2 and 4 significant bits are exact in bf16. */
static void
through(struct packed4 *p, float *x, enum quant kind)
{
    pack(p, x, kind);
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
    o->scheme = scheme;
    for (uint32_t i = 0; i < N; i++)
        o->w[i] = sigma * normal(i, 0, 100);
    to_bf16(o->w);
    through(&o->now, o->w, QUANT_TORCHAO);
    through(&o->now, o->w, QUANT_NATIVE);
    o->first = o->now;
    switch (scheme) {
    case F32:
        o->state = (struct adam_state){ get(N * 4), DT_F32, MOMENTS_F32, get(N * 4),
                                        get(N * 4), NULL,   NULL,        0 };
        memcpy(o->state.master, o->w, N * 4);
        break;
    case BF16_INT8:
        o->state = (struct adam_state){ get(N * 2), DT_BF16, MOMENTS_INT8, get(N),
                                        get(N),     get(N),  get(N),       0 };
        for (size_t i = 0; i < N; i++)
            ((uint16_t *)o->state.master)[i] = num_to_bf16(o->w[i]);
        break;
    default: // scales are bytes of blocks, or f32 of rows
        o->packed =
            (struct torchsharp_state){ .w = { o->now.codes, o->now.scales },
                                       .m = { get(N), get(N) },
                                       .v = { get(N), get(N) },
                                       .moments = scheme == W4_MV4 ? TORCHSHARP_NVFP4
                                                                   : TORCHSHARP_INT8,
                                       .rows = ROWS,
                                       .cols = COLS };
    }
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
    free(o->packed.m.q);
    free(o->packed.m.scales);
    free(o->packed.v.q);
    free(o->packed.v.scales);
    free(o);
}

static void
step(struct kernels *k, struct optimizer *o, float *g, const struct adam_step *a)
{
    const struct matrix grad = matrix_of(DT_F32, g, ROWS, COLS);
    o->before = o->now;
    if (o->scheme == W4_MV4 || o->scheme == W4_MV8) {
        op_torchsharp_adamw(k, &o->packed, &grad, 0, ROWS, a);
        nvfp4_decode(o->w, o->now.codes, o->now.scales, 1, N);
        return;
    }
    op_adamw(k, &(struct adam_update){ o->state, grad, 0, N, *a }, 1);
    for (size_t i = 0; i < N; i++)
        o->w[i] = o->scheme == F32
                      ? ((const float *)o->state.master)[i]
                      : num_from_bf16(((const uint16_t *)o->state.master)[i]);
    static float look[N];
    memcpy(look, o->w, sizeof look);
    to_bf16(look);
    pack(&o->now, look, QUANT_NATIVE);
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

/* Moments of W4_* that read back as 0. */
static size_t
zeros(const struct optimizer *o, const struct torchsharp_plane *p)
{
    static float x[N];
    size_t n = 0;
    if (o->packed.moments == TORCHSHARP_NVFP4)
        nvfp4_decode(x, p->q, p->scales, 1, N);
    for (size_t i = 0; i < N; i++)
        if (o->packed.moments == TORCHSHARP_NVFP4 ? x[i] == 0
                                                  : ((const int8_t *)p->q)[i] == 0)
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
compare(struct kernels *k, float sigma, float lr, uint32_t steps)
{
    static const float no_clip = 1;
    static float g[N], w0[N];
    struct optimizer *o[SCHEMES];
    double first[SCHEMES] = { 0 }, codes[SCHEMES] = { 0 }, scales[SCHEMES] = { 0 },
           f32_moved = 0;
    for (int s = 0; s < SCHEMES; s++)
        o[s] = start((enum scheme)s, sigma);
    memcpy(w0, o[0]->w, sizeof w0);
    double b1 = 1, b2 = 1;
    for (uint32_t t = 1; t <= steps; t++) {
        struct adam_step a = { .lr = lr,
                               .beta1 = 0.9F,
                               .beta2 = 0.999F,
                               .eps = 1e-8F,
                               .clip = &no_clip,
                               .seed = 2026,
                               .step = t,
                               .row = 1 };
        b1 *= (double)a.beta1;
        b2 *= (double)a.beta2;
        a.bias_correction1 = (float)(1 - b1);
        a.bias_correction2 = (float)(1 - b2);
        gradients(g, t);
        for (int s = 0; s < SCHEMES; s++) {
            step(k, o[s], g, &a);
            codes[s] += (double)codes_that_differ(&o[s]->now, &o[s]->before);
            scales[s] += (double)scales_that_differ(&o[s]->now, &o[s]->before);
            if (t == 1)
                first[s] = codes[s];
        }
    }
    for (int s = 0; s < SCHEMES; s++) {
        double moved = 0;
        for (uint32_t i = 0; i < N; i++)
            moved -= (double)(sign_of(i) * (o[s]->w[i] - w0[i]));
        if (s == F32)
            f32_moved = moved;
        printf("%g\t%g\t%s\t%.4f\t%.4f\t%.4f\t%.3f\t%.2f", (double)sigma, (double)lr,
               names[s], 100 * first[s] / N, 100 * codes[s] / N / steps,
               100 * scales[s] / sizeof o[s]->now.scales / steps,
               100 * (double)codes_that_differ(&o[s]->now, &o[s]->first) / N,
               100 * moved / f32_moved);
        if (s == W4_MV4 || s == W4_MV8)
            printf("\t%.2f\t%.2f\n", 100 * (double)zeros(o[s], &o[s]->packed.m) / N,
                   100 * (double)zeros(o[s], &o[s]->packed.v) / N);
        else
            printf("\t-\t-\n");
        end(o[s]);
    }
}

int
main(int argc, char **argv)
{
    static const float sigmas[] = { 0.01F, 0.015F, 0.02F, 0.03F, 0.05F };
    static const float rates[] = { 1e-5F, 1e-4F, 3e-4F, 1e-3F };
    struct err err = { 0 };
    long steps = argc > 1 ? strtol(argv[1], NULL, 10) : 100;
    struct kernels *k = kernels_cpu(&(struct cpu_kind){ DT_F32, isa_best(), 1 }, &err);
    if (!k || argc > 2 || steps < 1 || steps > 10000) {
        fprintf(stderr, "still: %s\n",
                k ? "usage: still [STEPS], 1 to 10000" : err.msg);
        return 2;
    }
    printf("sigma\tlr\tscheme\tcodes_first\tcodes_step\tscales_step\tcodes_all\tmoved\t"
           "m_zero\tv_zero\n");
    for (size_t i = 0; i < sizeof sigmas / sizeof *sigmas; i++)
        for (size_t j = 0; j < sizeof rates / sizeof *rates; j++)
            compare(k, sigmas[i], rates[j], (uint32_t)steps);
    kernels_close(k);
    return fflush(stdout) || ferror(stdout) ? 2 : 0;
}
