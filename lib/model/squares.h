/* SPDX-License-Identifier: MIT */
/* squares: sums of squares of gradients whose parts are of several ranks, private to lib/model;
 * numerics.md section 10. */
#ifndef NIBBLE_MODEL_SQUARES_H
#define NIBBLE_MODEL_SQUARES_H

#include "lib/model/train.h"

/* When there are gradients. */
int squares_open(struct train *t);
void squares_close(struct train *t);
/* To t->squares, what op_sum_squares gives of whole gradients. */
int squares_measure(struct train *t);

#endif
