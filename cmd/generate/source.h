/* SPDX-License-Identifier: MIT */
/* source: prompts one after the other: those of -p, else the lines of standard input. */
#ifndef NIBBLE_CMD_GENERATE_SOURCE_H
#define NIBBLE_CMD_GENERATE_SOURCE_H

#include "cmd/generate/generate.h"
#include "lib/file/reader.h"

struct source {
    const struct config_generate *c;
    size_t at;            // of -p
    struct reader reader; // of standard input
    double bytes;         // of the file that it is; 0: it is none
    uint64_t line;        // of the prompt, from 1; 0: it is of -p
    double share;         // of all prompts, up to this one; 0: unknown
};

void source_open(struct source *x, const struct config_generate *c);
/* 1 with the next prompt, good until the call after it; 0 at the end, -1 with *err.  Empty lines
 * are none. */
int source_next(struct source *x, struct slice *text, struct err *err);
/* Whether source_next would wait for a line to be written. */
bool source_waits(struct source *x);
void source_close(struct source *x);

#endif
