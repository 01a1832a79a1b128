/* SPDX-License-Identifier: MIT */
/* exchange: calls of comm.h for memory of a device, private to lib/model.  GPUs do it among
 * themselves, behind what their queue has; the host does not wait.  A dry device's
 * are only counted.  -1: the error is that of the
 * communicator, or of the device. */
#ifndef NIBBLE_MODEL_EXCHANGE_H
#define NIBBLE_MODEL_EXCHANGE_H

#include "kernels/kernels.h"
#include "lib/core/comm.h"

int exchange_gather(struct kernels *k, struct comm *c, void *p, const size_t *at);
int exchange_parts(struct kernels *k, struct comm *c, void *to, const void *from,
                   const size_t *at);

#endif
