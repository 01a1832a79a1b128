/* SPDX-License-Identifier: MIT */
/* pager: the pages of a mapped JSON text, read ahead of its reader and released behind
 * it, so that a header of 100 MB takes little memory. */
#ifndef NIBBLE_FORMAT_PAGER_H
#define NIBBLE_FORMAT_PAGER_H

#include "lib/base/json.h"
#include "lib/file/map.h"

struct pager {
    struct map *map;
    uint64_t base, end; // of the text
    uint64_t from;      // the first that may still be in memory
};
/* Open j on bytes [base, base + n) of m. */
void pager_open(struct pager *p, struct json *j, struct map *m, uint64_t base, size_t n,
                struct arena *arena, struct err *err);
void pager_passed(void *ctx, size_t pos);
/* Whether the object that begins at `start` of j's text has a key before `before`: 1,
 * 0, or -1. */
int pager_has_key(const struct pager *p, const struct json *j, size_t start,
                  struct slice key, size_t before);

#endif
