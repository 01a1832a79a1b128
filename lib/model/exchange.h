/* SPDX-License-Identifier: MIT */
/* exchange: calls of comm.h for memory of a device, private to lib/model.  GPUs do it among
 * themselves, in the exchange queue; neither the host nor the compute queue waits.  A dry device's
 * are only counted.  -1: the error is that of the communicator, or of the device.
 *
 * Calls, and what is done with what they bring, stand between exchange_begin, behind which is what
 * the compute queue has been given so far, and exchange_end, which records an event; what reads
 * the results, or writes to what is sent, waits for it.  The queue is in order, so an event is
 * also that of all that was begun before. */
#ifndef NIBBLE_MODEL_EXCHANGE_H
#define NIBBLE_MODEL_EXCHANGE_H

#include "kernels/kernels.h"
#include "lib/dist/comm.h"

/* Events of kernels.h. */
enum exchange_event {
    EXCHANGE_READY, // what the compute queue has given; recorded by exchange_begin
    EXCHANGE_PIECE, // gradients of passes in one of the memories that these share
    EXCHANGE_OWN = EXCHANGE_PIECE + 2, // gradients with memory of their own
    EXCHANGE_CODES, // codes of a group of weights, in one of two memories
    EXCHANGE_LAYER = EXCHANGE_CODES + 2, // the weights of the first layer
    EXCHANGE_ALL,                        // everything
    EXCHANGE_EVENTS,
};
void exchange_begin(struct kernels *k);
void exchange_end(struct kernels *k, unsigned event);
/* What the compute queue is given from now on begins behind all exchanges so far. */
void exchange_settle(struct kernels *k);
/* The same, and the host waits for it: what this rank sends has been sent. */
void exchange_finish(struct kernels *k);

/* What is exchanged: arrays of a row of the table, or of row 0 where all rows have one.  It stays
 * where it is, so that the others need not ask again. */
enum exchange_of {
    EXCHANGE_RECEIVED, // gradients
    EXCHANGE_SUM,
    EXCHANGE_MASTER,
    EXCHANGE_DATA, // codes, scales
    EXCHANGE_SCALES,
    EXCHANGE_SCALE2,
    EXCHANGE_AMAX,
    EXCHANGE_SQUARES,
    EXCHANGE_OF,
};
enum { EXCHANGE_TOGETHER = 2 * LINEAR_MAX + 1 }; // arrays of a call, at most
struct exchange_array {
    enum exchange_of of;
    size_t row;
    void *p;
    const size_t *at; // (ranks + 1) as in comm.h
};
int exchange_gather(struct kernels *k, struct comm *c, const struct exchange_array *a,
                    size_t n);
int exchange_parts(struct kernels *k, struct comm *c, const struct exchange_array *to,
                   const void *from);

#endif
