/* SPDX-License-Identifier: MIT */
/* spawn: ranks on one machine without a launcher: this process starts them, passes signals on to
 * them and ends as they do. */
#ifndef NIBBLE_CMD_CLI_SPAWN_H
#define NIBBLE_CMD_CLI_SPAWN_H

/* Returns in each of n new processes, with its number; the one that was called ends in it, and closes
 * what is theirs before. */
unsigned spawn_ranks(unsigned n, int theirs);

#endif
