/* SPDX-License-Identifier: MIT */
/* delayed: delayed scales of FP8 products, private to lib/model.
 *
 * A step takes scales from the largest magnitudes of the last step that was done, over all of
 * its passes and ranks, times DELAYED_MARGIN.  Where that is 0, nothing is known, and a tensor
 * is scaled by its own.  Evaluations take current scales; they and skipped steps change nothing.
 */
#ifndef NIBBLE_MODEL_DELAYED_H
#define NIBBLE_MODEL_DELAYED_H

#include "lib/model/train.h"

/* A power of two, like scales: it takes range below, no precision. */
enum { DELAYED_MARGIN = 2 };

int delayed_open(struct train *t);
void delayed_close(struct train *t);
/* Before the first pass of a step. */
void delayed_begin(struct train *t);
/* Behind a pass: how many values were clipped in it. */
int delayed_read_clipped(struct train *t, uint64_t *clipped);
/* A step was done: keep its magnitudes. */
int delayed_keep(struct train *t);

#endif
