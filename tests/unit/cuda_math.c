/* SPDX-License-Identifier: MIT */
/* cuda_math: what the CUDA backend computes for a block and for a group, compiled for the
 * host, against the scalar truth of the quantizers and the optimizer.  Its approximations
 * are off here by as much as a GPU's may be. */
#include "kernels/cuda/quant_math.h"

#include "kernels/cuda/adamw_math.h"
#include "kernels/kernels.h"
#include "tests/unit/check.h"

#include <float.h>

enum { BLOCKS = 4096, MOST = BLOCKS * 16 };

static float x[MOST];
static struct step steps[STEPS];

/* ---- the quantizers -------------------------------------------------------------- */

static const struct quant_spec specs[] = {
    { .kind = QUANT_TORCHAO },
    { .kind = QUANT_NATIVE, .source = DT_F16 },
    { .kind = QUANT_NATIVE, .source = DT_BF16 },
    { .kind = QUANT_NATIVE, .source = DT_F32 },
    { .kind = QUANT_SWEEP1 },
    { .kind = QUANT_SWEEP1, .exhaustive = true },
    { .kind = QUANT_MAX },
    { .kind = QUANT_MAX, .modelopt = true },
    { .kind = QUANT_MAX, .stochastic = true, .seed = 5, .step = 9, .row = 2 },
    { .kind = QUANT_4OVER6 },
    { .kind = QUANT_4OVER6, .mae = true },
    { .kind = QUANT_SWEEP },
    { .kind = QUANT_SWEEP, .exhaustive = true },
    { .kind = QUANT_SWEEPFP8 },
    { .kind = QUANT_SWEEPFP8, .exhaustive = true },
};

static void
read_row(struct values *v, const float *from)
{
    for (int i = 0; i < 8; i++) {
        v->x[2 * i] = from[2 * i];
        v->x[2 * i + 1] = from[2 * i + 1];
        v->pair[i] = f_bits(from[2 * i]) >> 16 | (f_bits(from[2 * i + 1]) & 0xffff0000);
    }
    v->amax = row_amax(v->x);
}

static void
check_block(const char *what, const struct quant_spec *spec,
            const struct quant_scale *t, size_t b, bool fast)
{
    struct values v;
    struct coded out;
    uint8_t codes[8], scale;
    read_row(&v, x + b * 16);
    nvfp4_quant(codes, &scale, v.x, 1, 16, b * 16, spec, t, NULL);
    if (fast)
        code_sweep(&out, &v, t->enc, spec->kind == QUANT_SWEEPFP8, steps);
    else
        code_any(&out, &v, spec, t, b * 16, NULL);
    CHECK_SAY(out.scale == scale && out.codes[0] == load_le32(codes) &&
                  out.codes[1] == load_le32(codes + 4),
              "%s, %s, block %zu: %02x %08x%08x, truth %02x %08x%08x", what,
              quant_name(spec->kind), b, out.scale, out.codes[1], out.codes[0], scale,
              load_le32(codes + 4), load_le32(codes));
}

/* The first n values, under their own largest magnitude times `more`. */
static void
check_blocks(const char *what, size_t n, float more)
{
    float amax = 0;
    for (size_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    amax = fminf(amax * more, FLT_MAX);
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        bool sweep = quant_sweeps(specs[s].kind);
        struct quant_scale want = nvfp4_scale(&specs[s], amax);
        struct quant_scale t = tensor_scale(specs[s].kind, specs[s].modelopt, amax);
        CHECK(check_equal(&t, &want, sizeof t));
        for (size_t b = 0; b < n / 16 && (!specs[s].exhaustive || b < 64); b++) {
            check_block(what, &specs[s], &t, b, false);
            if (sweep && !specs[s].exhaustive)
                check_block(what, &specs[s], &t, b, true);
        }
    }
}

/* Rows of activations, each under its own largest magnitude, or all by a given scale: what
 * fp4.cu does for a row, against the CPU's operation. */
