/* SPDX-License-Identifier: MIT */
/* adamw_math: the optimizer of kernels/cpu/adamw_kernel.c, for an element a thread, and for
 * a bf16 master with 8-bit moments also half a group of 32 a thread, which is faster.
 *
 * Both give the CPU's bytes.  The fast path computes m and v as they are defined, but goes
 * from there to the codes and to the new master with approximations.  What is stored are
 * a few upper bits of a number plus 16 random bits, so that an error of some units in the
 * last place nearly never changes them; where it could, the whole group is left to the definition:
 *
 *   code of m   off by at most 4 of 65536 parts of a code, 4.5 of a code of v
 *   master      by at most 18 * 2^-24 of the update and 3.2 units in the last place
 *
 * The bounds below are no less.  m itself is read as s hi + s lo, hi + lo
 * being q / (254 - |q|) to 48 bits: a quotient of 15 by 8 bits is no closer than 2^-9
 * units to where its rounding changes, so that this is rounded the same. */
#ifndef NIBBLE_KERNELS_CUDA_ADAMW_MATH_H
#define NIBBLE_KERNELS_CUDA_ADAMW_MATH_H

#include "kernels/cuda/exact.h"

#include <math.h>
#include <stdalign.h>

enum {
    GROUP = 32, // of 8-bit moments: elements with a scale
    PIECE = 16, // of a group: what a thread has
    CODES = 256,
    INFINITE = 0x7f800000,
    MAGNITUDE = 0x7fffffff,
    NAN_BF16 = 0x7fc0,
};

/* What all elements share. */
struct hyper {
    float lr, beta1, mine1, beta2, mine2, eps, decay, rest1, rest2;
    // For the fast path: lr / bias_correction1 and 2^-19 of it, 1 / sqrt(bias_correction2),
    // 1 - lr decay.
    float rate, slack, root2, keep;
    uint32_t key[2], row;
};

/* ---- by definition, an element ------------------------------------------------------- */

EXACT float
bf16_value(uint32_t bits)
{
    return f_from(bits << 16);
}

