/* SPDX-License-Identifier: MIT */
/* step_dump: loss, logits and gradients of the first step, for those who compare. */
#ifndef NIBBLE_CMD_TRAINSTEP_STEP_DUMP_H
#define NIBBLE_CMD_TRAINSTEP_STEP_DUMP_H

#include "cmd/trainstep/trainstep.h"

/* Called with the gradients there, before they are used. */
void dump_write(struct run *r, double loss);

#endif
