/* SPDX-License-Identifier: MIT */
/* os: clock, /proc, and the identity of an open file. */
#ifndef NIBBLE_BASE_OS_H
#define NIBBLE_BASE_OS_H

#include <stdbool.h>
#include <stdint.h>

/* Seconds of a clock that never goes back; only differences mean something. */
double os_seconds(void);
/* The bytes of a line "KEY:  N kB" in the file, -1 without such a line. */
int64_t os_bytes(const char *path, const char *key);

/* Whether fd is still the file of that name, which another process may have removed. */
bool os_is_named(int fd, const char *path);

#endif
