/* SPDX-License-Identifier: MIT */
/* driver: what kernels/cuda.c asks of libcuda.so.1, for the emulation: there is one device. */

int cuInit(unsigned flags);
int cuDeviceGetCount(int *n);

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
