/* SPDX-License-Identifier: MIT */
/* maths_kernel: maths_shares, compiled once for each instruction set.  A lane is a value, so all
 * sets have the same bits. */
#include "lib/base/maths.h"
#include "lib/base/vec.h"

enum { EACH = LANES / 2 };
#include "lib/base/exp.h"

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
