/* SPDX-License-Identifier: MIT */
/* A library for LD_PRELOAD: /proc and /sys are those of the directory $MACHINE, for what is
 * opened by fopen, so that tests can ask what a program does on a machine with little
 * memory.
 *
 *   cc -shared -fPIC -O2 -o build/machine.so tests/machine.c -ldl
 */
#undef _FILE_OFFSET_BITS
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *
open_there(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *);
    static _Thread_local char other[4096];
    if (strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0) {
        snprintf(other, sizeof other, "%s%s", getenv("MACHINE"), path);
        path = other;
    }
    *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    return real(path, mode);
}

FILE *
fopen(const char *filename, const char *modes)
{
    return open_there(filename, modes);
}

FILE *
fopen64(const char *filename, const char *modes)
{
    return open_there(filename, modes);
}
