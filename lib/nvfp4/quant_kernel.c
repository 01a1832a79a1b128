/* SPDX-License-Identifier: MIT */
/* quant_kernel: the quantizers of quant.c for LANES blocks at a time, compiled once for
 * each instruction set (ISA) with GCC's vector types.
 *
 * A vector holds the same column of LANES blocks, so every lane does what quant.c does
 * for its block, in the same order: the bytes are the same.  Three short cuts are
 * exact:
 *
 * - The code of a magnitude y: adding 1.5 * 2^22 * P, with P the power of two at or below
 *   y (1, 2 or 4), leaves y in steps of P/2, ties to even: the E2M1 grid, whose even
 *   multiples have the even codes.
 * - Whether a is above t * s, for a threshold t and a scale s of few bits, can be read
 *   off the rounded quotient: if a is not t * s, a/s differs from t by more than half a
 *   unit of t's last place.
 * - The best scale of a sweep is looked for with errors that are good to 2^-16; a block
 *   in which another scale comes that close is left to quant.c.
 */
#include "lib/nvfp4/quant_kernel.h"

#include "lib/base/num.h"
#include "lib/base/vec.h"

#include <float.h>
#include <string.h>

enum { N = NVFP4_BLOCK };

/* 8 where the sign bit is set. */
static inline vi
sign_bit(vf x)
{
    return (vi)((vu)x >> 28) & 8;
}

/* ---- codecs ------------------------------- */

/* The value of scale bytes 0 .. 0x7e: their bits in place of a float's, exponents 120
 * too small. */
static inline vf
scale_value(vi c)
{
    return (vf)(c << 20) * 0x1p120F;
}

