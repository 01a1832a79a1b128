/* SPDX-License-Identifier: MIT */
/* place: where a prompt or a turn stands, in JSON and in errors about it. */
#ifndef NIBBLE_INFER_PLACE_H
#define NIBBLE_INFER_PLACE_H

#include "lib/base/host.h"
#include "lib/base/text.h"

struct place {
    const char *what;   // "prompt" or "turn"
    uint64_t index;     // its number, from 0
    uint32_t answers;   // to it
    uint32_t answer;    // the number of this one, from 0
    uint64_t line;      // of standard input, from 1; 0: it is of -p
    struct slice id;    // of a request: JSON; p NULL: none
    struct slice field; // of a request, which an error is about; p NULL: none
};

/* Append the beginning of the prompt's JSON object: its kind, its number, the number of the answer if
 * there are several, its id, and a comma. */
void place_head(struct buf *b, const struct place *p);
/* Report an error in place of an answer, for which b gets with json an object, else an empty line
 * after a warning.  -1 with *err if the error is not the prompt's alone. */
int place_refuse(struct buf *b, const struct place *p, const struct host *host,
                 bool json, const struct err *why, struct err *err);

#endif
