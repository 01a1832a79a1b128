/* SPDX-License-Identifier: MIT */
/* gemv_wide: rows of NVFP4 against a few rows of x with AVX-512.  Only for gemv_kernel.c,
 * whose sums these are: a lane is a row, products come in the order of k.
 *
 * What counts is the number of instructions for 16 weights: three have to multiply, two in
 * a cycle, so the rest must fit beside them.
 *
 *   turned    A piece is 16 bits, four columns of a row; a vector has pieces of 32 rows.
 *             Quarters of vectors are brought together as they are loaded, then zipped.
 *   codes     A look-up in 32 words takes five bits of each, of which the last is a
 *             neighbour's; so the table is there twice.  It gives bf16, which has all of
 *             E2M1, and zipping it with zeros makes two vectors of floats.
 *   scales    are turned and zipped the same way.
 *
 * So row r is lane r % 32 / 8 * 4 + r % 4 of vector r / 32 * 2 + r % 8 / 4.
 *
 * While a line of 64 rows is computed with, the next one is turned, and later ones are
 * fetched: 64 streams are more than a processor follows by itself. */
#ifndef NIBBLE_KERNELS_CPU_GEMV_WIDE_H
#define NIBBLE_KERNELS_CPU_GEMV_WIDE_H

#include "kernels/cpu/codes.h"
#include "kernels/cpu/gemm.h"

enum {
    WIDE_ROWS = 64,
    WIDE_GROUP = 32, // rows of a vector of pieces
    WIDE_GROUPS = WIDE_ROWS / WIDE_GROUP,
    WIDE_VECS = WIDE_ROWS / LANES,
    WIDE_LINE = 64,               // bytes of a row that are turned together
    WIDE_CODES = 2 * WIDE_LINE,   // columns
    WIDE_SCALES = 16 * WIDE_LINE, // columns whose scales they are
    WIDE_BLOCKS = WIDE_CODES / 16,
    WIDE_TOKENS = 4,
    WIDE_AHEAD = 4, // lines
};

/* A line of all rows. */
struct wide_line {
    _Alignas(64) uint16_t piece[WIDE_LINE / 2][WIDE_GROUPS][WIDE_GROUP];
};

struct wide {
    const struct gemv *g;
    size_t row, end; // the first of these rows; the end of those that follow
    float scale2;
    size_t stride, scale_stride; // bytes from row to row
    const uint8_t *codes;        // of this row
    unsigned now;                // which of the lines is computed with
    const uint8_t *next; // the first row's part of the other, if it is whole; or NULL
    const uint8_t *soon; // of one that is fetched
    struct wide_line line[2], scale;
    _Alignas(64) float sum[GEMV_MOST][WIDE_ROWS];
};

/* ---- turning ------------------------------------------------------------------------------ */

/* 16 bytes of every eighth row. */
static inline __m512i
wide_quarters(const uint8_t *p, size_t stride)
{
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(p + 8 * stride)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(p + 16 * stride)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(p + 24 * stride)), 3);
}

enum { WIDE_PARTS = WIDE_BLOCKS }; // of turning: 16 bytes of the rows of a group

static inline void
wide_turn(struct wide_line *to, const uint8_t *p, size_t stride, size_t part)
{
    uint16_t *out = to->piece[part % 4 * 8][part / 4];
    __m512i v[8], t[8];
    p += part / 4 * WIDE_GROUP * stride + part % 4 * 16;
    for (size_t i = 0; i < 8; i++, p += stride)
        v[i] = wide_quarters(p, stride);
    for (size_t i = 0; i < 4; i++) {
        t[i] = _mm512_unpacklo_epi16(v[2 * i], v[2 * i + 1]);
        t[i + 4] = _mm512_unpackhi_epi16(v[2 * i], v[2 * i + 1]);
    }
    for (size_t i = 0; i < 8; i += 4) {
        v[i] = _mm512_unpacklo_epi32(t[i], t[i + 1]);
        v[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 1]);
        v[i + 2] = _mm512_unpacklo_epi32(t[i + 2], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi32(t[i + 2], t[i + 3]);
    }
    for (size_t i = 0; i < 8; i += 4)
        for (size_t k = 0; k < 2; k++, out += (size_t)2 * WIDE_ROWS) {
            _mm512_store_si512(out, _mm512_unpacklo_epi64(v[i + k], v[i + k + 2]));
            _mm512_store_si512(out + WIDE_ROWS,
                               _mm512_unpackhi_epi64(v[i + k], v[i + k + 2]));
        }
}

