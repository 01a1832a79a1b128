/* SPDX-License-Identifier: MIT */
/* maths: see maths.h.  Arguments are brought into a small range, where few terms of the
 * Taylor series are enough. */
#include "lib/core/maths.h"

#include <math.h>
#include <stdint.h>

/* Two at once. */
typedef double two __attribute__((vector_size(16)));
typedef uint64_t two_bits __attribute__((vector_size(16)));

/* The sum of r^k / k!, k < 15, from its end.  A division takes longer than all else of a term,
 * and halves of a quotient are exact: six are enough. */
static inline two
exp_terms(two r)
{
    two r3 = r / 3, r5 = r / 5, r7 = r / 7, sum = 1 + r7 / 2;
    sum = 1 + sum * (r / 13);
    sum = 1 + sum * (r3 / 4);
    sum = 1 + sum * (r / 11);
    sum = 1 + sum * (r5 / 2);
    sum = 1 + sum * (r / 9);
    sum = 1 + sum * (r / 8);
    sum = 1 + sum * r7;
    sum = 1 + sum * (r3 / 2);
    sum = 1 + sum * r5;
    sum = 1 + sum * (r / 4);
    sum = 1 + sum * r3;
    sum = 1 + sum * (r / 2);
    return 1 + sum * r;
}

static inline two
exp_two(two x)
{
    // ln 2 in two parts, so that n times the first is exact
    const double high = 0x1.62e42fee00000p-1, low = 0x1.a39ef35793c76p-33;
    // This leaves no bits for more than an integer, which is then in the lowest bits.
    const two whole = { 0x1.8p52, 0x1.8p52 };
    two sum = x * 0x1.71547652b82fep+0 + whole, n = sum - whole;
    two r = (x - n * high) - n * low;
    two_bits power = ((two_bits)sum - (two_bits)whole + 1023) << 52;
    return exp_terms(r) * (two)power;
}

double
maths_exp(double x)
{
    return exp_two((two){ x, 0 })[0];
}

void
maths_exps(double *y, const double *x, size_t n)
{
    for (; n >= 2; n -= 2, x += 2, y += 2) {
        two e = exp_two((two){ x[0], x[1] });
        y[0] = e[0];
        y[1] = e[1];
    }
    if (n)
        *y = maths_exp(*x);
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
