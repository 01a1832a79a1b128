/* SPDX-License-Identifier: MIT */
/* emit: samples as records, as ids, as JSON, as text. */
#ifndef NIBBLE_DATA_EMIT_H
#define NIBBLE_DATA_EMIT_H

#include "lib/data/options.h"
#include "lib/format/tok.h"

/* A sample in memory.  starts: where packed documents begin, else NULL. */
struct sample {
    const uint32_t *ids;
    const uint8_t *mask; // (n) 0 or 1; NULL where only ids are wanted
    uint32_t n;
    const uint32_t *starts;
    uint32_t n_starts;
};

/* Append the sample in that form, and count it.  t decodes text forms; -1: an id that it
 * does not have. */
int emit_sample(struct buf *out, struct tok_counts *counts, enum emit form,
                const struct sample *s, const struct tokenizer *t, struct err *err);

#endif
