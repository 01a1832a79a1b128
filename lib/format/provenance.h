/* SPDX-License-Identifier: MIT */
/* provenance: how a file came to be, doc/FORMAT.md section 5, as JSON:
 *
 *   provenance_begin, provenance_input..., provenance_options, an object, provenance_end
 */
#ifndef NIBBLE_FORMAT_PROVENANCE_H
#define NIBBLE_FORMAT_PROVENANCE_H

#include "lib/base/hash.h"
#include "lib/base/text.h"

void provenance_begin(struct buf *b);
/* One input with its own provenance, p == NULL: it has none; or count > 1 of them by
 * one hash. */
void provenance_input(struct buf *b, struct slice kind, struct slice provenance,
                      uint64_t count, const uint8_t xxh3[XXH3_BYTES]);
void provenance_options(struct buf *b);
void provenance_end(struct buf *b, const char *tool, struct slice version);

#endif
