/* SPDX-License-Identifier: MIT */
/* plan: the memory of a run, measured by one step on a device that only counts. */
#ifndef NIBBLE_TRAIN_PLAN_H
#define NIBBLE_TRAIN_PLAN_H

#include "lib/train/config.h"

/* Choose the fastest layout that fits; without --overcommit refuse if none does. */
int plan_settle(struct run_config *r);
/* The plan as TSV. */
int plan_put(struct run_config *r, struct buf *b);

#endif
