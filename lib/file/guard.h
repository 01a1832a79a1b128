/* SPDX-License-Identifier: MIT */
/* guard: the mappings and temporary files of a running program, for signal handlers.
 *
 * Handlers are the process's, so the command owns the one struct guard, installs the
 * handlers (cmd/cli/cmd.c) and hands a pointer to everything that maps a file or makes a
 * temporary one.  Slots are atomic, so a handler on any thread sees a consistent
 * state, and the functions for handlers are async-signal-safe.
 */
#ifndef NIBBLE_FILE_GUARD_H
#define NIBBLE_FILE_GUARD_H

#include "lib/base/err.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

struct map;

enum { GUARD_SLOTS = 4096 };

struct guard {
    _Atomic(struct map *) maps[GUARD_SLOTS];
    _Atomic(const char *) temps[GUARD_SLOTS]; // files and directories to remove
    atomic_int held;                          // threads between hold and release
    atomic_bool ending;
};

/* Put an item into a free slot, or -1 with *err when all are taken. */
int guard_map(struct guard *g, struct map *m, struct err *err);
int guard_temp(struct guard *g, const char *path, struct err *err);
void guard_forget_map(struct guard *g, const struct map *m);
void guard_forget_temp(struct guard *g, const char *path);

/* While held, no signal ends the program: between making, renaming or removing a
 * temporary file and its slot.  A signal waits for as long: hold it for a few system
 * calls, and do not nest it.  *before is for guard_release. */
void guard_hold(struct guard *g, sigset_t *before);
void guard_release(struct guard *g, const sigset_t *before);

/* For a SIGBUS handler: if addr lies in a mapping, put zeros under the rest of it and
 * mark it lost, which map_check reports: true, the faulting code may go on. */
bool guard_repair(struct guard *g, const void *addr);
/* Remove the temporary files. */
void guard_remove_temps(struct guard *g);
/* For the handlers of deadly signals, on any thread: the same, and no other thread
 * makes one any more.  The program must end then. */
void guard_end(struct guard *g);

#endif
