/* SPDX-License-Identifier: MIT */
/* outfile: outputs that appear whole or not at all.
 *
 * A file is written under the name .NAME.nibble-tmp beside its target, fsynced, renamed
 * over it, and the directory fsynced.  The temporary file is made with O_EXCL and
 * locked: a second writer of the same target is refused, while a leftover of a killed
 * run (no lock on it) is removed, so that running again also cleans up.
 *
 * "-" (standard output), an open descriptor by its name in /dev or /proc, and whatever
 * exists and is no regular file are streams: they are written directly.
 * A symbolic link is followed: its target is replaced, the link stays.
 */
#ifndef NIBBLE_CORE_OUTFILE_H
#define NIBBLE_CORE_OUTFILE_H

#include "lib/core/err.h"
#include "lib/core/guard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum out_flags {
    OUT_FORCE = 1,   // replace an existing target
    OUT_PASSING = 2, // a later version follows soon: whole, but not synced to the disk
};

struct outfile {
    int fd;
    bool direct; // a stream: no temporary file, no seeking
    bool force, passing;
    bool owned; // temp exists and is ours to remove
    bool sealed;
    int lock;   // the lock outlives fd
    char *name; // the target as given, escaped for messages
    char *path; // where it goes, links followed
    char *temp;
    uint64_t offset;  // sequential position
    uint64_t flushed; // written back up to here
    struct guard *guard;
    struct err *err;
};

/* Begin a file.  out_commit or out_abandon must follow, after a failure too. */
int out_open(struct outfile *o, const char *path, unsigned flags, struct guard *g,
             struct err *err);
/* Take the space now, so that a full disk is heard before the work is done.  Bytes not
 * written afterwards are zero. */
int out_reserve(struct outfile *o, uint64_t bytes);
int out_write(struct outfile *o, const void *bytes, size_t n); // at offset, moves it
int out_skip(struct outfile *o, uint64_t n);                   // n zeros likewise
int out_pwrite(struct outfile *o, const void *bytes, size_t n, uint64_t offset);
/* The first half of out_commit: data on disk under the temporary name, descriptor
 * closed, nothing left that could fail for want of space.  Files that belong together
 * are sealed before the first of them is committed. */
int out_seal(struct outfile *o);
int out_commit(struct outfile *o) __attribute__((warn_unused_result));
void out_abandon(struct outfile *o);

/* A directory that appears whole: its files are made inside .NAME.nibble-tmp/ by
 * outdir_file and committed one by one, then the directory is renamed as one. */
typedef bool outdir_ours(const char *leaf);
struct outdir {
    int lock;
    bool force, owned;
    outdir_ours *ours; // what a directory that is replaced may hold
    char *name, *path, *temp;
    struct guard *guard;
    struct err *err;
};

/* An existing directory is replaced (with OUT_FORCE) only if it holds nothing but files
 * for which `ours` is true: a wrong name must not cost somebody's data. */
int outdir_open(struct outdir *d, const char *path, unsigned flags, outdir_ours *ours,
                struct guard *g, struct err *err);
int outdir_file(struct outfile *o, struct outdir *d, const char *leaf);
int outdir_commit(struct outdir *d) __attribute__((warn_unused_result));
void outdir_abandon(struct outdir *d);

/* Whether path is a stream. */
bool out_is_stream(const char *path);
/* Whether path is a directory and file lies in it. */
bool out_holds(const char *path, const char *file);
/* Whether path, links followed, is the file (dev, ino). */
bool out_is_file(const char *path, dev_t dev, ino_t ino);

#endif
