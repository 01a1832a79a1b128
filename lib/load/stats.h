/* SPDX-License-Identifier: MIT */
/* stats: count, minimum, maximum, mean and deviation of values.
 *
 * Values come in blocks of at most STATS_BLOCK; blocks are summed in 16 fixed lanes and
 * merged in order, so the result depends on neither threads nor instruction set.
 */
#ifndef NIBBLE_LOAD_STATS_H
#define NIBBLE_LOAD_STATS_H

#include "lib/base/isa.h"

#include <stddef.h>
#include <stdint.h>

enum { STATS_BLOCK = 4096 };

struct stats {
    uint64_t n; // finite values
    uint64_t zeros, nans, infs;
    double min, max; // undefined while n == 0, like the two below
    double mean, m2; // m2: sum of squared distances from the mean
};

/* The loops of an instruction set.  f32, f64: add one block of values to *s. */
struct stats_isa {
    const char *name;
    void (*f32)(struct stats *s, const float *x, size_t n);
    void (*f64)(struct stats *s, const double *x, size_t n);
    /* out[i] = the value of the bits in[i]; any alignment of in. */
    void (*from_f16)(float *out, const void *in, size_t n);
    void (*from_bf16)(float *out, const void *in, size_t n);
};

const struct stats_isa *stats_isa(enum isa isa);

/* *a becomes that of the values of a, then of b. */
void stats_merge(struct stats *a, const struct stats *b);
double stats_std(const struct stats *s); // of the population
double stats_absmax(const struct stats *s);

extern const struct stats_isa stats_scalar;
#if defined __x86_64__
extern const struct stats_isa stats_avx2, stats_avx512;
#elif defined __aarch64__
extern const struct stats_isa stats_neon;
#endif

#endif
