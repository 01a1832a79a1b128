/* SPDX-License-Identifier: MIT */
/* finished: a run whose checkpoint has all its steps already, or that --patience has ended. */
#ifndef NIBBLE_TRAIN_FINISHED_H
#define NIBBLE_TRAIN_FINISHED_H

#include "lib/train/keep.h"

/* Note that there is nothing to do.  -1 with *r->err: a file that was requested does not exist, or is
 * of something else. */
int finished_check(const struct run_config *r);
/* Note that --patience ended it. */
void finished_by_patience(const struct run_config *r, const struct keep *k);

#endif