EXACT void
update(float *w, float *m, float *v, float grad, float clip, const struct hyper *h)
{
    float g = f_mul(clip, grad);
    *m = f_add(f_mul(h->beta1, *m), f_mul(h->mine1, g));
    *v = f_add(f_mul(h->beta2, *v), f_mul(h->mine2, f_mul(g, g)));
    float root = f_sqrt(f_div(*v, h->rest2));
    float u = f_div(f_div(*m, h->rest1), f_add(root, h->eps));
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

/* The scale for a largest magnitude, of which these are the bits: rounded up. */
EXACT uint32_t
scale_above(uint32_t most)
{
    uint32_t up = (most + 0xffff) >> 16;
    if (most >= INFINITE)
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

/* r: the root of v. */
EXACT uint32_t
code_v8(float r, uint32_t scale)
{
    float turns = f_div(255, bf16_value(scale));
    int code = (int)f_bits(f_add(f_mul(r, turns), 0x1p23F)) - 0x4b000000;
    if (no_scale(scale) || r == 0)
        return 0;
    return (uint32_t)(code < 1 ? 1 : code > 255 ? 255 : code);
}

/* ---- the fast path, half a group --------------------------------------------------------- */

/* On the host, before. */
static inline void
quick_terms(struct hyper *h)
{
    h->rate = h->lr / h->rest1;
    h->slack = fabsf(h->rate) * 0x1p-19F;
    h->root2 = 1 / sqrtf(h->rest2);
    h->keep = 1 - h->lr * h->decay;
}

/* Where the bounds were worked out. */
static inline bool
may_be_quick(const struct hyper *h)
{
    return h->eps >= 0x1p-33F && h->eps <= 1 && fabsf(h->lr) <= 1 && h->decay >= 0 &&
           fabsf(h->lr) * h->decay <= 0.125F && h->rest1 >= 0x1p-30F && h->rest1 <= 1 &&
           h->rest2 >= 0x1p-30F && h->rest2 <= 1;
}

/* A code's q / (254 - |q|), read at once. */
struct share {
    alignas(8) float high;
    float low;
};

enum { SHARE = sizeof(struct share) }; // bytes

EXACT struct share
share_of(uint32_t code)
{
    int q = code < 128 ? (int)code : (int)code - 256;
    float over = (float)(254 - (q < 0 ? -q : q)), high = f_div((float)q, over);
    struct share s = { high, f_div(f_fma(-high, over, (float)q), over) };
    return s;
}

/* 16 neighbours: what is stored, and what is between reading and writing it. */
struct piece {
    uint32_t w[PIECE / 2], m[PIECE / 4], v[PIECE / 4]; // bf16 and codes
    uint32_t m_scale, v_scale;
    float new_m[PIECE], root[PIECE]; // root: of v, about
    float most_m, most_v;            // largest magnitudes
};

/* bf16 between 2^-60 and 2^60; 0. */
EXACT bool
ordinary(uint32_t scale)
{
    return (scale == 0) | (scale - (67U << 7) < 120U << 7);
}

/* How sure what follows is: halves of words that must be below or not below a bound. */
struct doubt {
    uint32_t differ; // bits of masters that may be others
    uint32_t range;  // how far above 2^-80 a master is, largest: zeros are far
    uint32_t near_m; // how far above the bound of another code, least
    uint32_t near_v;
};

enum {
    MASTER_LOW = (127 - 80) << 7,
    MASTER_RANGE = 180 << 7, // up to 2^100
    NEAR_M = 4,
    NEAR_V = 5,
    ULPS = 4,
};

/* x / 255, of 0 and ordinary scales: from the rounded inverse and a quotient that is off by
 * less than a unit in the last place, one residual gives the rounded one (Markstein). */
EXACT float
over_255(float x)
{
    const float inverse = 1.0F / 255.0F;
    float q = f_mul(x, inverse);
    return f_fma(f_fma(-255, q, x), inverse, q);
}

/* 255 / x rounded, of ordinary scales: 1 / x comes out rounded, since with 8 bits of x it is
 * far from where its rounding changes, and so does what follows from the residual. */
EXACT float
turns_of(float x)
{
    float y = rough_inverse(x), q;
    y = f_fma(f_fma(-x, y, 1), y, y);
    q = f_mul(255, y);
    return f_fma(f_fma(-q, x, 255), y, q);
}

/* What a half of a word of random bits adds to x. */
EXACT uint32_t
plus_random(uint32_t x, const uint32_t words[8], int i)
{
    return u_dot2(words[i / 2], i % 2 ? 0x100 : 1, x);
}

struct updated {
    uint32_t master, v;
};

/* Element i: new m, root of v and master; returns v, which is not negative, and the bits of
 * master plus random bits. */
EXACT struct updated
quick_update(struct piece *p, int i, float w, float grad, float unit, float m_scale,
             float clip, const uint32_t random[8], const struct share *shares,
             const struct hyper *h, struct doubt *d)
{
    uint32_t byte = 1U << i % 4 * 8;
    struct share share = *(const struct share *)((const char *)shares +
                                                 u_dot4(p->m[i / 4], SHARE * byte, 0));
    // 2^23 + code, whose product is rounded once, as the code's own.
    float code = f_from(u_dot4(p->v[i / 4], byte, 0x4b000000));
    float r = f_fma(code, unit, f_mul(unit, -0x1p23F)), g = f_mul(clip, grad);
    float m = f_fma(m_scale, share.high, f_mul(m_scale, share.low));
    m = f_add(f_mul(h->beta1, m), f_mul(h->mine1, g));
    float v = f_add(f_mul(h->beta2, f_mul(r, r)), f_mul(h->mine2, f_mul(g, g)));
    float root = rough_root(v);
    float u = f_mul(m, rough_inverse(f_fma(root, h->root2, h->eps)));
    float next = f_fma(u, -h->rate, f_mul(w, h->keep));
    // The magnitude may be larger or smaller by this.
    float size = f_from(u_select(0x80000000, f_bits(next), f_bits(u)));
    uint32_t more = plus_random(ULPS, random, i);
    uint32_t above = f_bits(f_fma(size, h->slack, next)) + more;
    uint32_t below = f_bits(f_fma(size, -h->slack, next)) + more - 2 * ULPS;
    p->new_m[i] = m;
    p->root[i] = root;
    p->most_m = f_max(p->most_m, f_abs(m)); // not a NaN, which is seen in the master
    d->differ |= above ^ below;
    struct updated both = { above, f_bits(v) };
    return both;
}

/* The first half: moments and master.  grad: 16; random: 8 words. */
EXACT void
quick_first(struct piece *p, const float grad[PIECE], float clip,
            const uint32_t random[8], const struct share *shares, const struct hyper *h,
            struct doubt *d)
{
    float unit = over_255(bf16_value(p->v_scale)), m_scale = bf16_value(p->m_scale);
    uint32_t most_v = 0;
    p->most_m = 0;
    EXACT_UNROLL
    for (int i = 0; i < PIECE; i += 2) {
        uint32_t word = p->w[i / 2];
        struct updated even = quick_update(p, i, f_from(word << 16), grad[i], unit,
                                           m_scale, clip, random, shares, h, d);
        struct updated odd =
            quick_update(p, i + 1, f_from(word & 0xffff0000), grad[i + 1], unit,
                         m_scale, clip, random, shares, h, d);
        most_v = u_max3(even.v, odd.v, most_v);
        p->w[i / 2] = u_bytes(even.master, odd.master, 0x7632);
        d->range =
            u_add_max2(p->w[i / 2] & 0x7fff7fff,
                       (uint32_t)-MASTER_LOW << 16 | (uint16_t)-MASTER_LOW, d->range);
    }
    p->most_v = f_from(most_v);
}

/* The byte of bits 16 .. 23 of four words. */
EXACT uint32_t
third_bytes(const uint32_t x[4])
{
    return u_bytes(u_bytes(x[0], x[1], 0x0062), u_bytes(x[2], x[3], 0x0062), 0x5410);
}

/* Codes of v that came out as 0: of a group that has others, 1 unless v is 0. */
EXACT void
lift_zeros(struct piece *p, struct doubt *d)
{
    uint32_t one = p->most_v > 0 ? 0x01010101 : 0, least = 0xffffffff;
    EXACT_UNROLL
    for (int i = 0; i < PIECE / 4; i++) {
        uint32_t upper =
            (p->v[i] & 0x7f7f7f7f) + 0x7f7f7f7f; // bit 7: the lower bits are not 0
        p->v[i] |= ~(upper | p->v[i] | 0x7f7f7f7f) >> 7 & one;
    }
    EXACT_UNROLL
    for (int i = 0; i < PIECE; i += 2)
        least = u_min3(f_bits(p->root[i]), f_bits(p->root[i + 1]), least);
    d->differ |= least == 0 && one ? 0xffffffff : 0; // a v of 0, or no ordinary number
}

/* 256 + code of v: twice its bits and a half, larger by the bound. */
EXACT uint32_t
steps_of_v(float root, float turns)
{
    return 2 * f_bits(f_fma(root, turns, 256)) + 0x8000 + NEAR_V;
}

/* The second half: codes.  most_m and most_v are now those of the group. */
EXACT void
quick_codes(struct piece *p, const uint32_t random[8], struct doubt *d)
{
    uint32_t up = f_bits(rough_root(p->most_v)) + 0xffff, zeros = 0;
    // What is too large for a scale is not ordinary, either.
    p->m_scale = (f_bits(p->most_m) + 0xffff) >> 16;
    p->v_scale = up >> 16;
    d->differ |= p->most_v > 0 ? (up + ULPS) ^ (up - ULPS) : 0;
    float s = p->m_scale ? bf16_value(p->m_scale) : 1;
    float turns = p->v_scale ? turns_of(bf16_value(p->v_scale)) : 0;
    EXACT_UNROLL
    for (int i = 0; i < PIECE; i += 4) {
        uint32_t x[4], y[4];
        EXACT_UNROLL
        for (int k = 0; k < 4; k++) {
            // 1.5 * 2^23 + 2^15 codes: twice its bits and random ones are 128 + code from
            // bit 16 on, larger by the bound: what is a little above a code is near it.
            float m = p->new_m[i + k];
            float share = f_mul(m, rough_inverse(f_add(s, f_abs(m))));
            float codes = f_fma(share, 0x1.fcp22F, 0x1.8p23F + 0.5F * NEAR_M);
            x[k] = plus_random(2 * f_bits(codes), random, i + k);
            y[k] = steps_of_v(p->root[i + k], turns);
        }
        p->m[i / 4] = third_bytes(x) ^ 0x80808080;
        p->v[i / 4] = third_bytes(y);
        zeros |= (p->v[i / 4] - 0x01010101) & ~p->v[i / 4];
        d->near_m = u_min3_2(u_bytes(x[0], x[1], 0x5410), u_bytes(x[2], x[3], 0x5410),
                             d->near_m);
        d->near_v = u_min3_2(u_bytes(y[0], y[1], 0x5410), u_bytes(y[2], y[3], 0x5410),
                             d->near_v);
    }
    if (zeros & 0x80808080)
        lift_zeros(p, d);
}

EXACT struct doubt
no_doubt(void)
{
    struct doubt d = { 0, 0, 0xffffffff, 0xffffffff };
    return d;
}

/* The largest master of pieces that are sure, as bits of an f32, from the largest of their
 * ranges and 1, both halves; 0 of none. */
EXACT uint32_t
most_of_ranges(uint32_t ranges)
{
    uint32_t low = ranges & 0xffff, high = ranges >> 16, most = low > high ? low : high;
    return most ? (most - 1 + MASTER_LOW) << 16 : 0;
}

EXACT bool
halves_below(uint32_t words, uint32_t bound)
{
    return ((words & 0xffff) < bound) | (words >> 16 < bound);
}

/* Whether the bytes are the right ones; scales: those that were read. */
EXACT bool
is_sure(const struct piece *p, const struct doubt *d, uint32_t m_scale,
        uint32_t v_scale)
{
    // As numbers, so that nothing branches.
    uint32_t near_m = halves_below(d->near_m, 2 * NEAR_M);
    uint32_t near_v = halves_below(d->near_v, 2 * NEAR_V);
    uint32_t low = (d->range & 0xffff) < MASTER_RANGE, high = d->range >> 16;
    uint32_t inside = low & (uint32_t)(high < MASTER_RANGE);
    uint32_t m = ordinary(m_scale), new_m = ordinary(p->m_scale);
    uint32_t v = ordinary(v_scale), new_v = ordinary(p->v_scale);
    uint32_t same = d->differ >> 16 == 0;
    return !(near_m | near_v) && (inside & m & new_m & v & new_v & same);
}

#endif
