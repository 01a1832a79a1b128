/* SPDX-License-Identifier: MIT */
/* quantizer: what the words of a quantizer mean: those of options and, in files, of
 * doc/FORMAT.md section 4. */
#ifndef NIBBLE_IO_QUANTIZER_H
#define NIBBLE_IO_QUANTIZER_H

#include "lib/format/store.h"
#include "lib/nvfp4/quant.h"

/* false: the name is "none" or NULL, nothing is quantized, and *spec and *share stay.
 * share: one tensor scale for fused projections.  A word that is NULL is the quantizer's
 * default. */
bool quantizer_of(struct quant_spec *spec, bool *share, const struct quant_words *w);

#endif
