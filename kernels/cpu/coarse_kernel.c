/* SPDX-License-Identifier: MIT */
/* coarse_kernel: rows of x as integers, and rows of NVFP4 by them, see coarse.h.
 *
 * With AVX2 a word of 16 bits has four codes.  Each in turn is shifted to the lower bits of
 * the upper byte; a look-up makes twice its value of it, and 0 of the lower byte, so the
 * word is 512 times the value.  Words are multiplied and added in pairs without unpacking.
 * The factor 2^-9 is in the power of two.  E4M3 shifted left by seven bits is f16 divided by
 * 2^8, which the last product undoes.
 *
 * Rows are read one after the other, each from its beginning to its end. */
#include "kernels/cpu/coarse.h"
#include "kernels/cpu/sizes.h"
#include "lib/base/num.h"
#include "lib/base/vec.h"
#include "lib/nvfp4/codec.h"

#include <math.h>

enum {
    BLOCK = NVFP4_BLOCK,
    CODE_BYTES = COARSE_PART / 2,
    SCALE_BYTES = COARSE_PART / BLOCK,
    AHEAD = 2048, // bytes of codes to prefetch: processors stop at a page
};

/* ---- x -------------------------------------------------------------------------------------- */

static inline float
power_of_two(int exponent)
{
    return num_from_bf16((uint16_t)((exponent + 127) << 7));
}

/* 16 integers; returns their factor, NaN if x is not finite. */
static inline float
quantize_block(float to[BLOCK], const float x[BLOCK])
{
    enum { NOT_FINITE = 255, MAX_UP = 100 }; // power_of_two(-MAX_UP - 9) is normal
    uint32_t max = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint32_t size = num_bits_f32(x[i]) & 0x7fffffff;
        max = max > size ? max : size;
    }
    int exponent = (int)(max >> 23); // max < 2^(exponent - 126)
    int up = 15 + 126 - exponent < MAX_UP ? 15 + 126 - exponent : MAX_UP;
    float times = exponent == NOT_FINITE ? 0 : power_of_two(up);
    for (int i = 0; i < BLOCK; i++) {
        const float shift = 0x1.8p23F; // adding it rounds to integers
        float y = x[i] * times + shift - shift;
        to[i] = y < 0x7fff ? y : 0x7fff; // of NaN, too
    }
    return exponent == NOT_FINITE ? NAN : power_of_two(-up - 9);
}

void
NAME(coarse_quantize)(struct coarse *to, const float *x, size_t in)
{
    for (size_t k = 0; k < in; k += COARSE_PART, to++) {
        float padded[COARSE_PART] = { 0 }, y[COARSE_PART];
        memcpy(padded, x + k, min(in - k, COARSE_PART) * sizeof *x);
        for (size_t b = 0; b < SCALE_BYTES; b++)
            to->scale[2 * b] = to->scale[2 * b + 1] =
                quantize_block(y + b * BLOCK, padded + b * BLOCK);
        for (size_t i = 0; i < COARSE_WORDS; i++)
            for (size_t j = 0; j < 4; j++)
                to->x[j][i] = (int16_t)y[4 * i + j];
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

static const _Alignas(16) int8_t twices[16] = { 0, 1,  2,  3,  4,  6,  8,  12,
                                                0, -1, -2, -3, -4, -6, -8, -12 };

/* y of a token and row: the sums as a tree, times the scales that are left. */
static inline void
store_row(const struct coarse_job *j, size_t token, size_t row, float sum[COARSE_SUMS])
{
    const struct matrix *w = j->g->w;
    float *y = j->g->y + token * w->rows + row;
    for (size_t n = COARSE_SUMS / 2; n > 0; n /= 2)
        for (size_t i = 0; i < n; i++)
            sum[i] += sum[i + n];
    float all = sum[0] * 0x1p8F * (w->scale2 ? *w->scale2 : 1); // 2^8: of f16
    *y = j->g->add ? *y + all : all;
}

#if defined __AVX2__

struct sums {
    __m256 at[2];
};

/* Sums times 512 of eight columns each, 64 in all; codes[j] and x[j] have columns 4 i + j. */
static inline __m256i
sums_of(const __m256i code[4], const struct coarse *x, size_t half)
{
    __m256i sum[4];
    for (size_t j = 0; j < 4; j++)
        sum[j] = _mm256_madd_epi16(
            code[j], _mm256_load_si256((const void *)(x->x[j] + half * 16)));
    return _mm256_add_epi32(_mm256_add_epi32(sum[0], sum[1]),
                            _mm256_add_epi32(sum[2], sum[3]));
}

/* A part of some tokens, `parts` from one to the next.  tokens is a constant where this is
 * inlined. */
static inline __attribute__((always_inline)) void
add_part(struct sums *sums, const uint8_t *codes, const uint8_t *scales,
         const struct coarse *x, size_t parts, size_t tokens)
{
    // A scale for two sums, in the upper bytes of words.
    const __m256i twice =
        _mm256_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4,
                         -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7);
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_load_si128((const void *)twices));
    const __m256i mask = _mm256_set1_epi16(0x0f00);
    long long eight;
    memcpy(&eight, scales, sizeof eight);
    __m256i scale = _mm256_shuffle_epi8(_mm256_set1_epi64x(eight), twice);
    scale = _mm256_srli_epi16(scale, 1);
    for (size_t half = 0; half < 2; half++) {
        __m256i four = _mm256_loadu_si256((const void *)(codes + half * 32)), code[4];
        code[0] = _mm256_slli_epi16(four, 8);
        code[1] = _mm256_slli_epi16(four, 4);
        code[2] = four;
        code[3] = _mm256_srli_epi16(four, 4);
        for (size_t j = 0; j < 4; j++)
            code[j] = _mm256_shuffle_epi8(table, _mm256_and_si256(code[j], mask));
        __m256 s = _mm256_cvtph_ps(half ? _mm256_extracti128_si256(scale, 1)
                                        : _mm256_castsi256_si128(scale));
        for (size_t t = 0; t < tokens; t++) {
            const struct coarse *x_t = x + t * parts;
            __m256 sum = _mm256_cvtepi32_ps(sums_of(code, x_t, half));
            __m256 times = _mm256_mul_ps(s, _mm256_load_ps(x_t->scale + half * 8));
            sums[t].at[half] = _mm256_fmadd_ps(sum, times, sums[t].at[half]);
        }
    }
}

