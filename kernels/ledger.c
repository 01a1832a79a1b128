/* SPDX-License-Identifier: MIT */
/* ledger: what devices count. */
#include "kernels/kernels.h"

void
kernels_count(struct kernels *k, enum part part, int64_t bytes)
{
    struct ledger *l = &k->ledger;
    l->now[part] += (uint64_t)bytes;
    l->all += (uint64_t)bytes;
    if (l->now[part] > l->peak[part])
        l->peak[part] = l->now[part];
    if (l->all > l->most)
        l->most = l->all;
}
