/* SPDX-License-Identifier: MIT */
/* tensorboard: loss, rate, gradient norm and speed as events for TensorBoard (--tensorboard). */
#ifndef NIBBLE_TRAIN_TENSORBOARD_H
#define NIBBLE_TRAIN_TENSORBOARD_H

#include "lib/train/output.h"
#include "lib/train/trainer.h"

struct tensorboard {
    struct observer observer;
    struct output out;
};

/* Begin a file of events in the directory.  -1: *r->err; tensorboard_close is right then, too. */
int tensorboard_open(struct tensorboard *t, const struct run_config *r,
                     struct stop *stop);
int tensorboard_close(struct tensorboard *t, struct err *err);

#endif
