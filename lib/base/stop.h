/* SPDX-License-Identifier: MIT */
/* stop: whether a long run was asked to stop, by a signal's handler or because an output cannot be
 * written.  The command owns the one struct stop, and installs the handlers. */
#ifndef NIBBLE_BASE_STOP_H
#define NIBBLE_BASE_STOP_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

/* An output that cannot be written is a stop like a signal, so that all ranks hear of it.  It has the
 * number of a signal that no handler is installed for. */
enum { STOP_FOR_OUTPUT = SIGXFSZ };

struct stop {
    atomic_int signal; // that asked for it; 0: none
    atomic_bool saved; // what the run has done so far is in a file
};

static inline int
stop_signal(struct stop *s)
{
    return atomic_load(&s->signal);
}

/* The first request counts.  Safe in handlers. */
static inline void
stop_request(struct stop *s, int signal)
{
    int none = 0;
    atomic_compare_exchange_strong(&s->signal, &none, signal);
}

#endif
