/* SPDX-License-Identifier: MIT */
/* driver: the libcuda.so.1 functions that kernels/cuda.c calls, for the emulation, with
 * one device, or NIBBLE_EMULATE_GPUS.  NIBBLE_EMULATE_NAME is their model's name. */

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags);
int cuDeviceGetCount(int *n);
int cuDeviceGet(int *device, int n);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuDeviceGetName(char *name, int n, int device);
int cuDeviceGetUuid_v2(char *uuid, int device);

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
