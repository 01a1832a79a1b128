/* SPDX-License-Identifier: MIT */
/* gemv_half: rows of NVFP4 by a few rows of x with AVX2, decoded by way of f16.  Only for
 * gemv_kernel.c, whose sums these are: a lane is a row, products are in the order of k.
 *
 * A weight is code * scale * tensor scale, rounded at the last product.  Speed depends on
 * the number of instructions, and on the units of the processor that execute them:
 *
 *   Code times scale is a product of integers, 16 at once: twice the code, which is at most
 *   12, times the odd part of the scale's mantissa, which is at most 15.  With a sign bit
 *   that is a denormal of f16, and loading it as f16 makes a float of it, by units that do
 *   not multiply.  An odd factor leaves the sign bit where it is, and -0 stays -0.
 *   The rest of the scale is a power of two, by which the tensor scale is multiplied
 *   without rounding, once a block.
 *
 * So two instructions a vector multiply floats, two in a cycle; zips, look-ups and products
 * of integers come before, for 64 columns, and take about as long.  To interleave the two
 * is slower, since both then wait in the same queues.
 *
 * For more than HALF_FEW rows of x the weights become floats once: sums of the first one or two
 * rows take them from registers, and they are stored for the others, HALF_EACH at a time.  The
 * units that convert and store do not multiply, so that costs little beside those first sums.
 *
 * Rows are transposed by zips within halves of vectors; such a half has a column of 16
 * rows, the other half the column that is 32 further. */
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
    HALF_SCALES = 16 * HALF_BYTES, // columns whose scales are transposed together
    HALF_FEW = 2,                  // rows of x
    HALF_EACH = 3,                 // of more, at a time
    HALF_SUMS = HALF_EACH * HALF_VECS,
    HALF_AHEAD = 3, // cache lines that are prefetched
};

/* 16-bit values of 8 rows, of one column and of the column 32 further. */
struct half_pair {
    _Alignas(32) uint16_t at[2][LANES];
};

/* 32 bytes of each row, transposed: at[h][i] has bytes i and i + 16 of 16 rows. */
struct half_bytes {
    __m256i at[2][16];
};

struct half {
    const struct gemv *g;
    size_t row, end; // the first row of this strip; the end of the last strip
    float factor;
    size_t stride, scale_stride; // bytes from row to row
    const uint8_t *codes;        // of the first row
    const uint8_t *ahead;        // to prefetch
    struct half_bytes code, scale;
    struct half_pair odd[2][HALF_VECS], power[2][HALF_VECS], value[32][HALF_VECS];
    _Alignas(64) float weight[HALF_PART][HALF_ROWS]; // of more than HALF_FEW rows of x
    _Alignas(64) float sum[GEMV_MAX][HALF_ROWS];
};

/* ---- transposing ------------------------------------------------------------------------------ */

static inline void
half_zip(__m256i to[16], const __m256i v[16])
{
    for (size_t i = 0; i < 8; i++) {
        to[2 * i] = _mm256_unpacklo_epi8(v[i], v[i + 8]);
        to[2 * i + 1] = _mm256_unpackhi_epi8(v[i], v[i + 8]);
    }
}

static inline void
half_transpose(struct half_bytes *to, const uint8_t *p, size_t stride)
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

/* n <= HALF_BYTES bytes of each row, padded with 0. */
static inline void
half_load_bytes(struct half_bytes *to, const uint8_t *p, size_t stride, size_t rows,
                size_t n)
{
    uint8_t padded[HALF_ROWS][HALF_BYTES];
    if (n < HALF_BYTES || rows < HALF_ROWS) {
        pad(*padded, HALF_ROWS, HALF_BYTES, p, stride, rows, n);
        p = *padded;
        stride = HALF_BYTES;
    }
    half_transpose(to, p, stride);
}

/* ---- decoding ----------------------------------------------------------------------------- */

