/* SPDX-License-Identifier: MIT */
/* coarse: every instruction set gives the bits that coarse.h defines, computed here with
 * doubles; they are as near to the product as it promises; odd widths, few and many rows,
 * any number of threads, large and tiny values and those that are not finite. */
#include "kernels/cpu/coarse.h"

#include "lib/base/num.h"
#include "lib/nvfp4/codec.h"
#include "tests/unit/check.h"
#include "tests/unit/matrix.h"

#include <math.h>

enum { MOST = 1 << 20, MOST_X = COARSE_MAX * 3000, THREADS = 3 };

static uint8_t codes[MOST / 2], scales[MOST / 16];
static float x[MOST_X], y[MOST], want[MOST], decoded[MOST];
static _Alignas(64) uint8_t workspace[1 << 20];
static struct par *pool[THREADS + 1];
static struct err err;

static float
value(uint64_t i)
{
    return (float)((double)check_random(i) * 0x1p-31 - 1);
}

/* A block of x as integers; what they are to be multiplied by. */
static double
integers(double to[16], const float *v)
{
    double most = 0;
    int up;
    for (int i = 0; i < 16; i++) {
        if (!isfinite(v[i]))
            return NAN;
        most = fmax(most, fabs((double)v[i]));
    }
    frexp(most, &up); // most < 2^up
    up = most == 0 || 15 - up > 100 ? 100 : 15 - up;
    for (int i = 0; i < 16; i++)
        to[i] = fmin(nearbyint(ldexp((double)v[i], up)), 32767);
    return ldexp(1, -up);
}

/* One sum; *off: how far from the product the rounding of x may have brought it. */
static float
by_definition(const struct matrix *w, size_t row, const float *v, const float *add,
              double *off)
{
    float sum[16] = { 0 }, scale2 = w->scale2 ? *w->scale2 : 1;
    *off = 0;
    for (size_t k = 0; k < w->cols; k += 16) {
        double q[16] = { 0 }, unit = integers(q, v + k), block = 0;
        const float *weights = decoded + row * w->cols + k; // without scale2
        uint8_t e4m3 = scales[(row * w->cols + k) / 16];
        double scale = (double)e4m3_value(e4m3);
        for (int h = 0; h < 2; h++) {
            double part = 0;
            float *s = &sum[k / 16 % 8 * 2 + (size_t)h];
            for (int i = 8 * h; i < 8 * h + 8; i++)
                part += scale > 0 ? (double)weights[i] / scale * q[i] : 0;
            *s = fmaf((float)part, (float)(scale * unit), *s);
        }
        for (int i = 0; i < 16; i++)
            block += fabs((double)weights[i]);
        *off += block * unit; // half of it, but where 32768 became 32767
    }
    for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            sum[i] += sum[i + n];
    *off *= fabs((double)scale2);
    return add ? *add + sum[0] * scale2 : sum[0] * scale2;
}

/* The product, and how large its terms are together. */
static double
product(const struct matrix *w, size_t row, const float *v, double *terms)
{
    double sum = 0, scale2 = w->scale2 ? (double)*w->scale2 : 1;
    *terms = 0;
    for (size_t k = 0; k < w->cols; k++) {
        double term = (double)decoded[row * w->cols + k] * scale2 * (double)v[k];
        sum += term;
        *terms += fabs(term);
    }
    return sum;
}

static bool
same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(b[i]) ? !isnan(a[i]) : a[i] != b[i] || signbit(a[i]) != signbit(b[i]))
            return false;
    return true;
}