static void
check_rows(const char *what, size_t in)
{
    static uint8_t codes[MOST / 2], scales[MOST / 16];
    static float scale2[MOST / 16];
    struct err err = { 0 };
    const struct cpu_kind kind = { DT_F32, ISA_SCALAR, 1 };
    struct kernels *k = kernels_cpu(&kind, &err);
    struct matrix to = matrix_of(DT_NVFP4, codes, MOST / in, in),
                  from = matrix_of(DT_F32, x, MOST / in, in);
    to.scales = scales;
    to.scale2 = scale2;
    to.per_row = true;
    NEED(k);
    static const float given[] = { 0, 0, 1e5F, 384, 1.4F, 1e-35F };
    for (size_t how = 0; how < sizeof given / sizeof *given; how++) {
        bool native = how == 1;
        struct quant_spec spec = { .kind = native ? QUANT_NATIVE : QUANT_MAX,
                                   .source = DT_BF16,
                                   .given = given[how] };
        size_t wrong = 0;
        op_quantize(k, &to, &from, NULL, 0, &spec);
        for (size_t r = 0; r < to.rows; r++) {
            uint32_t most = 0;
            for (size_t i = r * in; i < r * in + in; i++)
                most = most > (f_bits(x[i]) & 0x7fffffff) ? most
                                                          : f_bits(x[i]) & 0x7fffffff;
            struct quant_scale t = spec.given > 0
                                       ? given_scale(spec.given)
                                       : tensor_scale(spec.kind, false, f_from(most));
            wrong += t.scale2 != scale2[r];
            for (size_t b = r * in / 16; b < (r + 1) * in / 16; b++) {
                struct values v;
                struct coded out;
                read_row(&v, x + b * 16);
                if (native)
                    code_native(&out, &v, spec.source);
                else
                    code_max(&out, &v, &t, NULL, 0);
                wrong += out.scale != scales[b] ||
                         out.codes[0] != load_le32(codes + b * 8) ||
                         out.codes[1] != load_le32(codes + b * 8 + 4);
            }
        }
        CHECK_SAY(wrong == 0, "%s, rows of %zu, %s, given %g: %zu are wrong", what, in,
                  quant_name(spec.kind), (double)given[how], wrong);
    }
    kernels_close(k);
}

static float
uniform(uint64_t seed)
{
    return (float)((double)check_random(seed) * 0x1p-32 * 2 - 1);
}

static float
bell(uint64_t seed)
{
    return uniform(4 * seed) + uniform(4 * seed + 1) + uniform(4 * seed + 2) +
           uniform(4 * seed + 3);
}

static void
check_weights(uint64_t seed)
{
    for (size_t i = 0; i < MOST; i++)
        x[i] = 0.02F * bell(i + seed);
    check_blocks("f32 weights", MOST, 1);
    check_blocks("f32 weights, larger tensor", MOST, 37);
    for (size_t i = 0; i < MOST; i++)
        x[i] = num_from_bf16(num_to_bf16(0.02F * bell(i + seed)));
    check_blocks("bf16 weights", MOST, 1);
    check_rows("bf16", 128);
    for (size_t i = 0; i < MOST; i++)
        x[i] = num_from_f16(num_to_f16(bell(i + seed) * (i % 64 ? 0.02F : 0.4F)));
    check_blocks("f16 weights with outliers", MOST, 1);
    check_rows("outliers", 16);
    check_rows("outliers", 512);
    for (size_t i = 0; i < MOST; i++) // few distinct values: many ties
        x[i] = (float)((int)(check_random(i + seed) % 25) - 12) * 0.25F;
    check_blocks("multiples of a quarter", MOST, 1);
    check_blocks("multiples of a quarter, exact scales", MOST, 1536 / 3.0F);
    for (size_t i = 0; i < MOST; i++)
        x[i] = check_random(i + seed) % 7 ? 0.0F : bell(i);
    check_blocks("mostly zeros", MOST, 1);
    for (size_t i = 0; i < MOST; i++) // blocks of all sizes
        x[i] = ldexpf(bell(i + seed), -(int)(check_random(i / 16 + seed) % 40));
    check_blocks("blocks of all sizes", MOST, 1);
}

/* Every f16 and bf16, with a larger one in each block. */
static void
check_halves(bool bf16, uint32_t sign)
{
    uint32_t limit = bf16 ? 0x7f80 : 0x7c00;
    size_t n = 0;
    for (uint32_t h = 0; h < limit; h++) {
        uint32_t large = h + (bf16 ? 40 : 400), bits = h | sign;
        large = large < limit ? large : h;
        if (n % 16 == 0)
            x[n++] =
                bf16 ? num_from_bf16((uint16_t)large) : num_from_f16((uint16_t)large);
        x[n++] = bf16 ? num_from_bf16((uint16_t)bits) : num_from_f16((uint16_t)bits);
    }
    while (n % 16)
        x[n++] = 0;
    check_blocks(bf16 ? "all bf16" : "all f16", n, 1);
    check_blocks(bf16 ? "all bf16, larger tensor" : "all f16, larger tensor", n, 100);
}

