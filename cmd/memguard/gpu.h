/* SPDX-License-Identifier: MIT */
/* gpu: GPU memory of a process tree, as NVML tells it.  The library of the driver is
 * opened at run time; memguard is built without it. */
#ifndef NIBBLE_CMD_MEMGUARD_GPU_H
#define NIBBLE_CMD_MEMGUARD_GPU_H

#include "cmd/memguard/tree.h"
#include "lib/core/err.h"

struct gpu;

/* Open NVML and note what is used now, before the command begins.  NULL with *err:
 * there is no NVML, no GPU, or none that tells of its memory. */
struct gpu *gpu_open(struct err *err);
/* Bytes of the tree's processes on all GPUs; each one's share into its `gpu`.
 *
 * NVML knows processes by number.  Where its numbers are not ours (a container), what is
 * used on the GPU beyond the start counts as the tree's, from then on, and *words say
 * so, once; otherwise *words is "". */
uint64_t gpu_used(struct gpu *g, struct tree *t, const char **words);
void gpu_close(struct gpu *g);

#endif
