/* SPDX-License-Identifier: MIT */
/* outfile: files that appear whole or not at all.
 *
 * A file is written under the name .NAME.nibble-tmp beside its target (temp.h),
 * fsynced, renamed over it, and the directory fsynced.  A second writer of the same
 * target is refused; what a killed run left is removed.
 *
 * "-" (standard output), an open descriptor by its name in /dev or /proc, and what
 * exists and is no regular file are streams: they are written directly.  A symbolic link
 * is followed: its target is replaced, the link stays.
 *
 * What another process removed or put under a temporary name meanwhile is seen before
 * the rename: then the old output stays as it was.
 *
 * What replaces a file has its permissions, its access control list and, where the
 * system allows that, its owner and group; other extended attributes are not kept, nor
 * are set-user-ID and set-group-ID of a file.  While it is written, only its writer can
 * read the temporary file of a replacement; it gets the permissions when it is
 * complete.  A group that cannot be kept gets no more than all others.
 */
#ifndef NIBBLE_FILE_OUTFILE_H
#define NIBBLE_FILE_OUTFILE_H

#include "lib/base/err.h"
#include "lib/file/guard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum out_flags {
    OUT_FORCE = 1,   // replace an existing target
    OUT_PASSING = 2, // a later version follows soon: whole, but not synced to the disk
    OUT_PRIVATE = 4, // only its owner can read it, until out_share
};

/* Complete files of a directory, in which its commit expects them. */
struct out_made {
    char *leaf;
    ino_t ino;
    off_t size;
};
struct out_list {
    struct out_made *v;
    size_t n;
};

struct outfile {
    int fd;
    bool direct; // a stream: no temporary file, no seeking
    bool force, passing;
    bool owned; // temp exists and is ours to remove
    bool sealed;
    bool replaces;   // old is the file that it replaces
    struct stat old; // its permissions and owner count
    int lock;        // the lock outlives fd
    char *name;      // the target as given, escaped for messages
    char *path;      // where it goes, links followed
    char *temp;
    uint64_t offset;       // sequential position
    uint64_t flushed;      // written back up to here
    struct out_list *list; // of the directory that it is a file of, or NULL
    struct guard *guard;
    struct err *err;
};

/* Begin a file.  out_commit or out_abandon must follow, after a failure too. */
int out_open(struct outfile *o, const char *path, unsigned flags, struct guard *g,
             struct err *err);
/* Reserve the space now, so that a full disk is an error before the work is done.
 * Bytes not written afterwards are zero. */
int out_reserve(struct outfile *o, uint64_t bytes);
int out_write(struct outfile *o, const void *bytes, size_t n); // at offset, moves it
int out_skip(struct outfile *o, uint64_t n);                   // n zeros likewise
/* Anywhere in what was reserved of a file that is no stream; from several threads, each with
 * an error of its own. */
int out_pwrite(const struct outfile *o, const void *bytes, size_t n, uint64_t offset,
               struct err *err);
/* A file that another process has begun for path: its temporary one, which has that inode number.
 * out_pwrite then writes to it, out_seal puts that on the disk, out_abandon removes nothing. */
int out_join(struct outfile *o, const char *path, uint64_t inode, struct err *err);
/* Permissions and owner of another file that is sealed already: o belongs to it. */
int out_share(struct outfile *o, const struct outfile *with);
/* The first half of out_commit: data on disk under the temporary name, descriptor
 * closed, nothing left that could fail for want of space.  Files that belong together
 * are sealed before the first of them is committed. */
int out_seal(struct outfile *o);
int out_commit(struct outfile *o) __attribute__((warn_unused_result));
/* The same for a file, no stream, that another one at path describes: beside, or none
 * if that is NULL.  No signal ends the program between their renames, and a process
 * that is killed there leaves o without an older description. */
int out_commit_both(struct outfile *o, const char *path, struct outfile *beside)
    __attribute__((warn_unused_result));
void out_abandon(struct outfile *o);

#endif
