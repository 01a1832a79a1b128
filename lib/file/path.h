/* SPDX-License-Identifier: MIT */
/* path: names of files, and what is there. */
#ifndef NIBBLE_FILE_PATH_H
#define NIBBLE_FILE_PATH_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <sys/types.h>

/* What follows .NAME in the names that runs make and remove beside a file NAME. */
#define PATH_TEMP ".nibble-tmp"
#define PATH_LOCK ".nibble-lock"
#define PATH_OLD  ".nibble-old"

/* 1 or 0, or -1 if that cannot be determined: a path that may not be searched is an
 * error, not a missing file. */
int path_exists(const char *path, struct err *err);
/* Where a write to path lands: links followed, also a dangling last one, slashes at its
 * end removed.  To be freed; NULL with errno. */
char *path_target(const char *path);
/* dir/leaf, and path with control characters escaped for messages.  To be freed; NULL:
 * out of memory. */
char *path_join(const char *dir, const char *leaf);
char *path_escape(const char *path);
/* dir/.NAME and the suffix, for a path dir/NAME; a long name is cut, with a hash of it.
 * To be freed; NULL: out of memory. */
char *path_beside(const char *path, const char *suffix);
/* The first directory that path leads through and that does not exist, escaped for messages.  To be
 * freed; NULL: all exist. */
char *path_missing_directory(const char *path);
/* A file at path could not be made, as errno tells: the error, `failed` and the words of errno unless
 * a directory is missing.  -1. */
int path_cannot_make(const char *path, const char *name, const char *failed,
                     struct err *err);
/* Whether a write to path would land on one of those names, which a run may remove:
 * writers must refuse them, with path_reserved as the reason. */
bool path_is_reserved(const char *path);
extern const char path_reserved[];
/* Whether path ends in a name, which "", "/", "." and ".." do not. */
bool path_has_name(const char *path);
/* The same as an error, where name is the path for messages. */
int path_check_name(const char *path, const char *name, struct err *err);
/* Whether it is written directly: "-", a descriptor by its name in /dev or /proc, or
 * what is neither a regular file nor a directory. */
bool path_is_stream(const char *path);
/* Whether dir is a directory and file lies in it. */
bool path_holds(const char *dir, const char *file);
/* Whether path, links followed, is the file (dev, ino). */
bool path_is_file(const char *path, dev_t dev, ino_t ino);
/* Whether both paths are one file, links followed; false for NULL. */
bool path_same_file(const char *a, const char *b);
/* Refuse an output that is one of the inputs or another output.  NULL: not given. */
int path_check_outputs(const char *const *outputs, size_t n, const char *const *inputs,
                       size_t n_inputs, struct err *err);
/* fsync the directory that path lies in; name is for messages. */
int path_sync_parent(const char *path, const char *name, struct err *err);

#endif
