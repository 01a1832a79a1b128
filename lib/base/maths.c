/* SPDX-License-Identifier: MIT */
/* maths: see maths.h.  Arguments are brought into a small range, where few terms of the
 * Taylor series are enough. */
#include "lib/base/maths.h"

#include <math.h>

enum { EACH = 2 };
#include "lib/base/exp.h"

static maths_shares_fn *const table[ISA_COUNT] = {
    [ISA_SCALAR] = maths_shares_scalar,
#if defined __x86_64__
    [ISA_AVX2] = maths_shares_avx2,
    [ISA_AVX512] = maths_shares_avx512,
#elif defined __aarch64__
    [ISA_NEON] = maths_shares_neon,
#endif
};

double
maths_exp(double x)
{
    return exp_of((vd){ x, 0 })[0];
}

void
maths_shares(double *y, const float *x, size_t n, double most, double temperature)
{
    table[isa_best()](y, x, n, most, temperature);
}

double
maths_log(double x)
{
    const double high = 0x1.62e42fee00000p-1, low = 0x1.a39ef35793c76p-33;
    int e;
    double m = frexp(x, &e);
    if (m < 0x1.6a09e667f3bcdp-1) { // below 1/sqrt 2
        m *= 2;
        e--;
    }
    double s = (m - 1) / (m + 1), square = s * s, sum = 0;
    for (int k = 23; k > 0; k -= 2) // log m = 2 (s + s^3/3 + s^5/5 ...)
        sum = sum * square + 2.0 / k;
    return e * high + (e * low + s * sum);
}

void
maths_sincos(double x, double *sine, double *cosine)
{
    // pi/2 in three parts, so that n times the first two is exact
    const double a = 0x1.921fb54000000p+0, b = 0x1.10b4610000000p-30;
    const double c = 0x1.a62633145c06ep-58;
    double n = rint(x * 0x1.45f306dc9c883p-1);
    double r = ((x - n * a) - n * b) - n * c, square = r * r;
    double s = 1, t = 1;
    for (int k = 20; k > 0; k -= 2) {
        s = 1 - s * square / (k * (k + 1));
        t = 1 - t * square / (k * (k - 1));
    }
    s *= r;
    switch ((long)n & 3) {
    case 0:
        *sine = s, *cosine = t;
        break;
    case 1:
        *sine = t, *cosine = -s;
        break;
    case 2:
        *sine = -s, *cosine = -t;
        break;
    default:
        *sine = -t, *cosine = s;
    }
}
