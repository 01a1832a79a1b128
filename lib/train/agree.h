/* SPDX-License-Identifier: MIT */
/* agree: ranks of a run compare what must be alike, before they share a step. */
#ifndef NIBBLE_TRAIN_AGREE_H
#define NIBBLE_TRAIN_AGREE_H

#include "lib/train/keep.h"

/* Both return -1 with *r->err. */

/* Whether all ranks run the same program on the same checkpoint. */
int agree_on_input(const struct run_config *r);
/* Whether they compute the same, and do things at the same steps. */
int agree_on_run(const struct trainer *t, const struct keep *k);

#endif
