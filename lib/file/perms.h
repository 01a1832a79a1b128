/* SPDX-License-Identifier: MIT */
/* perms: permissions, access control lists and owners of files that are replaced. */
#ifndef NIBBLE_FILE_PERMS_H
#define NIBBLE_FILE_PERMS_H

#include "lib/base/err.h"

#include <sys/stat.h>

/* Give fd the permissions of a file and, as far as the system lets us, its owner and
 * group; old_path: of whose access control lists, or NULL.  A group that cannot be kept
 * gets no more than all others.  name is for messages. */
int perms_copy(int fd, const struct stat *old, const char *old_path, const char *name,
               struct err *err);
/* What all regular files of a directory allow their group and others. */
mode_t perms_common(const char *path);

#endif
