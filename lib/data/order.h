/* SPDX-License-Identifier: MIT */
/* order: samples in another order than that of the input. */
#ifndef NIBBLE_DATA_ORDER_H
#define NIBBLE_DATA_ORDER_H

#include "lib/data/sink.h"

/* Write the buffered samples: packed into bins, shuffled, or both. */
int order_put(struct sink *s);

#endif
