/* SPDX-License-Identifier: MIT */
/* rows_kernel: see rows.h.  Plain loops, which compilers vectorize. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/sizes.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define NAME(x)      PASTE(PASTE(x, _), ISA)

enum { SUM_LANES = 16 };

static float
tree(float lane[SUM_LANES])
{
    for (int w = SUM_LANES / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] += lane[i + w];
    return lane[0];
}

static float
dot(const float *a, const float *b, size_t n)
{
    float lane[SUM_LANES] = { 0 };
    size_t whole = n - n % SUM_LANES;
    for (size_t i = 0; i < whole; i += SUM_LANES)
        for (size_t l = 0; l < SUM_LANES; l++)
            lane[l] += a[i + l] * b[i + l];
    for (size_t i = whole; i < n; i++)
        lane[i - whole] += a[i] * b[i];
    return tree(lane);
}

static float
max(const float *a, size_t n)
{
    float lane[SUM_LANES], m;
    size_t whole = n - n % SUM_LANES;
    for (size_t l = 0; l < SUM_LANES; l++)
        lane[l] = a[0];
    for (size_t i = 0; i < whole; i += SUM_LANES)
        for (size_t l = 0; l < SUM_LANES; l++)
            lane[l] = a[i + l] > lane[l] ? a[i + l] : lane[l];
    m = lane[0];
    for (size_t l = 1; l < SUM_LANES; l++)
        m = lane[l] > m ? lane[l] : m;
    for (size_t i = whole; i < n; i++)
        m = a[i] > m ? a[i] : m;
    return m;
}

static double
sum_squares(const float *a, size_t n)
{
    double lane[SQUARES_LANES] = { 0 };
    for (size_t i = 0; i < n; i += SQUARES_LANES)
        for (size_t l = 0; l < min(n - i, SQUARES_LANES); l++)
            lane[l] += (double)a[i + l] * (double)a[i + l];
    return rows_add_neighbours(lane, min(n, SQUARES_LANES));
}

static void
axpy(float *restrict y, float a, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void
scale(float *restrict y, float a, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a * x[i];
}

static void
scale_in_place(float *y, float a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] *= a;
}

static void
softmax_bwd(float *restrict dp, const float *restrict p, float mean, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dp[i] = p[i] * (dp[i] - mean);
}

/* To 1e-7 of the result; 0 below -87, at most e^88. */
static inline float
exponential(float x)
{
    const float high = 0x1.62e4p-1F, low = 0x1.7f7d1cp-20F; // ln 2
    float clamped = x < -87.0F ? -87.0F : x > 88.0F ? 88.0F : x;
    float shifted = clamped * 0x1.715476p+0F + 0x1.8p23F; // adding rounds to an integer
    float n = shifted - 0x1.8p23F;
    float r = (clamped - n * high) - n * low;
    float p = 1.0F / 5040;
    p = p * r + 1.0F / 720;
    p = p * r + 1.0F / 120;
    p = p * r + 1.0F / 24;
    p = p * r + 1.0F / 6;
    p = p * r + 0.5F;
    p = p * r + 1;
    p = p * r + 1;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23; // higher bits are shifted out
    float power;
    memcpy(&power, &bits, sizeof power);
    return x < -87.0F ? 0 : p * power;
}

static float
exp_sum(float *y, float highest, size_t n)
{
    float lane[SUM_LANES] = { 0 };
    size_t whole = n - n % SUM_LANES;
    for (size_t i = 0; i < n; i++)
        y[i] = exponential(y[i] - highest);
    for (size_t i = 0; i < whole; i += SUM_LANES)
        for (size_t l = 0; l < SUM_LANES; l++)
            lane[l] += y[i + l];
    for (size_t i = whole; i < n; i++)
        lane[i - whole] += y[i];
    return tree(lane);
}

static float
exp_total(const float *x, float highest, float factor, size_t n)
{
    float lane[SUM_LANES] = { 0 };
    size_t whole = n - n % SUM_LANES;
    for (size_t i = 0; i < whole; i += SUM_LANES)
        for (size_t l = 0; l < SUM_LANES; l++)
            lane[l] += exponential((x[i + l] - highest) * factor);
    for (size_t i = whole; i < n; i++)
        lane[i - whole] += exponential((x[i] - highest) * factor);
    return tree(lane);
}

