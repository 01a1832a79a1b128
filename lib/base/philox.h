/* SPDX-License-Identifier: MIT */
/* philox: Philox4x32-10, the only source of randomness in the project.
 *
 * A draw is a pure function of key = (seed, step) and counter = (index low, index
 * high, row of the tensor table, use); no two uses share a counter.
 */
#ifndef NIBBLE_BASE_PHILOX_H
#define NIBBLE_BASE_PHILOX_H

#include <stdint.h>

enum philox_use {
    PHILOX_INIT = 0,    // random weights: index = element
    PHILOX_ORDER = 1,   // sample order of an epoch: index = sample
    PHILOX_MASTER = 2,  // stochastic bf16 of the master
    PHILOX_MOMENT = 3,  // stochastic 8-bit or bf16 first moment
    PHILOX_ROUND = 4,   // stochastic element rounding
    PHILOX_SAMPLE = 5,  // sampling in generate
    PHILOX_MOMENT2 = 6, // stochastic bf16 second moment
};

/* out = the four words of one counter. */
static inline void
philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53 * c0;
        uint64_t p1 = (uint64_t)0xcd9e8d57 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
