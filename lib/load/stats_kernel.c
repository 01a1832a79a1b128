/* SPDX-License-Identifier: MIT */
/* stats_kernel: the loops of stats.h, compiled once for each instruction set (ISA).
 *
 * Always 16 lanes: plain loops over small arrays, which compilers vectorize.  The additions
 * and their order are the same for every ISA, and so are the bits.
 */
#include "lib/load/stats.h"

#include "lib/base/num.h"

#include <math.h>
#include <string.h>

#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define NAME(x)      PASTE(PASTE(x, _), ISA)
#define TEXT2(x)     #x
#define TEXT(x)      TEXT2(x)

enum { LANES = 16 };

/* Count non-finite values and move the others to the front; returns how many these are. */
#define DEFINE_COMPACT(T, SUFFIX)                                                      \
    static size_t compact_##SUFFIX(struct stats *s, T *out, const T *x, size_t n)      \
    {                                                                                  \
        size_t kept = 0;                                                               \
        for (size_t i = 0; i < n; i++) {                                               \
            s->nans += isnan(x[i]) != 0;                                               \
            s->infs += isinf(x[i]) != 0;                                               \
            if (isfinite(x[i]))                                                        \
                out[kept++] = x[i];                                                    \
        }                                                                              \
        return kept;                                                                   \
    }

/* Sum in lanes, then their fixed tree. */
static double
tree(double *lane)
{
    for (int w = LANES / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] += lane[i + w];
    return lane[0];
}

/* A block of finite values: element i belongs to lane i % LANES. */
#define DEFINE_FINITE(T, SUFFIX)                                                       \
    static void finite_##SUFFIX(struct stats *s, const T *x, size_t n)                 \
    {                                                                                  \
        double sum[LANES] = { 0 }, sq[LANES] = { 0 };                                  \
        T low[LANES], high[LANES];                                                     \
        uint32_t zeros[LANES] = { 0 };                                                 \
        size_t whole = n - n % LANES;                                                  \
        for (int l = 0; l < LANES; l++)                                                \
            low[l] = high[l] = x[0];                                                   \
        for (size_t i = 0; i < whole; i += LANES)                                      \
            for (int l = 0; l < LANES; l++) {                                          \
                T v = x[i + (size_t)l];                                                \
                sum[l] += (double)v;                                                   \
                low[l] = v < low[l] ? v : low[l];                                      \
                high[l] = v > high[l] ? v : high[l];                                   \
                zeros[l] += v == 0;                                                    \
            }                                                                          \
        for (size_t i = whole; i < n; i++) {                                           \
            size_t l = i - whole;                                                      \
            sum[l] += (double)x[i];                                                    \
            low[l] = x[i] < low[l] ? x[i] : low[l];                                    \
            high[l] = x[i] > high[l] ? x[i] : high[l];                                 \
            zeros[l] += x[i] == 0;                                                     \
        }                                                                              \
        double mean = tree(sum) / (double)n;                                           \
        for (size_t i = 0; i < whole; i += LANES)                                      \
            for (int l = 0; l < LANES; l++) {                                          \
                double d = (double)x[i + (size_t)l] - mean;                            \
                sq[l] += d * d;                                                        \
            }                                                                          \
        for (size_t i = whole; i < n; i++) {                                           \
            double d = (double)x[i] - mean;                                            \
            sq[i - whole] += d * d;                                                    \
        }                                                                              \
        struct stats b = { .n = n,                                                     \
                           .mean = mean,                                               \
                           .m2 = tree(sq),                                             \
                           .min = (double)low[0],                                      \
                           .max = (double)high[0] };                                   \
        for (int l = 0; l < LANES; l++) {                                              \
            b.zeros += zeros[l];                                                       \
            b.min = (double)low[l] < b.min ? (double)low[l] : b.min;                   \
            b.max = (double)high[l] > b.max ? (double)high[l] : b.max;                 \
        }                                                                              \
        stats_merge(s, &b);                                                            \
    }

DEFINE_COMPACT(float, f32)
DEFINE_COMPACT(double, f64)
DEFINE_FINITE(float, f32)
DEFINE_FINITE(double, f64)

static void
block_f32(struct stats *s, const float *x, size_t n)
{
    float kept[STATS_BLOCK];
    uint32_t odd = 0;
    for (size_t i = 0; i < n; i++)
        odd |= (num_bits_f32(x[i]) & 0x7f800000) == 0x7f800000;
    if (odd) {
        n = compact_f32(s, kept, x, n);
        x = kept;
    }
    if (n)
        finite_f32(s, x, n);
}

static void
block_f64(struct stats *s, const double *x, size_t n)
{
    double kept[STATS_BLOCK];
    int odd = 0;
    for (size_t i = 0; i < n; i++)
        odd |= !isfinite(x[i]);
    if (odd) {
        n = compact_f64(s, kept, x, n);
        x = kept;
    }
    if (n)
        finite_f64(s, x, n);
}

/* Half precision by one exact product: the 15 bits, placed as a float's, are the value
 * times 2^-112, subnormals included.  Infinity and NaN keep the top exponent. */
static void
from_f16(float *out, const void *in, size_t n)
{
    const unsigned char *p = in;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        uint32_t mag = (uint32_t)(h & 0x7fff) << 13;
        float f;
        memcpy(&f, &mag, sizeof f);
        f *= 0x1p112F;
        uint32_t bits = num_bits_f32(f);
        bits |= (h & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
        bits |= (uint32_t)(h & 0x8000) << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

static void
from_bf16(float *out, const void *in, size_t n)
{
    const unsigned char *p = in;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        uint32_t bits = (uint32_t)h << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

const struct stats_isa NAME(stats) = {
    .name = TEXT(ISA),
    .f32 = block_f32,
    .f64 = block_f64,
    .from_f16 = from_f16,
    .from_bf16 = from_bf16,
};