/* One element of a row; its part of the KL divergence. */
static inline float
distill_one(float *restrict z, float t, const struct rows_distill *d)
{
    float x = *z, s = exponential((x - d->z_max) * d->per_t) * d->z_share;
    float p = exponential((t - d->t_max) * d->per_t) * d->t_share;
    float e = d->hard == 0 ? 0 : d->hard * exponential(x - d->z_max);
    *z = e + d->soft * (s - p);
    return p * ((t - x) * d->per_t - d->shift);
}

static float
distill(float *restrict z, const float *restrict t, const struct rows_distill *of_row,
        size_t n)
{
    const struct rows_distill d = *of_row; // stores to z do not change it
    float lane[SUM_LANES] = { 0 };
    size_t whole = n - n % SUM_LANES;
    for (size_t i = 0; i < whole; i += SUM_LANES)
        for (size_t l = 0; l < SUM_LANES; l++)
            lane[l] += distill_one(&z[i + l], t[i + l], &d);
    for (size_t i = whole; i < n; i++)
        lane[i - whole] += distill_one(&z[i], t[i], &d);
    return tree(lane);
}

static void
swiglu(float *restrict y, const float *restrict gate, const float *restrict up,
       size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gate[i] / (1 + exponential(-gate[i])) * up[i];
}

static void
swiglu_bwd(float *restrict dgate, float *restrict dup, const float *restrict gate,
           const float *restrict up, const float *restrict dy, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float g = gate[i], s = 1 / (1 + exponential(-g)), silu = g * s;
        dgate[i] = dy[i] * up[i] * (s + silu * (1 - s));
        dup[i] = dy[i] * silu;
    }
}

static void
norm(float *restrict y, const float *restrict x, float rstd, const float *restrict gain,
     size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * rstd * gain[i];
}

/* Sum of a * b * c. */
static float
dot3(const float *a, const float *b, const float *c, size_t n)
{
    float lane[SUM_LANES] = { 0 };
    size_t whole = n - n % SUM_LANES;
    for (size_t i = 0; i < whole; i += SUM_LANES)
        for (size_t l = 0; l < SUM_LANES; l++)
            lane[l] += a[i + l] * b[i + l] * c[i + l];
    for (size_t i = whole; i < n; i++)
        lane[i - whole] += a[i] * b[i] * c[i];
    return tree(lane);
}

static void
norm_bwd_chunk(float *restrict dx, const float *restrict t, const float *restrict x,
               float rstd, float c, size_t n, bool add)
{
    if (add)
        for (size_t i = 0; i < n; i++)
            dx[i] = dx[i] + rstd * (t[i] - x[i] * c);
    else
        for (size_t i = 0; i < n; i++)
            dx[i] = rstd * (t[i] - x[i] * c);
}

enum { CHUNK = 256 };

static void
norm_bwd(float *dx, const float *dy, const float *x, float rstd, const float *gain,
         size_t n, bool add)
{
    float t[CHUNK], c = dot3(dy, gain, x, n) * rstd * rstd / (float)n;
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t len = n - at < CHUNK ? n - at : CHUNK;
        for (size_t i = 0; i < len; i++)
            t[i] = dy[at + i] * gain[at + i];
        norm_bwd_chunk(dx + at, t, x + at, rstd, c, len, add);
    }
}

static void
norm_bwd_gain(float *restrict dgain, const float *restrict dy, const float *restrict x,
              float rstd, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dgain[i] += dy[i] * (x[i] * rstd);
}

static void
rope(float *restrict a, float *restrict b, const float *restrict cosine,
     const float *restrict sine, float sign, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float first = a[i], second = b[i], s = sign * sine[i];
        a[i] = first * cosine[i] - second * s;
        b[i] = second * cosine[i] + first * s;
    }
}

const struct rows_isa NAME(rows) = {
    dot,     max,       sum_squares,   axpy,        scale,  scale_in_place,
    exp_sum, exp_total, distill,       softmax_bwd, swiglu, swiglu_bwd,
    norm,    norm_bwd,  norm_bwd_gain, rope
};
