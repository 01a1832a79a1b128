/* SPDX-License-Identifier: MIT */
/* ipc: memory of the emulation that other processes of it map.  Where there are several GPUs an
 * allocation has pages of its own; they become those of a file without a name when its handle is
 * asked for, which others open through /proc. */
#include "tests/emulate/include/runtime.h"

#include "tests/emulate/emulate.h"
#include "tests/emulate/memory.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* What a handle is. */
struct from {
    long pid;
    int fd;
    size_t bytes;
};

static size_t
in_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE + (bytes == 0) * (size_t)PAGE;
}

void *
emulate_map(size_t bytes)
{
    void *p = mmap(NULL, in_pages(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void
emulate_unmap(void *p, size_t bytes, int fd)
{
    munmap(p, in_pages(bytes));
    if (fd >= 0)
        close(fd);
}

/* A file with the bytes of that memory, which takes its place; -1: none. */
static int
share(void *p, size_t bytes)
{
    size_t n = in_pages(bytes), at = 0;
    int fd = memfd_create("emulated", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)n) < 0)
        return -1;
    while (at < n) {
        ssize_t some = pwrite(fd, (char *)p + at, n - at, (off_t)at);
        if (some <= 0)
            return -1;
        at += (size_t)some;
    }
    return mmap(p, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p ? fd
                                                                                  : -1;
}

/* NIBBLE_EMULATE_IPC_FAIL=N: the N-th handle that this process opens cannot be. */
static bool
fails(void)
{
    static long n;
    const char *fail = getenv("NIBBLE_EMULATE_IPC_FAIL");
    return fail && ++n == strtol(fail, NULL, 10);
}

/* NIBBLE_EMULATE_NO_IPC set: as in a container that refuses it. */
cudaError_t
cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p)
{
    struct allocation *a = emulate_allocation(p);
    emulate_settle();
    if (!a || a->p != p || !a->mapped || getenv("NIBBLE_EMULATE_NO_IPC"))
        return cudaErrorInvalidValue;
    if (a->fd < 0)
        a->fd = share(p, a->bytes);
    const struct from from = { getpid(), a->fd, a->bytes };
    memcpy(handle, &from, sizeof from);
    return a->fd < 0 ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t
cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned flags)
{
    struct from from;
    char path[64];
    (void)flags;
    memcpy(&from, &handle, sizeof from);
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", from.pid, from.fd);
    int fd = fails() ? -1 : open(path, O_RDWR | O_CLOEXEC);
    *p = fd < 0 ? MAP_FAILED
                : mmap(NULL, in_pages(from.bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                       fd, 0);
    if (fd >= 0)
        close(fd);
    return *p == MAP_FAILED ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t
cudaDeviceGetPCIBusId(char *bus, int n, int device)
{
    snprintf(bus, (size_t)n, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t
cudaDeviceGetByPCIBusId(int *device, const char *bus)
{
    int n;
    cudaGetDeviceCount(&n);
    *device = (int)strtol(bus + strlen("0000:"), NULL, 16) - 1;
    return *device < n ? cudaSuccess : cudaErrorInvalidDevice;
}

/* NIBBLE_EMULATE_NO_NVLINK set: GPUs reach each other by PCIe. */
cudaError_t
cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr which, int from, int to)
{
    (void)which, (void)from, (void)to;
    *value = !getenv("NIBBLE_EMULATE_NO_NVLINK");
    return cudaSuccess;
}
