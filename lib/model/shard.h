/* SPDX-License-Identifier: MIT */
/* shard: which rank owns which elements of a tensor, numerics.md 10. */
#ifndef NIBBLE_MODEL_SHARD_H
#define NIBBLE_MODEL_SHARD_H

#include "lib/model/arrays.h"

/* That rank's part of row i of the table, which may be empty.
 * Parts are multiples of what sums of squares, rows, groups and tiles divide; a tensor that has
 * fewer than that is one rank's, the next rank's for the next row. */
struct span shard_span(const struct table *t, size_t i, unsigned ranks, unsigned rank);
/* The same of all: at[q], at[ranks] being the end. */
void shard_parts(size_t *at, const struct table *t, size_t i, unsigned ranks);

#endif
