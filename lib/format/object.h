/* SPDX-License-Identifier: MIT */
/* object: the JSON object by which our files describe themselves, doc/FORMAT.md section
 * 2.  It is the sidecar of a .dat, the nibble.json of a directory, and a string in the
 * header of other containers.
 */
#ifndef NIBBLE_FORMAT_OBJECT_H
#define NIBBLE_FORMAT_OBJECT_H

#include "lib/base/arena.h"
#include "lib/base/err.h"
#include "lib/base/text.h"

#include <stdbool.h>
#include <stdint.h>

struct nibble_object {
    struct slice config, provenance; // JSON; p == NULL: null
    struct slice files;              // JSON: the list of a directory, or p == NULL
    // of a sidecar: the file that it describes
    bool has_bytes;
    uint64_t bytes;
    struct slice xxh3, index_xxh3; // hex
};

/* {"format":"nibble-1", ...}; slices are borrowed from text and arena. */
int object_read(struct nibble_object *o, const char *file, struct slice text,
                struct arena *arena, struct err *err);
void object_put(struct buf *out, const struct nibble_object *o);

#endif
