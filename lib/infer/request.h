/* SPDX-License-Identifier: MIT */
/* request: a line of --input jsonl: a prompt and how it is answered. */
#ifndef NIBBLE_INFER_REQUEST_H
#define NIBBLE_INFER_REQUEST_H

#include "lib/base/arena.h"
#include "lib/base/json.h"
#include "lib/data/messages.h"
#include "lib/infer/answer.h"

enum request_kind { REQUEST_NONE, REQUEST_PROMPT, REQUEST_MESSAGES, REQUEST_IDS };

enum { REQUEST_FIELDS = 80 };

/* Texts are borrowed from the line or live in the arena until the next. */
struct request {
    uint32_t vocab;  // ids are below it
    struct slice id; // JSON: a string or a number; p NULL: none
    enum request_kind kind;
    struct slice prompt;
    struct messages messages;
    struct ids ids;
    struct answer_settings how;
    struct slice stop[MAX_STOPS];
    struct slice field; // what an error is about; p NULL: the whole line
    bool seen[REQUEST_FIELDS], given[REQUEST_FIELDS]; // given: is there and is not null
    bool has_thinking;                                // the switch was given
    bool *
        idle; // (REQUEST_FIELDS) the caller's: set for each field without an effect; or NULL
    struct arena arena;
};

/* Parse a line; what it does not say is as in base.  -1 with *err, whose message has neither
 * file nor line; the id is found even then, if the line is JSON up to there. */
int request_parse(struct request *r, const struct answer_settings *base,
                  struct slice line, struct err *err);
void request_free(struct request *r);
/* Append the names of the fields that are set in idle; nothing if there are none. */
void request_put_idle(struct buf *b, const bool idle[REQUEST_FIELDS]);

#endif
