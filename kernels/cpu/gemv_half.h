/* SPDX-License-Identifier: MIT */
/* gemv_half: rows of NVFP4 against a few rows of x with AVX2, by way of f16.  Only for
 * gemv_kernel.c, whose sums these are: a lane is a row, products come in the order of k.
 *
 * A weight is code * scale * tensor scale, rounded where the tensor scale comes in.  What
 * counts is how few instructions that is, and for which units of the processor:
 *
 *   The product with the scale is one of integers, 16 at once: twice the code, which is at
 *   most 12, times the scale's mantissa without its twos, which is odd, at most 15.  That
 *   and a sign above it is a denormal of f16, so to load it as f16 makes a float of it,
 *   by units that do not multiply.  An odd factor leaves the sign where it is, and a zero
 *   keeps its own.
 *   What is left of the scale is a power of two, by which the tensor scale is multiplied
 *   without rounding, once for a block.
 *
 * So two instructions a vector multiply floats, two in a cycle; zips, look-ups and products
 * of integers come before, for 64 columns, and take about as long.  To do the one between
 * the other is slower, since then both wait in the same queues.
 *
 * Rows are turned by zips within halves of vectors; such a half has a column of 16 rows,
 * the other half the column that is 32 further. */
#ifndef NIBBLE_KERNELS_CPU_GEMV_HALF_H
#define NIBBLE_KERNELS_CPU_GEMV_HALF_H

#include "kernels/cpu/codes.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/sizes.h"

enum {
    HALF_VECS = 4,
    HALF_ROWS = HALF_VECS * LANES,
    HALF_PART = 64,                // columns that are decoded together
    HALF_BYTES = HALF_PART / 2,    // of a row
    HALF_SCALES = 16 * HALF_BYTES, // columns whose scales are turned together
    HALF_SUMS = 8,                 // vectors
    HALF_AHEAD = 3,                // lines of the cache
};

/* Numbers of 8 rows, of one column and of the one 32 behind it. */
struct half_pair {
    _Alignas(32) uint16_t at[2][LANES];
};

/* 32 bytes of all rows, turned: number i and i + 16 of 16 rows. */
struct half_turned {
    __m256i at[2][16];
};

struct half {
    const struct gemv *g;
    size_t row, end; // the first of these rows; the end of those that follow
    float factor;
    size_t stride, scale_stride; // bytes from row to row
    const uint8_t *codes;        // of this row
    const uint8_t *soon;         // what is fetched
    struct half_turned code, scale;
    struct half_pair odd[2][HALF_VECS], power[2][HALF_VECS], value[32][HALF_VECS];
    _Alignas(64) float sum[GEMV_MAX][HALF_ROWS];
};

/* ---- turning ------------------------------------------------------------------------------ */

static inline void
half_zip(__m256i to[16], const __m256i v[16])
{
    for (size_t i = 0; i < 8; i++) {
        to[2 * i] = _mm256_unpacklo_epi8(v[i], v[i + 8]);
        to[2 * i + 1] = _mm256_unpackhi_epi8(v[i], v[i + 8]);
    }
}

static inline void
half_turn(struct half_turned *to, const uint8_t *p, size_t stride)
{
    for (size_t h = 0; h < 2; h++) {
        __m256i v[16], t[16];
        for (size_t i = 0; i < 16; i++, p += stride)
            v[i] = _mm256_loadu_si256((const void *)p);
        for (int round = 0; round < 4; round += 2) {
            half_zip(t, v);
            half_zip(v, t);
        }
        for (size_t i = 0; i < 16; i++)
            _mm256_store_si256(&to->at[h][i], v[i]);
    }
}

/* rows parts of n <= HALF_BYTES bytes; what is not there becomes 0. */
static inline void
half_make(struct half_turned *to, const uint8_t *p, size_t stride, size_t rows,
          size_t n)
{
    uint8_t padded[HALF_ROWS][HALF_BYTES];
    if (n < HALF_BYTES || rows < HALF_ROWS) {
        pad(*padded, HALF_ROWS, HALF_BYTES, p, stride, rows, n);
        p = *padded;
        stride = HALF_BYTES;
    }
    half_turn(to, p, stride);
}

/* ---- decoding ----------------------------------------------------------------------------- */

