/* SPDX-License-Identifier: MIT */
/* generate: what the parts of the program share. */
#ifndef NIBBLE_CMD_GENERATE_GENERATE_H
#define NIBBLE_CMD_GENERATE_GENERATE_H

#include "cmd/cli/cmd.h"
#include "lib/infer/session.h"

struct config_generate {
    struct cmd cmd;
    struct infer_options o;
    const char **prompts; // (n_prompts) of -p
    size_t n_prompts;
    uint64_t gpus; // of --score; 0: not given
    const char *rendezvous;
    double rank_timeout; // seconds
    bool torchsharp;     // --compat
};

/* chat.c: answer the turns of a conversation; *all: whether each has an answer.  The errors of the
 * others were printed. */
int chat_answer(struct session *s, const struct config_generate *g, bool *all);

#endif
