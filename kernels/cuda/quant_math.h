/* SPDX-License-Identifier: MIT */
/* quant_math: the quantizers of lib/nvfp4/quant.c, one row of a block per thread.  They
 * give the same bytes; the shortcuts are exact:
 *
 * - Rounding to E2M1.  Below 2^24 f32 values are 1 apart, above it 2.  So 2^24 - 4 +
 *   2y, rounded once, counts the codes of y up to 4, and 2^24 + y those from 4 on; the
 *   minimum of the two is right, ties to even.
 * - Comparing a with t s, for a threshold t and a scale s: the sign of a k - 2t, with k
 *   = RN(2/s) in place of 2/s, is right unless a = t s.  The relative error of k is
 *   below 2^-24 m/16, where m = 8 .. 15 is the significand of s, and a, if not t s,
 *   differs from it by more than 2^-24 relative (t s is no power of two unless m is 8,
 *   where k is exact).  An fma rounds a k only together with the addend; at a = t s
 *   both codes have the same error.
 * - The errors of a sweep are good to 2^-19, and to twice that with the scale's index
 *   in their last bits; if another scale is within 2^-17 of the best, the exact path
 *   decides.
 * - v / 1536: one residual step (Markstein) on the rounded inverse and a first quotient
 *   that is off by less than 1 ulp gives the rounded quotient. */
#ifndef NIBBLE_KERNELS_CUDA_QUANT_MATH_H
#define NIBBLE_KERNELS_CUDA_QUANT_MATH_H

#include "kernels/cuda/exact.h"

#ifdef __CUDACC__
extern "C" {
#include "lib/nvfp4/quant.h"
}
#define TO_F16(x) __half2float(__float2half_rn(x))
#else
#include "lib/base/num.h"
#include "lib/nvfp4/quant.h"
#define TO_F16(x) num_from_f16(num_to_f16(x))
#endif

#define LARGEST_FLOAT 0x1.fffffep127F

enum {
    COLUMNS = NVFP4_BLOCK,
    LAST_SCALE = 0x7e,
    BELOW = 2,     // scales that a sweep tries below the nearest one
    NINE = 9,      // all scales that it tries
    BELOW_FP8 = 3, // the same of sweepfp8, whose scales are among them
    TEN = 10,
    STEPS = 136,            // table of scales from -BELOW on, some not valid
    CODE_ZERO = 0x4b7ffffc, // bits of 2^24 - 4
    CODE_SEVEN = CODE_ZERO + 7,
};

/* 16 values of a row. */
struct values {
    float x[COLUMNS];
    uint32_t pair[COLUMNS / 2]; // bits 15 and 31: signs of two elements
    float amax;                 // of the block: one row, 16 rows if square
};

struct coded {
    uint32_t codes[2], scale;
};

/* Constants for a scale byte s. */
struct step {
    float s, inverse2;      // s / 2^8, and 2 / s
    float inverse, minus_s; // 1 / s, and -2^126 s
};

/* ---- rows of a block: 16 neighbouring threads ------------------------------------ */

#ifdef __CUDACC__
EXACT float
rows_max(float x, bool square)
{
    if (square)
        for (int i = 8; i > 0; i /= 2)
            x = f_max(x, __shfl_xor_sync(0xffffffffU, x, i));
    return x;
}

/* Pairwise, as sum_rows of quant.c. */
EXACT float
rows_sum(float x, bool square)
{
    if (square)
        for (int i = 8; i > 0; i /= 2)
            x = f_add(x, __shfl_xor_sync(0xffffffffU, x, i));
    return x;
}
#else
#define rows_max(x, square) ((void)(square), (x))
#define rows_sum(x, square) ((void)(square), (x))
#endif

/* ---- codecs ---------------------------------------------------------------------- */

/* Decode an E4M3 scale byte up to 0x7e. */
EXACT float
scale_value(uint32_t c)
{
    return f_mul(f_from(c << 20), 0x1p120F);
}

/* Encode x, 0 .. 448, as E4M3, ties to even. */
EXACT uint32_t
scale_byte(float x)
{
    uint32_t bits = f_bits(x);
    uint32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120U << 3);
    uint32_t tiny = f_bits(f_add(x, 0x1p14F)) - 0x46800000; // steps of 2^-9
    return x < 0x1p-6F ? tiny : normal;
}

