/* SPDX-License-Identifier: MIT */
/* runtime: devices, memory, streams and events of the emulation. */
#include "tests/emulate/include/runtime.h"

#include "tests/emulate/emulate.h"
#include "tests/emulate/memory.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HUGE = 1 << 20, MAX_STREAMS = 8 };
static const size_t all_memory = (size_t)8 << 30;

/* ---- errors ---------------------------------------------------------------------- */

static cudaError_t last;

void
emulate_error(cudaError_t e)
{
    if (e != cudaSuccess)
        last = e;
}

static cudaError_t
set_error(cudaError_t e)
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
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
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

/* ---- the device ------------------------------------------------------------------ */

/* NIBBLE_EMULATE_SM: 90 (default); 120: less shared memory, NVFP4 products; 80: a chip that is too
 * old.  NIBBLE_EMULATE_SMS: how many multiprocessors, 8 at most. */
const cudaDeviceProp *
emulate_device(void)
{
    static cudaDeviceProp p;
    if (!p.major) {
        const char *sm = getenv("NIBBLE_EMULATE_SM");
        const char *sms = getenv("NIBBLE_EMULATE_SMS");
        bool small = sm && strcmp(sm, "120") == 0;
        snprintf(p.name, sizeof p.name, "emulation on the CPU, no GPU");
        p.totalGlobalMem = all_memory;
        p.sharedMemPerBlockOptin = (small ? 99U : 227U) << 10;
        p.multiProcessorCount = sms ? (int)strtol(sms, NULL, 10) : 8;
        p.major = small ? 12 : sm && strcmp(sm, "80") == 0 ? 8 : 9;
    }
    return &p;
}

/* NIBBLE_EMULATE_GPUS: how many there are, all alike. */
cudaError_t
cudaGetDeviceCount(int *n)
{
    const char *given = getenv("NIBBLE_EMULATE_GPUS");
    *n = given ? (int)strtol(given, NULL, 10) : 1;
    return cudaSuccess;
}