/* Values at, just below and just above each threshold of each scale. */
static void
check_thresholds(void)
{
    static const float thresholds[] = { 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5, 6 };
    size_t n = 0;
    for (int c = 0; c <= 0x7e; c++)
        for (int k = 0; k < 3; k++) {
            float s = e4m3_value((uint8_t)c);
            for (int i = 0; i < 16; i++) {
                float t = thresholds[i % 8] * s;
                float v = k == 0 ? t : nextafterf(t, (i < 8) == (k == 1) ? 0 : FLT_MAX);
                x[n++] = i % 3 ? v : -v;
            }
        }
    check_blocks("thresholds", n, 1);
    x[0] = 2688; // so that scales of max come out as they are
    check_blocks("thresholds under 2688", n, 1);
    x[0] = 1536;
    check_blocks("thresholds under 1536", n, 1);
}

/* What a k stands for: on the right side of every threshold of every scale. */
static void
check_turns(void)
{
    static const float thresholds[] = { 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5 };
    for (uint32_t c = 1; c <= LAST_SCALE; c++)
        for (int i = 0; i < 7; i++) {
            struct step step = steps[c + BELOW];
            float t = thresholds[i], a = t * step.s;
            double below = (double)nextafterf(a, 0) * (double)step.inverse2;
            double above = (double)nextafterf(a, FLT_MAX) * (double)step.inverse2;
            CHECK(below < 2 * (double)t && above > 2 * (double)t);
        }
}

/* Blocks whose largest value is at the very ends of what has c0 nearest, and others at the
 * thresholds of the scales around it. */
static void
check_ends(void)
{
    static const float thresholds[] = {
        0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 4.5F, 5
    };
    size_t n = 0;
    for (int c = 1; c < 0x78; c++)
        for (int high = 0; high < 2; high++) {
            float s = e4m3_value((uint8_t)c),
                  to = e4m3_value((uint8_t)(c + 2 * high - 1));
            float most = 3 * (s + to); // six times their middle
            for (int k = 0; k < 5; k++) {
                x[n++] = nextafterf(most, k % 2 ? 0 : FLT_MAX);
                for (int i = 1; i < 16; i++) {
                    uint32_t random = check_random(n);
                    int near = c + (int)(random % 9) - 2;
                    float t = thresholds[random >> 8 & 7] *
                              e4m3_value((uint8_t)(near < 1 ? 1 : near));
                    t = k < 2 ? t : nextafterf(t, k < 4 ? 0 : FLT_MAX);
                    x[n++] = t < most ? t : most;
                }
            }
        }
    x[0] = 1536; // scales come out as they are
    check_blocks("ends", n, 1);
}

static void
check_extremes(void)
{
    static const float sizes[] = { 1e-45F, 1e-40F, 1e-38F, 1e-30F, 1e-10F,
                                   1e10F,  1e30F,  3e38F,  0 };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (size_t i = 0; i < 4096; i++)
            x[i] = uniform(i) * sizes[k];
        check_blocks("extremes", 4096, 1);
        for (size_t i = 0; i < 4096; i += 5)
            x[i] = uniform(i);
        check_blocks("extremes among ordinary ones", 4096, 1);
    }
    for (size_t i = 0; i < MOST; i++) { // any finite bits
        uint32_t bits = check_random(i) & 0xff7fffff;
        memcpy(&x[i], &bits, sizeof bits);
    }
    check_blocks("any bits", MOST, 1);
    for (size_t i = 0; i < 4096; i++)
        x[i] = i % 3 ? uniform(i) * FLT_MAX : FLT_MAX;
    check_blocks("the largest floats", 4096, 1);
    for (size_t i = 0; i < 4096; i++)
        x[i] = i % 5 ? 0.0F : (float)(check_random(i) % 3) * 0x1p-149F;
    x[0] = 0x1.6p-135F;
    check_blocks("the smallest floats", 4096, 1);
    for (size_t i = 0; i < 4096; i++) // zeros of both signs
        x[i] = check_random(i) % 2 ? 0.0F : -0.0F;
    check_blocks("zeros", 4096, 1);
}

