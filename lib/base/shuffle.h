/* SPDX-License-Identifier: MIT */
/* shuffle: an order of samples that is a function of (seed, epoch) and their indices
 * alone: sorted by a draw of Philox each. */
#ifndef NIBBLE_BASE_SHUFFLE_H
#define NIBBLE_BASE_SHUFFLE_H

#include <stddef.h>
#include <stdint.h>

struct ticket {
    uint64_t draw, index;
};

/* order[i].index is the sample at place i. */
void shuffle(struct ticket *order, size_t n, uint32_t seed, uint32_t epoch);

#endif
