/* SPDX-License-Identifier: MIT */
/* launcher: reads the environment of a launcher (mpirun, torchrun, srun): the rank of this process,
 * and the place of rank 0.  ranks.c alone calls it. */
#ifndef NIBBLE_DIST_LAUNCHER_H
#define NIBBLE_DIST_LAUNCHER_H

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

/* Without a launcher *l is NULL, rank 0 and size 1.  *local is 0 if it is unknown.  -1: the
 * environment has no number where one belongs. */
int launcher_find(const struct launcher **l, unsigned *rank, unsigned *size,
                  unsigned *local, struct err *err);
/* Processors of this machine that its ranks have been given; 0: unknown. */
unsigned launcher_cpus(const struct launcher *l);
/* The number of this rank on its machine; `rank` if the launcher does not say. */
int launcher_local(const struct launcher *l, unsigned rank, unsigned *local,
                   struct err *err);
/* Host and port of m by HOST:PORT, which --rendezvous gives. */
int launcher_take_place(struct meet *m, const char *given, struct err *err);
/* Give the run a random name.  Ranks that this process forks have it in their memory; no other
 * process can know it. */
int launcher_name_own(struct meet *m, struct err *err);
/* Host, port and job of m.  given: HOST:PORT, or NULL; one_host: all ranks are here. */
int launcher_place(struct meet *m, const struct launcher *l, const char *given,
                   bool one_host, struct err *err);

#endif
