/* SPDX-License-Identifier: MIT */
/* gemm_kernel: the innermost loops of gemm.h, compiled once for each instruction set.
 *
 * A tile of C, MR rows of VECS vectors, stays in registers while k goes by. */
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/codes.h"
#include "lib/base/num.h"

#if defined __AVX512F__
enum { MR = 12, VECS = 2 };
#elif defined __AVX2__
enum { MR = 6, VECS = 2 };
#elif defined __aarch64__
enum { MR = 8, VECS = 3 };
#else
enum { MR = 4, VECS = 1 };
#endif

enum { NR = LANES * VECS };

static void
micro(size_t k, const float *a, const float *b, float *c, size_t ldc, bool add)
{
    vf sum[MR][VECS];
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < VECS; v++)
            sum[i][v] = add ? load(c + (size_t)i * ldc + v * LANES) : (vf){ 0 };
    for (size_t s = 0; s < k; s++, a += MR, b += NR) {
        vf column[VECS];
        for (int v = 0; v < VECS; v++)
            column[v] = load(b + v * LANES);
        for (int i = 0; i < MR; i++)
            for (int v = 0; v < VECS; v++)
                sum[i][v] = fused(sum[i][v], all(a[i]), column[v]);
    }
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < VECS; v++)
            store(c + (size_t)i * ldc + v * LANES, sum[i][v]);
}

/* ---- panels ---------------------------------------------------------------------------- */

/* Rows of x become columns of a panel, LANES at a time.  A narrow panel is stored with
 * whole vectors, each of which overwrites the excess of the one before: behind the end of
 * the panel there must be space for a vector. */
static void
pack(float *out, const float *x, size_t stride, size_t rows, size_t k, size_t unit)
{
    size_t whole = k - k % LANES;
    for (size_t s = 0; s < whole; s += LANES)
        for (size_t r = 0; r < unit; r += LANES) {
            vf v[LANES];
            for (size_t i = 0; i < LANES; i++)
                v[i] = r + i < rows ? load(x + (r + i) * stride + s) : (vf){ 0 };
            transpose(v);
            for (size_t i = 0; i < LANES; i++)
                store(out + (s + i) * unit + r, v[i]);
        }
    for (size_t s = whole; s < k; s++)
        for (size_t r = 0; r < unit; r++)
            out[s * unit + r] = r < rows ? x[r * stride + s] : 0;
}

/* ---- elements as floats --------------------------------------------------------------- */

static void
read_bf16(float *out, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(out + i, &bits, sizeof bits);
    }
}

static void
read_f16(float *out, const uint16_t *x, size_t n)
{
    size_t i = 0;
#if defined __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i,
                         _mm256_cvtph_ps(_mm_loadu_si128((const void *)(x + i))));
#endif
    for (; i < n; i++)
        out[i] = num_from_f16(x[i]);
}

/* The values of nvfp4_decode: code times block scale is exact. */
static void
read_nvfp4(float *out, const uint8_t *codes, const uint8_t *scales, float scale2,
           size_t n)
{
    for (size_t b = 0; b < n / 16; b++, codes += 8, out += 16) {
        vf scale = scale_values((vu){ 0 } + scales[b]);
        for (int v = 0; v < 16 / LANES; v++)
            store(out + v * LANES, code_values(block_codes(codes, v)) * scale * scale2);
    }
}

static void
read_e4m3(float *out, const uint8_t *x, float scale2, size_t n)
{
    for (size_t i = 0; i < n; i += LANES) {
        size_t count = n - i < LANES ? n - i : LANES;
        vu byte = { 0 };
        for (size_t l = 0; l < count; l++)
            byte[l] = x[i + l];
        vf v = scale_values(byte) * scale2;
        memcpy(out + i, &v, count * sizeof *out);
    }
}

