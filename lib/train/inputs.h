/* SPDX-License-Identifier: MIT */
/* inputs: the checkpoint and the samples of a run.  config.c alone calls it. */
#ifndef NIBBLE_TRAIN_INPUTS_H
#define NIBBLE_TRAIN_INPUTS_H

#include "lib/train/config.h"

/* Open the samples to train on, at the place where the checkpoint stopped. */
int inputs_open_data(struct run_config *r);
/* Set r->end by --until, --epochs or -n. */
int inputs_settle_end(struct run_config *r);

#endif
