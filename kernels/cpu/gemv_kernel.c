/* SPDX-License-Identifier: MIT */
/* gemv_kernel: a few rows of x by rows of a weight, see gemm.h.
 *
 * A lane is a row of the weight, so each sum has the order of gemm_run's.  ROWS rows are
 * multiplied at once, enough to hide the latency of an addition.  A cache line of each row
 * is transposed, word by word; values are taken out of the words in registers.
 *
 * A processor does not prefetch so many streams by itself.  The next lines (at the end of
 * these rows: those of the next rows) are prefetched between the products, a few at a
 * time, since all at once would wait for each other. */
#include "kernels/cpu/codes.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/sizes.h"
#include "lib/base/num.h"

/* The y that a sum starts from.  With bf16 a denormal counts as 0, whether the processor
 * flushes operands or not. */
static inline float
start(const struct gemv *g, size_t token, size_t row)
{
    float y = g->y[token * g->w->rows + row];
    return g->bf16 && fabsf(y) < 0x1p-126F ? copysignf(0, y) : y;
}

#if defined __AVX2__
/* Copies n bytes of each of `rows` rows to max_rows rows of `size` bytes, the rest 0. */
static inline void
pad(uint8_t *to, size_t max_rows, size_t size, const uint8_t *p, size_t stride,
    size_t rows, size_t n)
{
    memset(to, 0, max_rows * size);
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * size, p + r * stride, n);
}
#endif

#if defined __AVX512BW__
#include "kernels/cpu/gemv_wide.h"
#elif defined __AVX2__
#include "kernels/cpu/gemv_half.h"
#endif

enum {
    VECS = 4,
    ROWS = VECS * LANES,
    LINE = 64, // bytes
    WORDS = LINE / 4,
    BLOCK = 16,
    SCALES = LINE * BLOCK, // columns whose scales fill a line
    TOKENS = 4,            // rows of x at once
    AHEAD = 2,             // lines that are prefetched
};

/* ---- words of rows ------------------------------------------------------------------- */

/* A line of each row, transposed: word by word. */
struct words {
    _Alignas(LINE) uint32_t at[WORDS][ROWS];
};

/* From n <= LINE bytes of each row; missing rows repeat the last, missing bytes are 0. */
static void
transpose_words(struct words *out, const uint8_t *p, size_t stride, size_t rows,
                size_t n)
{
    uint8_t padded[ROWS][LINE];
    if (n < LINE) {
        memset(padded, 0, sizeof padded);
        for (size_t r = 0; r < rows; r++)
            memcpy(padded[r], p + r * stride, n);
        p = *padded;
        stride = LINE;
    }
    for (size_t row = 0; row < ROWS; row += LANES)
        for (size_t word = 0; word < WORDS; word += LANES) {
            vf v[LANES];
            for (size_t i = 0; i < LANES; i++) {
                size_t r = row + i < rows ? row + i : rows - 1;
                v[i] = load(p + r * stride + 4 * word);
            }
            transpose(v);
            for (size_t i = 0; i < LANES; i++)
                store(out->at[word + i] + row, v[i]);
        }
}

/* ---- values of words ------------------------------------------------------------------ */

/* Floats of f16 in the lower halves. */
static inline vf
half_values(vu word)
{
#if defined __AVX512F__
    return (vf)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)word));
#elif defined __AVX2__
    vu low = word & 0xffff;
    __m256i two = _mm256_packus_epi32((__m256i)low, (__m256i)low);
    two = _mm256_permute4x64_epi64(two, 0x08);
    return (vf)_mm256_cvtph_ps(_mm256_castsi256_si128(two));
#else
    vf x = { 0 };
    for (int i = 0; i < LANES; i++)
        x[i] = num_from_f16((uint16_t)word[i]);
    return x;
#endif
}

static inline size_t
columns_per_word(enum dtype dtype)
{
    return dtype == DT_F32 ? 1 : dtype == DT_NVFP4 ? 8 : 2;
}

/* As `rounded`, but denormals are flushed here: rounded multiplies, which flushes, but not
 * by a constant 1, and a denormal could be rounded up to the smallest normal number. */
