/* SPDX-License-Identifier: MIT */
/* meter: a line on the terminal that counts answered prompts and tells the time left. */
#ifndef NIBBLE_CMD_GENERATE_METER_H
#define NIBBLE_CMD_GENERATE_METER_H

#include "cmd/cli/cmd.h"

struct meter {
    const char *program;
    bool active;
    uint64_t prompts, tokens; // answered prompts, generated tokens
    double share;             // of the input that is done, 0 .. 1; 0: unknown
    double started, shown;
};

/* many: there may be more than one prompt.  Active if stderr is a terminal and stdout is not,
 * so that the line never comes between the words of an answer. */
void meter_open(struct meter *m, const struct cmd *c, bool many);
void meter_token(struct meter *m);
void meter_prompt(struct meter *m, double share);
void meter_close(struct meter *m);

#endif