/* CODE_ZERO + the code of y >= 0, which may be 8 instead of 7; eighth: y / 8, clamped
 * to 1. */
EXACT uint32_t
code_of_eighth(float eighth)
{
    float low = f_fma(eighth, 16, 0x1p24F - 4), high = f_fma(eighth, 8, 0x1p24F);
    return f_bits(f_min(low, high));
}

/* The same for any y >= 0; NaN gives 0. */
EXACT uint32_t
code_bits(float y)
{
    return code_of_eighth(f_sat(f_mul(y, 0.125F)));
}

/* Code of y, ties away from zero. */
EXACT uint32_t
code_away(float y)
{
    return (uint32_t)((y >= 0.25F) + (y >= 0.75F) + (y >= 1.25F) + (y >= 1.75F) +
                      (y >= 2.5F) + (y >= 3.5F) + (y >= 5.0F));
}

/* 2^-126 times the value of a code, from CODE_ZERO + code: E2M1 is laid out as f32 is
 * at the lower end of its range. */
EXACT float
tiny_value(uint32_t bits)
{
    return f_from(bits * 0x400000 + 0x1000000);
}

/* Pack eight values into nibbles: codes (zero = 0), or CODE_ZERO + code (zero =
 * CODE_ZERO). */
EXACT uint32_t
nibbles(const uint32_t bits[8], uint32_t zero)
{
    uint32_t w = bits[7];
    EXACT_UNROLL
    for (int i = 6; i >= 0; i--)
        w = w * 16 + bits[i];
    return w - zero * 0x11111111U;
}

EXACT uint32_t
eight_to_seven(uint32_t w)
{
    return w - (w >> 3 & 0x11111111);
}

/* Signs of eight values, in bits 3, 7, ... */
EXACT uint32_t
signs(const uint32_t pair[4])
{
    uint32_t p = u_bytes(pair[0], pair[1], 0x7351),
             q = u_bytes(pair[2], pair[3], 0x7351);
    uint32_t even = u_bytes(p, q, 0x5410), odd = u_bytes(p, q, 0x7632);
    return (even >> 4 & 0x08080808) | (odd & 0x80808080);
}

/* The code of a / s, correct at every threshold, see quant_kernel.c; s8: 8 s, inverse8:
 * 1 / (8 s). */
EXACT uint32_t
code_of_quotient(float a, float s8, float inverse8)
{
    float q = f_mul(a, inverse8);
    return code_of_eighth(f_sat(f_fma(f_fma(-q, s8, a), inverse8, q)));
}