static cudaError_t
find_device(int device)
{
    int n;
    cudaGetDeviceCount(&n);
    return set_error(device >= 0 && device < n ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t
cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    *p = *emulate_device();
    return find_device(device);
}

cudaError_t
cudaSetDevice(int device)
{
    return find_device(device);
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

/* ---- what streams have to do ----------------------------------------------------- */

/* What a stream has been given and has not done yet. */
struct work {
    struct work *next;
    emulate_work_fn *run;
    size_t bytes;
    max_align_t with[];
};

/* What a stream was given while it was recorded. */
struct emulate_graph {
    struct work *first, **end;
};

struct emulate_stream {
    emulate_put_fn *put; // first: nccl.c and driver.c find it here
    struct work *first, **end;
    struct emulate_graph *records; // NULL: what it is given is done
    bool eager;
};

static struct emulate_stream *streams[MAX_STREAMS];

/* NIBBLE_EMULATE_QUEUES, unset: a stream does at once what it is given.  "late": only what is
 * waited for is done, as late as possible.  "early": so it is in the first stream; others do what they
 * are given at once, before what the first one has been given meanwhile, unless they wait for it.
 * So a wait that is missing between two streams shows in the results of one of the two. */
static enum { AT_ONCE, LATE, EARLY } queues;

static void
find_queues(void)
{
    const char *given = getenv("NIBBLE_EMULATE_QUEUES");
    queues = !given ? AT_ONCE : strcmp(given, "early") == 0 ? EARLY : LATE;
}

/* Do the first of what is left of a stream. */
static void
advance(cudaStream_t s)
{
    struct work *w = s->first;
    s->first = w->next;
    if (!s->first)
        s->end = &s->first;
    w->run(w->with);
    free(w);
}

static void
finish(cudaStream_t s)
{
    while (s && s->first)
        advance(s);
}

static void
finish_all(void)
{
    for (int i = 0; i < MAX_STREAMS; i++)
        finish(streams[i]);
}

void
emulate_put(cudaStream_t s, emulate_work_fn *run, void *with, size_t bytes)
{
    if (!s || (queues == AT_ONCE && !s->records)) {
        run(with);
        return;
    }
    struct work *w = malloc(sizeof *w + bytes);
    if (!w)
        emulate_fail("out of memory for a queue");
    *w = (struct work){ .run = run, .bytes = bytes };
    memcpy(w->with, with, bytes);
    struct work ***end = s->records ? &s->records->end : &s->end;
    **end = w;
    *end = &w->next;
    if (s->eager && !s->records)
        finish(s);
}

/* ---- memory ---------------------------------------------------------------------- */

static struct allocation *allocations;
static size_t n_allocations, in_use;
static pthread_mutex_t pieces_lock = PTHREAD_MUTEX_INITIALIZER;

/* The last large allocation, still zero: filling it with NaN is delayed, since a memset
 * to 0 may follow. */
static struct allocation fresh;

void
emulate_settle(void)
{
    pthread_mutex_lock(&pieces_lock);
    if (fresh.p)
        memset(fresh.p, NAN_BYTE, fresh.bytes);
    fresh.p = NULL;
    pthread_mutex_unlock(&pieces_lock);
}

cudaError_t
emulate_malloc(void **p, size_t bytes)
{
    *p = NULL;
    emulate_settle();
    pthread_mutex_lock(&pieces_lock);
    struct allocation *more = realloc(allocations, (n_allocations + 1) * sizeof *more);
    // cudaMalloc guarantees 256-byte alignment.
    void *aligned = NULL, *whole = NULL;
    if (more)
        allocations = more;
    int gpus;
    cudaGetDeviceCount(&gpus);
    if (more && bytes <= all_memory - in_use) {
        if (gpus > 1)
            whole = emulate_map(bytes);
        else if (bytes >= HUGE)
            whole = calloc(1, bytes + 256);
        else if (posix_memalign(&whole, 256, bytes ? bytes : 1) != 0)
            whole = NULL;
        aligned = whole;
    }
    if (aligned) {
        if (bytes >= HUGE && gpus <= 1) {
            aligned = (char *)whole + (256 - (uintptr_t)whole % 256) % 256;
            POISON((char *)aligned + bytes,
                   (size_t)((char *)whole + 256 - (char *)aligned));
        }
        allocations[n_allocations++] =
            (struct allocation){ whole, bytes, gpus > 1, -1 };
        in_use += bytes;
        if (bytes >= HUGE)
            fresh = (struct allocation){ .p = aligned, .bytes = bytes };
        else
            memset(aligned, NAN_BYTE, bytes);
    }
    pthread_mutex_unlock(&pieces_lock);
    *p = aligned;
    return set_error(aligned ? cudaSuccess : cudaErrorMemoryAllocation);
}

struct allocation *
emulate_allocation(const void *p)
{
    for (size_t i = 0; i < n_allocations; i++)
        if ((uintptr_t)p - (uintptr_t)allocations[i].p < allocations[i].bytes)
            return &allocations[i];
    return NULL;
}

cudaError_t
cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    finish_all(); // as CUDA's does
    pthread_mutex_lock(&pieces_lock);
    size_t i = 0;
    while (i < n_allocations && (uintptr_t)p - (uintptr_t)allocations[i].p >= 256)
        i++;
    if (i == n_allocations)
        emulate_fail("cudaFree of %p, which is not from cudaMalloc", p);
    if (fresh.p == p)
        fresh.p = NULL;
    in_use -= allocations[i].bytes;
    if (allocations[i].mapped)
        emulate_unmap(allocations[i].p, allocations[i].bytes, allocations[i].fd);
    else
        free(allocations[i].p);
    allocations[i] = allocations[--n_allocations];
    pthread_mutex_unlock(&pieces_lock);
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
    return set_error(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t
cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

/* A copy, or where there is no `from`, bytes of one value. */
struct transfer {
    void *to;
    const void *from;
    int value;
    size_t bytes;
};

static void
transfer(void *with)
{
    const struct transfer *t = with;
    emulate_settle();
    if (t->from)
        memmove(t->to, t->from, t->bytes);
    else
        memset(t->to, t->value, t->bytes);
}

cudaError_t
cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                cudaStream_t stream)
{
    struct transfer t = { to, from, 0, bytes };
    (void)kind;
    if (bytes)
        emulate_put(stream, transfer, &t, sizeof t);
    return cudaSuccess;
}

cudaError_t
cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    pthread_mutex_lock(&pieces_lock);
    bool is_zero = fresh.p && p == fresh.p && bytes == fresh.bytes && value == 0;
    if (is_zero)
        fresh.p = NULL;
    pthread_mutex_unlock(&pieces_lock);
    emulate_settle();
    struct transfer t = { p, NULL, value, bytes };
    if (!is_zero)
        emulate_put(stream, transfer, &t, sizeof t);
    return cudaSuccess;
}

cudaError_t
cudaMemset(void *p, int value, size_t bytes)
{
    return cudaMemsetAsync(p, value, bytes, NULL);
}

cudaError_t
emulate_attribute(const void *kernel, enum cudaFuncAttribute which, int value)
{
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || (size_t)value > emulate_device()->sharedMemPerBlockOptin)
        return set_error(cudaErrorInvalidValue);
    emulate_allow_shared(kernel, (size_t)value);
    return cudaSuccess;
}

