/* SPDX-License-Identifier: MIT */
/* step_dump: loss, logits and gradients of the first step as a safetensors file. */
#ifndef NIBBLE_CMD_TRAINSTEP_STEP_DUMP_H
#define NIBBLE_CMD_TRAINSTEP_STEP_DUMP_H

#include "cmd/trainstep/trainstep.h"

/* Call it after backward, before the update. */
void dump_write(struct run *r, double loss);

#endif
