/* SPDX-License-Identifier: MIT */
/* dialect: NVFP4 model directories as ModelOpt and compressed-tensors define them.
 *
 * The names of their tensors stand in view.c; here is what their configuration says: which
 * modules are quantized, and how the others are told.
 */
#ifndef NIBBLE_FORMAT_DIALECT_H
#define NIBBLE_FORMAT_DIALECT_H

#include "lib/format/view.h"

/* views_open, and if the configuration of s speaks of quantization: what it says of each
 * module must be true, parts of tensors that do not fit are refused, and no entries may
 * stand beside a quantized module that nobody knows.  Scales of activations are set
 * aside.  copies: entries stay what they are, so that quantization of another kind is
 * nobody's business. */
int dialect_views(struct views *w, struct store *s, bool copies);

/* A configuration without its "quantization_config". */
int dialect_plain_config(struct buf *out, struct slice config, struct err *err);

#endif
