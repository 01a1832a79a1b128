/* SPDX-License-Identifier: MIT */
/* teacher: the model of --teacher, from whose logits a run learns.  Without --teacher these do
 * nothing. */
#ifndef NIBBLE_TRAIN_TEACHER_H
#define NIBBLE_TRAIN_TEACHER_H

#include "lib/train/config.h"

/* Open its file and check that it may teach this model. */
int teacher_open(struct run_config *r);
/* Put it on the device of t, which learns from it from then on. */
int teacher_load(const struct run_config *r, struct train *t);
/* After t and before the device is closed. */
void teacher_unload(const struct run_config *r);

#endif
