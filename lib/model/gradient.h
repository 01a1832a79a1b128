/* SPDX-License-Identifier: MIT */
/* gradient: the gradients of a step from those of its passes and ranks, private to lib/model. */
#ifndef NIBBLE_MODEL_GRADIENT_H
#define NIBBLE_MODEL_GRADIENT_H

#include "lib/model/train.h"

/* When there are gradients: memory for those of other ranks, and how much a rank has. */
int gradient_open(struct train *t);
size_t gradient_received(const struct train *t, unsigned rank);
/* A call of the communicator has failed: keep its error. */
int gradient_lost(struct train *t);
/* A gradient of a pass will be written (net.h, begin): behind the exchange of what is there. */
void gradient_begin(void *ctx, size_t i);
/* A gradient of a pass is complete (net.h, done): add it, and those of the other ranks' passes,
 * to the step's, which begins as that of the first pass. */
void gradient_add(void *ctx, size_t i);

#endif
