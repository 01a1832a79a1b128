/* SPDX-License-Identifier: MIT */
/* machine: memory that the machine, or the container that we are in, has left, and that this process
 * has. */
#ifndef NIBBLE_BASE_MACHINE_H
#define NIBBLE_BASE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes that programs can still have: MemAvailable, or what a memory limit of a control
 * group (version 1 or 2, ours or one above) leaves if that is less, since there the
 * kernel ends programs first.  Page cache counts as free in both.  root is put before
 * /proc and /sys, "" in earnest.  -1: not known. */
int64_t machine_available(const char *root);
/* The available bytes of this machine; UINT64_MAX: not known. */
uint64_t machine_free(void);
/* Resident bytes of this process, or their peak so far; 0: not known. */
uint64_t machine_resident(bool peak);

#endif
