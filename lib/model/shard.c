/* SPDX-License-Identifier: MIT */
/* shard: see shard.h. */
#include "lib/model/shard.h"

#include "kernels/kernels.h"

static uint64_t
gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void
shard_parts(size_t *at, const struct table *t, size_t i, unsigned ranks)
{
    const struct row *r = &t->row[i];
    uint64_t cols = r->shape[r->rank - 1];
    uint64_t unit = cols / gcd(cols, SQUARES_BLOCK) * SQUARES_BLOCK;
    uint64_t units = (r->numel + unit - 1) / unit, each = units / ranks;
    uint64_t more = units % ranks, end = 0; // so many ranks have one more, from i on
    at[0] = 0;
    for (unsigned q = 0; q < ranks; q++) {
        end += each + ((q + ranks - i % ranks) % ranks < more);
        at[q + 1] = (size_t)(end * unit < r->numel ? end * unit : r->numel);
    }
}
