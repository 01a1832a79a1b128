/* SPDX-License-Identifier: MIT */
/* gpu: see gpu.h. */
#include "cmd/memguard/gpu.h"

#include "lib/base/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NVML_UNKNOWN UINT64_MAX // used bytes are unknown

typedef int nvml_list(nvml_device d, unsigned *n, struct nvml_process *p);

struct gpu_device {
    nvml_device d;
    uint64_t start; // bytes used before the command
    bool reports;   // it reports used memory
    bool by_growth; // NVML has pids of another namespace: count growth
    bool suspect;   // it seemed so at the last look
};

struct gpu {
    void *lib;
    int (*shutdown)(void);
    int (*memory)(nvml_device d, struct nvml_memory *m);
    nvml_list *lists[2]; // computing and drawing
    struct nvml_process *procs;
    unsigned capacity;
    struct gpu_device *devices;
    unsigned n;
};

/* A function, in the newest version that the driver has. */
static void
find_function(const struct gpu *g, void *f, const char *name, const char *older)
{
    void *p = dlsym(g->lib, name);
    if (!p && older)
        p = dlsym(g->lib, older);
    memcpy(f, &p, sizeof p);
}

static bool
device_used(const struct gpu *g, const struct gpu_device *d, uint64_t *bytes)
{
    struct nvml_memory m = { 0 };
    bool reports = g->memory(d->d, &m) == NVML_SUCCESS;
    *bytes = reports ? m.used : 0;
    return reports;
}

/* Functions that are needed only while opening. */
struct starters {
    int (*init)(void), (*count)(unsigned *), (*handle)(unsigned, nvml_device *);
    const char *(*message)(int);
};

static int
start_nvml(struct gpu *g, struct starters *f, struct err *err)
{
    find_function(g, &f->init, "nvmlInit_v2", NULL);
    find_function(g, &f->count, "nvmlDeviceGetCount_v2", NULL);
    find_function(g, &f->handle, "nvmlDeviceGetHandleByIndex_v2", NULL);
    find_function(g, &f->message, "nvmlErrorString", NULL);
    find_function(g, &g->memory, "nvmlDeviceGetMemoryInfo", NULL);
    find_function(g, &g->lists[0], "nvmlDeviceGetComputeRunningProcesses_v3",
                  "nvmlDeviceGetComputeRunningProcesses_v2");
    find_function(g, &g->lists[1], "nvmlDeviceGetGraphicsRunningProcesses_v3",
                  "nvmlDeviceGetGraphicsRunningProcesses_v2");
    if (!f->init || !f->count || !f->handle || !f->message || !g->memory ||
        !g->lists[0] || !g->lists[1])
        return err_set(err, ERR_USAGE,
                       NVML_LIBRARY " is too old for --gpu-limit: driver "
                                    "450 or later is needed");
    int rc = f->init();
    if (rc != NVML_SUCCESS)
        return err_set(err, ERR_USAGE,
                       "--gpu-limit: NVML does not start: %s; does "
                       "nvidia-smi work?",
                       f->message(rc));
    find_function(g, &g->shutdown, "nvmlShutdown", NULL);
    return 0;
}

static int
open_devices(struct gpu *g, struct err *err)
{
    struct starters f;
    bool any = false;
    if (start_nvml(g, &f, err) < 0)
        return -1;
    if (f.count(&g->n) != NVML_SUCCESS || g->n == 0)
        return err_set(err, ERR_USAGE, "--gpu-limit: NVML finds no GPU; leave it out");
    g->devices = calloc(g->n, sizeof *g->devices);
    if (!g->devices)
        return err_set(err, ERR_MEMORY, "out of memory");
    for (unsigned i = 0; i < g->n; i++) {
        struct gpu_device *d = &g->devices[i];
        int rc = f.handle(i, &d->d);
        if (rc != NVML_SUCCESS)
            return err_set(err, ERR_USAGE, "--gpu-limit: GPU %u: %s", i, f.message(rc));
        d->reports = device_used(g, d, &d->start);
        any |= d->reports;
    }
    if (!any)
        return err_set(err, ERR_USAGE,
                       "--gpu-limit: the GPU has no memory of its own of which NVML "
                       "tells (it shares the machine's); watch --available instead");
    return 0;
}

