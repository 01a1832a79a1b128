/* SPDX-License-Identifier: MIT */
/* quantizer: from the words of options and files (doc/FORMAT.md section 4) to what
 * lib/nvfp4 computes. */
#ifndef NIBBLE_LOAD_QUANTIZER_H
#define NIBBLE_LOAD_QUANTIZER_H

#include "lib/format/store.h"
#include "lib/nvfp4/quant.h"

/* The quantizer of that name, and whether fused projections share a tensor scale; a word
 * that is NULL means the quantizer's default.  false: the name is "none" or NULL, and *spec
 * and *share are unchanged. */
bool quantizer_of(struct quant_spec *spec, bool *share, const struct quant_words *w);

#endif
