/* SPDX-License-Identifier: MIT */
/* history: the provenance of a checkpoint that a training wrote: where its weights are
 * from, and by which data and settings they were trained.  doc/FORMAT.md section 5.
 *
 * A run that changes its settings or data often would outgrow any header, so only the
 * last spans of steps are stored as they are.  Older ones are a digest, a chain: it
 * grows by one span at a time, and only by spans to which no step will be added.  So it
 * is a function of the spans alone, whenever they were saved.
 */
#ifndef NIBBLE_FORMAT_HISTORY_H
#define NIBBLE_FORMAT_HISTORY_H

#include "lib/base/arena.h"
#include "lib/base/err.h"
#include "lib/base/hash.h"
#include "lib/base/text.h"

enum { HISTORY_SPANS = 128 }; // that are stored as they are

/* Steps of one kind; texts are JSON, borrowed. */
struct history_span {
    uint64_t first, last;
    struct slice data, route, settings;
};

struct history {
    struct slice inputs; // JSON: what stands between the brackets; p == NULL: not read
    struct {
        uint64_t count, first, last;
        uint8_t digest[XXH3_BYTES];
    } older;
    struct history_span *span; // (n) oldest first
    size_t n, cap;
    struct arena arena;
};

/* Read a provenance, p == NULL: none.  1; 0: it is of no training, and the file is an
 * origin itself; -1: ERR_MEMORY.  history_free is right in all cases. */
int history_read(struct history *h, struct slice provenance, struct err *err);
/* Add steps behind those there are: a span goes on if nothing else has changed, so that
 * it does not show where a run was interrupted.  -1: ERR_MEMORY. */
int history_add(struct history *h, const struct history_span *s, struct err *err);
/* Append the provenance. */
void history_put(struct buf *b, const struct history *h, const char *version);
void history_free(struct history *h);

#endif