EXACT float
as_bf16(float x)
{
    uint32_t bits = f_bits(x);
    return f_from((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

EXACT float
row_amax(const float x[COLUMNS])
{
    float amax[4] = { f_abs(x[0]), f_abs(x[1]), f_abs(x[2]), f_abs(x[3]) };
    EXACT_UNROLL
    for (int i = 4; i < COLUMNS; i++)
        amax[i % 4] = f_max(amax[i % 4], f_abs(x[i]));
    return f_max(f_max(amax[0], amax[1]), f_max(amax[2], amax[3]));
}

/* ---- the tensor scale ------------------------------------------------------------ */

EXACT struct quant_scale
tensor_scale(enum quant kind, bool modelopt, float amax)
{
    struct quant_scale t = { amax, 1, 1, 0 };
    float bound = kind == QUANT_MAX ? 448 * 6 : 256 * 6;
    bool two = kind == QUANT_MAX || kind == QUANT_4OVER6 || kind == QUANT_SWEEP ||
               kind == QUANT_SWEEPFP8;
    if (amax == 0 || !two)
        return t;
    t.enc = f_min(f_div(bound, amax), LARGEST_FLOAT);
    if (t.enc == 0)
        t.enc = 1;
    t.scale2 = kind == QUANT_MAX && modelopt ? f_div(amax, bound) : f_div(1, t.enc);
    if (t.scale2 == 0)
        t.scale2 = 1;
    return t;
}

/* One that is given: of `max`, enc is that. */
EXACT struct quant_scale
given_scale(float enc)
{
    struct quant_scale t = { f_div(448 * 6, enc), enc, f_div(1, enc), 1 };
    return t;
}

/* ---- one level, amax / 6 --------------------------------------------------------- */

EXACT void
code_torchao(struct coded *to, const struct values *v)
{
    float want = f_div(as_bf16(v->amax), 6);
    to->scale = scale_byte(f_min(f_max(want, 0x1p-6F), 448));
    float s = f_mul(scale_value(to->scale), 8), inverse = f_div(1, s);
    EXACT_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t bits[8];
        EXACT_UNROLL
        for (int i = 0; i < 8; i++) { // the largest f32 round to infinity in bf16
            float a = f_min(f_abs(as_bf16(v->x[8 * half + i])), LARGEST_FLOAT);
            bits[i] = code_of_quotient(a, s, inverse);
        }
        to->codes[half] =
            eight_to_seven(nibbles(bits, CODE_ZERO)) | signs(v->pair + 4 * half);
    }
}

EXACT void
code_native(struct coded *to, const struct values *v, enum dtype source)
{
    float want = f_div(v->amax, 6);
    want = source == DT_BF16 ? as_bf16(want) : source == DT_F16 ? TO_F16(want) : want;
    to->scale = scale_byte(f_min(f_max(want, 0x1p-16F), 448));
    float s = f_add(scale_value(to->scale), 1e-12F);
    EXACT_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t bits[8];
        EXACT_UNROLL
        for (int i = 0; i < 8; i++) {
            float y = f_div(v->x[8 * half + i], s);
            bits[i] = code_away(f_abs(y)) | (y < 0 ? 8U : 0U);
        }
        to->codes[half] = nibbles(bits, 0);
    }
}

/* ---- two levels, max ------------------------------------------------------------- */

/* Stochastic rounding to the code below or above a. */
EXACT uint32_t
code_stochastic(float a, uint32_t draw)
{
    // floor: the code below, its value and the step to the next
    uint32_t low = (uint32_t)((a >= 0.5F) + (a >= 1) + (a >= 1.5F) + (a >= 2) +
                              (a >= 3) + (a >= 4));
    float from = low < 5 ? f_mul((float)low, 0.5F) : low == 5 ? 3.0F : 4.0F;
    float wide = low < 4 ? 0.5F : low < 6 ? 1.0F : 2.0F;
    float u = f_mul((float)(draw >> 8), 0x1p-24F);
    if (!(a < 6))
        return 7;
    return low + (u < f_div(f_sub(a, from), wide) ? 1U : 0U);
}

/* The codes of |x| enc. plain: enc is far from underflow, so enc / 8 gives an eighth of
 * the product, or code 0 as well. */
EXACT void
bits_max(uint32_t bits[8], const float x[8], float enc, bool plain)
{
    float eighth = f_mul(enc, 0.125F);
    EXACT_UNROLL
    for (int i = 0; i < 8; i++)
        bits[i] = plain ? code_of_eighth(f_sat(f_mul(f_abs(x[i]), eighth)))
                        : code_bits(f_abs(f_mul(x[i], enc)));
}

/* Stochastic rounding. first: index of x[0] in its tensor. */
EXACT void
bits_stochastic(uint32_t bits[8], const float x[8], float enc,
                const struct quant_spec *spec, uint64_t first)
{
    EXACT_UNROLL
    for (unsigned i = 0; i < 8; i += 4) {
        uint32_t draw[4];
        const uint32_t key[2] = { spec->seed, spec->step };
        draws(draw, (first + i) / 4, spec->row, PHILOX_ROUND, key);
        EXACT_UNROLL
        for (unsigned k = 0; k < 4; k++)
            bits[i + k] =
                CODE_ZERO + code_stochastic(f_abs(f_mul(x[i + k], enc)), draw[k]);
    }
}

/* stochastic: NULL, or the seed; first: index of the values in their tensor. */
EXACT void
code_max(struct coded *to, const struct values *v, const struct quant_scale *t,
         const struct quant_spec *stochastic, uint64_t first)
{
    const float sixth = 1.0F / 6.0F;
    float want = t->given ? f_mul(t->enc, f_mul(v->amax, sixth))
                          : f_mul(v->amax, f_mul(t->enc, sixth));
    to->scale = scale_byte(f_min(want, 448));
    float enc =
        f_min(f_div(1, f_mul(scale_value(to->scale), t->scale2)), LARGEST_FLOAT);
    EXACT_UNROLL
    for (int half = 0; half < 2; half++) {
        const float *x = v->x + 8 * half;
        uint32_t bits[8];
        if (stochastic)
            bits_stochastic(bits, x, enc, stochastic, first + 8 * (unsigned)half);
        else
            bits_max(bits, x, enc, t->amax < 0x1p100F);
        to->codes[half] =
            eight_to_seven(nibbles(bits, CODE_ZERO)) | signs(v->pair + 4 * half);
    }
}

EXACT void
code_modelopt(struct coded *to, const struct values *v, const struct quant_scale *t)
{
    float want = f_div(v->amax, f_mul(6, t->scale2));
    to->scale = v->amax == 0 ? 0x38 : scale_byte(f_min(f_max(want, 0x1p-9F), 448));
    float s = f_mul(scale_value(to->scale), t->scale2); // may be 0: 0 / 0 gives code 0
    EXACT_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t bits[8], negative[8];
        EXACT_UNROLL
        for (int i = 0; i < 8; i++) {
            float x = v->x[8 * half + i];
            bits[i] = code_bits(f_abs(f_div(x, s)));
            negative[i] = x < 0 ? 8 : 0;
        }
        to->codes[half] =
            eight_to_seven(nibbles(bits, CODE_ZERO)) | nibbles(negative, 0);
    }
}