static inline __m256i
half_look_up(const int8_t table[16], __m256i index)
{
    __m128i half = _mm_load_si128((const void *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(half), index);
}

/* Lower and upper bytes of 16 rows, together. */
static inline void
half_store(struct half_pair to[2], __m256i low, __m256i high)
{
    _mm256_store_si256((void *)&to[0], _mm256_unpacklo_epi8(low, high));
    _mm256_store_si256((void *)&to[1], _mm256_unpackhi_epi8(low, high));
}

/* 16 rows, scale number i of theirs and number i + 2: E4M3 without sign, which is no NaN. */
static inline __m256i
half_scale(const struct half_turned *scale, size_t h, size_t i)
{
    const __m128i *p = (const void *)scale->at[h];
    __m256i one = _mm256_castsi128_si256(_mm_load_si128(p + i % 16 * 2 + i / 16));
    i += 2;
    return _mm256_inserti128_si256(one, _mm_load_si128(p + i % 16 * 2 + i / 16), 1);
}

/* Scales from number i on: their odd parts, and powers of two as f16. */
static inline void
half_scales(struct half *s, size_t i)
{
    // By the mantissa; from 8 on that of denormals.  Exponents of twos are f16's.
    static const _Alignas(16)
        int8_t odds[16] = { 1, 9, 5, 11, 3, 13, 7, 15, 1, 1, 1, 3, 1, 5, 3, 7 };
    static const _Alignas(16)
        int8_t twos[16] = { 12, 0, 4, 0, 8, 0, 4, 0, 0, 4, 8, 4, 12, 4, 8, 4 };
    const __m256i zero = _mm256_setzero_si256(), eight = _mm256_set1_epi8(8);
    for (size_t b = 0; b < 2; b++)
        for (size_t h = 0; h < 2; h++) {
            __m256i scale = half_scale(&s->scale, h, i + b);
            __m256i low = _mm256_and_si256(scale, _mm256_set1_epi8(7));
            __m256i small = _mm256_cmpgt_epi8(eight, scale);
            __m256i which = _mm256_or_si256(low, _mm256_and_si256(small, eight));
            __m256i two = _mm256_srli_epi16(scale, 1);
            two = _mm256_and_si256(two, _mm256_set1_epi8(0x3c));
            two = _mm256_add_epi8(two, half_look_up(twos, which));
            half_store(s->odd[b] + 2 * h, half_look_up(odds, which), zero);
            half_store(s->power[b] + 2 * h, zero, two);
        }
}

/* Of 16 rows a column: twice the magnitude below the sign, times the scale's odd part. */
static inline void
half_numbers(struct half_pair to[2], __m256i twice, __m256i sign,
             const struct half_pair odd[2])
{
    __m256i first = _mm256_unpacklo_epi8(twice, sign);
    __m256i second = _mm256_unpackhi_epi8(twice, sign);
    first = _mm256_mullo_epi16(first, _mm256_load_si256((const void *)&odd[0]));
    second = _mm256_mullo_epi16(second, _mm256_load_si256((const void *)&odd[1]));
    _mm256_store_si256((void *)&to[0], first);
    _mm256_store_si256((void *)&to[1], second);
}

static inline void
half_decode(struct half *s)
{
    static const _Alignas(16)
        int8_t twices[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, 1, 2, 3, 4, 6, 8, 12 };
    static const _Alignas(16)
        int8_t signs[16] = { 0,    0,    0,    0,    0,    0,    0,    0,
                             -128, -128, -128, -128, -128, -128, -128, -128 };
    const __m256i low = _mm256_set1_epi8(15);
    for (size_t i = 0; i < 16; i++)
        for (size_t h = 0; h < 2; h++) {
            __m256i two = s->code.at[h][i], first = _mm256_and_si256(two, low);
            __m256i second = _mm256_and_si256(_mm256_srli_epi16(two, 4), low);
            const struct half_pair *odd = s->odd[i / 8] + 2 * h;
            half_numbers(s->value[2 * i] + 2 * h, half_look_up(twices, first),
                         half_look_up(signs, first), odd);
            half_numbers(s->value[2 * i + 1] + 2 * h, half_look_up(twices, second),
                         _mm256_and_si256(two, _mm256_set1_epi8(-128)), odd);
        }
}

/* ---- products ----------------------------------------------------------------------------- */

static inline vf
half_load(const struct half_pair *from, size_t which)
{
    return (vf)_mm256_cvtph_ps(_mm_load_si128((const void *)from->at[which]));
}

/* A block's share of the lines that are fetched. */
static inline void
half_fetch(const struct half *s, size_t block)
{
    enum { EACH = HALF_ROWS / 8 }; // blocks in a line
    const uint8_t *p = s->soon + block * EACH * s->stride;
    for (size_t i = 0; i < EACH; i++, p += s->stride)
        __builtin_prefetch(p);
}

/* n columns from k on, a part or less, for some rows of x and some vectors of sums: those
 * that fit into registers.  What is a number here is known where this is inlined. */
static inline __attribute__((always_inline)) void
half_products(struct half *s, size_t token, size_t tokens, size_t from, size_t vecs,
              size_t k, size_t n)
{
    const float *x = s->g->x + token * s->g->w->cols + k;
    vf sum[HALF_SUMS], scale[HALF_VECS];
    for (size_t i = 0; i < tokens * vecs; i++)
        sum[i] = load(s->sum[token + i / vecs] + (from + i % vecs) * LANES);
    for (size_t block = 0; block < n / 16; block++) {
        const struct half_pair(*value)[HALF_VECS] = s->value + block % 2 * 16;
        if (token == 0 && from == 0)
            half_fetch(s, k / 16 % 8 + block);
        for (size_t v = 0; v < vecs; v++)
            scale[v] = half_load(&s->power[block % 2][from + v], block / 2) * s->factor;
        for (size_t c = 0; c < 16; c++, x++)
            for (size_t v = 0; v < vecs; v++) {
                vf w = half_load(&value[c][from + v], block / 2) * scale[v];
                for (size_t t = 0; t < tokens; t++)
                    sum[t * vecs + v] =
                        fused(sum[t * vecs + v], w, all(x[t * s->g->w->cols]));
            }
    }
    for (size_t i = 0; i < tokens * vecs; i++)
        store(s->sum[token + i / vecs] + (from + i % vecs) * LANES, sum[i]);
}

/* ---- a strip ------------------------------------------------------------------------------ */

/* What is to be fetched while the part of column k is computed with.  The scales of the
 * rows that follow lie together, and a part's share is fetched at once. */
static inline void
half_ahead(struct half *s, size_t k)
{
    enum { LINE_BYTES = 64 };
    size_t soon = (k / 2 / LINE_BYTES + HALF_AHEAD) * LINE_BYTES;
    bool last = s->end - s->row <= HALF_ROWS;
    const uint8_t *p = s->g->w->scales + (s->row + HALF_ROWS) * s->scale_stride;
    s->soon = s->codes + soon;
    if (soon >= s->stride && !last)
        s->soon += (HALF_ROWS - 1) * s->stride;
    for (size_t i = 0; i < HALF_ROWS * HALF_PART / 16 && !last; i += LINE_BYTES)
        __builtin_prefetch(p + HALF_ROWS * k / 16 + i, 0, 2);
}

static void
half_run(struct half *s)
{
    const struct matrix *w = s->g->w;
    size_t tokens = s->g->tokens, rows = min(s->end - s->row, HALF_ROWS);
    for (size_t k = 0; k < w->cols; k += HALF_PART) {
        size_t n = min(w->cols - k, HALF_PART), t = 0;
        if (k % HALF_SCALES == 0)
            half_make(&s->scale, w->scales + s->row * s->scale_stride + k / 16,
                      s->scale_stride, rows, min(w->cols - k, HALF_SCALES) / 16);
        half_ahead(s, k);
        half_scales(s, k % HALF_SCALES / 16);
        half_make(&s->code, s->codes + k / 2, s->stride, rows, n / 2);
        half_decode(s);
        // So that halves of vectors are loaded, and not taken out of registers.
        __asm__ volatile("" : : "r"(s) : "memory");
        for (; t + 4 <= tokens; t += 4) {
            half_products(s, t, 4, 0, HALF_VECS / 2, k, n);
            half_products(s, t, 4, HALF_VECS / 2, HALF_VECS / 2, k, n);
        }
        for (; t + 2 <= tokens; t += 2)
            half_products(s, t, 2, 0, HALF_VECS, k, n);
        for (; t < tokens; t++)
            half_products(s, t, 1, 0, HALF_VECS, k, n);
    }
}

static void
half_strip(struct half *s)
{
    const struct gemv *g = s->g;
    size_t rows = min(s->end - s->row, HALF_ROWS);
    s->codes = (const uint8_t *)g->w->data + s->row * s->stride;
    memset(s->sum, 0, g->tokens * sizeof *s->sum);
    for (size_t t = 0; t < g->tokens && g->add; t++)
        for (size_t r = 0; r < rows; r++)
            s->sum[t][r] = start(g, t, s->row + r);
    half_run(s);
    for (size_t t = 0; t < g->tokens; t++)
        memcpy(g->y + t * g->w->rows + s->row, s->sum[t], rows * sizeof *g->y);
}

/* f16 makes 2^-24 of an integer of halves, 2^-15 of a power that stands for 2^-10. */
static inline float
half_factor(const struct matrix *w)
{
    return (w->scale2 ? *w->scale2 : 1) * 0x1p28F;
}

/* Whether scales times that factor are numbers. */
static inline bool
half_takes(const struct matrix *w)
{
    return fabsf(half_factor(w)) < 0x1p118F;
}

/* As a gemv_fn. */
static void
half_gemv(const struct gemv *g, size_t row, size_t rows)
{
    const struct matrix *w = g->w;
    struct half s;
    s.g = g;
    s.end = row + rows;
    s.factor = half_factor(w);
    s.stride = w->cols / 2;
    s.scale_stride = w->cols / 16;
    for (s.row = row; s.row < s.end; s.row += HALF_ROWS)
        half_strip(&s);
}

#endif
