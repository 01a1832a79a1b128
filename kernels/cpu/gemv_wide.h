/* SPDX-License-Identifier: MIT */
/* gemv_wide: rows of NVFP4 by a few rows of x with AVX-512.  Only for gemv_kernel.c, whose
 * sums these are: a lane is a row, products are in the order of k.
 *
 * Speed depends on the number of instructions for a vector of weights: three multiply, two
 * in a cycle, and the rest must fit beside them.  So a look-up decodes as many codes as it
 * can to bf16, which has all values of E2M1; zipped with zeros these are floats.  Scales
 * are zipped the same way.  For that, lines of rows are transposed as pieces of 16 bits,
 * four columns of a row; a vector has pieces of 32 rows.  A look-up in 32 words uses five
 * bits of each, of which the highest belongs to the next code; so the table is there twice.
 *
 * Zips stay within quarters of a vector, so the order of rows is permuted: wide_place.
 *
 * While a line is multiplied, the next one is transposed, and later ones are prefetched: a
 * processor does not follow so many streams by itself. */
#ifndef NIBBLE_KERNELS_CPU_GEMV_WIDE_H
#define NIBBLE_KERNELS_CPU_GEMV_WIDE_H

#include "kernels/cpu/codes.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/sizes.h"

enum {
    WIDE_VECS = 4,
    WIDE_ROWS = WIDE_VECS * LANES,
    WIDE_LINE = 64,               // bytes of a row that are transposed together
    WIDE_CODES = 2 * WIDE_LINE,   // columns
    WIDE_SCALES = 16 * WIDE_LINE, // columns whose scales they are
    WIDE_BLOCKS = WIDE_CODES / 16,
    WIDE_SUMS = 16, // vectors
    WIDE_AHEAD = 3, // lines that are prefetched
};

/* A line of each row, transposed by wide_transpose. */
struct wide_line {
    _Alignas(64) uint8_t piece[WIDE_LINE * WIDE_ROWS];
};

struct wide {
    const struct gemv *g;
    size_t row, end; // the first row of this strip; the end of the last strip
    float scale2;
    size_t stride, scale_stride; // bytes from row to row
    const uint8_t *codes;        // of the first row
    unsigned now;                // the line that is multiplied
    const uint8_t *next;         // to transpose into the other line, if whole; or NULL
    const uint8_t *ahead;        // to prefetch
    struct wide_line line[2], scale;
    _Alignas(64) float sum[GEMV_MAX][WIDE_ROWS];
};

/* ---- pieces ------------------------------------------------------------------------------- */

/* 32 bytes of a row and of another one. */
static inline __m512i
wide_pair(const uint8_t *p, const uint8_t *q)
{
    __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)p));
    return _mm512_inserti64x4(x, _mm256_loadu_si256((const void *)q), 1);
}

enum {
    WIDE_GROUP = 32, // rows of a vector
    WIDE_PARTS = 4,  // of transposing: 32 bytes of the rows of a group
};

/* Within quarters of vectors, by three rounds of zips. */
static inline void
wide_zip(__m512i v[8])
{
    __m512i t[8];
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
        for (size_t k = 0; k < 2; k++) {
            t[i + 2 * k] = _mm512_unpacklo_epi64(v[i + k], v[i + k + 2]);
            t[i + 2 * k + 1] = _mm512_unpackhi_epi64(v[i + k], v[i + k + 2]);
        }
    memcpy(v, t, sizeof t);
}

static inline void
wide_transpose(struct wide_line *to, const uint8_t *p, size_t stride, size_t part)
{
    uint8_t *out = to->piece + part % 2 * 32 * WIDE_ROWS + part / 2 * 64;
    __m512i a[8], b[8];
    p += part / 2 * WIDE_GROUP * stride + part % 2 * 32;
    for (size_t i = 0; i < 8; i++, p += stride) {
        a[i] = wide_pair(p, p + 8 * stride);
        b[i] = wide_pair(p + 16 * stride, p + 24 * stride);
    }
    wide_zip(a);
    wide_zip(b);
    for (size_t i = 0; i < 8; i++, out += (size_t)2 * WIDE_ROWS) {
        _mm512_store_si512(out, _mm512_shuffle_i32x4(a[i], b[i], 0x88));
        _mm512_store_si512(out + (size_t)16 * WIDE_ROWS,
                           _mm512_shuffle_i32x4(a[i], b[i], 0xdd));
    }
}

