/* SPDX-License-Identifier: MIT */
/* dialect: NVFP4 model directories as ModelOpt and compressed-tensors define them.
 *
 * The names of their tensors are in view.c; here is their configuration: which modules
 * are quantized, and which are not.
 */
#ifndef NIBBLE_FORMAT_DIALECT_H
#define NIBBLE_FORMAT_DIALECT_H

#include "lib/format/view.h"

/* views_open, and if the configuration of s has a quantization_config: its claims about
 * each module must be true, parts of tensors that do not fit are refused, and so are
 * unknown entries beside a quantized module.  Scales of activations are set aside.
 * copies: entries are only copied, so that quantization of another kind is no error. */
int dialect_views(struct views *w, struct store *s, bool copies);

/* A configuration without its "quantization_config". */
int dialect_plain_config(struct buf *out, struct slice config, struct err *err);

#endif
