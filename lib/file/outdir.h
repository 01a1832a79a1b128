/* SPDX-License-Identifier: MIT */
/* outdir: directories of files that appear whole or not at all.
 *
 * The files are made inside .NAME.nibble-tmp/ and committed one by one; then the
 * directory is renamed as one, or swapped with the one that it replaces.
 */
#ifndef NIBBLE_FILE_OUTDIR_H
#define NIBBLE_FILE_OUTDIR_H

#include "lib/file/outfile.h"
#include "lib/file/temp.h"

struct outdir_rule {
    temp_leaf *writes;   // names that a run gives, this one or one that was killed
    temp_leaf *replaces; // what a directory that is replaced may hold
    const void *ctx;     // valid until the commit
};

struct outdir {
    int lock; // of the temporary directory
    bool force;
    bool owned;      // temp exists and is ours to remove
    bool replaces;   // old is the directory that it replaces
    struct stat old; // its permissions and owner count
    mode_t files;    // what all files of that one allow
    struct out_list made;
    struct outdir_rule rule;
    char *name, *path, *temp; // as of struct outfile
    struct guard *guard;
    struct err *err;
};

/* An existing directory is replaced (with OUT_FORCE) only if it holds nothing but files
 * that rule->replaces names, when it is opened and when it is swapped: a wrong name
 * must not destroy other data.  No file that the rule does not name is ever removed. */
int outdir_open(struct outdir *d, const char *path, unsigned flags,
                const struct outdir_rule *rule, struct guard *g, struct err *err);
/* d stays where it is until o is committed or abandoned. */
int outdir_file(struct outfile *o, struct outdir *d, const char *leaf);
int outdir_commit(struct outdir *d) __attribute__((warn_unused_result));
void outdir_abandon(struct outdir *d);

#endif