static inline vf
rounded_flushed(vf x)
{
    vu bits = (vu)x;
    return (vf)choose_i((vi)((bits & 0x7f800000) != 0), (vi)rounded(x, 1),
                        (vi)(bits & 0x80000000));
}

/* Column j of a word; with bf16 a wider type is rounded to it. */
static inline vf
column(vu word, enum dtype dtype, size_t j, bool bf16)
{
    vf x = (vf)word;
    if (dtype == DT_BF16)
        return (vf)(j ? word & 0xffff0000 : word << 16);
    if (dtype == DT_F16)
        x = half_values(word >> (uint32_t)j * 16);
    return bf16 ? rounded_flushed(x) : x;
}

/* ---- products ---------------------------------------------------------------------------- */

/* Up to ROWS rows of a weight, and a line of each. */
struct strip {
    const struct gemv *g;
    size_t row, rows;
    bool last; // no rows follow: nothing to prefetch
    float scale2;
    const uint8_t *next; // the first row's line to prefetch
    size_t stride;       // bytes from row to row
    struct words word, scale;
    _Alignas(LINE) float sum[GEMV_MAX][ROWS];
};

/* Prefetch lines of as many rows as is the share of these words. */
static inline void
prefetch(const struct strip *s, size_t word, size_t words)
{
    enum { EACH = ROWS / WORDS };
    const uint8_t *p = s->next + word * EACH * s->stride;
    for (size_t i = 0; i < words * EACH; i++, p += s->stride)
        __builtin_prefetch(p);
}

/* Columns of one word, from x on.  dtype, columns, tokens and bf16 are constants where this
 * is inlined. */
static inline __attribute__((always_inline)) void
word_products(vf sum[TOKENS][VECS], const struct strip *s, size_t word, const float *x,
              enum dtype dtype, size_t columns, size_t tokens, bool bf16)
{
    vu w[VECS];
    for (int v = 0; v < VECS; v++)
        w[v] = (vu)load(s->word.at[word] + v * LANES);
    for (size_t j = 0; j < columns; j++)
        for (int v = 0; v < VECS; v++) {
            vf c = column(w[v], dtype, j, bf16);
            for (size_t t = 0; t < tokens; t++)
                sum[t][v] = fused(sum[t][v], c, all(x[t * s->g->w->cols + j]));
        }
}

/* The two words of a block of NVFP4, as word_products. */
static inline __attribute__((always_inline)) void
block_products(vf sum[TOKENS][VECS], const struct strip *s, size_t word, size_t block,
               const float *x, size_t tokens)
{
    vf scale[VECS];
    vu w[VECS];
    for (int v = 0; v < VECS; v++) {
        vu four = (vu)load(s->scale.at[block / 4] + v * LANES);
        scale[v] = scale_values(four >> (uint32_t)block % 4 * 8);
    }
    for (size_t end = word + 2; word < end; word++, x += 8) {
        for (int v = 0; v < VECS; v++)
            w[v] = (vu)load(s->word.at[word] + v * LANES);
        for (size_t j = 0; j < 8; j++)
            for (int v = 0; v < VECS; v++) {
                vf c = code_values(w[v] >> (uint32_t)j * 4) * scale[v] * s->scale2;
                for (size_t t = 0; t < tokens; t++)
                    sum[t][v] = fused(sum[t][v], c, all(x[t * s->g->w->cols + j]));
            }
    }
}

/* n columns from k on, at most a line, for some rows of x. */
static inline __attribute__((always_inline)) void
line_products(struct strip *s, size_t token, size_t k, size_t n, enum dtype dtype,
              size_t tokens, bool bf16)
{
    vf sum[TOKENS][VECS];
    const float *x = s->g->x + token * s->g->w->cols + k;
    size_t columns = columns_per_word(dtype), i = 0;
    size_t words = dtype == DT_NVFP4 ? 2 : 1, step = words * columns;
    for (size_t t = 0; t < tokens; t++)
        for (size_t v = 0; v < VECS; v++)
            sum[t][v] = load(s->sum[token + t] + v * LANES);
    for (; i + step <= n; i += step) {
        if (token == 0)
            prefetch(s, i / columns, words);
        if (dtype == DT_NVFP4)
            block_products(sum, s, i / columns, (k + i) % SCALES / BLOCK, x + i,
                           tokens);
        else
            word_products(sum, s, i / columns, x + i, dtype, columns, tokens, bf16);
    }
    if (dtype != DT_NVFP4 && i < n)
        word_products(sum, s, i / columns, x + i, dtype, 1, tokens, bf16);
    for (size_t t = 0; t < tokens; t++)
        for (size_t v = 0; v < VECS; v++)
            store(s->sum[token + t] + v * LANES, sum[t][v]);
}

