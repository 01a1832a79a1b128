/* SPDX-License-Identifier: MIT */
/* adamw_math: the optimizer of kernels/cpu/adamw_kernel.c, exact with one element per
 * thread, and fast with half a group of 32 per thread, for a bf16 master with 8-bit
 * moments.
 *
 * Both give the CPU's bytes.  The fast path computes m and v exactly, but codes and the
 * new master with approximations.  What is stored are the upper bits of a value plus 16
 * random bits, so an error of a few ulp almost never changes them.  A group where it
 * could is left to the exact path; the bounds of the error are
 *
 *   code of m   at most 4 of 65536 parts of a code, 4.5 of a code of v
 *   master      at most 19 * 2^-24 of the update and 3.2 ulp
 *
 * and the constants below are not smaller.  m is decoded as s hi + s lo, where hi + lo
 * is q / (254 - |q|) to 48 bits: a quotient of 15 by 8 bits is at least 2^-9 ulp away
 * from a rounding boundary, so the result is rounded correctly. */
#ifndef NIBBLE_KERNELS_CUDA_ADAMW_MATH_H
#define NIBBLE_KERNELS_CUDA_ADAMW_MATH_H

#include "kernels/cuda/exact.h"

#include <math.h>
#include <stdalign.h>

enum {
    GROUP = 32, // elements per scale of 8-bit moments
    PIECE = 16, // elements per thread in the fast path: half a group
    CODES = 256,
    INFINITE = 0x7f800000,
    MAGNITUDE = 0x7fffffff,
    NAN_BF16 = 0x7fc0,
};

/* Parameters, the same for all elements. */
struct hyper {
    float lr, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, decay,
        bias_correction1, bias_correction2;
    // For the fast path: an update of the master is m / (root * sqrt(v) + shift), to the
    // sign, both infinite if lr is 0; keep: 1 - lr decay.
    float root, shift, keep;
    uint32_t key[2], row;
};

/* ---- exact path, one element ----------------------------------------------------- */

EXACT float
bf16_value(uint32_t bits)
{
    return f_from(bits << 16);
}

EXACT void
update(float *w, float *m, float *v, float grad, float clip, const struct hyper *h)
{
    float g = f_mul(clip, grad);
    *m = f_add(f_mul(h->beta1, *m), f_mul(h->one_minus_beta1, g));
    *v = f_add(f_mul(h->beta2, *v), f_mul(h->one_minus_beta2, f_mul(g, g)));
    float root = f_sqrt(f_div(*v, h->bias_correction2));
    float u = f_div(f_div(*m, h->bias_correction1), f_add(root, h->eps));
    *w = f_sub(*w, f_mul(h->lr, f_add(u, f_mul(h->decay, *w))));
}

EXACT uint32_t
stochastic(float x, uint32_t random)
{
    uint32_t bits = f_bits(x), size = bits & MAGNITUDE;
    if (size > INFINITE)
        return NAN_BF16;
    return (size + random) >> 16 >= INFINITE >> 16 ? bits >> 16 : (bits + random) >> 16;
}

/* The scale for a maximum magnitude given as f32 bits, rounded up. */
EXACT uint32_t
scale_above(uint32_t max_bits)
{
    uint32_t up = (max_bits + 0xffff) >> 16;
    if (max_bits >= INFINITE)
        return NAN_BF16;
    return up < INFINITE >> 16 ? up : up - 1;
}

EXACT bool
no_scale(uint32_t scale)
{
    return scale == 0 || scale == NAN_BF16;
}

EXACT float
read_m8(int code, uint32_t scale)
{
    return f_div(f_mul(bf16_value(scale), (float)code),
                 (float)(254 - (code < 0 ? -code : code)));
}

EXACT float
read_v8(uint32_t code, uint32_t scale)
{
    float r = f_mul((float)code, f_div(bf16_value(scale), 255));
    uint32_t bits = f_bits(f_mul(r, r));
    return f_from(bits | (code && !bits ? 1U : 0U));
}

EXACT uint32_t
code_m8(float m, uint32_t scale, uint32_t random)
{
    float size = f_abs(m);
    float share = f_div(size, f_add(bf16_value(scale), size));
    int fixed = (int)f_bits(f_add(f_mul(share, 0x1.fcp23F), 0x1p23F)) - 0x4b000000;
    if (no_scale(scale))
        return 0;
    fixed = fixed > 127 << 16 ? 127 << 16 : fixed;
    fixed = f_bits(m) >> 31 ? -fixed : fixed;
    return (uint32_t)((fixed + (int)random) >> 16) & 0xff;
}