/* All that there are of a power of two, and numbers of all sizes. */
static void
check_sixths(void)
{
    size_t wrong = 0;
    for (uint32_t i = 0; i < 1 << 23; i++) {
        float amax = f_from(0x3f800000 + i),
              enc = f_from(0x3f800000 | check_random(i) >> 9);
        wrong += byte_of_sixth(amax, enc) !=
                 scale_byte(f_min(f_mul(f_div(amax, 6), enc), 448));
        amax = f_from(check_random(i + 1) >> 1);
        enc = f_from(check_random(i + 2) >> 1);
        if (isfinite(amax) && isfinite(enc))
            wrong += byte_of_sixth(amax, enc) !=
                     scale_byte(f_min(f_mul(f_div(amax, 6), enc), 448));
    }
    CHECK_SAY(wrong == 0, "%zu sixths are wrong", wrong);
}

static void
check_values(void)
{
    for (unsigned code = 0; code < 16; code++) {
        uint32_t out[2];
        code_values(out, code | (code ^ 5) << 4 | (code ^ 9) << 8 | (code ^ 14) << 12);
        CHECK((out[0] & 0xffff) == num_to_bf16(e2m1_value(code)));
        CHECK(out[0] >> 16 == num_to_bf16(e2m1_value(code ^ 5)));
        CHECK((out[1] & 0xffff) == num_to_bf16(e2m1_value(code ^ 9)));
        CHECK(out[1] >> 16 == num_to_bf16(e2m1_value(code ^ 14)));
    }
}

/* ---- the optimizer --------------------------------------------------------------- */

enum { ELEMENTS = 1 << 15 };

static struct err err;
static struct share shares[CODES];
static float grad[ELEMENTS];

/* A state, 8-bit moments and a bf16 master. */
struct small {
    uint16_t w[ELEMENTS], m_scale[ELEMENTS / GROUP], v_scale[ELEMENTS / GROUP];
    int8_t m[ELEMENTS];
    uint8_t v[ELEMENTS];
};

static struct small state, next;

static struct adam_state
state_of(struct small *s)
{
    return (struct adam_state){ s->w, DT_BF16,    MOMENTS_INT8, s->m,
                                s->v, s->m_scale, s->v_scale,   0 };
}

static struct hyper
hyper_of(const struct adam_step *a)
{
    struct hyper h = { .lr = a->lr,
                       .beta1 = a->beta1,
                       .one_minus_beta1 = 1 - a->beta1,
                       .beta2 = a->beta2,
                       .one_minus_beta2 = 1 - a->beta2,
                       .eps = a->eps,
                       .decay = a->decay,
                       .bias_correction1 = a->bias_correction1,
                       .bias_correction2 = a->bias_correction2,
                       .row = a->row,
                       .key = { a->seed, a->step } };
    fast_terms(&h);
    CHECK(can_be_fast(&h));
    return h;
}

static uint32_t
random16(uint64_t i, uint32_t use, const struct hyper *h)
{
    uint32_t words[4];
    draws(words, i / 8, h->row, use, h->key);
    return words[i % 8 / 2] >> i % 2 * 16 & 0xffff;
}

/* By definition, against the next state. */
static void
check_slow_group(size_t i, float clip, const struct hyper *h)
{
    float w[GROUP], m[GROUP], v[GROUP];
    uint32_t max_m = 0, max_v = 0;
    for (size_t k = 0; k < GROUP; k++) {
        w[k] = num_from_bf16(state.w[i + k]);
        m[k] = read_m8(state.m[i + k], state.m_scale[i / GROUP]);
        v[k] = read_v8(state.v[i + k], state.v_scale[i / GROUP]);
        update(&w[k], &m[k], &v[k], grad[i + k], clip, h);
        v[k] = f_sqrt(v[k]);
        uint32_t bits_m = f_bits(m[k]) & MAGNITUDE, bits_v = f_bits(v[k]) & MAGNITUDE;
        max_m = bits_m > max_m ? bits_m : max_m;
        max_v = bits_v > max_v ? bits_v : max_v;
    }
    uint32_t m_scale = scale_above(max_m), v_scale = scale_above(max_v);
    bool same =
        m_scale == next.m_scale[i / GROUP] && v_scale == next.v_scale[i / GROUP];
    for (size_t k = 0; k < GROUP; k++) {
        uint32_t code_m = code_m8(m[k], m_scale, random16(i + k, PHILOX_MOMENT, h));
        same = same && code_m == (uint8_t)next.m[i + k] &&
               code_v8(v[k], v_scale) == next.v[i + k] &&
               stochastic(w[k], random16(i + k, PHILOX_MASTER, h)) == next.w[i + k];
    }
    CHECK_SAY(same, "group %zu, by definition", i / GROUP);
}

