/* SPDX-License-Identifier: MIT */
/* state: where a training stands, in a checkpoint; and the window of accepted steps by which a
 * spike is recognised. */
#ifndef NIBBLE_TRAIN_STATE_H
#define NIBBLE_TRAIN_STATE_H

#include "kernels/kernels.h"
#include "lib/format/state.h"
#include "lib/format/store.h"
#include "lib/model/net.h"
#include "lib/train/settings.h"

_Static_assert((int)STATE_ROUTE == (int)ROUTE_SIZE, "a state holds any route");
_Static_assert((int)STATE_FP8 == (int)NET_FP8, "a state holds the scales of a layer");
/* Open a file; if it is a checkpoint, check that it has exactly the arrays of its training.
 * store_close(s) is right after success and failure alike. */
int checkpoint_open(struct store *s, const char *path, struct guard *g,
                    struct err *err);
int state_read(struct state *st, struct settings *s, const struct store *file);
void state_put(struct buf *b, const struct state *st, const struct settings *s);
/* Whether loss and norm are within z deviations of the window. */
bool spike_fits(const struct spike *w, double z, double loss, double norm);
void spike_add(struct spike *w, double loss, double norm);

#endif