/* ---- two levels, the better of two ----------------------------------------------- */

/* v / 1536; plain: v and the quotient are far from overflow and underflow. */
EXACT float
over_1536(float v, bool plain)
{
    const float inverse = 1.0F / 1536.0F;
    if (!plain)
        return f_div(v, 1536);
    float q = f_mul(v, inverse);
    return f_fma(-f_fma(1536, q, -v), inverse, q);
}

/* Codes for scale byte c; returns their error. */
EXACT float
try_scale(uint32_t codes[2], const struct values *v, uint32_t c,
          const struct quant_scale *t, bool mae, const float *weight, bool plain)
{
    float d = scale_value(c), err = 0;
    float enc = f_min(f_div(1, f_mul(d, t->scale2)), LARGEST_FLOAT);
    float eighth = f_mul(enc, 0.125F);
    float up = f_mul(d, 0x1p100F), amax = f_mul(t->amax, 0x1p26F); // for tiny_value
    EXACT_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t bits[8];
        EXACT_UNROLL
        for (int i = 0; i < 8; i++) {
            float x = f_abs(v->x[8 * half + i]);
            uint32_t b = plain ? code_of_eighth(f_sat(f_mul(x, eighth)))
                               : code_bits(f_mul(x, enc));
            bits[i] = b < CODE_SEVEN ? b : CODE_SEVEN;
            float tiny = tiny_value(bits[i]);
            float product = plain ? f_mul(f_mul(tiny, up), amax)
                                  : f_mul(f_mul(f_mul(tiny, 0x1p126F), d), t->amax);
            float diff = f_sub(over_1536(product, plain), x);
            float r = mae ? f_abs(diff) : f_mul(diff, diff);
            err = f_add(err, weight ? f_mul(r, weight[8 * half + i]) : r);
        }
        codes[half] = nibbles(bits, CODE_ZERO);
    }
    return err;
}

EXACT void
code_4over6(struct coded *to, const struct values *v, const struct quant_scale *t,
            bool mae, const float *weight, bool square)
{
    float base = f_mul(f_div(v->amax, 6), t->enc), err6, err4;
    uint32_t c6 = scale_byte(f_min(base, 448));
    uint32_t c4 = scale_byte(f_min(f_mul(base, 1.5F), 448)), four[2];
    if (t->amax > 0x1p-80F && t->amax < 0x1p80F) {
        err6 = try_scale(to->codes, v, c6, t, mae, weight, true);
        err4 = try_scale(four, v, c4, t, mae, weight, true);
    } else {
        err6 = try_scale(to->codes, v, c6, t, mae, weight, false);
        err4 = try_scale(four, v, c4, t, mae, weight, false);
    }
    bool less = rows_sum(err4, square) < rows_sum(err6, square);
    to->scale = less ? c4 : c6;
    EXACT_UNROLL
    for (int half = 0; half < 2; half++)
        to->codes[half] =
            (less ? four[half] : to->codes[half]) | signs(v->pair + 4 * half);
}