/* rows lines of n <= WIDE_LINE bytes; what is not there becomes 0. */
static void
wide_make(struct wide_line *to, const uint8_t *p, size_t stride, size_t rows, size_t n)
{
    uint8_t padded[WIDE_ROWS][WIDE_LINE];
    if (n < WIDE_LINE || rows < WIDE_ROWS) {
        memset(padded, 0, sizeof padded);
        for (size_t r = 0; r < rows; r++)
            memcpy(padded[r], p + r * stride, n);
        p = *padded;
        stride = WIDE_LINE;
    }
    for (size_t part = 0; part < WIDE_PARTS; part++)
        wide_turn(to, p, stride, part);
}

/* A block's share of the lines that are fetched. */
static inline void
wide_fetch(const struct wide *s, size_t block)
{
    enum { EACH = WIDE_ROWS / WIDE_BLOCKS };
    const uint8_t *p = s->soon + block * EACH * s->stride;
    for (size_t i = 0; i < EACH; i++, p += s->stride)
        __builtin_prefetch(p);
}

/* ---- products ----------------------------------------------------------------------------- */

/* bf16 in 16 bits to floats. */
static inline vf
wide_low(__m512i x)
{
    return (vf)_mm512_unpacklo_epi16(_mm512_setzero_si512(), x);
}

static inline vf
wide_high(__m512i x)
{
    return (vf)_mm512_unpackhi_epi16(_mm512_setzero_si512(), x);
}

/* E4M3 without sign, which is no NaN: exponent and mantissa where bf16 has them, which has
 * 120 more in the exponent. */
static inline void
wide_scales(vf scale[WIDE_VECS], const struct wide *s, size_t number)
{
    const __m512i mask = _mm512_set1_epi16(0x7f0);
    for (size_t g = 0; g < WIDE_GROUPS; g++) {
        __m512i two = _mm512_load_si512(s->scale.piece[number / 2][g]);
        two = number % 2 ? _mm512_srli_epi16(two, 4) : _mm512_slli_epi16(two, 4);
        two = _mm512_and_si512(two, mask);
        scale[2 * g] = wide_low(two) * 0x1p120F;
        scale[2 * g + 1] = wide_high(two) * 0x1p120F;
    }
}

/* Column j of a piece.  What is a number here is known where this is inlined: j, tokens,
 * and whether there is a tensor scale other than 1. */
static inline __attribute__((always_inline)) void
wide_column(vf sum[WIDE_TOKENS][WIDE_VECS], const struct wide *s,
            const __m512i piece[WIDE_GROUPS], unsigned j, const vf scale[WIDE_VECS],
            __m512i table, const float *x, size_t tokens, bool two)
{
    for (size_t g = 0; g < WIDE_GROUPS; g++) {
        __m512i code = j ? _mm512_srli_epi16(piece[g], (int)(4 * j)) : piece[g];
        __m512i value = _mm512_permutexvar_epi16(code, table);
        vf low = wide_low(value) * scale[2 * g];
        vf high = wide_high(value) * scale[2 * g + 1];
        if (two) {
            low = low * s->scale2;
            high = high * s->scale2;
        }
        for (size_t t = 0; t < tokens; t++) {
            vf factor = all(x[t * s->g->w->in + j]);
            sum[t][2 * g] = fused(sum[t][2 * g], low, factor);
            sum[t][2 * g + 1] = fused(sum[t][2 * g + 1], high, factor);
        }
    }
}

/* A block of the line, whose scales are number `number` of theirs. */
static inline __attribute__((always_inline)) void
wide_block(vf sum[WIDE_TOKENS][WIDE_VECS], const struct wide *s, size_t block,
           size_t number, const float *x, size_t tokens, bool two)
{
    static const _Alignas(64) uint16_t bf16[32] = {
        0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
        0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
        0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
        0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
    };
    __m512i table = _mm512_load_si512(bf16), piece[WIDE_GROUPS];
    vf scale[WIDE_VECS];
    wide_scales(scale, s, number);
    for (size_t i = 4 * block; i < 4 * block + 4; i++, x += 4) {
        for (size_t g = 0; g < WIDE_GROUPS; g++)
            piece[g] = _mm512_load_si512(s->line[s->now].piece[i][g]);
        wide_column(sum, s, piece, 0, scale, table, x, tokens, two);
        wide_column(sum, s, piece, 1, scale, table, x, tokens, two);
        wide_column(sum, s, piece, 2, scale, table, x, tokens, two);
        wide_column(sum, s, piece, 3, scale, table, x, tokens, two);
    }
}