/* Prefetch a line's share of the scales of the next rows, which are contiguous. */
static void
prefetch_scales(const struct strip *s, size_t k)
{
    const struct matrix *w = s->g->w;
    const uint8_t *p = w->scales + (s->row + ROWS) * w->cols / BLOCK + k * ROWS / BLOCK;
    for (size_t i = 0; i < ROWS * 2 * LINE / BLOCK && !s->last; i += LINE)
        __builtin_prefetch(p + i, 0, 2);
}

static inline __attribute__((always_inline)) void
run(struct strip *s, enum dtype dtype, bool bf16)
{
    const struct matrix *w = s->g->w;
    size_t in = w->cols, word = columns_per_word(dtype), full = WORDS * word;
    size_t stride = in * 4 / word, tokens = s->g->tokens;
    const uint8_t *p = (const uint8_t *)w->data + s->row * stride;
    s->stride = stride;
    for (size_t k = 0; k < in; k += full) {
        size_t n = min(in - k, full), t = 0;
        size_t ahead = k * 4 / word + AHEAD * LINE;
        s->next = p + ahead + (ahead < stride || s->last ? 0 : (ROWS - 1) * stride);
        transpose_words(&s->word, p + k * 4 / word, stride, s->rows, n * 4 / word);
        if (dtype == DT_NVFP4)
            prefetch_scales(s, k);
        if (dtype == DT_NVFP4 && k % SCALES == 0)
            transpose_words(&s->scale, w->scales + (s->row * in + k) / BLOCK,
                            in / BLOCK, s->rows, min(in - k, SCALES) / BLOCK);
        for (; t + 4 <= tokens; t += 4)
            line_products(s, t, k, n, dtype, 4, bf16);
        for (; t + 2 <= tokens; t += 2)
            line_products(s, t, k, n, dtype, 2, bf16);
        for (; t < tokens; t++)
            line_products(s, t, k, n, dtype, 1, bf16);
    }
}

static void
run_strip(const struct gemv *g, size_t row, size_t rows, bool last)
{
    struct strip s;
    s.g = g;
    s.row = row;
    s.rows = rows;
    s.last = last;
    s.scale2 = g->w->scale2 ? *g->w->scale2 : 1;
    memset(s.sum, 0, g->tokens * sizeof *s.sum);
    for (size_t t = 0; t < g->tokens && g->add; t++)
        for (size_t r = 0; r < rows; r++)
            s.sum[t][r] = start(g, t, row + r);
    switch (g->w->dtype) {
    case DT_BF16:
        run(&s, DT_BF16, false);
        break;
    case DT_F16:
        g->bf16 ? run(&s, DT_F16, true) : run(&s, DT_F16, false);
        break;
    case DT_NVFP4:
        run(&s, DT_NVFP4, false);
        break;
    default:
        g->bf16 ? run(&s, DT_F32, true) : run(&s, DT_F32, false);
    }
    for (size_t t = 0; t < g->tokens; t++)
        memcpy(g->y + t * g->w->rows + row, s.sum[t], rows * sizeof *g->y);
}

void
NAME(gemv)(const struct gemv *g, size_t row, size_t rows)
{
#if defined __AVX512BW__
    if (g->w->dtype == DT_NVFP4) {
        wide_gemv(g, row, rows);
        return;
    }
#elif defined __AVX2__
    if (g->w->dtype == DT_NVFP4 && half_can(g->w)) {
        half_gemv(g, row, rows);
        return;
    }
#endif
    for (size_t end = row + rows; row < end; row += ROWS)
        run_strip(g, row, min(end - row, ROWS), end - row <= ROWS);
}
