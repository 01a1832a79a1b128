/* SPDX-License-Identifier: MIT */
/* transcript: conversations in files: JSONL with "messages", as /save and --chat --json write it.
 *
 * FIFOs and devices are refused, since a chat would wait for them. */
#ifndef NIBBLE_INFER_TRANSCRIPT_H
#define NIBBLE_INFER_TRANSCRIPT_H

#include "lib/base/arena.h"
#include "lib/data/messages.h"

#include <stdbool.h>

/* Append the messages of all lines: a system message, if any, and then users and assistants in turn.
 * Texts live in the arena. */
int transcript_read(struct messages *m, const char *path, struct arena *arena,
                    struct err *err);
/* Write a file; force: replace one that exists. */
int transcript_write(const char *path, const struct buf *text, bool force,
                     struct guard *g, struct err *err);

#endif
