/* SPDX-License-Identifier: MIT */
/* dump: loss, logits and gradients of the first step of a run, for comparisons (--dump). */
#ifndef NIBBLE_TRAIN_DUMP_H
#define NIBBLE_TRAIN_DUMP_H

#include "lib/train/trainer.h"

/* Writes the file when the gradients of the first step are complete. */
extern const struct observer dump_observer;

#endif
