/* SPDX-License-Identifier: MIT */
/* ranks_place: what the environment of a launcher says, private to ranks.c: which rank this process
 * is, and where rank 0 is found. */
#ifndef NIBBLE_CMD_CLI_RANKS_PLACE_H
#define NIBBLE_CMD_CLI_RANKS_PLACE_H

#include "lib/dist/meet.h"

/* The variables by which a process knows its rank. */
struct launcher {
    const char *name, *rank, *size;
    const char *local;      // the number of ranks on this machine, or NULL
    const char *locals;     // a list of them, or NULL
    const char *local_rank; // which of them this is
    const char *cpus;       // the processors that they have, or NULL
    const char *other;      // is there, too; or NULL
    const char *job[2];     // what two runs at a time do not share
};

/* NULL: none; then rank and size are 0 and 1.  local: 0: unknown. */
const struct launcher *launcher_find(unsigned *rank, unsigned *size, unsigned *local);
/* Processors of this machine that its ranks have been given; 0: unknown. */
unsigned launcher_cpus(const struct launcher *l);
/* The number of this rank on its machine; `rank` if the launcher does not say. */
unsigned launcher_local(const struct launcher *l, unsigned rank);
/* Host and port of m by HOST:PORT, which --rendezvous gives. */
void launcher_take_place(struct meet *m, const char *given);
/* Give the run a random name.  Ranks that this process forks have it in their memory; no other
 * process can know it. */
void launcher_name_own(struct meet *m);
/* Host, port and job of m.  given: HOST:PORT, or NULL; one_host: all ranks are here. */
void launcher_place(struct meet *m, const struct launcher *l, const char *given,
                    bool one_host);

#endif