/* ---- streams and events ---------------------------------------------------------- */

cudaError_t
cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    int i = 0;
    while (i < MAX_STREAMS && streams[i])
        i++;
    *stream = i < MAX_STREAMS ? calloc(1, sizeof **stream) : NULL;
    if (!*stream)
        return set_error(cudaErrorMemoryAllocation);
    find_queues();
    **stream = (struct emulate_stream){ .put = emulate_put,
                                        .end = &(*stream)->first,
                                        .eager = i > 0 && queues == EARLY };
    streams[i] = *stream;
    return cudaSuccess;
}

cudaError_t
cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t
cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t
cudaStreamSynchronize(cudaStream_t stream)
{
    finish(stream);
    return cudaSuccess;
}

cudaError_t
cudaStreamDestroy(cudaStream_t stream)
{
    finish(stream);
    for (int i = 0; i < MAX_STREAMS; i++)
        if (streams[i] == stream)
            streams[i] = NULL;
    free(stream);
    return cudaSuccess;
}

cudaError_t
cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    stream->records = calloc(1, sizeof *stream->records);
    if (!stream->records)
        return set_error(cudaErrorMemoryAllocation);
    stream->records->end = &stream->records->first;
    return cudaSuccess;
}

cudaError_t
cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = stream->records;
    stream->records = NULL;
    return cudaSuccess;
}

cudaError_t
cudaGraphInstantiate(cudaGraphExec_t *whole, cudaGraph_t graph,
                     unsigned long long flags)
{
    (void)flags;
    *whole = calloc(1, sizeof **whole);
    if (!*whole)
        return set_error(cudaErrorMemoryAllocation);
    **whole = *graph; // which is destroyed, and has nothing to do any more
    *graph = (struct emulate_graph){ .end = &graph->first };
    return cudaSuccess;
}

cudaError_t
cudaGraphLaunch(cudaGraphExec_t whole, cudaStream_t stream)
{
    for (struct work *w = whole->first; w; w = w->next)
        emulate_put(stream, w->run, w->with, w->bytes);
    return cudaSuccess;
}

cudaError_t
cudaGraphDestroy(cudaGraph_t graph)
{
    while (graph->first) {
        struct work *w = graph->first;
        graph->first = w->next;
        free(w);
    }
    free(graph);
    return cudaSuccess;
}

cudaError_t
cudaGraphExecDestroy(cudaGraphExec_t whole)
{
    return cudaGraphDestroy(whole);
}

struct emulate_event {
    double at;
    uint64_t recorded, done; // how often it was recorded, and reached
    cudaStream_t stream;     // of the last record
};

cudaError_t
cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof **event);
    return set_error(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t
cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

/* The n-th record of an event. */
struct record {
    cudaEvent_t event;
    cudaStream_t stream;
    uint64_t n;
};

static struct record
last_record(cudaEvent_t event)
{
    return (struct record){ event, event->stream, event->recorded };
}

static void
reach(void *with)
{
    const struct record *r = with;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    r->event->at = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
    r->event->done = r->n;
}

static void
await(void *with)
{
    const struct record *r = with;
    while (r->event->done < r->n)
        advance(r->stream);
}

cudaError_t
cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    event->recorded++;
    event->stream = stream;
    struct record r = last_record(event);
    emulate_put(stream, reach, &r, sizeof r);
    return cudaSuccess;
}

cudaError_t
cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    struct record r = last_record(event);
    emulate_put(stream, await, &r, sizeof r);
    return cudaSuccess;
}

cudaError_t
cudaEventSynchronize(cudaEvent_t event)
{
    struct record r = last_record(event);
    await(&r);
    return cudaSuccess;
}

cudaError_t
cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (from->done < from->recorded || to->done < to->recorded)
        return set_error(cudaErrorNotReady);
    *ms = (float)(to->at - from->at);
    return cudaSuccess;
}

cudaError_t
cudaEventDestroy(cudaEvent_t event)
{
    if (event->done < event->recorded) // CUDA frees it when it is reached
        finish_all();
    free(event);
    return cudaSuccess;
}
