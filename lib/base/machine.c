/* SPDX-License-Identifier: MIT */
/* machine: see machine.h. */
#include "lib/base/machine.h"

#include "lib/base/os.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The files of a version; cache is what its memory.stat calls the page cache. */
struct dialect {
    const char *mount, *limit, *usage, *cache[2];
};

static const struct dialect v1 = { "/sys/fs/cgroup/memory",
                                   "memory.limit_in_bytes",
                                   "memory.usage_in_bytes",
                                   { "total_inactive_file", "total_active_file" } };
static const struct dialect v2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", { "inactive_file", "active_file" }
};

static FILE *
open_file(const char *root, const struct dialect *d, const char *group,
          const char *leaf)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s%s%s/%s", root, d->mount, group, leaf);
    return n < 0 || (size_t)n >= sizeof path ? NULL : fopen(path, "re");
}

/* The number in a file, -1 without one ("max"). */
static int64_t
number(const char *root, const struct dialect *d, const char *group, const char *leaf)
{
    FILE *f = open_file(root, d, group, leaf);
    char line[64] = "";
    if (f && !fgets(line, sizeof line, f))
        line[0] = '\0';
    if (f)
        fclose(f);
    return *line >= '0' && *line <= '9' ? strtoll(line, NULL, 10) : -1;
}

/* The sum of "KEY NUMBER" lines. */
static int64_t
cache(const char *root, const struct dialect *d, const char *group)
{
    FILE *f = open_file(root, d, group, "memory.stat");
    char line[128];
    int64_t sum = 0;
    while (f && fgets(line, sizeof line, f))
        for (int i = 0; i < 2; i++) {
            size_t n = strlen(d->cache[i]);
            if (strncmp(line, d->cache[i], n) == 0 && line[n] == ' ')
                sum += strtoll(line + n, NULL, 10);
        }
    if (f)
        fclose(f);
    return sum;
}

/* What the limits of a group and of those above it leave. */
static int64_t
left(const char *root, const struct dialect *d, char *group)
{
    int64_t least = INT64_MAX;
    for (;;) {
        int64_t limit = number(root, d, group, d->limit);
        int64_t usage = number(root, d, group, d->usage);
        // "No limit" of version 1 is a number near 2^63.
        if (limit >= 0 && limit < INT64_MAX / 2 && usage >= 0) {
            int64_t free = limit - usage + cache(root, d, group);
            if (free < least)
                least = free < 0 ? 0 : free;
        }
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = '\0'; // in a container the path may be the host's: its root is there
    }
}

int64_t
machine_available(const char *root)
{
    char path[PATH_MAX], line[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    int64_t least = os_bytes(path, "MemAvailable");
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    // "4:memory:/path" or, version 2, "0::/path"
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *what = strchr(line, ':'), *group = what ? strchr(what + 1, ':') : NULL;
        if (!group)
            continue;
        *what++ = '\0';
        *group++ = '\0';
        bool two = strcmp(line, "0") == 0 && !*what;
        if (!two && strcmp(what, "memory") != 0)
            continue;
        int64_t free = left(root, two ? &v2 : &v1, group);
        if (free < INT64_MAX && (least < 0 || free < least))
            least = free;
    }
    if (f)
        fclose(f);
    return least;
}

uint64_t
machine_free(void)
{
    int64_t bytes = machine_available("");
    return bytes < 0 ? UINT64_MAX : (uint64_t)bytes;
}

uint64_t
machine_resident(bool peak)
{
    int64_t bytes = os_bytes("/proc/self/status", peak ? "VmHWM" : "VmRSS");
    return bytes < 0 ? 0 : (uint64_t)bytes;
}
