/* SPDX-License-Identifier: MIT */
/* os: what the system tells: a clock, and the numbers of files in /proc. */
#ifndef NIBBLE_CORE_OS_H
#define NIBBLE_CORE_OS_H

#include <stdint.h>

/* Seconds of a clock that never goes back; only differences mean something. */
double os_seconds(void);
/* Bytes that a line "KEY:  N kB" of the file tells, -1 without such a line. */
int64_t os_bytes(const char *path, const char *key);

#endif