/* r: sqrt(v). */
EXACT uint32_t
code_v8(float r, uint32_t scale)
{
    float factor = f_div(255, bf16_value(scale));
    int code = (int)f_bits(f_add(f_mul(r, factor), 0x1p23F)) - 0x4b000000;
    if (no_scale(scale) || r == 0)
        return 0;
    return (uint32_t)(code < 1 ? 1 : code > 255 ? 255 : code);
}

/* ---- fast path, half a group ----------------------------------------------------- */

/* Fill the terms for the fast path; on the host. */
static inline void
fast_terms(struct hyper *h)
{
    float rate = h->lr / h->bias_correction1;
    h->root = 1 / (sqrtf(h->bias_correction2) * rate);
    h->shift = h->eps / rate;
    h->keep = 1 - h->lr * h->decay;
}

/* Whether the error bounds hold for these parameters. */
static inline bool
can_be_fast(const struct hyper *h)
{
    return h->eps >= 0x1p-33F && h->eps <= 1 && fabsf(h->lr) <= 1 &&
           (h->lr == 0 || fabsf(h->lr) >= 0x1p-40F) && h->decay >= 0 &&
           fabsf(h->lr) * h->decay <= 0.125F && h->bias_correction1 >= 0x1p-30F &&
           h->bias_correction1 <= 1 && h->bias_correction2 >= 0x1p-30F &&
           h->bias_correction2 <= 1;
}

/* q / (254 - |q|) of a code q, loaded at once. */
struct share {
    alignas(8) float high;
    float low;
};

enum { SHARE = sizeof(struct share) };

EXACT struct share
share_of(uint32_t code)
{
    int q = code < 128 ? (int)code : (int)code - 256;
    float over = (float)(254 - (q < 0 ? -q : q)), high = f_div((float)q, over);
    struct share s = { high, f_div(f_fma(-high, over, (float)q), over) };
    return s;
}

/* 16 consecutive elements: the stored state, and intermediate values. */
struct piece {
    uint32_t w[PIECE / 2], m[PIECE / 4], v[PIECE / 4]; // bf16 and codes
    uint32_t m_scale, v_scale;
    float new_m[PIECE], root[PIECE]; // root: sqrt(v), approximate
    float max_m, max_v;              // of |new_m|, and of v
};

/* Whether a bf16 scale is 0 or from 2^-60 to below 2^60. */
EXACT bool
ordinary(uint32_t scale)
{
    return (scale == 0) | (scale - (67U << 7) < 120U << 7);
}

/* Evidence that a result of the fast path may be wrong, see is_sure; minima and maxima are of
 * 16-bit halves. */
struct doubt {
    uint32_t differ; // bits of masters that the error may change
    uint32_t range;  // max. of |master| bits minus MASTER_LOW; zeros wrap around
    uint32_t near_m; // low half: min. distance of m from a rounding boundary
    uint32_t near_v; // the same of v; high half: min. of codes of v, plus NO_CODE
};

enum {
    MASTER_LOW = (127 - 80) << 7,
    MASTER_RANGE = 180 << 7,
    NEAR_M = 4,
    NEAR_V = 5,
    ULPS = 4,
    NO_CODE = 0x8700,
};

#define SLACK 0x1p-19F

/* x / 255, correctly rounded, for 0 and ordinary scales: one residual step (Markstein)
 * on the rounded inverse and a quotient that is off by less than 1 ulp. */
EXACT float
over_255(float x)
{
    const float inverse = 1.0F / 255.0F;
    float q = f_mul(x, inverse);
    return f_fma(f_fma(-255, q, x), inverse, q);
}

/* 255 / x, correctly rounded, for ordinary scales: x has 8 bits, so 1 / x is far from
 * rounding boundaries and comes out rounded, and then so does the quotient after the
 * residual step. */
EXACT float
factor_of(float x)
{
    float y = rough_inverse(x), q;
    y = f_fma(f_fma(-x, y, 1), y, y);
    q = f_mul(255, y);
    return f_fma(f_fma(-q, x, 255), y, q);
}

