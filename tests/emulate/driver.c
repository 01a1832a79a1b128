/* SPDX-License-Identifier: MIT */
/* driver: the libcuda.so.1 functions that kernels/cuda.c calls, for the emulation, with
 * one device. */

#include <stddef.h>
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDeviceGetCount(int *n);
int cuDeviceGet(int *device, int n);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);

int
cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}

int
cuDeviceGetCount(int *n)
{
    *n = 1;
    return 0;
}

int
cuDeviceGet(int *device, int n)
{
    *device = n;
    return n == 0 ? 0 : 101; // CUDA_ERROR_INVALID_DEVICE
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
