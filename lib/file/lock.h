/* SPDX-License-Identifier: MIT */
/* lock: one process at a time makes new versions of a file.
 *
 * The lock is a file .NAME.nibble-lock beside the file, locked by flock(2) for as long
 * as its holder lives: what a killed process left behind is no lock.
 */
#ifndef NIBBLE_FILE_LOCK_H
#define NIBBLE_FILE_LOCK_H

#include "lib/base/err.h"
#include "lib/file/guard.h"

struct lock {
    int fd; // -1: not held
    char *path;
    struct guard *guard;
};

/* Acquire the lock of the file that a write to target replaces, links followed.  The
 * kernel needs a moment to free the memory of a killed holder, so a lock that is held
 * is waited for, two seconds.  -1: ERR_IO, another process holds it; l is not held
 * then. */
int lock_acquire(struct lock *l, const char *target, struct guard *g, struct err *err);
/* Right for a lock that is not held, too. */
void lock_release(struct lock *l);

#endif
