/* SPDX-License-Identifier: MIT */
/* par: the same work on numbered items, on several threads. */
#ifndef NIBBLE_CORE_PAR_H
#define NIBBLE_CORE_PAR_H

#include "lib/core/err.h"

#include <stddef.h>

/* Work on item i; worker is 0 .. threads-1, for scratch memory. */
typedef int (*par_fn)(void *ctx, size_t i, unsigned worker, struct err *err);

/* Call fn for 0 .. n-1, in order of start.  0, or -1 with the error of the lowest item
 * that failed, whatever the number of threads; later items may not have been run. */
int par_for(unsigned threads, size_t n, par_fn fn, void *ctx, struct err *err);

/* Processors that this process may use, at least 1. */
unsigned par_cpus(void);

#endif
