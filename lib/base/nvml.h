/* SPDX-License-Identifier: MIT */
/* nvml: the few declarations of NVIDIA's management library that are needed; it is
 * opened at run time, and its header comes with CUDA, which not every build has. */
#ifndef NIBBLE_BASE_NVML_H
#define NIBBLE_BASE_NVML_H

#define NVML_LIBRARY "libnvidia-ml.so.1"

enum { NVML_SUCCESS = 0, NVML_TOO_SMALL = 7 };

typedef void *nvml_device;
struct nvml_process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct nvml_memory {
    unsigned long long total, free, used;
};

#endif
