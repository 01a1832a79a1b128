/* SPDX-License-Identifier: MIT */
/* meet: how ranks without a library of messages find each other: rank 0 listens, the others
 * connect, each with two sockets.  One is for words, the other for what threads that watch say.
 *
 * The port is open to other processes, too.  A connection that does not introduce itself as a rank of
 * this run is closed after a few seconds, earlier if many come; it neither ends the meeting nor keeps
 * a rank out of it.  A rank whose connection was closed so connects again until its time is over. */
#ifndef NIBBLE_DIST_MEET_H
#define NIBBLE_DIST_MEET_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { MEET_WORDS, MEET_WATCH, MEET_SOCKETS };
enum { MEET_JOB = 64, MEET_HOST = 256 };

struct meet {
    char host[MEET_HOST]; // of rank 0, a name or an address
    unsigned port;
    int listening; // 's socket, if rank 0 has one already; -1
    unsigned rank, size;
    double patience;    // seconds in which all ranks must have met
    char job[MEET_JOB]; // the name of the run: ranks of another name are refused
    int (*ends)
        [MEET_SOCKETS]; // set: of rank 0 those to rank q at [q - 1], else to it at [0]
};

/* -1: who is missing, or what is in the way. */
int meet_all(struct meet *m, struct err *err);
/* A socket that listens on this machine only, at a free port, which is set; -1: the error is
 * set. */
int meet_listen(unsigned *port, struct err *err);
void meet_close(struct meet *m);

/* What the threads that watch send each other. */
struct meet_pulse {
    uint32_t kind;
    int32_t status; // PULSE_END: of the process
    uint64_t calls; // PULSE_BEAT: how far the rank has got
};
enum { PULSE_BEAT = 1, PULSE_END, PULSE_LEAVE };
/* All of n bytes; false: the connection has ended. */
bool meet_send(int fd, const void *p, size_t n);
bool meet_receive(int fd, void *p, size_t n);

#endif
