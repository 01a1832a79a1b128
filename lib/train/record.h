/* SPDX-License-Identifier: MIT */
/* record: writes the provenance and the state of a checkpoint. */
#ifndef NIBBLE_TRAIN_RECORD_H
#define NIBBLE_TRAIN_RECORD_H

#include "lib/format/writer.h"
#include "lib/train/trainer.h"

/* Append the inputs of the training that `in` is a checkpoint of: its checkpoint at step 0. */
int record_origin(struct store *in, struct buf *b, struct err *err);
/* Take the place of the training, as it is now, to t->st. */
int record_note(struct trainer *t);
/* The provenance and the state that a save would write now. */
int record_describe(struct trainer *t, struct buf *provenance, struct buf *state);
/* The state at the end of the run, of as many bytes as there may be. */
int record_largest(struct trainer *t, struct state *st);
/* Fill in the metadata of a checkpoint with that state; the buffers hold its texts. */
int record_meta(const struct trainer *t, const struct state *st, struct wmeta *m,
                struct buf *provenance, struct buf *state);

#endif