static void
read_piece(struct piece *p, const struct small *s, size_t i)
{
    memcpy(p->w, s->w + i, sizeof p->w);
    memcpy(p->m, s->m + i, sizeof p->m);
    memcpy(p->v, s->v + i, sizeof p->v);
    p->m_scale = s->m_scale[i / GROUP];
    p->v_scale = s->v_scale[i / GROUP];
}

static void
draw_piece(uint32_t words[8], size_t i, uint32_t use, const struct hyper *h)
{
    draws(words, i / 8, h->row, use, h->key);
    draws(words + 4, i / 8 + 1, h->row, use, h->key);
}

static bool
piece_equal(const struct piece *p, size_t i)
{
    return check_equal(p->w, next.w + i, sizeof p->w) &&
           check_equal(p->m, next.m + i, sizeof p->m) &&
           check_equal(p->v, next.v + i, sizeof p->v) &&
           p->m_scale == next.m_scale[i / GROUP] &&
           p->v_scale == next.v_scale[i / GROUP];
}

/* The quick way: whether it was sure. */
static bool
check_quick_group(size_t i, float clip, const struct hyper *h)
{
    struct piece p[2];
    struct doubt d[2] = { no_doubt(), no_doubt() };
    uint32_t words[8], m_scale = state.m_scale[i / GROUP];
    uint32_t v_scale = state.v_scale[i / GROUP];
    bool sure = true;
    for (size_t k = 0; k < 2; k++) {
        read_piece(&p[k], &state, i + PIECE * k);
        draw_piece(words, i + PIECE * k, PHILOX_MASTER, h);
        fast_update(&p[k], grad + i + PIECE * k, clip, h->keep, words, shares, h,
                    &d[k]);
    }
    p[0].max_m = p[1].max_m = f_max(p[0].max_m, p[1].max_m);
    p[0].max_v = p[1].max_v = f_max(p[0].max_v, p[1].max_v);
    for (size_t k = 0; k < 2; k++) {
        draw_piece(words, i + PIECE * k, PHILOX_MOMENT, h);
        fast_codes(&p[k], words, &d[k]);
        sure = sure && is_sure(&p[k], &d[k], m_scale, v_scale);
    }
    CHECK_SAY(!sure || (piece_equal(&p[0], i) && piece_equal(&p[1], i + PIECE)),
              "group %zu, quickly", i / GROUP);
    return sure;
}

/* Quotients of scales are the rounded ones. */
static void
check_scales(void)
{
    for (uint32_t scale = 1; scale < INFINITE >> 16; scale++) {
        float value = bf16_value(scale);
        if (!ordinary(scale))
            continue;
        CHECK_SAY(factor_of(value) == 255 / value && over_255(value) == value / 255,
                  "scale %#x: %a and %a", scale, (double)factor_of(value),
                  (double)over_255(value));
    }
}

/* Roots around the middle between two codes, as far off as they may be: a wrong code is near
 * another one. */
static void
check_codes_of_v(void)
{
    size_t wrong = 0, near = 0, of = 0;
    for (uint32_t scale = 127 << 7; scale < 129 << 7; scale++)
        for (int code = 1; code < 255; code++) {
            float size = bf16_value(scale), factor = factor_of(size);
            float middle = ((float)code + 0.5F) * size / 255;
            uint32_t from = f_bits(middle * middle);
            for (uint32_t v = from - 12; v < from + 12; v++)
                for (uint32_t way = 0; way < 3; way++, of++) {
                    uint32_t y = code_bits_of_v(root_off(f_from(v), way), factor);
                    bool is_near = (y & 0xffff) < 2 * NEAR_V;
                    near += is_near;
                    wrong += !is_near &&
                             (y >> 16 & 0xff) != code_v8(f_sqrt(f_from(v)), scale);
                }
        }
    CHECK_SAY(wrong == 0, "%zu codes of v are wrong and not in doubt", wrong);
    CHECK_SAY(near > of / 10, "%zu of %zu are in doubt: not the middle", near, of);
}