static inline __attribute__((always_inline)) void
add_row(const struct coarse_job *j, size_t row, size_t token, size_t tokens)
{
    const struct matrix *w = j->g->w;
    const uint8_t *codes = (const uint8_t *)w->data + row * (w->cols / 2);
    const uint8_t *scales = w->scales + row * (w->cols / BLOCK);
    const struct coarse *x = j->x + token * j->parts;
    struct sums sums[COARSE_MAX];
    for (size_t t = 0; t < tokens; t++)
        sums[t].at[0] = sums[t].at[1] = _mm256_setzero_ps();
    for (size_t p = 0; p < w->cols / COARSE_PART; p++) {
        __builtin_prefetch(codes + AHEAD);
        __builtin_prefetch(scales + AHEAD * SCALE_BYTES / CODE_BYTES);
        add_part(sums, codes, scales, x + p, j->parts, tokens);
        codes += CODE_BYTES;
        scales += SCALE_BYTES;
    }
    size_t rest = w->cols % COARSE_PART;
    if (rest) {
        uint8_t padded[CODE_BYTES + SCALE_BYTES] = { 0 };
        memcpy(padded, codes, rest / 2);
        memcpy(padded + CODE_BYTES, scales, rest / BLOCK);
        add_part(sums, padded, padded + CODE_BYTES, x + j->parts - 1, j->parts, tokens);
    }
    for (size_t t = 0; t < tokens; t++) {
        float sum[COARSE_SUMS];
        _mm256_storeu_ps(sum, sums[t].at[0]);
        _mm256_storeu_ps(sum + 8, sums[t].at[1]);
        store_row(j, token + t, row, sum);
    }
}

void
NAME(coarse_rows)(const struct coarse_job *j, size_t row, size_t rows)
{
    for (size_t end = row + rows; row < end; row++) {
        size_t t = 0, tokens = j->g->tokens;
        for (; t + 4 <= tokens; t += 4)
            add_row(j, row, t, 4);
        for (; t + 2 <= tokens; t += 2)
            add_row(j, row, t, 2);
        for (; t < tokens; t++)
            add_row(j, row, t, 1);
    }
}

#else

/* The sum times 512 of eight columns of a part from k on. */
static int32_t
sum_of(const uint8_t *codes, const struct coarse *x, size_t k)
{
    int32_t sum = 0;
    for (size_t i = k; i < k + 8; i++) {
        int code = codes[i / 2] >> i % 2 * 4 & 15;
        sum += 256 * twices[code] * x->x[i % 4][i / 4];
    }
    return sum;
}

void
NAME(coarse_rows)(const struct coarse_job *j, size_t row, size_t rows)
{
    const struct matrix *w = j->g->w;
    size_t half = w->cols / 2, blocks = w->cols / BLOCK;
    for (size_t end = row + rows; row < end; row++)
        for (size_t t = 0; t < j->g->tokens; t++) {
            float sum[COARSE_SUMS] = { 0 };
            for (size_t k = 0; k < j->parts * COARSE_PART; k += 8) {
                const struct coarse *x = j->x + t * j->parts + k / COARSE_PART;
                size_t i = k % COARSE_PART / 8, at = row * half + k / 2;
                bool inside = k < w->cols; // else padding
                int32_t s =
                    inside ? sum_of((const uint8_t *)w->data + at - k % COARSE_PART / 2,
                                    x, k % COARSE_PART)
                           : 0;
                uint8_t e4m3 = inside ? w->scales[row * blocks + k / BLOCK] : 0;
                float scale = num_from_f16((uint16_t)(e4m3 << 7)) * x->scale[i];
                sum[i] = fmaf((float)s, scale, sum[i]);
            }
            store_row(j, t, row, sum);
        }
}

#endif