/* n columns from k on, a line or less, for some rows of x. */
static inline __attribute__((always_inline)) void
wide_products(struct wide *s, size_t token, size_t k, size_t n, size_t tokens, bool two)
{
    const float *x = s->g->x + token * s->g->w->in + k;
    vf sum[WIDE_TOKENS][WIDE_VECS];
    for (size_t t = 0; t < tokens; t++)
        for (size_t v = 0; v < WIDE_VECS; v++)
            sum[t][v] = load(s->sum[token + t] + v * LANES);
    for (size_t block = 0; block < n / 16; block++) {
        if (token == 0) {
            wide_fetch(s, block);
            if (s->next)
                wide_turn(&s->line[!s->now], s->next, s->stride, block);
        }
        wide_block(sum, s, block, k % WIDE_SCALES / 16 + block, x + block * 16, tokens,
                   two);
    }
    for (size_t t = 0; t < tokens; t++)
        for (size_t v = 0; v < WIDE_VECS; v++)
            store(s->sum[token + t] + v * LANES, sum[t][v]);
}

/* ---- a strip ------------------------------------------------------------------------------- */

static inline size_t
wide_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What is to be turned and fetched while the line of column k is computed with.  The
 * scales of the rows that follow lie together, and a line's share is fetched at once. */
static void
wide_ahead(struct wide *s, size_t k)
{
    size_t soon = k / 2 + (size_t)WIDE_AHEAD * WIDE_LINE, left = s->end - s->row;
    bool last = left <= WIDE_ROWS;
    const uint8_t *p = s->g->w->scales + (s->row + WIDE_ROWS) * s->scale_stride;
    s->next = NULL;
    if (left >= WIDE_ROWS && k / 2 + 2 * WIDE_LINE <= s->stride)
        s->next = s->codes + k / 2 + WIDE_LINE;
    s->soon = s->codes + soon;
    if (soon >= s->stride && !last)
        s->soon += (WIDE_ROWS - 1) * s->stride;
    for (size_t i = 0; i < WIDE_ROWS * WIDE_CODES / 16 && !last; i += 64)
        __builtin_prefetch(p + WIDE_ROWS * k / 16 + i, 0, 2);
}

static inline __attribute__((always_inline)) void
wide_run(struct wide *s, bool two)
{
    const struct weight *w = s->g->w;
    size_t tokens = s->g->tokens, rows = wide_least(s->end - s->row, WIDE_ROWS);
    for (size_t k = 0; k < w->in; k += WIDE_CODES, s->now = !s->now) {
        size_t n = wide_least(w->in - k, WIDE_CODES), t = 0;
        if (!s->next)
            wide_make(&s->line[s->now], s->codes + k / 2, s->stride, rows, n / 2);
        if (k % WIDE_SCALES == 0)
            wide_make(&s->scale, w->scales + s->row * s->scale_stride + k / 16,
                      s->scale_stride, rows, wide_least(w->in - k, WIDE_SCALES) / 16);
        wide_ahead(s, k);
        for (; t + 4 <= tokens; t += 4)
            wide_products(s, t, k, n, 4, two);
        for (; t + 2 <= tokens; t += 2)
            wide_products(s, t, k, n, 2, two);
        for (; t < tokens; t++)
            wide_products(s, t, k, n, 1, two);
    }
}

static inline size_t
wide_place(size_t r)
{
    return (r / 32 * 2 + r % 8 / 4) * LANES + r % 32 / 8 * 4 + r % 4;
}

static void
wide_strip(struct wide *s)
{
    const struct gemv *g = s->g;
    float *y = g->y + s->row;
    size_t rows = wide_least(s->end - s->row, WIDE_ROWS);
    s->codes = (const uint8_t *)g->w->values + s->row * s->stride;
    for (size_t t = 0; t < g->tokens; t++)
        for (size_t r = 0; r < WIDE_ROWS; r++)
            s->sum[t][wide_place(r)] = g->add && r < rows ? y[t * g->w->out + r] : 0;
    if (s->scale2 == 1)
        wide_run(s, false);
    else
        wide_run(s, true);
    for (size_t t = 0; t < g->tokens; t++)
        for (size_t r = 0; r < rows; r++)
            y[t * g->w->out + r] = s->sum[t][wide_place(r)];
}

/* As a gemv_fn. */
static void
wide_gemv(const struct gemv *g, size_t row, size_t rows)
{
    const struct weight *w = g->w;
    struct wide s;
    s.g = g;
    s.end = row + rows;
    s.scale2 = w->scale2 ? *w->scale2 : 1;
    s.stride = w->in / 2;
    s.scale_stride = w->in / 16;
    s.now = 0;
    s.next = NULL;
    for (s.row = row; s.row < s.end; s.row += WIDE_ROWS)
        wide_strip(&s);
}

#endif