static void
check_case(const char *what, size_t tokens, size_t out, size_t in, const float *scale2)
{
    struct matrix w = matrix_of_nvfp4(codes, scales, scale2, out, in);
    struct gemv g = { y, x, &w, tokens, tokens % 2, false };
    NEED(out * in <= MOST && tokens * in <= MOST_X && tokens * out <= MOST);
    NEED(coarse_workspace(tokens, in) <= sizeof workspace);
    nvfp4_decode(decoded, codes, scales, 1, out * in);
    for (size_t i = 0; i < tokens * out; i++) {
        const float *v = x + i / out * in, add = value(i);
        double off, terms, exact = product(&w, i % out, v, &terms);
        want[i] = by_definition(&w, i % out, v, g.add ? &add : NULL, &off);
        if (!isfinite(exact))
            continue;
        exact += g.add ? (double)add : 0;
        terms += g.add ? fabs((double)add) : 0;
        off += terms * ((double)in / 128 + 8) * 0x1p-24 + 0x1p-120;
        CHECK_SAY(fabs((double)want[i] - exact) <= off,
                  "%s: %zu x %zu: %g is %g off, %g is right", what, out, in, exact,
                  (double)want[i] - exact, off);
    }
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (unsigned t = 1; t <= THREADS && isa_have((enum isa)isa); t++) {
            for (size_t i = 0; i < tokens * out; i++)
                y[i] = value(i);
            memset(workspace, 0xff, sizeof workspace);
            CHECK(coarse_run(&g, (enum isa)isa, pool[t], workspace, &err) == 0);
            CHECK_SAY(same(y, want, tokens * out),
                      "%s: %zu tokens, %zu x %zu, %s, %u threads", what, tokens, out,
                      in, isa_name((enum isa)isa), t);
        }
}

static void
check_sizes(void)
{
    static const float scale2 = 0.0123F, minus = -3;
    static const size_t widths[] = { 16, 32, 48, 112, 128, 144, 256, 400, 2560 };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (size_t tokens = 1; tokens <= COARSE_MAX; tokens++) {
            check_case("sizes", tokens, 1, widths[i], &scale2);
            check_case("sizes", tokens, 66 + tokens, widths[i], NULL);
        }
    check_case("sizes", 1, 333, 2064, &minus);
    check_case("sizes", 3, 130, 2992, &scale2);
    check_case("sizes", 0, 7, 64, &scale2);
}

/* Numbers whose largest rounds up to what 16 bits do not have, and the smallest scale. */
static void
check_edges(void)
{
    static const float scale2 = 0x1p-20F;
    static const float odd[] = { 32767.6F, -32767.6F,   32767.4F, 0.99999994F,
                                 -1,       0x1.fffp14F, 0,        -0.0F };
    for (size_t i = 0; i < 256; i++)
        x[i] = odd[i % 8] * (i < 128 ? 1 : 0x1p-140F);
    check_case("edges", 1, 9, 256, &scale2);
    memset(scales, 1, sizeof scales);
    check_case("smallest scales", 1, 9, 256, &scale2);
    memset(scales, 0x7e, sizeof scales);
    memset(codes, 0xf7, sizeof codes);
    for (size_t i = 0; i < 256; i++)
        x[i] = i % 2 ? -32767 : 32767;
    check_case("largest of all", 1, 9, 256, &scale2);
    for (size_t i = 0; i < 256; i++)
        x[i] = value(i) * (i < 128 ? 1e33F : 1e-45F);
    check_case("large and tiny", 1, 9, 256, &scale2);
    memset(x, 0, sizeof x);
    check_case("nothing", 2, 9, 256, &scale2);
    for (int i = 0; i < 3; i++) {
        static const float bad[] = { NAN, INFINITY, -INFINITY };
        memset(x, 0, sizeof x);
        x[200] = bad[i];
        check_case("not finite", 2, 9, 256, &scale2);
        CHECK(isnan(y[0]) && isfinite(y[9]));
    }
}

int
main(void)
{
    for (unsigned t = 1; t <= THREADS; t++)
        NEED((pool[t] = par_open(t, &err)));
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)check_random(i);
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = (uint8_t)(check_random(i + 5) % 0x7f); // no NaN
    for (size_t i = 0; i < MOST_X; i++)
        x[i] = value(i) * (i % 37 == 0 ? 20.0F : 1.0F);
    check_sizes();
    check_edges();
    for (unsigned t = 1; t <= THREADS; t++)
        par_close(pool[t]);
    return check_end();
}
