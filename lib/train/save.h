/* SPDX-License-Identifier: MIT */
/* save: checkpoints, whole or not at all, and the lock that keeps a second run away. */
#ifndef NIBBLE_TRAIN_SAVE_H
#define NIBBLE_TRAIN_SAVE_H

#include "lib/train/trainer.h"

/* All return 0, or -1 with *t->err. */

/* Keep other runs from the output, and the file itself, which may have another name. */
int save_lock(struct trainer *t);
/* Right for a trainer without a lock, too. */
void save_unlock(struct trainer *t);
/* The checkpoint is another file from the first save on. */
void save_unlock_file(struct trainer *t);
/* Check that all ranks see the place where rank 0 writes. */
int save_check_place(struct trainer *t);
/* Check before the first step that there is space for the largest save. */
int save_check(struct trainer *t);
/* Write the checkpoint, all ranks together. */
int save_write(struct trainer *t);

#endif
