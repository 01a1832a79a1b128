/* SPDX-License-Identifier: MIT */
/* team: threads that stay, for operations too short to start threads for each.
 *
 * par_for's rules: items are handed out in order, the error of the lowest item is kept.
 * One caller at a time.  A thread looks for work for some microseconds before it sleeps;
 * an operation costs a microsecond or two while they are awake.
 */
#ifndef NIBBLE_KERNELS_CPU_TEAM_H
#define NIBBLE_KERNELS_CPU_TEAM_H

#include "lib/core/par.h"

struct team;

/* The caller is one of the threads.  One that cannot be started is one fewer, not a
 * failure.  NULL: out of memory, the error is kept. */
struct team *team_open(unsigned threads, struct err *err);
void team_close(struct team *t); // NULL is right, too
/* Workers are numbered below this. */
unsigned team_size(const struct team *t);
/* fn for 0 .. n-1; 0, or -1 with the error of the lowest item that failed. */
int team_for(struct team *t, size_t n, par_fn fn, void *ctx, struct err *err);

#endif