/* ---- the best scale -------------------------------------------------------------- */

/* Table entry k, for byte k - BELOW.  An invalid scale gives code 0 everywhere: no
 * valid scale has a larger error, and if one has the same the exact path decides. */
EXACT struct step
step_of(uint32_t k)
{
    uint32_t c = k - BELOW;
    bool legal = c - 1 < LAST_SCALE;
    float s = legal ? f_mul(scale_value(c), 0x1p-8F) : 0;
    float inverse2 = legal ? f_div(2, s) : 0;
    struct step step = { s, inverse2, f_mul(inverse2, 0.5F), f_mul(s, -0x1p126F) };
    return step;
}

/* Exact: the code nearest to a / s, ties to even. */
EXACT uint32_t
nearest_code(float a, float s)
{
    return (uint32_t)((a > 0.25F * s) + (a >= 0.75F * s) + (a > 1.25F * s) +
                      (a >= 1.75F * s) + (a > 2.5F * s) + (a >= 3.5F * s) +
                      (a > 5.0F * s));
}

/* Exact: the squared error of a row for one scale. */
EXACT float
exact_error(const float a[COLUMNS], float s, const float *weight)
{
    float r[COLUMNS];
    EXACT_UNROLL
    for (int i = 0; i < COLUMNS; i++) {
        uint32_t code = nearest_code(a[i], s);
        float value = f_mul(tiny_value(CODE_ZERO + code), 0x1p126F);
        float d = f_sub(a[i], f_mul(value, s));
        r[i] = f_mul(d, d);
        if (weight)
            r[i] = f_mul(r[i], weight[i]);
    }
    EXACT_UNROLL
    for (int i = 0; i < COLUMNS / 2; i++)
        r[i] = f_add(r[i], r[i + 8]);
    EXACT_UNROLL
    for (int i = 0; i < COLUMNS / 4; i++)
        r[i] = f_add(r[i], r[i + 4]);
    return f_add(f_add(r[0], r[2]), f_add(r[1], r[3]));
}

/* quant_fp8_scale. */
EXACT bool
is_fp8_scale(uint32_t c)
{
    uint32_t set = c < 32 ? QUANT_FP8_LOW : QUANT_FP8_HIGH;
    return c <= LAST_SCALE && (set >> c % 32 & 1);
}

/* The smallest byte from c on with a significand of 1, 1.25 or 1.5. */
EXACT uint32_t
fp8_from(uint32_t c)
{
    uint32_t even = (c + 1) & ~1U;
    return even + ((even & 6) == 6 ? 2 : 0);
}

/* The first byte that sweepfp8 looks at. */
EXACT uint32_t
fp8_start(uint32_t c0)
{
    return (c0 < QUANT_FP8_FIRST ? QUANT_FP8_FIRST : c0) - BELOW_FP8;
}

/* The byte of from .. from + n - 1 with the minimum error, the smaller one of two; fp8:
 * of those of sweepfp8.  Square blocks of a warp run in lockstep. */
EXACT uint32_t
exact_best(const float a[COLUMNS], uint32_t from, uint32_t n, bool fp8,
           const float *weight, bool square)
{
    float min_err = f_from(0x7f800000);
    uint32_t best = 0;
    for (uint32_t c = from; c != from + n; c++) { // from may be -2 .. 0
        bool legal = fp8 ? is_fp8_scale(c) : c - 1 < LAST_SCALE;
        float err =
            rows_sum(exact_error(a, scale_value(legal ? c : 1), weight), square);
        if (legal && (best == 0 || err < min_err)) {
            min_err = err;
            best = c;
        }
    }
    return best;
}

/* The error for a scale to within 2^-19, in units of 2^16. y = a / s is at most 4.5 if
 * FEW, below 5 if UP_TO_4, at most 7 if SOME. */
enum range { FEW, UP_TO_4, SOME, ALL };

