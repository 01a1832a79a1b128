/* SPDX-License-Identifier: MIT */
/* replay: whether steps that a checkpoint claims to be made of lead to it.  They are computed
 * again from an earlier checkpoint, and every byte is compared; nothing is written.
 *
 * Settings, data, teacher and route are the claim's, as its state and its record have them, so
 * steps of one span of the record can be replayed at a time. */
#ifndef NIBBLE_TRAIN_REPLAY_H
#define NIBBLE_TRAIN_REPLAY_H

#include "lib/train/trainer.h"

struct replay {
    struct store claim;
    struct state st; // its state
    struct settings s;
    char *earlier; // the name of the checkpoint to begin with
    bool open;
};

/* All return 0, or -1 with the error of the configuration where they cannot answer. */

/* Open the checkpoint that is to be compared, and find p->earlier. */
int replay_open(struct replay *p, const struct run_config *r);
/* The checkpoint to begin with is open: check it, and take the settings of the steps. */
int replay_begin(const struct replay *p, struct run_config *r);
/* Data and teacher are open; the device is. */
int replay_check_inputs(const struct replay *p, const struct run_config *r);
int replay_check_route(const struct replay *p, const struct trainer *t);
/* After the last step: compare, and say what came out.  *differs: the steps do not lead to it. */
int replay_answer(struct replay *p, struct trainer *t, bool *differs);
/* Right for one that is not open, too. */
void replay_close(struct replay *p);

#endif