static void
check_steps(struct kernels *cpu, const char *what, float lr, float decay, uint32_t t,
            uint32_t count)
{
    const float clip = 0.75F;
    size_t sure = 0, groups = ELEMENTS / GROUP;
    for (uint32_t last = t + count; t < last; t++) {
        struct adam_step a = { .lr = lr,
                               .beta1 = 0.9F,
                               .beta2 = 0.999F,
                               .eps = 1e-8F,
                               .decay = decay,
                               .clip = &clip,
                               .seed = 0x777,
                               .step = t,
                               .row = 3 };
        a.bias_correction1 = (float)(1 - pow((double)a.beta1, t));
        a.bias_correction2 = (float)(1 - pow((double)a.beta2, t));
        struct hyper h = hyper_of(&a);
        struct adam_state s = state_of(&next);
        next = state;
        for (size_t i = 0; i < ELEMENTS; i++)
            grad[i] = x[i] * bell(i + (uint64_t)t * ELEMENTS);
        struct matrix g = matrix_of(DT_F32, grad, 1, ELEMENTS);
        op_adamw(cpu, &(struct adam_update){ s, g, 0, ELEMENTS, a }, 1);
        for (size_t i = 0; i < ELEMENTS; i += GROUP) {
            check_slow_group(i, clip, &h);
            sure += check_quick_group(i, clip, &h);
        }
        state = next;
    }
    printf("%s, lr %g, decay %g: %.3f %% of groups are left to the slow way\n", what,
           (double)lr, (double)decay,
           100 - 100.0 * (double)sure / (double)(groups * count));
}

static void
check_adamw(uint32_t count)
{
    static const float rates[] = { 1e-6F, 1e-5F, 1e-4F, 1e-3F, 0.1F, 0 };
    const struct cpu_kind one = { DT_F32, isa_best(), 1 };
    struct kernels *cpu = kernels_cpu(&one, &err);
    NEED(cpu);
    for (uint32_t c = 0; c < CODES; c++)
        shares[c] = share_of(c);
    check_scales();
    check_codes_of_v();
    for (size_t r = 0; r < sizeof rates / sizeof *rates; r++)
        for (int kind = 0; kind < 5; kind++) {
            static const char *const names[] = { "ordinary", "groups of many sizes",
                                                 "elements of many sizes",
                                                 "elements of all sizes",
                                                 "half of the groups zeros" };
            memset(&state, 0, sizeof state);
            for (size_t i = 0; i < ELEMENTS; i++) {
                uint32_t random = check_random(kind % 3 == 1 ? i / GROUP : i);
                state.w[i] = num_to_bf16(0.02F * bell(i + 99));
                x[i] = kind == 0   ? 1e-4F
                       : kind == 4 ? (float)(random % 2)
                                   : ldexpf(1, -(int)(random % (kind == 3 ? 150 : 40)));
            }
            state.w[5] = 0x8000;
            state.w[77] = 0x7f7f;
            state.w[200] = 0x7f80;
            state.w[300] = 0x7fc1;
            x[400] = INFINITY;
            x[500] = NAN;
            check_steps(cpu, names[kind], rates[r], r % 2 ? 0.1F : 0, 1, count);
            check_steps(cpu, names[kind], rates[r], r % 2 ? 0.1F : 0, 1000, count);
        }
    kernels_close(cpu);
}

int
main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (uint32_t c = 0; c < STEPS; c++)
        steps[c] = step_of(c);
    for (uint64_t r = 0; r < rounds; r++)
        check_weights(r * 4 * MOST);
    check_halves(false, 0);
    check_halves(false, 0x8000);
    check_halves(true, 0);
    check_halves(true, 0x8000);
    check_thresholds();
    check_turns();
    check_ends();
    check_extremes();
    check_values();
    check_sixths();
    check_adamw((uint32_t)(4 * rounds));
    return check_end();
}