static void
read(float *out, const struct operand *x, size_t at, size_t n)
{
    switch (x->dtype) {
    case DT_BF16:
        read_bf16(out, (const uint16_t *)x->data + at, n);
        break;
    case DT_F16:
        read_f16(out, (const uint16_t *)x->data + at, n);
        break;
    case DT_NVFP4:
        read_nvfp4(out, (const uint8_t *)x->data + at / 2, x->scales + at / 16,
                   x->scale2, n);
        break;
    case DT_F8_E4M3:
        read_e4m3(out, (const uint8_t *)x->data + at, x->scale2, n);
        break;
    default:
        memcpy(out, (const float *)x->data + at, n * sizeof *out);
    }
}

/* ---- operands rounded to bf16 ---------------------------------------------------------- */

static void
round_floats(float *out, const float *x, size_t n, float factor)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        store(out + i, (vf)rounded(load(x + i), factor));
    if (i < n) {
        vf last = { 0 };
        memcpy(&last, x + i, (n - i) * sizeof *x);
        last = (vf)rounded(last, factor);
        memcpy(out + i, &last, (n - i) * sizeof *x);
    }
}

static void
round_panel(float *panel, size_t k, bool left, float factor)
{
    round_floats(panel, panel, k * (left ? MR : NR), factor);
}

#if defined __AVX512F__

/* Two rows of n floats as pairs of bf16, x in the upper halves; may read behind the end.
 * Without y its half is `other`. */
static inline __attribute__((always_inline)) void
pair_rows(float *out, const float *x, const float *y, size_t n, float factor, vu other)
{
    vu word[VECS];
    size_t vecs = (n + LANES - 1) / LANES;
    for (size_t v = 0; v < vecs; v++) {
        vu low = y ? rounded(load(y + v * LANES), factor) : other;
        word[v] = rounded(load(x + v * LANES), factor) | low >> 16;
    }
    memcpy(out, word, n * sizeof *out);
}

/* The last row of an odd k is paired with -0 in A and 0 in B: their product, -0, changes
 * no sum. */
static inline __attribute__((always_inline)) void
pair_panel(float *panel, size_t k, size_t unit, float factor, vu other)
{
    float *out = panel;
    for (size_t s = 0; s < k; s += 2, out += unit) {
        float *x = panel + s * unit;
        pair_rows(out, x, s + 1 < k ? x + unit : NULL, unit, factor, other);
    }
}

static void
round_pairs(float *panel, size_t k, bool left, float factor)
{
    if (left)
        pair_panel(panel, k, MR, factor, (vu){ 0 } + 0x80000000);
    else
        pair_panel(panel, k, NR, factor, (vu){ 0 });
}

static inline __m512bh
pairs(const float *p)
{
    __m512bh v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* As micro, two of k at a time. */
static __attribute__((target("avx512bf16"))) void
micro_pairs(size_t k, const float *a, const float *b, float *c, size_t ldc, bool add)
{
    __m512 sum[MR][VECS];
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < VECS; v++)
            sum[i][v] = add ? _mm512_loadu_ps(c + (size_t)i * ldc + v * LANES)
                            : _mm512_setzero_ps();
    for (size_t s = 0; s < k; s += 2, a += MR, b += NR) {
        __m512bh column[VECS];
        for (int v = 0; v < VECS; v++)
            column[v] = pairs(b + v * LANES);
        for (int i = 0; i < MR; i++) {
            int32_t two;
            memcpy(&two, a + i, sizeof two);
            __m512bh row = (__m512bh)_mm512_set1_epi32(two);
            for (int v = 0; v < VECS; v++)
                sum[i][v] = _mm512_dpbf16_ps(sum[i][v], row, column[v]);
        }
    }
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < VECS; v++)
            _mm512_storeu_ps(c + (size_t)i * ldc + v * LANES, sum[i][v]);
}

const struct gemm_isa NAME(gemm_pairs) = { MR,   NR,           micro_pairs, pack,
                                           read, round_floats, round_pairs };

#endif

const struct gemm_isa NAME(gemm) = { MR, NR, micro, pack, read, round_floats, NULL };
const struct gemm_isa NAME(gemm_bf16) = { MR,   NR,           micro,      pack,
                                          read, round_floats, round_panel };