EXACT float
rough_error(const float a[COLUMNS], struct step step, enum range range)
{
    float err = 0;
    EXACT_UNROLL
    for (int i = 0; i < COLUMNS; i++) {
        float code = f_fma(a[i], step.inverse2, 0x1p24F - 4);
        float high = f_fma(a[i], step.inverse, 0x1p24F);
        if (range == UP_TO_4)
            code = f_min(code, 0x1p24F + 4); // code 6
        if (range == SOME)
            code = f_min(code, high);
        if (range == ALL)
            code = f_min3(code, high, 0x1p24F + 6); // code 7
        float d = f_fma(tiny_value(f_bits(code)), step.minus_s, a[i]);
        err = f_fma(d, d, err);
    }
    return err;
}

/* Minimum error and the next one; the last bits, at most 2^-19 of it, hold the scale's
 * index. */
struct search {
    float best, second;
};

enum { INDEX = 15 };

EXACT void
try_step(struct search *f, const float a[COLUMNS], const struct step *steps, uint32_t k,
         enum range range)
{
    float err = rough_error(a, steps[k], range);
    err = f_from((f_bits(err) & ~(uint32_t)INDEX) | k);
    f->second = f_min(f->second, f_max(f->best, err));
    f->best = f_min(f->best, err);
}

/* Whether the rough errors decide. */
EXACT bool
is_decided(const struct search *f)
{
    return f->second > f_mul(f->best, 1 + 0x1p-17F) && f->best > 0x1p-80F &&
           f->best < 0x1p80F;
}

/* The best of nine scales from c0 - BELOW on; a: in units of 2^8. c0 is nearest to amax
 * / 6.  Bounds of y = a / s: at most 7 above c0, 75/16 plus rounding at c0 + 4, 4.5
 * from c0 + 5 on; if c0 is the largest byte, none are above it.  At c0 itself at most
 * 7, too, unless it is subnormal or the largest byte. */
EXACT uint32_t
find_scale(const float a[COLUMNS], const struct values *v, float enc, uint32_t c0,
           const struct step *steps)
{
    struct search f = { LARGEST_FLOAT, LARGEST_FLOAT };
    const struct step *at = steps + c0; // of c0 - BELOW
    float whole[COLUMNS];
    uint32_t clipped = c0 - 8 < LAST_SCALE - 8 ? 2 : 3;
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (uint32_t k = 0; k < clipped; k++)
        try_step(&f, a, at, k, ALL);
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (uint32_t k = clipped; k < 6; k++)
        try_step(&f, a, at, k, SOME);
    try_step(&f, a, at, 6, UP_TO_4);
    try_step(&f, a, at, 7, FEW);
    try_step(&f, a, at, 8, FEW);
    if (is_decided(&f))
        return c0 - BELOW + (f_bits(f.best) & INDEX);
    EXACT_UNROLL
    for (int i = 0; i < COLUMNS; i++)
        whole[i] = f_abs(f_mul(v->x[i], enc));
    return exact_best(whole, c0 - BELOW, NINE, false, NULL, false);
}

/* The same of sweepfp8: of ten bytes four at most are its own. */
EXACT uint32_t
find_fp8_scale(const float a[COLUMNS], const struct values *v, float enc, uint32_t c0,
               const struct step *steps)
{
    struct search f = { LARGEST_FLOAT, LARGEST_FLOAT };
    float whole[COLUMNS];
    uint32_t from = fp8_start(c0);
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (uint32_t c = fp8_from(from); c < from + TEN; c = fp8_from(c + 1))
        if (is_fp8_scale(c))
            try_step(&f, a, steps + from + BELOW, c - from, ALL);
    if (is_decided(&f))
        return from + (f_bits(f.best) & INDEX);
    EXACT_UNROLL
    for (int i = 0; i < COLUMNS; i++)
        whole[i] = f_abs(f_mul(v->x[i], enc));
    return exact_best(whole, from, TEN, true, NULL, false);
}

/* The byte nearest to amax / 6 * enc.  Below 2^-100 the quotient may be off, but with
 * such an enc the byte is 0; above see over_1536. */
EXACT uint32_t
byte_of_sixth(float amax, float enc)
{
    const float inverse = 1.0F / 6.0F;
    float q = f_mul(amax, inverse);
    q = enc < 0x1p60F ? f_fma(f_fma(-6, q, amax), inverse, q) : f_div(amax, 6);
    return scale_byte(f_min(f_mul(q, enc), 448));
}

