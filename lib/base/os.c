/* SPDX-License-Identifier: MIT */
/* os: see os.h. */
#include "lib/base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

double
os_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int64_t
os_bytes(const char *path, const char *key)
{
    char line[256];
    size_t n = strlen(key);
    int64_t bytes = -1;
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && line[n] == ':') {
            bytes = strtoll(line + n + 1, NULL, 10) * 1024;
            break;
        }
    if (f)
        fclose(f);
    return bytes;
}

bool
os_is_named(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}