/* Piece i of the rows of a group. */
static inline __m512i
wide_piece(const struct wide_line *line, size_t i, size_t group)
{
    return _mm512_load_si512(line->piece + i * 2 * WIDE_ROWS + group * 64);
}

/* The lane of row r in vectors of floats. */
static inline size_t
wide_place(size_t r)
{
    return (r / 32 * 2 + r % 8 / 4) * LANES + r % 32 / 8 * 4 + r % 4;
}

/* Floats of bf16 of 32 rows. */
static inline void
wide_floats(vf out[2], __m512i x)
{
    out[0] = (vf)_mm512_unpacklo_epi16(_mm512_setzero_si512(), x);
    out[1] = (vf)_mm512_unpackhi_epi16(_mm512_setzero_si512(), x);
}

/* Scales i of `vecs` vectors of rows, from that number on; E4M3 that is neither negative nor
 * NaN: exponent and mantissa are moved to those of bf16, whose bias is 120 more. */
static inline void
wide_scales(vf scale[WIDE_VECS], const struct wide_line *line, size_t i, size_t from,
            size_t vecs)
{
    const __m512i mask = _mm512_set1_epi16(0x7f0);
    for (size_t v = 0; v < vecs; v += 2) {
        __m512i two = wide_piece(line, i / 2, (from + v) / 2);
        two = i % 2 ? _mm512_srli_epi16(two, 4) : _mm512_slli_epi16(two, 4);
        wide_floats(scale + v, _mm512_and_si512(two, mask));
    }
    for (size_t v = 0; v < vecs; v++)
        scale[v] = scale[v] * 0x1p120F;
}

enum { WIDE_PIECE = 4 }; // columns

/* Column j of pieces i, of the same vectors. */
static inline void
wide_values(vf value[WIDE_VECS], const struct wide_line *line, size_t i, int j,
            size_t from, size_t vecs)
{
    static const _Alignas(64) uint16_t bf16[32] = {
        0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
        0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
        0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
        0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
    };
    const __m512i table = _mm512_load_si512(bf16);
    for (size_t v = 0; v < vecs; v += 2) {
        __m512i code = wide_piece(line, i, (from + v) / 2);
        code = j == 1   ? _mm512_srli_epi16(code, 4) // the count must be a literal: its
               : j == 2 ? _mm512_srli_epi16(code, 8) // type depends on the compiler
               : j == 3 ? _mm512_srli_epi16(code, 12)
                        : code;
        wide_floats(value + v, _mm512_permutexvar_epi16(code, table));
    }
}

/* ---- lines -------------------------------------------------------------------------------- */

/* n <= WIDE_LINE bytes of each row, padded with 0. */
static void
wide_load_line(struct wide_line *to, const uint8_t *p, size_t stride, size_t rows,
               size_t n)
{
    uint8_t padded[WIDE_ROWS][WIDE_LINE];
    if (n < WIDE_LINE || rows < WIDE_ROWS) {
        pad(*padded, WIDE_ROWS, WIDE_LINE, p, stride, rows, n);
        p = *padded;
        stride = WIDE_LINE;
    }
    for (size_t part = 0; part < WIDE_PARTS; part++)
        wide_transpose(to, p, stride, part);
}

/* Prefetch a block's share of the lines. */
static inline void
wide_prefetch(const struct wide *s, size_t block)
{
    enum { EACH = WIDE_ROWS / WIDE_BLOCKS };
    const uint8_t *p = s->ahead + block * EACH * s->stride;
    for (size_t i = 0; i < EACH; i++, p += s->stride)
        __builtin_prefetch(p);
}

/* ---- products ----------------------------------------------------------------------------- */

/* What is in registers: sums of some rows of x and some vectors of the strip's rows.  Its
 * members, and `two` (there is a tensor scale other than 1), are constants where they are used:
 * all is inlined. */
struct wide_tile {
    size_t tokens, from, vecs;
};

/* Rows of x: the first of each three.  An address is one of these plus one or two times the
 * distance of rows, so eight rows take four registers; a compiler would rather have seven
 * distances, for which there are none beside the sums. */
enum { WIDE_EACH = 3, WIDE_FIRSTS = 3 };
struct wide_x {
    const float *first[WIDE_FIRSTS];
};

