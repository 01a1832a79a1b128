/* SPDX-License-Identifier: MIT */
/* watch: signs that a training has diverged.  A loss that is worse than guessing and a gradient
 * of zeros are warned of, and what such a run would replace is kept; --stop-if-worse ends it before
 * it saves. */
#ifndef NIBBLE_TRAIN_WATCH_H
#define NIBBLE_TRAIN_WATCH_H

#include "lib/train/trainer.h"

/* All zeros before the first step. */
struct watch_state {
    double best;    // lowest loss of a step; 0: none
    uint64_t worse; // steps in a row whose loss was above --stop-if-worse times that
    uint64_t high;  // steps in a row whose loss was worse than guessing
    bool warned;    // of a loss that is worse than guessing
    bool zeros;     // of a gradient of zeros
    bool sound;     // the loss of the weights of the last save was no worse than that
    bool kept;      // such a save has got another name, once in a run
};

struct watch {
    struct observer observer;
    struct watch_state now, saved; // at the last save
};

void watch_begin(struct watch *w);
/* Go on from what an earlier run knew of the step of the checkpoint. */
void watch_restore(struct watch *w, double best, uint64_t worse_steps);

#endif
