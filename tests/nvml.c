/* SPDX-License-Identifier: MIT */
/* nvml: stands in for NVIDIA's libnvidia-ml.so.1, for the tests of memguard.
 *
 * Its numbers are those of the file that FAKE_NVML names, read again at each call:
 *
 *   device USED_MIB          a GPU; "device -": one that does not tell its memory
 *   compute PID USED_MIB     a process on the GPU above; "-" for what is not told
 *   graphics PID USED_MIB
 *
 * Only what memguard calls is here, with the types that NVML documents.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    NOT_SUPPORTED = 3,
    TOO_SMALL = 7,
    UNKNOWN = 999
};

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct memory {
    unsigned long long total, free, used;
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int result);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *m);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n,
                                            struct process *p);
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *n,
                                             struct process *p);

typedef bool line_fn(void *ctx, unsigned device, const char *what, const char *a,
                     const char *b);

/* Each line of the file, with the number of the device that it belongs to (from 1). */
static int
each_line(line_fn *f, void *ctx)
{
    const char *path = getenv("FAKE_NVML");
    FILE *in = path ? fopen(path, "re") : NULL;
    char line[256], what[32], a[32], b[32];
    unsigned device = 0;
    if (!in)
        return UNKNOWN;
    while (fgets(line, sizeof line, in)) {
        int n = sscanf(line, "%31s %31s %31s", what, a, b);
        if (n < 2)
            continue;
        device += strcmp(what, "device") == 0;
        if (!f(ctx, device, what, a, n > 2 ? b : ""))
            break;
    }
    fclose(in);
    return SUCCESS;
}

static unsigned long long
bytes(const char *mib)
{
    return *mib == '-' ? UINT64_MAX : strtoull(mib, NULL, 10) << 20;
}

int
nvmlInit_v2(void)
{
    return getenv("FAKE_NVML") ? SUCCESS : UNINITIALIZED;
}

int
nvmlShutdown(void)
{
    return SUCCESS;
}

const char *
nvmlErrorString(int result)
{
    return result == UNINITIALIZED ? "Uninitialized" : "Not Supported";
}

static bool
count_line(void *ctx, unsigned device, const char *what, const char *a, const char *b)
{
    (void)what;
    (void)a;
    (void)b;
    *(unsigned *)ctx = device;
    return true;
}

int
nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = 0;
    return each_line(count_line, n);
}

int
nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device)
{
    *device = (void *)(uintptr_t)(i + 1);
    return SUCCESS;
}

struct wanted {
    unsigned device, n, room;
    const char *what;
    unsigned long long used;
    struct process *p;
};

static bool
memory_line(void *ctx, unsigned device, const char *what, const char *a, const char *b)
{
    struct wanted *w = ctx;
    (void)b;
    if (device == w->device && strcmp(what, "device") == 0)
        w->used = bytes(a);
    return true;
}

int
nvmlDeviceGetMemoryInfo(void *device, struct memory *m)
{
    struct wanted w = { .device = (unsigned)(uintptr_t)device, .used = UINT64_MAX };
    int rc = each_line(memory_line, &w);
    if (rc != SUCCESS || w.used == UINT64_MAX)
        return NOT_SUPPORTED;
    *m = (struct memory){ .total = 80ULL << 30, .used = w.used };
    m->free = m->total - m->used;
    return SUCCESS;
}

static bool
process_line(void *ctx, unsigned device, const char *what, const char *a, const char *b)
{
    struct wanted *w = ctx;
    if (device != w->device || strcmp(what, w->what) != 0)
        return true;
    if (w->n < w->room)
        w->p[w->n] =
            (struct process){ (unsigned)strtoul(a, NULL, 10), bytes(b), ~0U, ~0U };
    w->n++;
    return true;
}

static int
processes(void *device, const char *what, unsigned *n, struct process *p)
{
    struct wanted w = {
        .device = (unsigned)(uintptr_t)device, .what = what, .room = *n, .p = p
    };
    int rc = each_line(process_line, &w);
    *n = w.n;
    return rc != SUCCESS ? rc : w.n > w.room ? TOO_SMALL : SUCCESS;
}

int
nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, struct process *p)
{
    return processes(device, "compute", n, p);
}

int
nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *n, struct process *p)
{
    return processes(device, "graphics", n, p);
}