static inline __attribute__((always_inline)) void
wide_advance(struct wide_x *x, size_t columns, struct wide_tile tile)
{
    for (size_t i = 0; i * WIDE_EACH < tile.tokens; i++) {
        x->first[i] += columns;
        if (tile.tokens > WIDE_EACH)
            __asm__("" : "+r"(x->first[i]));
    }
}

/* Column j of pieces i. */
static inline __attribute__((always_inline)) void
wide_column(vf sum[WIDE_SUMS], const struct wide *s, size_t i, int j,
            const vf scale[WIDE_VECS], const struct wide_x *x, struct wide_tile tile,
            bool two)
{
    vf value[WIDE_VECS];
    wide_values(value, &s->line[s->now], i, j, tile.from, tile.vecs);
    for (size_t v = 0; v < tile.vecs; v++) {
        value[v] = value[v] * scale[v];
        value[v] = two ? value[v] * s->scale2 : value[v];
    }
    // One value of x at a time is in a register.
    for (size_t t = 0; t < tile.tokens; t++) {
        const float *row = x->first[t / WIDE_EACH] + t % WIDE_EACH * s->g->w->cols;
        vf each = all(row[j]);
        for (size_t v = 0; v < tile.vecs; v++)
            sum[t * tile.vecs + v] = fused(sum[t * tile.vecs + v], value[v], each);
    }
}

/* A block of the line, by scales i. */
static inline __attribute__((always_inline)) void
wide_block(vf sum[WIDE_SUMS], const struct wide *s, size_t block, size_t i,
           struct wide_x *x, struct wide_tile tile, bool two)
{
    enum { PIECES = 16 / WIDE_PIECE };
    vf scale[WIDE_VECS];
    wide_scales(scale, &s->scale, i, tile.from, tile.vecs);
    for (size_t p = block * PIECES; p < (block + 1) * PIECES; p++) {
        wide_column(sum, s, p, 0, scale, x, tile, two);
        wide_column(sum, s, p, 1, scale, x, tile, two);
        wide_column(sum, s, p, 2, scale, x, tile, two);
        wide_column(sum, s, p, 3, scale, x, tile, two);
        wide_advance(x, WIDE_PIECE, tile);
    }
}

/* n columns from k on, at most a line, for rows of x from `token` on. */
static inline __attribute__((always_inline)) void
wide_products(struct wide *s, size_t token, size_t k, size_t n, struct wide_tile tile,
              bool two)
{
    struct wide_x x;
    for (size_t i = 0; i * WIDE_EACH < tile.tokens; i++)
        x.first[i] = s->g->x + (token + i * WIDE_EACH) * s->g->w->cols + k;
    vf sum[WIDE_SUMS];
    for (size_t t = 0; t < tile.tokens; t++)
        for (size_t v = 0; v < tile.vecs; v++)
            sum[t * tile.vecs + v] = load(s->sum[token + t] + (tile.from + v) * LANES);
    for (size_t block = 0; block < n / 16; block++) {
        if (token == 0 && tile.from == 0) {
            wide_prefetch(s, block);
            if (s->next && block % (WIDE_BLOCKS / WIDE_PARTS) == 0)
                wide_transpose(&s->line[!s->now], s->next, s->stride,
                               block / (WIDE_BLOCKS / WIDE_PARTS));
        }
        wide_block(sum, s, block, k % WIDE_SCALES / 16 + block, &x, tile, two);
    }
    for (size_t t = 0; t < tile.tokens; t++)
        for (size_t v = 0; v < tile.vecs; v++)
            store(s->sum[token + t] + (tile.from + v) * LANES, sum[t * tile.vecs + v]);
}

/* ---- a strip ------------------------------------------------------------------------------- */

/* What to transpose and prefetch while the line from column k on is multiplied.  The scales
 * of the next rows are contiguous; a line's share of them is prefetched at once. */
