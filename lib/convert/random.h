/* SPDX-License-Identifier: MIT */
/* random: elements [first, first+n) of tensor `row` of the table: scale * (sum of eight
 * 16-bit halves - 262140), rounded once to f32. */
#ifndef NIBBLE_CONVERT_RANDOM_H
#define NIBBLE_CONVERT_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* No element is further from 0 than this many standard deviations, which is 262140 over
 * the sum's own, sqrt(8 * (2^32 - 1) / 12) = 53510.4, rounded up. */
#define RANDOM_MAX_SIGMAS 4.9

typedef void random_fn(float *out, uint64_t first, size_t n, uint32_t seed,
                       uint32_t row, double scale);

random_fn random_weights_scalar;
#if defined __x86_64__
random_fn random_weights_avx2, random_weights_avx512;
#elif defined __aarch64__
random_fn random_weights_neon;
#endif

#endif