/* x + the 16 random bits of element i. */
EXACT uint32_t
plus_random(uint32_t x, const uint32_t words[8], int i)
{
    return u_dot2(words[i / 2], i % 2 ? 0x100 : 1, x);
}

struct updated {
    uint32_t master, v;
};

/* Update element i: its m and sqrt(v) go to p.  Returns the bits of v, which is not
 * negative, and the bits of the master plus random bits. */
EXACT struct updated
quick_update(struct piece *p, int i, float w, float grad, float unit, float m_scale,
             float clip, float keep, const uint32_t random[8],
             const struct share *shares, const struct hyper *h, struct doubt *d)
{
    uint32_t byte = 1U << i % 4 * 8;
    struct share share = *(const struct share *)((const char *)shares +
                                                 u_dot4(p->m[i / 4], SHARE * byte, 0));
    // 2^23 + code: the fma rounds code * unit once
    float code = f_from(u_dot4(p->v[i / 4], byte, 0x4b000000));
    float r = f_fma(code, unit, f_mul(unit, -0x1p23F)), g = f_mul(clip, grad);
    float m = f_fma(m_scale, share.high, f_mul(m_scale, share.low));
    m = f_add(f_mul(h->beta1, m), f_mul(h->one_minus_beta1, g));
    float v =
        f_add(f_mul(h->beta2, f_mul(r, r)), f_mul(h->one_minus_beta2, f_mul(g, g)));
    float root = rough_root(v);
    float change = f_mul(m, rough_inverse(f_fma(root, h->root, h->shift)));
    float next = f_fma(w, keep, -change);
    // |change| with the sign of next: the error bound is SLACK times it, and ULPS.
    float size = f_from(u_select(0x80000000, f_bits(next), f_bits(change)));
    uint32_t more = plus_random(ULPS, random, i);
    uint32_t above = f_bits(f_fma(size, SLACK, next)) + more;
    uint32_t below = f_bits(f_fma(size, -SLACK, next)) + more - 2 * ULPS;
    p->new_m[i] = m;
    p->root[i] = root;
    p->max_m = f_max(p->max_m, f_abs(m)); // drops NaN, which the master shows
    d->differ |= above ^ below;
    struct updated both = { above, f_bits(v) };
    return both;
}

/* First half of the update: moments and master. grad: 16 values; keep: as in struct hyper;
 * random: 8 words. */
EXACT void
fast_update(struct piece *p, const float grad[PIECE], float clip, float keep,
            const uint32_t random[8], const struct share *shares, const struct hyper *h,
            struct doubt *d)
{
    float unit = over_255(bf16_value(p->v_scale)), m_scale = bf16_value(p->m_scale);
    uint32_t max_v = 0;
    p->max_m = 0;
    EXACT_UNROLL
    for (int i = 0; i < PIECE; i += 2) {
        uint32_t word = p->w[i / 2];
        struct updated even = quick_update(p, i, f_from(word << 16), grad[i], unit,
                                           m_scale, clip, keep, random, shares, h, d);
        struct updated odd =
            quick_update(p, i + 1, f_from(word & 0xffff0000), grad[i + 1], unit,
                         m_scale, clip, keep, random, shares, h, d);
        max_v = u_max3(even.v, odd.v, max_v);
        p->w[i / 2] = u_bytes(even.master, odd.master, 0x7632);
        d->range =
            u_add_max2(p->w[i / 2] & 0x7fff7fff,
                       (uint32_t)-MASTER_LOW << 16 | (uint16_t)-MASTER_LOW, d->range);
    }
    p->max_v = f_from(max_v);
}

/* Byte 2 (bits 16 .. 23) of four words. */
EXACT uint32_t
third_bytes(const uint32_t x[4])
{
    return u_bytes(u_bytes(x[0], x[1], 0x0062), u_bytes(x[2], x[3], 0x0062), 0x5410);
}

