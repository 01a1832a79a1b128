/* SPDX-License-Identifier: MIT */
/* gradient: the gradients of a step from those of its passes, private to lib/model. */
#ifndef NIBBLE_MODEL_GRADIENT_H
#define NIBBLE_MODEL_GRADIENT_H

#include "lib/model/train.h"

/* A gradient of a pass is complete (net.h, done): add it to the step's, which begins as that
 * of the first pass. */
void gradient_add(void *ctx, size_t i);

#endif
