/* SPDX-License-Identifier: MIT */
/* comm: processes that work on one thing together, the ranks 0 .. size - 1.
 *
 * All ranks make the same calls in the same order.  Parts of an array are given by the byte at
 * which each rank's part begins: at[0] .. at[size], the last one being its end.  What is received
 * is where the senders' ranks put it, so that nothing depends on the order of arrival; nothing is
 * added here, since sums have an order of their own.
 *
 * The memory is the host's, and a call returns when it is done.  GPUs exchange theirs among
 * themselves (op_transfer); then ranks are joined by sockets, beside which a thread watches: a
 * rank that ends or hangs is noticed although everyone waits for a GPU.
 */
#ifndef NIBBLE_DIST_COMM_H
#define NIBBLE_DIST_COMM_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm_ops; // for those that implement it

struct comm {
    const struct comm_ops *op;
    void *own; // of the implementation
    unsigned rank, size;
    double
        patience; // seconds that a call waits for a rank that sends nothing; 0: any time
    double waited; // seconds that calls have taken so far
    // bytes that devices have sent so far, or would in a plan: parts to owners, and of owners
    uint64_t parts_sent, own_sent;
    struct err *err; // the first error is kept; after it no call does anything
};

/* One rank: nothing is sent. */
void comm_one(struct comm *c, struct err *err);
/* Those that a launcher of MPI has started.  If there is only one, or no MPI, that is how it
 * looks: the caller knows how many there should be. */
int comm_mpi(struct comm *c, struct err *err);
/* How the thread that watches ends this process. */
struct comm_ending {
    /* The words describe the failure; they are NULL if another rank prints it. */
    void (*end)(int status, const char *words);
    /* Whether a rank that fails can have that exit status. */
    bool (*fails_by)(int status);
};
/* Those whose sockets to rank 0 these are, as meet.h makes them, which takes them over; rank 0 has
 * one pair for each other rank.  A rank that sends what none sends ends all. */
struct meet;
int comm_sockets(struct comm *c, const struct meet *m, double patience,
                 const struct comm_ending *ending, struct err *err);
/* This rank has got on: it has begun an exchange that is not made here. */
void comm_note(struct comm *c);
/* All ranks are through: what they have sent has arrived. */
void comm_close(struct comm *c);
/* End all ranks now, with that status. */
void comm_abort(struct comm *c, int status);

/* What rank 0 has at p, to all. */
int comm_broadcast(struct comm *c, void *p, size_t bytes);
/* Each rank's part of p, to all. */
int comm_gather(struct comm *c, void *p, const size_t *at);
/* Each rank's part of p, to rank 0. */
int comm_collect(struct comm *c, void *p, const size_t *at);
/* Each rank's part, which is at `from`, to the next rank, at its `to`; the last one's is empty. */
int comm_pass(struct comm *c, void *to, const void *from, const size_t *at);
/* Part q of each rank's `from` goes to rank q.  to: what the other ranks have sent here, one after the
 * other in their order; each has the size of this rank's part. */
int comm_exchange(struct comm *c, void *to, const void *from, const size_t *at);

#endif
