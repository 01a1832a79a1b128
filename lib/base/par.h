/* SPDX-License-Identifier: MIT */
/* par: the same work on numbered items, on several threads.
 *
 * Items are started in order.  The error that is kept is that of the lowest item that
 * failed, whatever the number of threads; later items may not have been run.  A thread that
 * cannot be started is one fewer, not a failure.
 */
#ifndef NIBBLE_BASE_PAR_H
#define NIBBLE_BASE_PAR_H

#include "lib/base/err.h"

#include <stddef.h>

/* Work on item i; worker is 0 .. threads-1, for scratch memory. */
typedef int (*par_fn)(void *ctx, size_t i, unsigned worker, struct err *err);

/* Processors that this process may use, at least 1. */
unsigned par_cpus(void);

/* Call fn for items 0 .. n-1, on threads that live for this call.  0, or -1. */
int par_for(unsigned threads, size_t n, par_fn fn, void *ctx, struct err *err);

/* A pool: threads that stay, for work too short to start threads each time.  They spin for
 * some microseconds before they sleep; while they are awake a call costs one or two.  One
 * caller at a time, which is worker 0. */
struct par;
struct par *par_open(unsigned threads, struct err *err); // NULL: out of memory
void par_close(struct par *p);                           // p may be NULL
unsigned par_threads(const struct par *p);
/* As par_for. */
int par_run(struct par *p, size_t n, par_fn fn, void *ctx, struct err *err);

#endif
