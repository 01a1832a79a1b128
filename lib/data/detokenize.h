/* SPDX-License-Identifier: MIT */
/* detokenize: samples of a .tok as text. */
#ifndef NIBBLE_DATA_DETOKENIZE_H
#define NIBBLE_DATA_DETOKENIZE_H

#include "lib/data/sink.h"

/* Write them into the sink; begun: bytes that were read from fd already. */
int detokenize(struct sink *sink, const struct tokenizer *t, int fd, const char *path,
               struct slice begun, struct host_progress *progress, struct err *err);

#endif
