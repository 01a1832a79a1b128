/* SPDX-License-Identifier: MIT */
/* feedback: see feedback.h.  The factor is computed in binary64, codes and scales in binary32,
 * each operation in the order written, so that the bytes are the same on every machine. */
#include "lib/nvfp4/feedback.h"

#include "lib/nvfp4/quant_kernel.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { N = NVFP4_BLOCK };

size_t
feedback_width(size_t cols)
{
    size_t w = FEEDBACK_WIDTH;
    while (cols % w)
        w /= 2;
    return w;
}

/* ---- the factor --------------------------------------------------------------------- */

/* A hundredth of the mean is added to the diagonal, so that columns that few texts use do not
 * make up for much. */
static bool
dampen(double *h, size_t w)
{
    double sum = 0;
    for (size_t j = 0; j < w; j++)
        sum += h[j * w + j];
    double more = 0.01 * sum / (double)w;
    if (!isfinite(more) || more < 0)
        return false;
    more = more > 0 ? more : 1; // no input at all: every column for itself
    for (size_t j = 0; j < w; j++)
        h[j * w + j] += more;
    return true;
}

/* h = R R' with R upper triangular, in place. */
static bool
decompose(double *h, size_t w)
{
    for (size_t j = w; j-- > 0;) {
        double d = h[j * w + j];
        for (size_t k = j + 1; k < w; k++)
            d -= h[j * w + k] * h[j * w + k];
        if (!(d > 0) || isinf(d))
            return false;
        d = sqrt(d);
        h[j * w + j] = d;
        for (size_t i = 0; i < j; i++) {
            double s = h[i * w + j];
            for (size_t k = j + 1; k < w; k++)
                s -= h[i * w + k] * h[j * w + k];
            h[i * w + j] = s / d;
        }
    }
    return true;
}

/* The inverse of H is U' U with U = 1 / R, also upper triangular.  An error of column j, times
 * U(j, k) / U(j, j), is what column k makes up for; its square costs 1 / U(j, j)^2. */
bool
feedback_factor(float *factor, double *h, size_t w)
{
    double u[FEEDBACK_WIDTH];
    assert(w <= FEEDBACK_WIDTH);
    if (!dampen(h, w) || !decompose(h, w))
        return false;
    for (size_t j = 0; j < w; j++) { // row j of U, from its diagonal on
        double own = h[j * w + j];
        u[j] = 1 / own;
        for (size_t k = j + 1; k < w; k++) {
            double s = 0;
            for (size_t i = j; i < k; i++)
                s += u[i] * h[i * w + k];
            u[k] = -s / h[k * w + k];
        }
        for (size_t k = 0; k < j; k++)
            factor[j * w + k] = 0;
        factor[j * w + j] = (float)(own * own);
        for (size_t k = j + 1; k < w; k++)
            factor[j * w + k] = (float)(u[k] * own);
    }
    return true;
}

/* ---- quantizing ----------------------------------------------------------------------- */

/* Codes of 16 columns at scale s and their errors, from y with the errors before each column
 * made up for; what they cost, or more than `limit`. */
static float
try_scale(uint8_t code[N], float error[N], const float *y, float s, const float *factor,
          size_t w, float limit)
{
    float z[N], cost = 0;
    memcpy(z, y, sizeof z);
    for (size_t j = 0; j < N && cost <= limit; j++) {
        float a = fabsf(z[j]);
        unsigned m = quant_nearest(a, s);
        float e = a - e2m1_value(m) * s;
        error[j] = signbit(z[j]) ? -e : e;
        code[j] = (uint8_t)(m | (signbit(z[j]) ? 8U : 0U));
        cost += e * e * factor[j * w + j];
        for (size_t k = j + 1; k < N; k++)
            z[k] -= error[j] * factor[j * w + k];
    }
    return cost;
}

/* What is made up for can lead beyond the tensor bound.  There 6 times 320 or 384 would
 * occur, which times 2^-2 is beyond E4M3: sweepfp8 goes up to 256. */
static int
last_scale(enum quant kind)
{
    return kind == QUANT_SWEEPFP8 ? 0x78 : QUANT_LAST_SCALE;
}

/* 16 columns: the best scale around that of their largest magnitude, and its codes. */
static uint8_t
best_scale(uint8_t code[N], float error[N], const float *y, const float *factor,
           size_t w, enum quant kind)
{
    float amax = 0, min = INFINITY, mine[N];
    uint8_t codes[N];
    for (size_t k = 0; k < N; k++)
        amax = fmaxf(amax, fabsf(y[k]));
    if (amax == 0) {
        for (size_t k = 0; k < N; k++)
            code[k] = signbit(y[k]) ? 8 : 0;
        memset(error, 0, N * sizeof *error);
        return 0;
    }
    int last = last_scale(kind), c0 = e4m3_from(fminf(amax / 6.0F, 448.0F));
    struct quant_range r = quant_range(kind, c0 < last ? c0 : last, false);
    int best = r.low;
    for (int c = r.low; c <= r.high && c <= last; c = quant_next_scale(kind, c)) {
        float s = e4m3_value((uint8_t)c);
        float cost = try_scale(codes, mine, y, s, factor, w, min);
        if (cost < min) { // a tie is the smaller byte's
            min = cost;
            best = c;
            memcpy(code, codes, sizeof codes);
            memcpy(error, mine, sizeof mine);
        }
    }
    return (uint8_t)best;
}

/* One block of w columns, in units of the tensor scale. */
static void
quant_block(uint8_t *codes, uint8_t *scales, float *y, size_t w, const float *factor,
            enum quant kind)
{
    uint8_t code[N] = { 0 };
    float error[N] = { 0 };
    for (size_t g = 0; g < w; g += N) {
        const float *here = factor + g * w + g;
        scales[g / N] = best_scale(code, error, y + g, here, w, kind);
        for (size_t j = 0; j < N; j += 2)
            codes[(g + j) / 2] = (uint8_t)(code[j] | code[j + 1] << 4);
        for (size_t j = 0; j < N; j++)
            for (size_t k = g + N; k < w; k++)
                y[k] -= error[j] * factor[(g + j) * w + k];
    }
}

void
nvfp4_feedback(uint8_t *codes, uint8_t *scales, const float *x, size_t n, size_t column,
               size_t cols, const float *factor, enum quant kind,
               const struct quant_scale *t, struct quant_error *e)
{
    size_t w = feedback_width(cols);
    assert(column % w == 0 && n % w == 0);
    for (size_t at = 0; at < n; at += w) {
        float y[FEEDBACK_WIDTH] = { 0 };
        size_t block = (column + at) % cols / w;
        for (size_t k = 0; k < w; k++)
            y[k] = x[at + k] * t->enc;
        quant_block(codes + at / 2, scales + at / N, y, w, factor + block * w * w,
                    kind);
    }
    if (e)
        nvfp4_measure(codes, scales, x, n, t, e);
}
