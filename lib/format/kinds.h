/* SPDX-License-Identifier: MIT */
/* kinds: the table of containers, and which of them a file is.  Private to
 * lib/format. */
#ifndef NIBBLE_FORMAT_KINDS_H
#define NIBBLE_FORMAT_KINDS_H

#include "lib/format/container.h"

/* What a pipe is read as, and a directory. */
extern const struct container *const container_of_pipe, *const container_of_directory;

/* The container of that name, or NULL. */
const struct container *container_named(struct slice name);
/* The one that the first bytes of m indicate, or NULL. */
const struct container *container_of_bytes(const struct map *m);
const struct container *container_of_file(const struct map *m);

#endif
