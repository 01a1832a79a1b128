/* SPDX-License-Identifier: MIT */
/* log: one line of JSON for each step and each evaluation (--log).  A log of an earlier run goes on
 * behind the step that the checkpoint has. */
#ifndef NIBBLE_TRAIN_LOG_H
#define NIBBLE_TRAIN_LOG_H

#include "lib/train/output.h"
#include "lib/train/trainer.h"

#include <sys/types.h>

struct log {
    struct observer observer;
    struct output out;
    off_t keep;       // bytes of the file to keep, -1: all
    uint64_t dropped; // lines after these
    uint64_t first;   // the step that the run begins with
    struct buf line;
};

/* Open the file.  -1: *r->err; log_close is right then, too. */
int log_open(struct log *l, const struct run_config *r, struct stop *stop);
int log_close(struct log *l, struct err *err);

#endif
