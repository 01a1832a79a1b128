/* SPDX-License-Identifier: MIT */
/* temp: temporary files and directories beside the output that they become.
 *
 * Each is made with O_EXCL semantics, locked by flock(2) for as long as its descriptor
 * is open, and registered with the guard, which removes it if a signal ends the
 * program.  What a killed run left under the name (no lock on it) is removed first; what
 * another process is writing, or did not come from a run, is an error.
 */
#ifndef NIBBLE_FILE_TEMP_H
#define NIBBLE_FILE_TEMP_H

#include "lib/base/err.h"
#include "lib/file/guard.h"

#include <stdbool.h>

/* Whether our runs write files of that name into a directory. */
typedef bool temp_leaf(const void *ctx, const char *leaf);

struct temp {
    const char *path;
    const char *name; // of the output, for messages
    bool shared;      // permissions are those of the umask; else its owner's alone
    temp_leaf
        *ours; // of a directory: what may be removed from a leftover; NULL: a file
    const void *ctx;
};

/* The descriptor that holds the lock, or -1. */
int temp_make(const struct temp *t, struct guard *g, struct err *err);
/* Remove a directory and those of its files that are ours: errno is ENOTEMPTY if there
 * are others, and says why one of these cannot be removed. */
int temp_remove_dir(const char *path, temp_leaf *ours, const void *ctx);
/* The error for `what`, which is no longer what was written. */
int temp_disturbed(const char *name, const char *what, struct err *err);

#endif