static void
wide_look_ahead(struct wide *s, size_t k)
{
    size_t ahead = k / 2 + (size_t)WIDE_AHEAD * WIDE_LINE, left = s->end - s->row;
    bool last = left <= WIDE_ROWS;
    const uint8_t *p = s->g->w->scales + (s->row + WIDE_ROWS) * s->scale_stride;
    s->next = NULL;
    if (left >= WIDE_ROWS && k / 2 + 2 * WIDE_LINE <= s->stride)
        s->next = s->codes + k / 2 + WIDE_LINE;
    s->ahead = s->codes + ahead;
    if (ahead >= s->stride && !last)
        s->ahead += (WIDE_ROWS - 1) * s->stride;
    for (size_t i = 0; i < WIDE_ROWS * WIDE_CODES / 16 && !last; i += 64)
        __builtin_prefetch(p + WIDE_ROWS * k / 16 + i, 0, 2);
}

static inline __attribute__((always_inline)) void
wide_run(struct wide *s, bool two)
{
    const struct matrix *w = s->g->w;
    size_t tokens = s->g->tokens, rows = min(s->end - s->row, WIDE_ROWS);
    for (size_t k = 0; k < w->cols; k += WIDE_CODES, s->now = !s->now) {
        size_t n = min(w->cols - k, WIDE_CODES), t = 0;
        if (!s->next)
            wide_load_line(&s->line[s->now], s->codes + k / 2, s->stride, rows, n / 2);
        if (k % WIDE_SCALES == 0)
            wide_load_line(&s->scale, w->scales + s->row * s->scale_stride + k / 16,
                           s->scale_stride, rows, min(w->cols - k, WIDE_SCALES) / 16);
        wide_look_ahead(s, k);
        // Eight rows of x with half of the vectors: what is decoded serves twice as many.
        for (; t + 8 <= tokens; t += 8)
            for (size_t half = 0; half < 2; half++)
                wide_products(s, t, k, n, (struct wide_tile){ 8, 2 * half, 2 }, two);
        for (; t + 4 <= tokens; t += 4)
            wide_products(s, t, k, n, (struct wide_tile){ 4, 0, 4 }, two);
        for (; t + 2 <= tokens; t += 2)
            wide_products(s, t, k, n, (struct wide_tile){ 2, 0, 4 }, two);
        for (; t < tokens; t++)
            wide_products(s, t, k, n, (struct wide_tile){ 1, 0, 4 }, two);
    }
}

enum { WIDE_RUN = 4 }; // rows whose lanes are adjacent, too

static void
wide_start(struct wide *s)
{
    const struct gemv *g = s->g;
    size_t rows = min(s->end - s->row, WIDE_ROWS);
    memset(s->sum, 0, g->tokens * sizeof *s->sum);
    for (size_t t = 0; t < g->tokens && g->add; t++)
        for (size_t r = 0; r < rows; r += WIDE_RUN) {
            float *sum = s->sum[t] + wide_place(r);
            if (rows - r >= WIDE_RUN && !g->bf16)
                memcpy(sum, g->y + t * g->w->rows + s->row + r, WIDE_RUN * sizeof *sum);
            else
                for (size_t i = 0; i < min(rows - r, WIDE_RUN); i++)
                    sum[i] = start(g, t, s->row + r + i);
        }
}

static void
wide_end(const struct wide *s)
{
    const struct gemv *g = s->g;
    size_t rows = min(s->end - s->row, WIDE_ROWS);
    float *y = g->y + s->row;
    for (size_t t = 0; t < g->tokens; t++, y += g->w->rows)
        for (size_t r = 0; r < rows; r += WIDE_RUN) {
            const float *sum = s->sum[t] + wide_place(r);
            if (rows - r >= WIDE_RUN)
                memcpy(y + r, sum, WIDE_RUN * sizeof *y);
            else
                memcpy(y + r, sum, (rows - r) * sizeof *y);
        }
}

static void
wide_strip(struct wide *s)
{
    const struct gemv *g = s->g;
    s->codes = (const uint8_t *)g->w->data + s->row * s->stride;
    wide_start(s);
    if (s->scale2 == 1)
        wide_run(s, false);
    else
        wide_run(s, true);
    wide_end(s);
}

/* As a gemv_fn. */
static void
wide_gemv(const struct gemv *g, size_t row, size_t rows)
{
    const struct matrix *w = g->w;
    struct wide s;
    s.g = g;
    s.end = row + rows;
    s.scale2 = w->scale2 ? *w->scale2 : 1;
    s.stride = w->cols / 2;
    s.scale_stride = w->cols / 16;
    s.now = 0;
    s.next = NULL;
    for (s.row = row; s.row < s.end; s.row += WIDE_ROWS)
        wide_strip(&s);
}

#endif