/* Codes of v that came out as 0 become 1 in a group with v > 0, unless their v is 0. */
EXACT void
lift_zeros(struct piece *p, struct doubt *d)
{
    uint32_t one = p->max_v > 0 ? 0x01010101 : 0, min_root = 0xffffffff;
    EXACT_UNROLL
    for (int i = 0; i < PIECE / 4; i++) {
        uint32_t upper =
            (p->v[i] & 0x7f7f7f7f) + 0x7f7f7f7f; // bit 7: lower bits are not all 0
        p->v[i] |= ~(upper | p->v[i] | 0x7f7f7f7f) >> 7 & one;
    }
    EXACT_UNROLL
    for (int i = 0; i < PIECE; i += 2)
        min_root = u_min3(f_bits(p->root[i]), f_bits(p->root[i + 1]), min_root);
    d->differ |= min_root == 0 && one ? 0xffffffff : 0; // a v that is 0 or subnormal
}

/* NO_CODE + code of v in bits 16 on: twice the bits of the f32 and a half, plus the error
 * bound. */
EXACT uint32_t
code_bits_of_v(float root, float factor)
{
    return 2 * f_bits(f_fma(root, factor, 256)) + 0x8000 + NEAR_V;
}

/* Second half of the update: codes. max_m and max_v are now those of the group. */
EXACT void
fast_codes(struct piece *p, const uint32_t random[8], struct doubt *d)
{
    uint32_t up = f_bits(rough_root(p->max_v)) + 0xffff;
    // A maximum too large for a scale is not ordinary, either.
    p->m_scale = (f_bits(p->max_m) + 0xffff) >> 16;
    p->v_scale = up >> 16;
    d->differ |= p->max_v > 0 ? (up + ULPS) ^ (up - ULPS) : 0;
    float s = p->m_scale ? bf16_value(p->m_scale) : 1;
    float factor = p->v_scale ? factor_of(bf16_value(p->v_scale)) : 0;
    EXACT_UNROLL
    for (int i = 0; i < PIECE; i += 4) {
        uint32_t x[4], y[4];
        EXACT_UNROLL
        for (int k = 0; k < 4; k++) {
            // 1.5 * 2^23 + 2^15 * code: twice its bits plus random bits is 128 + code
            // from bit 16 on. The error bound is added, so that a value just above a
            // boundary is near it.
            float m = p->new_m[i + k];
            float share = f_mul(m, rough_inverse(f_add(s, f_abs(m))));
            float codes = f_fma(share, 0x1.fcp22F, 0x1.8p23F + 0.5F * NEAR_M);
            x[k] = plus_random(2 * f_bits(codes), random, i + k);
            y[k] = code_bits_of_v(p->root[i + k], factor);
        }
        p->m[i / 4] = third_bytes(x) ^ 0x80808080;
        p->v[i / 4] = third_bytes(y);
        d->near_m = u_min3_2(x[2], x[3], u_min3_2(x[0], x[1], d->near_m));
        d->near_v = u_min3_2(y[2], y[3], u_min3_2(y[0], y[1], d->near_v));
    }
    if (d->near_v >> 16 == NO_CODE)
        lift_zeros(p, d);
}

EXACT struct doubt
no_doubt(void)
{
    struct doubt d = { 0, 0, 0xffffffff, 0xffffffff };
    return d;
}

/* The maximum |master| as f32 bits, from the maximum of range + 1 over pieces that are
 * sure, both halves; 0 if there were none. */
EXACT uint32_t
max_of_ranges(uint32_t ranges)
{
    uint32_t low = ranges & 0xffff, high = ranges >> 16, max = low > high ? low : high;
    return max ? (max - 1 + MASTER_LOW) << 16 : 0;
}

/* Whether the bytes are certainly those of the exact path; scales: those that were
 * read. */
EXACT bool
is_sure(const struct piece *p, const struct doubt *d, uint32_t m_scale,
        uint32_t v_scale)
{
    // Integers, to avoid branches.
    uint32_t near_m = (d->near_m & 0xffff) < 2 * NEAR_M;
    uint32_t near_v = (d->near_v & 0xffff) < 2 * NEAR_V;
    uint32_t low = (d->range & 0xffff) < MASTER_RANGE, high = d->range >> 16;
    uint32_t inside = low & (uint32_t)(high < MASTER_RANGE);
    uint32_t m = ordinary(m_scale), new_m = ordinary(p->m_scale);
    uint32_t v = ordinary(v_scale), new_v = ordinary(p->v_scale);
    uint32_t same = d->differ >> 16 == 0;
    return !(near_m | near_v) && (inside & m & new_m & v & new_v & same);
}

#endif
