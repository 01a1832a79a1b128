/* SPDX-License-Identifier: MIT */
/* stream: decodes ids to text and prints it as it comes: whole characters only, and nothing
 * that may be the beginning of a stop text. */
#ifndef NIBBLE_INFER_STREAM_H
#define NIBBLE_INFER_STREAM_H

#include "lib/base/host.h"
#include "lib/text/tokenizer.h"

struct stream {
    const struct host *host;  // that prints it
    struct decoder decoder;   // t == NULL: no text
    const struct slice *stop; // (n_stops), not empty texts
    size_t n_stops;
    bool print;
    struct buf text; // all of it, up to a stop text
    size_t printed;  // bytes of text that were printed
};

/* 1: a stop text is complete, nothing more may follow; 0, or -1 with the error. */
int stream_push(struct stream *x, uint32_t id, struct err *err);
/* The end: print what was held back, also half a character. */
int stream_finish(struct stream *x, struct err *err);
void stream_free(struct stream *x);

#endif
