/* SPDX-License-Identifier: MIT */
/* suffix: outputs under a name that promises another container. */
#ifndef NIBBLE_CMD_CLI_SUFFIX_H
#define NIBBLE_CMD_CLI_SUFFIX_H

#include <stdbool.h>

/* path, the argument of that option, will be a file of that kind ("ckpt", "safetensors",
 * ..., "tok"), or a text (NULL).  The suffix of another container is misuse, since readers go
 * by the suffix.  Any other name is fine; so is path == NULL. */
void suffix_check(const char *option, const char *path, const char *kind);
/* The same for a directory: the suffix of any file is misuse, unless a slash follows. */
void suffix_check_directory(const char *option, const char *path, const char *kind);

/* The output of a conversion: set *to by the suffix of out if it is NULL, and whether it is a
 * directory; combinations that do not go together are misuse. */
void suffix_settle(const char *out, const char **to, bool *directory);

#endif