static inline __m256i
half_look_up(const int8_t table[16], __m256i index)
{
    __m128i half = _mm_load_si128((const void *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(half), index);
}

/* Lower and upper bytes of 16 rows become 16-bit values. */
static inline void
half_store(struct half_pair to[2], __m256i low, __m256i high)
{
    _mm256_store_si256((void *)&to[0], _mm256_unpacklo_epi8(low, high));
    _mm256_store_si256((void *)&to[1], _mm256_unpackhi_epi8(low, high));
}

/* Scales i and i + 2 of 16 rows: E4M3 that is neither negative nor NaN. */
static inline __m256i
half_scale(const struct half_bytes *scale, size_t h, size_t i)
{
    const __m128i *p = (const void *)scale->at[h];
    __m256i one = _mm256_castsi128_si256(_mm_load_si128(p + i % 16 * 2 + i / 16));
    i += 2;
    return _mm256_inserti128_si256(one, _mm_load_si128(p + i % 16 * 2 + i / 16), 1);
}

/* Scales from i on: their odd parts, and powers of two as f16. */
static inline void
half_scales(struct half *s, size_t i)
{
    // Indexed by the mantissa, plus 8 for denormals; twos are added to f16's exponent.
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

/* A column of 16 rows: twice the magnitude, below the sign, times the scale's odd part. */
static inline void
half_multiply(struct half_pair to[2], __m256i twice, __m256i sign,
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
            half_multiply(s->value[2 * i] + 2 * h, half_look_up(twices, first),
                          half_look_up(signs, first), odd);
            half_multiply(s->value[2 * i + 1] + 2 * h, half_look_up(twices, second),
                          _mm256_and_si256(two, _mm256_set1_epi8(-128)), odd);
        }
}

/* ---- products ----------------------------------------------------------------------------- */

static inline vf
half_load(const struct half_pair *from, size_t which)
{
    return (vf)_mm256_cvtph_ps(_mm_load_si128((const void *)from->at[which]));
}

/* Prefetch a block's share of the lines. */
static inline void
half_prefetch(const struct half *s, size_t block)
{
    enum { EACH = HALF_ROWS / 8 }; // blocks in a line
    const uint8_t *p = s->ahead + block * EACH * s->stride;
    for (size_t i = 0; i < EACH; i++, p += s->stride)
        __builtin_prefetch(p);
}

/* The sums of some rows of x in registers and back: tokens is a constant where these are
 * inlined. */
static inline __attribute__((always_inline)) void
half_load_sums(vf sum[HALF_SUMS], const struct half *s, size_t token, size_t tokens)
{
    for (size_t i = 0; i < tokens * HALF_VECS; i++)
        sum[i] = load(s->sum[token + i / HALF_VECS] + i % HALF_VECS * LANES);
}

static inline __attribute__((always_inline)) void
half_store_sums(struct half *s, const vf sum[HALF_SUMS], size_t token, size_t tokens)
{
    for (size_t i = 0; i < tokens * HALF_VECS; i++)
        store(s->sum[token + i / HALF_VECS] + i % HALF_VECS * LANES, sum[i]);
}

/* n <= HALF_PART columns from k on, for the first rows of x; keep: the weights as floats for the
 * others, too. */
static inline __attribute__((always_inline)) void
half_first_sums(struct half *s, size_t tokens, bool keep, size_t k, size_t n)
{
    size_t cols = s->g->w->cols;
    const float *x = s->g->x + k;
    vf sum[HALF_SUMS], scale[HALF_VECS], each[HALF_FEW];
    half_load_sums(sum, s, 0, tokens);
    for (size_t block = 0; block < n / 16; block++) {
        const struct half_pair(*value)[HALF_VECS] = s->value + block % 2 * 16;
        float(*to)[HALF_ROWS] = s->weight + block * 16;
        half_prefetch(s, k / 16 % 8 + block);
        for (size_t v = 0; v < HALF_VECS; v++)
            scale[v] = half_load(&s->power[block % 2][v], block / 2) * s->factor;
        for (size_t c = 0; c < 16; c++, x++) {
            for (size_t t = 0; t < tokens; t++)
                each[t] = all(x[t * cols]);
            for (size_t v = 0; v < HALF_VECS; v++) {
                vf w = half_load(&value[c][v], block / 2) * scale[v];
                if (keep)
                    store(to[c] + v * LANES, w);
                for (size_t t = 0; t < tokens; t++)
                    sum[t * HALF_VECS + v] = fused(sum[t * HALF_VECS + v], w, each[t]);
            }
        }
    }
    half_store_sums(s, sum, 0, tokens);
}

/* The same columns for more rows of x, of the weights that were kept. */
static inline __attribute__((always_inline)) void
half_sums(struct half *s, size_t token, size_t tokens, size_t k, size_t n)
{
    size_t cols = s->g->w->cols;
    const float *x = s->g->x + token * cols + k, *w = s->weight[0];
    vf sum[HALF_SUMS], each[HALF_EACH];
    half_load_sums(sum, s, token, tokens);
    for (size_t c = 0; c < n; c++, x++, w += HALF_ROWS) {
        for (size_t t = 0; t < tokens; t++)
            each[t] = all(x[t * cols]);
        for (size_t v = 0; v < HALF_VECS; v++) {
            vf a = load(w + v * LANES);
            __asm__("" : "+x"(a)); // or a compiler loads it for each sum
            for (size_t t = 0; t < tokens; t++)
                sum[t * HALF_VECS + v] = fused(sum[t * HALF_VECS + v], a, each[t]);
        }
    }
    half_store_sums(s, sum, token, tokens);
}

/* ---- a strip ------------------------------------------------------------------------------ */

/* What to prefetch while the columns from k on are multiplied.  The scales of the next rows
 * are contiguous; a part's share of them is prefetched at once. */
static inline void
half_prefetch_scales(struct half *s, size_t k)
{
    enum { LINE_BYTES = 64 };
    size_t ahead = (k / 2 / LINE_BYTES + HALF_AHEAD) * LINE_BYTES;
    bool last = s->end - s->row <= HALF_ROWS;
    const uint8_t *p = s->g->w->scales + (s->row + HALF_ROWS) * s->scale_stride;
    s->ahead = s->codes + ahead;
    if (ahead >= s->stride && !last)
        s->ahead += (HALF_ROWS - 1) * s->stride;
    for (size_t i = 0; i < HALF_ROWS * HALF_PART / 16 && !last; i += LINE_BYTES)
        __builtin_prefetch(p + HALF_ROWS * k / 16 + i, 0, 2);
}

/* Decoded columns for all rows of x: one or two first, then threes, and at the end two if that is
 * what is left.  Three at first do not fit into registers. */
static inline void
half_all_sums(struct half *s, size_t k, size_t n)
{
    size_t tokens = s->g->tokens, t = tokens % HALF_EACH == 2 ? 2 : 1;
    if (tokens == 1)
        half_first_sums(s, 1, false, k, n);
    else if (tokens == 2)
        half_first_sums(s, 2, false, k, n);
    else if (t == 1)
        half_first_sums(s, 1, true, k, n);
    else
        half_first_sums(s, 2, true, k, n);
    for (; t + HALF_EACH <= tokens; t += HALF_EACH)
        half_sums(s, t, HALF_EACH, k, n);
    if (t < tokens)
        half_sums(s, t, 2, k, n);
}

static void
half_run(struct half *s)
{
    const struct matrix *w = s->g->w;
    size_t rows = min(s->end - s->row, HALF_ROWS);
    for (size_t k = 0; k < w->cols; k += HALF_PART) {
        size_t n = min(w->cols - k, HALF_PART);
        if (k % HALF_SCALES == 0)
            half_load_bytes(&s->scale, w->scales + s->row * s->scale_stride + k / 16,
                            s->scale_stride, rows, min(w->cols - k, HALF_SCALES) / 16);
        half_prefetch_scales(s, k);
        half_scales(s, k % HALF_SCALES / 16);
        half_load_bytes(&s->code, s->codes + k / 2, s->stride, rows, n / 2);
        half_decode(s);
        // Makes the compiler load halves of vectors instead of extracting them.
        __asm__ volatile("" : : "r"(s) : "memory");
        half_all_sums(s, k, n);
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

/* The tensor scale times 2^28: loading as f16 makes n * 2^-24 of n, which stands for n
 * halves, and 2^-15 of a power that stands for 2^-10. */
static inline float
half_factor(const struct matrix *w)
{
    return (w->scale2 ? *w->scale2 : 1) * 0x1p28F;
}

/* Whether scales times that factor are finite. */
static inline bool
half_can(const struct matrix *w)
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
