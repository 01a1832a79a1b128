/* SPDX-License-Identifier: MIT */
/* exp: exponentials of a vector of doubles, for maths.c and maths_kernel.c, which say before how
 * many it has: EACH. */
#ifndef NIBBLE_BASE_EXP_H
#define NIBBLE_BASE_EXP_H

#include <stdint.h>

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

#endif
