/* SPDX-License-Identifier: MIT */
/* suffix: outputs under a name that promises another container. */
#ifndef NIBBLE_CMD_SUFFIX_H
#define NIBBLE_CMD_SUFFIX_H

#include <stdbool.h>

/* path, the argument of that option, will be a file of that kind ("ckpt", "safetensors",
 * ..., "tok"), or a text (NULL).  A name with the suffix of another container is misuse:
 * readers go by the suffix, and no program would open it.  Any other name is right; so is
 * path == NULL. */
void suffix_check(const char *option, const char *path, const char *kind);
/* The same of a directory: the suffix of any file is misuse, unless a slash behind it tells
 * that a directory is meant. */
void suffix_check_directory(const char *option, const char *path, const char *kind);

/* The output of a conversion: *to, if it is NULL, by the suffix of out; *directory:
 * whether it is one.  What does not go together is misuse. */
void suffix_settle(const char *out, const char **to, bool *directory);

#endif
