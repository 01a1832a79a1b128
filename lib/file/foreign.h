/* SPDX-License-Identifier: MIT */
/* foreign: files and directories of other programs that are not read: what they are, and the
 * command that converts or fetches them.
 *
 * A file is recognized by its first bytes, a directory by the names in it.
 */
#ifndef NIBBLE_FILE_FOREIGN_H
#define NIBBLE_FILE_FOREIGN_H

#include "lib/base/err.h"

/* What was expected in the place of the file. */
enum foreign_want {
    FOREIGN_FOR_TENSORS,
    FOREIGN_FOR_SAMPLES,  // a .tok
    FOREIGN_FOR_TEXT,     // of which samples are made
    FOREIGN_FOR_TOKENIZER // a tokenizer.json
};

/* Bytes that are enough to recognize each kind. */
enum { FOREIGN_HEAD = 512 };

/* If the file `path`, which begins with the n bytes of data, is of a known kind, then -1, and *err
 * has its message in place of what it had.  Else 0. */
int foreign_file(const char *path, const void *data, size_t n, enum foreign_want want,
                 struct err *err);
/* The same for what the path names: a directory, what does not exist but may be a repository
 * (OWNER/NAME), or a regular file, whose first bytes are read. */
int foreign_path(const char *path, enum foreign_want want, struct err *err);
/* The same for a file that was refused, if its name is that of another file of a model. */
int foreign_part(const char *path, enum foreign_want want, struct err *err);

#endif
