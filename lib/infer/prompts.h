/* SPDX-License-Identifier: MIT */
/* prompts: answers to prompts that come one after the other. */
#ifndef NIBBLE_INFER_PROMPTS_H
#define NIBBLE_INFER_PROMPTS_H

#include "lib/infer/session.h"

/* Where prompts come from. */
struct source {
    /* 1 with the next prompt, good until the call after it; 0 at the end, -1 with *err. */
    int (*next)(struct source *x, struct slice *text, struct err *err);
    /* Whether next would wait for a prompt to be written. */
    bool (*waits)(struct source *x);
    uint64_t line; // of the last prompt, from 1; 0: it has none
    double share;  // of all prompts, up to that one; 0: unknown
};

/* Answer all prompts; *all: how many came, *refused: how many have an error in place of an answer.
 * many tells
 * that there may be more than one, and that a line of status counts them. */
int prompts_answer(struct session *s, struct source *source, bool many, uint64_t *all,
                   uint64_t *refused);

#endif
