/* SPDX-License-Identifier: MIT */
/* modeldir: the files of a model directory that we write, by their names.
 *
 * What a run wrote is in the "files" of the directory's nibble.json (doc/FORMAT.md
 * section 3), and only that may be replaced by a later one.
 */
#ifndef NIBBLE_FORMAT_MODELDIR_H
#define NIBBLE_FORMAT_MODELDIR_H

#include "lib/base/arena.h"
#include "lib/base/names.h"
#include "lib/file/guard.h"

#include <stdbool.h>
#include <stddef.h>

/* Files that a model has besides its weights, by index; NULL behind the last. */
const char *modeldir_companion(size_t i);
bool modeldir_is_companion(const char *leaf);
/* Whether leaf is a model card or a license. */
bool modeldir_is_card(const char *leaf);

struct modeldir {
    bool ours;   // nibble.json is there, and one of ours
    bool listed; // it has a list of files: names
    struct names names;
    struct arena arena;
};

/* Read what an earlier run recorded of the directory.  That of another program is not
 * ours; -1 with the error if it is damaged or cannot be read.  modeldir_close is right
 * in any case. */
int modeldir_open(struct modeldir *d, const char *path, struct guard *g,
                  struct err *err);
void modeldir_close(struct modeldir *d);

/* The two rules of outdir.h's struct outdir_rule; ctx is a struct modeldir. */
bool modeldir_writes(const void *ctx, const char *leaf);
bool modeldir_replaces(const void *ctx, const char *leaf);

#endif
