/* SPDX-License-Identifier: MIT */
/* runtime: devices, memory, streams and events of the emulation.  All is done at once, so
 * that a stream has nothing to wait for. */
#include "tests/emulate/include/runtime.h"

#include "tests/emulate/emulate.h"
#include "tests/emulate/memory.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HUGE = 1 << 20 };
static const size_t all_memory = (size_t)8 << 30;

/* ---- errors -------------------------------------------------------------------------------- */

static cudaError_t last;

void
emulate_error(cudaError_t e)
{
    if (e != cudaSuccess)
        last = e;
}

static cudaError_t
say(cudaError_t e)
{
    emulate_error(e);
    return e;
}

cudaError_t
cudaGetLastError(void)
{
    cudaError_t e = last;
    last = cudaSuccess;
    return e;
}

const char *
cudaGetErrorName(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
        return "cudaErrorInvalidDevice";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    case cudaErrorLaunchOutOfResources:
        return "cudaErrorLaunchOutOfResources";
    }
    return "?";
}

const char *
cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorMemoryAllocation ? "out of memory" : cudaGetErrorName(e) + 4;
}

/* ---- the device ------------------------------------------------------------------------------ */

/* NIBBLE_EMULATE_SM: 90, or 120, which has less shared memory, and products of NVFP4. */
const cudaDeviceProp *
emulate_device(void)
{
    static cudaDeviceProp p;
    if (!p.major) {
        const char *sm = getenv("NIBBLE_EMULATE_SM");
        bool small = sm && strcmp(sm, "120") == 0;
        snprintf(p.name, sizeof p.name, "emulation on the CPU, no GPU");
        p.totalGlobalMem = all_memory;
        p.sharedMemPerBlockOptin = (small ? 99U : 227U) << 10;
        p.multiProcessorCount = 4;
        p.major = small ? 12 : 9;
    }
    return &p;
}

cudaError_t
cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t
cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    *p = *emulate_device();
    return say(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t
cudaSetDevice(int device)
{
    return say(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t
cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t
cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------ */

static struct piece {
    void *p;
    size_t bytes;
} * pieces;
static size_t n_pieces, in_use;
static pthread_mutex_t of_pieces = PTHREAD_MUTEX_INITIALIZER;

/* Large, new and not filled with NaN yet: what is zeroed first need not be. */
static struct piece fresh;

void
emulate_settle(void)
{
    pthread_mutex_lock(&of_pieces);
    if (fresh.p)
        memset(fresh.p, NAN_BYTE, fresh.bytes);
    fresh.p = NULL;
    pthread_mutex_unlock(&of_pieces);
}

cudaError_t
emulate_malloc(void **p, size_t bytes)
{
    *p = NULL;
    emulate_settle();
    pthread_mutex_lock(&of_pieces);
    struct piece *more = realloc(pieces, (n_pieces + 1) * sizeof *more);
    // Kernels count on what cudaMalloc says of alignment.
    void *room = NULL, *whole = NULL;
    if (more)
        pieces = more;
    if (more && bytes <= all_memory - in_use) {
        if (bytes >= HUGE)
            whole = calloc(1, bytes + 256);
        else if (posix_memalign(&whole, 256, bytes ? bytes : 1) != 0)
            whole = NULL;
        room = whole;
    }
    if (room) {
        if (bytes >= HUGE)
            room = (char *)whole + (256 - (uintptr_t)whole % 256) % 256;
        POISON((char *)room + bytes,
               bytes >= HUGE ? (size_t)((char *)whole + 256 - (char *)room) : 0);
        pieces[n_pieces++] = (struct piece){ whole, bytes };
        in_use += bytes;
        if (bytes >= HUGE)
            fresh = (struct piece){ room, bytes };
        else
            memset(room, NAN_BYTE, bytes);
    }
    pthread_mutex_unlock(&of_pieces);
    *p = room;
    return say(room ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t
cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    pthread_mutex_lock(&of_pieces);
    size_t i = 0;
    while (i < n_pieces && (uintptr_t)p - (uintptr_t)pieces[i].p >= 256)
        i++;
    if (i == n_pieces)
        emulate_fail("cudaFree of %p, which is not from cudaMalloc", p);
    if (fresh.p == p)
        fresh.p = NULL;
    in_use -= pieces[i].bytes;
    free(pieces[i].p);
    pieces[i] = pieces[--n_pieces];
    pthread_mutex_unlock(&of_pieces);
    return cudaSuccess;
}

cudaError_t
cudaMemGetInfo(size_t *free_bytes, size_t *all)
{
    *all = all_memory;
    *free_bytes = all_memory - in_use;
    return cudaSuccess;
}

cudaError_t
emulate_malloc_host(void **p, size_t bytes)
{
    *p = malloc(bytes);
    return say(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t
cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t
cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                cudaStream_t stream)
{
    (void)kind, (void)stream;
    emulate_settle();
    memmove(to, from, bytes);
    return cudaSuccess;
}

cudaError_t
cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    pthread_mutex_lock(&of_pieces);
    bool is_zero = fresh.p && p == fresh.p && bytes == fresh.bytes && value == 0;
    if (is_zero)
        fresh.p = NULL;
    pthread_mutex_unlock(&of_pieces);
    emulate_settle();
    if (!is_zero)
        memset(p, value, bytes);
    return cudaSuccess;
}

cudaError_t
emulate_attribute(const void *kernel, enum cudaFuncAttribute which, int value)
{
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || (size_t)value > emulate_device()->sharedMemPerBlockOptin)
        return say(cudaErrorInvalidValue);
    emulate_allow_shared(kernel, (size_t)value);
    return cudaSuccess;
}

/* ---- streams and events --------------------------------------------------------------------------- */

struct emulate_stream {
    int unused;
};

struct emulate_event {
    double at;
};

cudaError_t
cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    return say(*stream ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t
cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t
cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}

cudaError_t
cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof **event);
    return say(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t
cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t
cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    struct timespec t;
    (void)stream;
    clock_gettime(CLOCK_MONOTONIC, &t);
    event->at = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
    return cudaSuccess;
}

/* Everything is in the order of calls already. */
cudaError_t
cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return cudaSuccess;
}

cudaError_t
cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t
cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = (float)(to->at - from->at);
    return cudaSuccess;
}

cudaError_t
cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}
