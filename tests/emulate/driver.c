/* SPDX-License-Identifier: MIT */
/* driver: the libcuda.so.1 functions that kernels/cuda.c and cuda_driver_function ask for, for
 * the emulation, with one device, or NIBBLE_EMULATE_GPUS.  NIBBLE_EMULATE_NAME is their model's
 * name. */
#include "tests/emulate/include/runtime.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int cuInit(unsigned flags);
int cuDeviceGetCount(int *n);
int cuDeviceGet(int *device, int n);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuDeviceGetName(char *name, int n, int device);
int cuDeviceGetUuid_v2(char *uuid, int device);
int cuTensorMapEncodeTiled(void *to, int type, uint32_t rank, void *data,
                           const uint64_t *size, const uint64_t *stride,
                           const uint32_t *box, const uint32_t *step, int interleave,
                           int swizzle, int promotion, int fill);
int cuStreamWriteValue32_v2(cudaStream_t s, unsigned long long at, uint32_t value,
                            unsigned flags);
int cuStreamWaitValue32_v2(cudaStream_t s, unsigned long long at, uint32_t value,
                           unsigned flags);

int
cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}

static int
count(void)
{
    const char *given = getenv("NIBBLE_EMULATE_GPUS");
    return given ? (int)strtol(given, NULL, 10) : 1;
}

int
cuDeviceGetCount(int *n)
{
    *n = count();
    return 0;
}

int
cuDeviceGetName(char *name, int n, int device)
{
    const char *given = getenv("NIBBLE_EMULATE_NAME");
    (void)device;
    snprintf(name, (size_t)n, "%s", given ? given : "emulated");
    return 0;
}

int
cuDeviceGetUuid_v2(char *uuid, int device)
{
    memset(uuid, 7, 16);
    uuid[0] = (char)device;
    return 0;
}

int
cuDeviceGet(int *device, int n)
{
    *device = n;
    return n < count() ? 0 : 101; // CUDA_ERROR_INVALID_DEVICE
}

/* NIBBLE_EMULATE_INTEGRATED set: a GPU that shares the machine's memory. */
int
cuDeviceGetAttribute(int *value, int attribute, int device)
{
    enum { INTEGRATED = 18 };
    (void)device;
    *value = attribute == INTEGRATED && getenv("NIBBLE_EMULATE_INTEGRATED");
    return 0;
}

int
cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)8 << 30; // as in runtime.c
    return 0;
}

/* ---- tensor maps ------------------------------------------------------------------- */

/* Matrices of bf16 with boxes of 128 bytes a row, and what the driver refuses; all if
 * NIBBLE_EMULATE_NO_MAPS is set. */
int
cuTensorMapEncodeTiled(void *to, int type, uint32_t rank, void *data,
                       const uint64_t *size, const uint64_t *stride,
                       const uint32_t *box, const uint32_t *step, int interleave,
                       int swizzle, int promotion, int fill)
{
    enum { BFLOAT16 = 9, SWIZZLE_128 = 3, L2_256 = 3, MAX_BOX = 256 };
    bool is = type == BFLOAT16 && rank == 2 && swizzle == SWIZZLE_128 && !interleave &&
              !fill && promotion <= L2_256 && step[0] == 1 && step[1] == 1 &&
              (uintptr_t)to % 64 == 0 && (uintptr_t)data % 16 == 0 &&
              *stride % 16 == 0 && *stride < 1ULL << 40 && size[0] > 0 &&
              size[0] <= 1ULL << 32 && size[1] > 0 && size[1] <= 1ULL << 32 &&
              box[0] == 64 && box[1] > 0 && box[1] <= MAX_BOX &&
              !getenv("NIBBLE_EMULATE_NO_MAPS");
    const struct emulate_map m = { data,   size[1], size[0],    *stride,
                                   box[1], box[0],  EMULATE_MAP };
    memcpy(to, &m, sizeof m);
    return is ? 0 : 1; // CUDA_ERROR_INVALID_VALUE
}

/* ---- flags in streams -------------------------------------------------------------- */

struct flag {
    _Atomic uint32_t *at;
    uint32_t value;
};

static void
write_flag(void *with)
{
    const struct flag *f = with;
    atomic_store(f->at, f->value);
}

static void
await_flag(void *with)
{
    const struct timespec pause = { .tv_nsec = 50 * 1000 };
    const struct flag *f = with;
    while ((int32_t)(atomic_load(f->at) - f->value) < 0)
        nanosleep(&pause, NULL);
}

static int
put_flag(cudaStream_t s, emulate_work_fn *run, unsigned long long at, uint32_t value)
{
    struct flag f = { (_Atomic uint32_t *)(uintptr_t)at, value };
    // This library does not see those of the one that has opened it.
    emulate_put_fn *put;
    memcpy(&put, s, sizeof put);
    put(s, run, &f, sizeof f);
    return 0;
}

int
cuStreamWriteValue32_v2(cudaStream_t s, unsigned long long at, uint32_t value,
                        unsigned flags)
{
    (void)flags;
    return put_flag(s, write_flag, at, value);
}

/* Until the value there is at least that, which is the way that 0 asks for. */
int
cuStreamWaitValue32_v2(cudaStream_t s, unsigned long long at, uint32_t value,
                       unsigned flags)
{
    return flags ? 1 : put_flag(s, await_flag, at, value);
}
