/* SPDX-License-Identifier: MIT */
/* source: prompts one after the other: those of -p, else the lines of standard input. */
#ifndef NIBBLE_CMD_GENERATE_SOURCE_H
#define NIBBLE_CMD_GENERATE_SOURCE_H

#include "cmd/generate/generate.h"
#include "lib/file/reader.h"
#include "lib/infer/prompts.h"

struct given_prompts {
    struct source source; // first
    const struct config_generate *c;
    size_t at;            // of -p
    struct reader reader; // of standard input
    double bytes;         // of the file that it is; 0: it is none
};

void source_open(struct given_prompts *x, const struct config_generate *c);
/* Empty lines are no prompts. */
int source_next(struct source *s, struct slice *text, struct err *err);
void source_close(struct given_prompts *x);

#endif
