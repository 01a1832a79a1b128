/* SPDX-License-Identifier: MIT */
/* maths_kernel: exponentials, compiled once for each instruction set.  A lane is a value, so all
 * sets have the same bits. */
#include "lib/core/maths.h"
#include "lib/core/vec.h"

enum { EACH = LANES / 2 };
typedef double vd __attribute__((vector_size(8 * EACH)));
typedef uint64_t vd_bits __attribute__((vector_size(8 * EACH)));

/* The sum of r^k / k!, k < 15, from its end.  A division takes longer than all else of a term,
 * and halves of a quotient are exact: six are enough. */
static inline vd
exp_terms(vd r)
{
    vd r3 = r / 3, r5 = r / 5, r7 = r / 7, sum = 1 + r7 / 2;
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

static inline vd
exp_of(vd x)
{
    // ln 2 in two parts, so that n times the first is exact
    const double high = 0x1.62e42fee00000p-1, low = 0x1.a39ef35793c76p-33;
    // This leaves no bits for more than an integer, which is then in the lowest bits.
    const vd whole = (vd){ 0 } + 0x1.8p52;
    vd sum = x * 0x1.71547652b82fep+0 + whole, n = sum - whole;
    vd r = (x - n * high) - n * low;
    vd_bits power = ((vd_bits)sum - (vd_bits)whole + 1023) << 52;
    return exp_terms(r) * (vd)power;
}

/* EACH logits. */
static inline vd
share(const float *x, double most, double temperature)
{
    float __attribute__((vector_size(4 * EACH))) f;
    memcpy(&f, x, sizeof f);
    vd v = __builtin_convertvector(f, vd) - most;
    if (temperature != 1)
        v /= temperature;
    vd_bits kept = (vd_bits)(v > MATHS_LOWEST);
    return (vd)((vd_bits)exp_of((vd)((vd_bits)v & kept)) & kept);
}

void
NAME(maths_shares)(double *y, const float *x, size_t n, double most, double temperature)
{
    float last[EACH] = { 0 };
    vd v;
    for (; n >= EACH; n -= EACH, x += EACH, y += EACH) {
        v = share(x, most, temperature);
        memcpy(y, &v, sizeof v);
    }
    memcpy(last, x, n * sizeof *x);
    v = share(last, most, temperature);
    memcpy(y, &v, n * sizeof *y);
}

double
NAME(maths_exp)(double x)
{
    return exp_of((vd){ 0 } + x)[0];
}
