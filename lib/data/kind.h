/* SPDX-License-Identifier: MIT */
/* kind: finds the kind of an input by its name or by its first lines. */
#ifndef NIBBLE_DATA_KIND_H
#define NIBBLE_DATA_KIND_H

#include "lib/data/options.h"

/* Set c->input by the suffixes of the paths, unless it is given. */
int kind_settle(struct data_options *c, char **paths, size_t n, struct err *err);
/* The kind that the first line with content looks like; `otherwise` where no line has content, or
 * the input is no text. */
enum input kind_of_text(struct slice text, const struct shape_names *names,
                        enum input otherwise);
/* Append to an error of an input without a sample what the input looks like; `blanks`
 * tells that its first line has several where a TAB is expected.  Returns false, and appends
 * nothing, for an input of the kind that it was taken for. */
bool kind_hint(const struct data_options *c, enum input likely, bool blanks,
               struct err *err);

#endif
