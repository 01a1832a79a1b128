/* SPDX-License-Identifier: MIT */
/* dialect: NVFP4 model directories as ModelOpt and compressed-tensors define them.
 *
 * The names of their tensors stand in view.c; here is what their configuration says: which
 * modules are quantized, and how the others are told.
 */
#ifndef NIBBLE_FORMAT_DIALECT_H
#define NIBBLE_FORMAT_DIALECT_H

#include "lib/format/view.h"

/* If the configuration of s speaks of quantization: what it says of each module must be
 * true, and no entries may stand beside a quantized module that nobody knows.  Scales of
 * activations are set aside.  Nothing to do otherwise. */
int dialect_check(struct store *s, struct views *w);

/* A configuration, with the "quantization_config" of that dialect, or with none (NULL) if
 * it had one. */
int dialect_config(struct buf *out, struct slice config, const char *dialect,
                   const char *version, struct err *err);

#endif
