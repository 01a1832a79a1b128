/* SPDX-License-Identifier: MIT */
/* feed: the bytes of a file in order, read ahead by a thread of its own.
 *
 * While the caller works on one chunk the next ones arrive: hashing then runs at the
 * speed of reading.  With one thread the caller reads for itself.
 */
#ifndef NIBBLE_FILE_FEED_H
#define NIBBLE_FILE_FEED_H

#include "lib/file/map.h"

struct feed;

/* Read m's bytes [offset, offset+n).  NULL with *err. */
struct feed *feed_open(struct map *m, uint64_t offset, uint64_t n, unsigned threads,
                       struct err *err);
/* 1 with the next chunk (good until the next call), 0 at the end, -1 with the error. */
int feed_next(struct feed *f, const uint8_t **bytes, size_t *n);
void feed_close(struct feed *f);

#endif
