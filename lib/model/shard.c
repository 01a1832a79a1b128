/* SPDX-License-Identifier: MIT */
/* shard: see shard.h. */
#include "lib/model/shard.h"

#include "lib/model/train.h"

static uint64_t
min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

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

/* Where the part of a rank begins; of `ranks` where the last one ends. */
static uint64_t
first_of(const struct table *t, size_t i, unsigned ranks, unsigned rank)
{
    const struct row *r = &t->row[i];
    uint64_t cols = r->shape[r->rank - 1];
    uint64_t unit = cols / gcd(cols, SQUARES_BLOCK) * SQUARES_BLOCK;
    uint64_t units = (r->numel + unit - 1) / unit, each = units / ranks;
    // As many ranks have one unit more, from i on, and behind the last one from 0 on.
    uint64_t more = units % ranks, from = i % ranks, end = from + more;
    uint64_t first = each * rank;
    if (rank > from)
        first += min(rank, min(end, ranks)) - from;
    if (end > ranks)
        first += min(rank, end - ranks);
    return first * unit < r->numel ? first * unit : r->numel;
}

struct span
shard_span(const struct table *t, size_t i, unsigned ranks, unsigned rank)
{
    uint64_t first = first_of(t, i, ranks, rank);
    return (struct span){ i, first, first_of(t, i, ranks, rank + 1) - first };
}

void
shard_parts(size_t *at, const struct table *t, size_t i, unsigned ranks)
{
    for (unsigned q = 0; q <= ranks; q++)
        at[q] = (size_t)first_of(t, i, ranks, q);
}

struct span
train_span_of(const struct train *t, size_t i, unsigned rank)
{
    if (train_shards(t))
        return shard_span(&t->net.table, i, t->layout.comm->size, rank);
    return (struct span){ i, 0, t->net.table.row[i].numel };
}

struct span
train_span(const struct train *t, size_t i)
{
    return train_span_of(t, i, t->layout.comm ? t->layout.comm->rank : 0);
}
