/* SPDX-License-Identifier: MIT */
/* ranks: a program as one of several ranks (lib/dist/ranks.h): only rank 0 warns and writes to
 * standard output, other ranks' errors carry their number, and an error of one rank ends all. */
#ifndef NIBBLE_CMD_CLI_RANKS_H
#define NIBBLE_CMD_CLI_RANKS_H

#include "lib/dist/ranks.h"

/* This process among the ranks, as its environment says; before options are read. */
struct ranks *cmd_ranks(void);
/* Refuse options that do not go with --gpus; the device becomes cuda. */
void cmd_ranks_want_gpus(const char **device, const char *rendezvous);
/* --gpus: start n ranks here, each with a GPU; returns in each.  plan: one process, which plans for
 * all. */
void cmd_ranks_start(unsigned n, bool plan);
/* ranks_join, whose errors end the program. */
void cmd_ranks_join(double patience, double to_come, bool gpus, const char *rendezvous);
/* Say which launcher was recognised. */
void cmd_ranks_report(void);
void cmd_ranks_leave(void);
/* die_err; an error of another rank is said by that one. */
_Noreturn void cmd_ranks_die(const struct err *err);

#endif