/* The byte of x in 0 .. 448, ties to even. */
static inline vi
scale_byte(vf x)
{
    vu bits = (vu)x;
    vi normal = (vi)((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
    vi tiny = (vi)(x + 0x1p14F) - (vi)all(0x1p14F); // steps of 2^-9
    return choose_i(x < all(0x1p-6F), tiny, normal);
}

/* y in steps of E2M1 as bits of a float, see above; y is at most 6. */
struct grid {
    vf shifted, shift;
};

static inline struct grid
to_grid(vf y)
{
    vf power = most_of((vf)((vi)y & 0x7f800000), all(1));
    vf shift = power * 0x1.8p22F;
    return (struct grid){ y + shift, shift };
}

static inline vi
grid_code(struct grid g)
{
    // The low bits count steps, the exponent is their width.
    return ((vi)g.shifted & 7) + (vi)((vu)g.shifted >> 22) - ((127 + 22) * 2 + 1);
}

static inline vf
grid_value(struct grid g)
{
    return g.shifted - g.shift;
}

static inline struct grid
nearest_even(vf y)
{
    return to_grid(least_of(y, all(6)));
}

/* Ties away from zero. */
static inline vi
code_away(vf y)
{
    return -((y >= all(0.25F)) + (y >= all(0.75F)) + (y >= all(1.25F)) +
             (y >= all(1.75F)) + (y >= all(2.5F)) + (y >= all(3.5F)) +
             (y >= all(5.0F)));
}

static inline vf
code_value(vi code)
{
    vi m = code & 7; // 0 .. 3 are halves, from 4 on two codes share an exponent
    vf low = __builtin_convertvector(m, vf) * 0.5F;
    vf high = (vf)((m + 252) << 22);
    return choose_f(m < 4, low, high);
}

/* a / s, rounded so that it lies on the same side of every threshold as the exact
 * quotient; inverse is 1 / s.  Scales have few bits, see above. */
static inline vf
quotient(vf a, vf s, vf inverse)
{
#if defined __AVX2__ || defined __aarch64__
    vf q = a * inverse;
    return plus_product(q, minus_product(a, q, s), inverse);
#else
    (void)inverse;
    return a / s;
#endif
}

/* ---- tiles: LANES blocks, transposed: a vector is a column ------------------------------- */

struct tile {
    vf x[N];
    vf weight[N]; // of the errors, if the quantizer has weights
    vf amax;
    vi code[N]; // with sign
    vi c;       // scale bytes
};

static inline void
load_columns(vf column[N], const float *x)
{
    for (int part = 0; part < N; part += LANES) {
        for (int lane = 0; lane < LANES; lane++)
            column[part + lane] = load(x + lane * N + part);
        transpose(column + part);
    }
}

static inline void
load_tile(struct tile *t, const float *x, const float *weight)
{
    load_columns(t->x, x);
    if (weight)
        load_columns(t->weight, weight);
    t->amax = magnitude(t->x[0]);
    for (int i = 1; i < N; i++)
        t->amax = most_of(t->amax, magnitude(t->x[i]));
}

static inline void
store_tile(const struct tile *t, uint8_t *codes, uint8_t *scales)
{
    vu half[2] = { { 0 } };
    for (int i = 0; i < N; i++)
        half[i / 8] |= (vu)t->code[i] << (i % 8 * 4);
    for (int lane = 0; lane < LANES; lane++) {
        store_le32(codes + lane * 8, half[0][lane]);
        store_le32(codes + lane * 8 + 4, half[1][lane]);
        scales[lane] = (uint8_t)t->c[lane];
    }
}

/* ---- the quantizers ------------------------------- */

static inline void
torchao(struct tile *t)
{
    vf amax = (vf){ 0 };
    vf x[N];
    for (int i = 0; i < N; i++) { // to bf16 and back
        vu bits = (vu)t->x[i];
        x[i] = (vf)((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
        amax = most_of(amax, magnitude(x[i]));
    }
    t->c = scale_byte(least_of(most_of(amax / 6.0F, all(0x1p-6F)), all(448)));
    vf s = scale_value(t->c), inverse = 1.0F / s;
    for (int i = 0; i < N; i++) { // bf16 of the largest floats is infinite
        vf a = least_of(magnitude(x[i]), all(FLT_MAX));
        vf y = quotient(a, s, inverse);
        t->code[i] = grid_code(nearest_even(y)) | sign_bit(x[i]);
    }
}

static inline void
native(struct tile *t, enum dtype source)
{
    vf want = t->amax / 6.0F;
    for (int lane = 0; lane < LANES; lane++)
        if (source == DT_BF16)
            want[lane] = num_from_bf16(num_to_bf16(want[lane]));
        else if (source == DT_F16)
            want[lane] = num_from_f16(num_to_f16(want[lane]));
    t->c = scale_byte(least_of(most_of(want, all(0x1p-16F)), all(448)));
    vf s = scale_value(t->c) + 1e-12F;
    for (int i = 0; i < N; i++) {
        vf y = t->x[i] / s;
        t->code[i] = code_away(magnitude(y)) | (8 & (y < all(0)));
    }
}

static inline void
max_te(struct tile *t, const struct quant_scale *q)
{
    const float sixth = 1.0F / 6.0F, factor = q->enc * sixth;
    vf want = q->given ? q->enc * (t->amax * sixth) : t->amax * factor;
    t->c = scale_byte(least_of(want, all(448)));
    vf enc = least_of(1.0F / (scale_value(t->c) * q->scale2), all(FLT_MAX));
    for (int i = 0; i < N; i++) {
        vf y = magnitude(t->x[i] * enc);
        t->code[i] = grid_code(nearest_even(y)) | sign_bit(t->x[i]);
    }
}

static inline void
max_modelopt(struct tile *t, const struct quant_scale *q)
{
    vf want = t->amax / (6.0F * q->scale2);
    vi c = scale_byte(least_of(most_of(want, all(0x1p-9F)), all(448)));
    t->c = choose_i(t->amax == all(0), (vi)all(0) + 0x38, c);
    vf s = scale_value(t->c) * q->scale2;
    for (int i = 0; i < N; i++) {
        // s may be 0 where the tensor's values are the smallest floats: 0 stays 0.
        vf y = (vf)((vi)magnitude(t->x[i] / s) & (t->x[i] != all(0)));
        t->code[i] = grid_code(nearest_even(y)) | (8 & (t->x[i] < all(0)));
    }
}

static inline vf
try_4over6(const struct tile *t, vi *code, vi c, const struct quant_scale *q, bool mae,
           bool weighted)
{
    vf d = scale_value(c);
    vf enc = least_of(1.0F / (d * q->scale2), all(FLT_MAX));
    vf err = { 0 };
    for (int i = 0; i < N; i++) {
        struct grid g = nearest_even(magnitude(t->x[i] * enc));
        vf value = ((grid_value(g) * d) * q->amax) / 1536.0F;
        vf diff = value - magnitude(t->x[i]);
        code[i] = grid_code(g) | sign_bit(t->x[i]);
        vf r = mae ? magnitude(diff) : diff * diff;
        err += weighted ? r * t->weight[i] : r;
    }
    return err;
}

static inline void
four_over_six(struct tile *t, const struct quant_scale *q, bool mae, bool weighted)
{
    vf base = (t->amax / 6.0F) * q->enc;
    vi c6 = scale_byte(least_of(base, all(448)));
    vi c4 = scale_byte(least_of(base * 1.5F, all(448)));
    vi code4[N];
    vf err6 = try_4over6(t, t->code, c6, q, mae, weighted);
    vf err4 = try_4over6(t, code4, c4, q, mae, weighted);
    vi four = err4 < err6;
    t->c = choose_i(four, c4, c6);
    for (int i = 0; i < N; i++)
        t->code[i] = choose_i(four, code4[i], t->code[i]);
}

/* The error at scale s to within 2^-16. */
static inline vf
rough_error(const vf a[N], vf s, const vf *weight)
{
    vf inverse = 1.0F / s;
    vf err[2] = { { 0 } };
    for (int i = 0; i < N; i++) {
        vf d = minus_product(a[i], grid_value(nearest_even(a[i] * inverse)), s);
        err[i % 2] = plus_product(err[i % 2], d, weight ? d * weight[i] : d);
    }
    return err[0] + err[1];
}

static inline vi
is_fp8_scale(vi c)
{
    vi set = choose_i(c < 32, (vi){ 0 } + QUANT_FP8_LOW, (vi){ 0 } + QUANT_FP8_HIGH);
    return -(set >> (c & 31) & 1);
}

/* The smallest byte from c on with a significand of 1, 1.25 or 1.5. */
static inline vi
fp8_from(vi c)
{
    vi even = (c + 1) & ~1;
    return even + (2 & ((even & 6) == 6));
}

/* The scale bytes that a sweep tries: n of them, those above last left out. */
struct scales {
    vi first, last;
    int n;
};

static inline struct scales
scales_around(vi c0, bool fp8, bool exhaustive)
{
    vi zero = { 0 };
    if (exhaustive)
        return (struct scales){ zero + 1, zero + QUANT_LAST_SCALE, QUANT_LAST_SCALE };
    if (!fp8)
        return (struct scales){ c0 - 2, c0 + 6, 9 };
    c0 = choose_i(c0 < QUANT_FP8_FIRST, zero + QUANT_FP8_FIRST, c0);
    return (struct scales){ fp8_from(c0 - 3), c0 + 6, 4 };
}

/* The lanes in which the choice is in doubt. */
static inline vi
sweep(struct tile *t, const struct quant_scale *q, bool fp8, bool exhaustive,
      bool weighted)
{
    vf a[N];
    for (int i = 0; i < N; i++)
        a[i] = magnitude(t->x[i] * q->enc);
    vi c0 = scale_byte(least_of((t->amax / 6.0F) * q->enc, all(448)));
    vf best = all(FLT_MAX), second = all(FLT_MAX);
    struct scales tries = scales_around(c0, fp8, exhaustive);
    vi c = { 0 }, now = tries.first;
    for (int k = 0; k < tries.n; k++) {
        vi legal = (now >= 1) & (now <= QUANT_LAST_SCALE);
        if (fp8)
            legal &= is_fp8_scale(now) & (now <= tries.last);
        vf err = rough_error(a, scale_value(choose_i(legal, now, (vi){ 0 } + 1)),
                             weighted ? t->weight : NULL);
        err = choose_f(legal, least_of(err, all(FLT_MAX)), all(FLT_MAX));
        second = least_of(second, most_of(best, err));
        c = choose_i(err < best, now, c);
        best = least_of(best, err);
        now = fp8 && !exhaustive ? fp8_from(now + 1) : now + 1;
    }
    vi zero = t->amax == all(0);
    t->c = choose_i(zero, (vi){ 0 }, choose_i(c == 0, (vi){ 0 } + 1, c));
    vf s = choose_f(zero, all(1), scale_value(t->c)), inverse = 1.0F / s;
    for (int i = 0; i < N; i++) {
        vf y = quotient(a[i], s, inverse);
        t->code[i] = grid_code(nearest_even(y)) | sign_bit(t->x[i]);
    }
    // Weighted squares are multiplied in another order, and so overflow elsewhere.
    vi large = weighted ? t->amax * q->enc > all(0x1p59F) : (vi){ 0 };
    return ~zero & ((second <= best * (1 + 0x1p-14F)) | (best < all(1e-30F)) | large);
}

/* ---- all of them ------------------------------- */

/* Blocks that the vectors could not decide, one by one. */
static void
settle_doubt(vi doubt, uint8_t *codes, uint8_t *scales, const float *x,
             const float *weight, const struct quant_spec *spec,
             const struct quant_scale *q)
{
    for (int lane = 0; lane < LANES; lane++) {
        struct quant_spec one = *spec;
        one.column_weight = weight ? weight + lane * N : NULL;
        if (doubt[lane])
            nvfp4_quant_scalar(codes + lane * (N / 2), scales + lane, x + lane * N, 1,
                               N, 0, &one, q, NULL);
    }
}

static inline bool
any(vi mask)
{
    int32_t some = 0;
    for (int lane = 0; lane < LANES; lane++)
        some |= mask[lane];
    return some != 0;
}

static inline void
quant_tile(uint8_t *codes, uint8_t *scales, const float *x, const float *weight,
           struct tile *t, const struct quant_spec *spec, const struct quant_scale *q)
{
    vi doubt = { 0 };
    load_tile(t, x, weight);
    switch (spec->kind) {
    case QUANT_TORCHAO:
        torchao(t);
        break;
    case QUANT_NATIVE:
        native(t, spec->source);
        break;
    case QUANT_MAX:
        if (spec->modelopt)
            max_modelopt(t, q);
        else
            max_te(t, q);
        break;
    case QUANT_4OVER6:
        four_over_six(t, q, spec->mae, weight != NULL);
        break;
    case QUANT_SWEEPFP8:
        doubt = sweep(t, q, true, spec->exhaustive, weight != NULL);
        break;
    default:
        doubt = sweep(t, q, false, spec->exhaustive, weight != NULL);
    }
    store_tile(t, codes, scales);
    if (any(doubt)) {
        settle_doubt(doubt, codes, scales, x, weight, spec, q);
        for (int lane = 0; lane < LANES; lane++) { // for the costs
            t->c[lane] = scales[lane];
            for (int i = 0; i < N; i++)
                t->code[i][lane] = codes[lane * 8 + i / 2] >> (i % 2 * 4) & 15;
        }
    }
}

static inline void
measure_tile(const struct tile *t, const struct quant_scale *q,
             const struct quant_costs *costs, size_t at)
{
    vf noise = { 0 }, signal = { 0 }, largest = { 0 };
    vf s = scale_value(t->c);
    for (int i = 0; i < N; i++) {
        vf x = magnitude(t->x[i]);
        vf d = code_value(t->code[i]) * s * q->scale2 - x;
        vf du = d * costs->unit, xu = x * costs->unit;
        noise += du * du;
        signal += xu * xu;
        largest = most_of(largest, magnitude(du));
    }
    memcpy(costs->noise + at, &noise, sizeof noise);
    memcpy(costs->signal + at, &signal, sizeof signal);
    memcpy(costs->largest + at, &largest, sizeof largest);
    memcpy(costs->amax + at, &t->amax, sizeof t->amax);
}

/* The last blocks, fewer than LANES: as a whole tile beside the real one. */
static void
quant_tail(uint8_t *codes, uint8_t *scales, const float *x, const float *weight,
           size_t n, const struct quant_spec *spec, const struct quant_scale *q,
           const struct quant_costs *costs, size_t at)
{
    float padded[LANES * N] = { 0 }, weights[LANES * N] = { 0 };
    float cost[4][LANES];
    uint8_t more_codes[LANES * N / 2], more_scales[LANES];
    struct quant_costs mine = { cost[0], cost[1], cost[2], cost[3], costs->unit };
    struct tile t;
    memcpy(padded, x, n * N * sizeof *x);
    if (weight)
        memcpy(weights, weight, n * N * sizeof *weight);
    quant_tile(more_codes, more_scales, padded, weight ? weights : NULL, &t, spec, q);
    memcpy(codes, more_codes, n * N / 2);
    memcpy(scales, more_scales, n);
    if (!costs->noise)
        return;
    measure_tile(&t, q, &mine, 0);
    memcpy(costs->noise + at, mine.noise, n * sizeof(float));
    memcpy(costs->signal + at, mine.signal, n * sizeof(float));
    memcpy(costs->largest + at, mine.largest, n * sizeof(float));
    memcpy(costs->amax + at, mine.amax, n * sizeof(float));
}

void
NAME(nvfp4_kernel)(uint8_t *codes, uint8_t *scales, const float *x, size_t blocks,
                   const struct quant_spec *spec, const struct quant_scale *q,
                   const struct quant_costs *costs)
{
    size_t b = 0;
    const float *weight = spec->column_weight;
    for (; b + LANES <= blocks; b += LANES) {
        struct tile t;
        quant_tile(codes + b * (N / 2), scales + b, x + b * N,
                   weight ? weight + b * N : NULL, &t, spec, q);
        if (costs->noise)
            measure_tile(&t, q, costs, b);
    }
    if (b < blocks)
        quant_tail(codes + b * (N / 2), scales + b, x + b * N,
                   weight ? weight + b * N : NULL, blocks - b, spec, q, costs, b);
}
