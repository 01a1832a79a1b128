/* SPDX-License-Identifier: MIT */
/* update: clipping and AdamW of a training step, private to lib/model. */
#ifndef NIBBLE_MODEL_UPDATE_H
#define NIBBLE_MODEL_UPDATE_H

#include "lib/model/train.h"

/* Before the first pass of a step. */
void update_begin(struct train *t);
/* Kept gradients: their norms; then the update of all tensors or, where one cannot be used,
 * of none. */
int update_measure(struct train *t);
double update_norm(const struct train *t); // of all gradients
void update_all(struct train *t);
/* Released gradients (net.h, done): update at once.  The device decides, so that nothing
 * waits; after a gradient that is not finite nothing moves, but what has moved already cannot
 * be taken back here. */
void update_released(void *ctx, size_t i);
/* Behind a pass: how those updates ended. */
int update_settle_released(struct train *t);
/* The step is skipped; the first reason is kept. */
void update_skip(struct train *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
