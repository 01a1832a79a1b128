/* SPDX-License-Identifier: MIT */
/* make: inputs to outputs, from the first read to the last commit. */
#ifndef NIBBLE_DATA_MAKE_H
#define NIBBLE_DATA_MAKE_H

#include "lib/data/sink.h"

/* Read all paths into the sinks, which are open, write what is left and commit the outputs.
 * Nothing is committed after an error. */
int data_make(const struct data_options *c, const struct tokenizer *t,
              struct sink *sinks, char **paths, size_t n, struct err *err);

#endif
