/* SPDX-License-Identifier: MIT */
/* ranks: the processes of a run of several, which a launcher has started: who they are, and what
 * they agree on.  A process that is alone agrees with itself.
 *
 * An error of one rank ends all: the process that ends tells the others by ranks_tell, and they
 * hear of it in ranks_meet.  The lowest rank that has an error prints it. */
#ifndef NIBBLE_DIST_RANKS_H
#define NIBBLE_DIST_RANKS_H

#include "lib/base/buf.h"
#include "lib/dist/comm.h"
#include "lib/dist/meet.h"

#include <stdbool.h>

struct launcher;

struct ranks {
    const struct launcher *launcher; // NULL: none
    unsigned rank, size;             // as the launcher says; alone 0 and 1
    unsigned local;                  // ranks of this machine; 0: unknown
    bool gpus;        // each has one, and words go by sockets, not by MPI
    bool joined;      // the others are there
    bool own;         // this program started them, by --gpus
    int status;       // with which another rank has failed; 0: unknown
    struct comm comm; // if joined, or planning
    struct err err;   // of comm
    // private
    struct comm_ending ending;
    struct meet meet; // where to, if there are GPUs
    bool tried;       // they were asked to join
    bool planning;    // there is one process, which plans for all
    bool working;     // see ranks_begin_work
    bool parting;     // all have come to the same end
};

/* Recognise a launcher by its environment, before options are read.  ending: how this process ends,
 * from whatever thread. */
int ranks_find(struct ranks *r, const struct comm_ending *ending, struct err *err);
/* The name of the launcher; NULL: none. */
const char *ranks_launcher(const struct ranks *r);
/* Threads of this rank, if the machine is one's with as many. */
unsigned ranks_threads(const struct ranks *r, unsigned all);
/* --gpus: this program starts n ranks on this machine, each with a GPU.  r->meet.listening is the
 * socket at which they meet; the caller forks, and each calls ranks_be with its number. */
int ranks_start(struct ranks *r, unsigned n, struct err *err);
void ranks_be(struct ranks *r, unsigned rank);
/* --gpus of a plan: one process plans for all n, and takes the part of rank 0. */
void ranks_plan(struct ranks *r, unsigned n);
/* Join the other ranks; fails where one with a GPU has not come for `to_come` seconds
 * (--rank-timeout).  While this rank waits, a rank that sends nothing for `patience` seconds counts
 * as lost; 0: waits without end.  rendezvous: HOST:PORT at which ranks with GPUs meet rank 0; NULL
 * takes it from the launcher's variables. */
int ranks_join(struct ranks *r, double patience, double to_come, bool gpus,
               const char *rendezvous, struct err *err);
/* The ranks exchange by it; NULL: this process is alone. */
struct comm *ranks_comm(struct ranks *r);
/* The number of this rank on its machine. */
int ranks_local(const struct ranks *r, unsigned *local, struct err *err);

/* Wait for all.  -1: *err; ERR_ELSEWHERE if another rank has failed.  Otherwise *signal
 * becomes the signal by which the lowest rank was asked to stop; 0: nobody was. */
int ranks_meet(struct ranks *r, int *signal, struct err *err);
/* Wait for all without a signal. */
int ranks_wait(struct ranks *r, struct err *err);
/* Refuse to go on if a rank has other facts than rank 0: lines of a name, a tab, a value. */
int ranks_compare(struct ranks *r, const struct buf *facts, struct err *err);
/* From here to ranks_end_work the ranks wait for each other's results, so a rank that fails ends all
 * of them. */
void ranks_begin_work(struct ranks *r);
void ranks_end_work(struct ranks *r);

/* This rank ends by an error, of options perhaps: tell the others, who then end, too.  *status
 * becomes that of the lowest rank that failed.  true: this rank prints the words, or with *err set
 * that the others cannot be told. */
bool ranks_tell(struct ranks *r, int *status, const char *words, struct err *err);
/* End the others at once where they cannot be told; else nothing. */
void ranks_abort(struct ranks *r, int status);
/* Part from the others, who have all come this far. */
int ranks_leave(struct ranks *r, struct err *err);
/* At exit, behind all else: a launcher may end whoever is left when the first has gone. */
void ranks_part(struct ranks *r);

#endif