/* Values are multiplied by 2^-8 enc instead of enc; that differs only below 2^-118,
 * where the code is 0. */
EXACT void
code_sweep(struct coded *to, const struct values *v, float enc, bool fp8,
           const struct step *steps)
{
    uint32_t c0 = byte_of_sixth(v->amax, enc);
    float a[COLUMNS], down = f_mul(enc, 0x1p-8F);
    EXACT_UNROLL
    for (int i = 0; i < COLUMNS; i++)
        a[i] = f_abs(f_mul(v->x[i], down));
    to->scale = 0;
    if (v->amax > 0)
        to->scale = fp8 ? find_fp8_scale(a, v, enc, c0, steps)
                        : find_scale(a, v, enc, c0, steps);
    const struct step step = steps[to->scale + BELOW]; // 0 for scale 0: codes are 0
    float s = f_mul(step.s, 8), inverse = f_mul(step.inverse, 0.125F);
    EXACT_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t bits[8];
        EXACT_UNROLL
        for (int i = 0; i < 8; i++)
            bits[i] = code_of_quotient(a[8 * half + i], s, inverse);
        to->codes[half] =
            eight_to_seven(nibbles(bits, CODE_ZERO)) | signs(v->pair + 4 * half);
    }
}

/* Exact, with all options; weight: of these columns, or NULL. */
EXACT void
code_sweep_exact(struct coded *to, const struct values *v, float enc,
                 const struct quant_spec *spec, const float *weight)
{
    uint32_t c0 = scale_byte(f_min(f_mul(f_div(v->amax, 6), enc), 448));
    bool fp8 = spec->kind == QUANT_SWEEPFP8;
    uint32_t from = spec->exhaustive ? 1 : fp8 ? fp8_start(c0) : c0 - BELOW;
    uint32_t n = spec->exhaustive ? LAST_SCALE : fp8 ? TEN : NINE;
    float a[COLUMNS];
    EXACT_UNROLL
    for (int i = 0; i < COLUMNS; i++)
        a[i] = f_abs(f_mul(v->x[i], enc));
    uint32_t c = exact_best(a, from, n, fp8, weight, spec->square);
    to->scale = v->amax > 0 ? c : 0;
    float s = scale_value(to->scale);
    EXACT_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t bits[8];
        EXACT_UNROLL
        for (int i = 0; i < 8; i++)
            bits[i] = v->amax > 0 ? nearest_code(a[8 * half + i], s) : 0;
        to->codes[half] = nibbles(bits, 0) | signs(v->pair + 4 * half);
    }
}

/* ---- any quantizer --------------------------------------------------------------- */

/* Any quantizer; first: index of the values in their tensor. */
EXACT void
code_any(struct coded *to, const struct values *v, const struct quant_spec *spec,
         const struct quant_scale *t, uint64_t first, const float *weight)
{
    switch (spec->kind) {
    case QUANT_TORCHAO:
        code_torchao(to, v);
        break;
    case QUANT_NATIVE:
        code_native(to, v, spec->source);
        break;
    case QUANT_MAX:
        if (spec->modelopt)
            code_modelopt(to, v, t);
        else
            code_max(to, v, t, spec->stochastic ? spec : NULL, first);
        break;
    case QUANT_4OVER6:
        code_4over6(to, v, t, spec->mae, weight, spec->square);
        break;
    default:
        code_sweep_exact(to, v, t->enc, spec, weight);
    }
}

/* ---- decoding -------------------------------------------------------------------- */

/* The four codes of the low half of w as bf16, by a table of their high and low
 * bytes. */
EXACT void
code_values(uint32_t out[2], uint32_t w)
{
    uint32_t which = w & 0x7777;
    uint32_t high = u_bytes(0x3f3f3f00, 0x40404040, which); // of 0 .5 1 1.5, 2 3 4 6
    uint32_t low = u_bytes(0xc0800000, 0xc0804000, which);
    out[0] = u_bytes(low, high, 0x5140) | (w << 12 & 0x8000) | (w << 24 & 0x80000000);
    out[1] = u_bytes(low, high, 0x7362) | (w << 4 & 0x8000) | (w << 16 & 0x80000000);
}

#endif