struct gpu *
gpu_open(struct err *err)
{
    struct gpu *g = calloc(1, sizeof *g);
    if (!g) {
        err_fill(err, ERR_MEMORY, "out of memory");
        return NULL;
    }
    g->lib = dlopen(NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!g->lib)
        err_fill(err, ERR_USAGE,
                 "--gpu-limit: NVIDIA's " NVML_LIBRARY " cannot be opened: install the "
                 "driver (in a container: give it the \"utility\" capability), or "
                 "watch --limit or --available");
    if (!g->lib || open_devices(g, err) < 0) {
        gpu_close(g);
        return NULL;
    }
    return g;
}

/* The processes of a device into g->procs, or -1. */
static int
list(struct gpu *g, nvml_device d, nvml_list *f, unsigned *n)
{
    for (int tries = 0; tries < 4; tries++) {
        *n = g->capacity;
        int rc = f(d, n, g->procs);
        if (rc == NVML_SUCCESS)
            return 0;
        if (rc != NVML_TOO_SMALL)
            break;
        unsigned capacity = 2 * *n + 16; // more may start meanwhile
        struct nvml_process *p = realloc(g->procs, capacity * sizeof *p);
        if (!p)
            break;
        g->procs = p;
        g->capacity = capacity;
    }
    *n = 0;
    return -1;
}

static bool
is_here(pid_t pid)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    return access(path, F_OK) == 0;
}

/* Bytes of the tree's processes on a device.  *strange: it lists a pid that does not exist
 * here; *named: it lists any. */
static uint64_t
device_processes(struct gpu *g, const struct gpu_device *d, struct tree *t,
                 bool *strange, bool *named)
{
    uint64_t sum = 0;
    *strange = *named = false;
    // A process may be in both lists, with the same number of bytes.
    uint64_t *seen = calloc(t->n + 1, sizeof *seen);
    for (int k = 0; seen && k < 2; k++) {
        unsigned n;
        if (list(g, d->d, g->lists[k], &n) < 0)
            continue;
        for (unsigned i = 0; i < n; i++) {
            *named = true;
            pid_t pid = (pid_t)g->procs[i].pid;
            const struct tree_proc *p = tree_find(t, pid);
            if (!p) {
                *strange = *strange || !is_here(pid);
                continue;
            }
            if (g->procs[i].used == NVML_UNKNOWN)
                *strange = true;
            else if (g->procs[i].used > seen[p - t->procs])
                seen[p - t->procs] = g->procs[i].used;
        }
    }
    for (size_t i = 0; seen && i < t->n; i++) {
        t->procs[i].gpu += seen[i];
        sum += seen[i];
    }
    free(seen);
    return sum;
}

uint64_t
gpu_used(struct gpu *g, struct tree *t, const char **words)
{
    // Less growth is of the driver or of others; a context needs more.
    const uint64_t notable = 64 << 20;
    uint64_t sum = 0;
    *words = "";
    for (size_t i = 0; i < t->n; i++)
        t->procs[i].gpu = 0;
    for (unsigned i = 0; i < g->n; i++) {
        struct gpu_device *d = &g->devices[i];
        bool strange, named;
        // Read used memory before the processes.  One may end in between, so two looks must
        // agree.
        uint64_t used;
        uint64_t growth =
            device_used(g, d, &used) && used > d->start ? used - d->start : 0;
        uint64_t ours = device_processes(g, d, t, &strange, &named);
        bool doubt = d->reports && ours == 0 && (strange || !named) && growth > notable;
        bool sure = doubt && d->suspect;
        d->suspect = doubt;
        if (!d->by_growth && sure) {
            d->by_growth = true;
            *words = "NVML does not know the processes by our numbers (a container?): "
                     "GPU memory is what is used beyond the start, by whomever";
        }
        sum += d->by_growth && growth > ours ? growth : ours;
    }
    return sum;
}

void
gpu_close(struct gpu *g)
{
    if (!g)
        return;
    if (g->shutdown)
        g->shutdown();
    if (g->lib)
        dlclose(g->lib);
    free(g->procs);
    free(g->devices);
    free(g);
}
