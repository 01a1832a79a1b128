/* SPDX-License-Identifier: MIT */
/* comm_ops: what an implementation of comm.h has, each as it is described there. */
#ifndef NIBBLE_DIST_COMM_OPS_H
#define NIBBLE_DIST_COMM_OPS_H

#include "lib/dist/comm.h"

struct comm_ops {
    void (*close)(struct comm *c);
    void (*abort)(struct comm *c, int status);
    void (*note)(struct comm *c);
    int (*broadcast)(struct comm *c, void *p, size_t bytes);
    int (*gather)(struct comm *c, void *p, const size_t *at);
    int (*collect)(struct comm *c, void *p, const size_t *at);
    int (*pass)(struct comm *c, void *to, const void *from, const size_t *at);
    int (*exchange)(struct comm *c, void *to, const void *from, const size_t *at);
};

/* How many seconds this rank waits before it gives up.  late[q]: rank q has not sent, nor said
 * that it waits, too. */
double comm_patience(const struct comm *c, const bool *late);
/* It has waited as long: the error. */
int comm_is_late(struct comm *c, const bool *late);

/* In libnibble-mpi.so; its name changes with these structures. */
int nibble_mpi_open_5(struct comm *c, struct err *err);

#endif
