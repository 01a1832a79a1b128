/* SPDX-License-Identifier: MIT */
/* meter: a line of status that counts answered prompts and tells the time left. */
#ifndef NIBBLE_INFER_METER_H
#define NIBBLE_INFER_METER_H

#include "lib/base/host.h"

struct meter {
    const struct host *host;  // NULL: nothing is shown
    uint64_t prompts, tokens; // answered prompts, generated tokens
    double share;             // of the input that is done, 0 .. 1; 0: unknown
    double started, shown;
};

/* The line is shown where `many` tells that there may be more than one prompt. */
void meter_open(struct meter *m, const struct host *host, bool many);
void meter_token(struct meter *m);
void meter_prompt(struct meter *m, double share);
void meter_close(struct meter *m);

#endif
