/* SPDX-License-Identifier: MIT */
/* ranks: the processes of a run of several, which a launcher has started: who they are, and what
 * they agree on.  A process that is alone agrees with itself. */
#ifndef NIBBLE_CMD_CLI_RANKS_H
#define NIBBLE_CMD_CLI_RANKS_H

#include "lib/base/buf.h"
#include "lib/dist/comm.h"

#include <stdbool.h>

/* Recognise a launcher by its environment, before options are read.  From here on only rank 0
 * warns and writes to standard output, other ranks' errors carry their number, and an error of
 * one rank ends all with its status: the lowest rank that has one prints it. */
void ranks_begin(void);
/* Threads of this rank, if the machine is one's with as many. */
unsigned ranks_threads(unsigned all);
/* What --gpus goes with; the device becomes cuda. */
void ranks_want_gpus(const char **device, const char *rendezvous);
/* --gpus: start n ranks here, each with a GPU; returns in each.  plan: one process, which plans for
 * all, and takes the part of rank 0. */
void ranks_start(unsigned n, bool plan);
/* Join the other ranks; dies if that fails, as where one with a GPU has not come for `to_come`
 * seconds (--rank-timeout).  While this rank waits, a rank that sends nothing for `patience` seconds
 * counts as lost; 0: waits without end.  rendezvous: HOST:PORT at which ranks with GPUs meet rank 0;
 * NULL: what the launcher's variables say. */
void ranks_join(double patience, double to_come, bool gpus, const char *rendezvous);
/* Settle the number of this rank's GPU, unless the device names one; refuse two ranks of one. */
void ranks_settle_gpu(const char *device, int *number);
/* Let the ranks' GPUs exchange their memory; verbose: say how they do it. */
struct kernels;
void ranks_join_gpus(struct kernels *k, bool verbose);
/* Their number and this one's, once joined; NULL: it is alone. */
struct comm *ranks_comm(void);
unsigned ranks_number(void);
unsigned ranks_count(void);
/* Say which launcher was recognised. */
void ranks_report(void);

/* Wait for all.  If one has failed, all end; otherwise a signal, 0 being none, that the lowest
 * rank has been asked to stop by. */
int ranks_meet(int signal);
/* Refuse to go on if a rank has other facts than rank 0: lines of a name, a tab, a value. */
void ranks_compare(const struct buf *facts);
/* From here to ranks_end_work a rank that fails cannot meet the others, which wait for what it
 * computes: all are ended. */
void ranks_begin_work(void);
void ranks_end_work(void);
/* Part from the others, who have all come this far. */
void ranks_leave(void);

#endif
