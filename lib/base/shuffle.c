/* SPDX-License-Identifier: MIT */
/* shuffle: see shuffle.h. */
#include "lib/base/shuffle.h"

#include "lib/base/philox.h"

#include <stdlib.h>

static int
by_draw(const void *a, const void *b)
{
    const struct ticket *x = a, *y = b;
    if (x->draw != y->draw)
        return x->draw < y->draw ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

void
shuffle(struct ticket *order, size_t n, uint32_t seed, uint32_t epoch)
{
    const uint32_t key[2] = { seed, epoch };
    for (size_t i = 0; i < n; i++) {
        const uint32_t counter[4] = { (uint32_t)i, (uint32_t)((uint64_t)i >> 32), 0,
                                      PHILOX_ORDER };
        uint32_t out[4];
        philox4x32(out, counter, key);
        order[i] = (struct ticket){ out[0] | (uint64_t)out[1] << 32, i };
    }
    qsort(order, n, sizeof *order, by_draw);
}
