/* SPDX-License-Identifier: MIT */
/* gpu: GPU memory of a process tree, by NVML, which is opened at run time. */
#ifndef NIBBLE_CMD_MEMGUARD_GPU_H
#define NIBBLE_CMD_MEMGUARD_GPU_H

#include "cmd/memguard/tree.h"
#include "lib/base/err.h"

struct gpu;

/* Open NVML and record what is used before the command starts.  NULL with *err: there is no
 * NVML, no GPU, or none that reports its memory. */
struct gpu *gpu_open(struct err *err);
/* Bytes of the tree's processes on all GPUs; sets the `gpu` of each process.
 *
 * Where NVML's pids are of another namespace (a container), all memory beyond that of the
 * start counts as the tree's, and *words says so once; else *words is "". */
uint64_t gpu_used(struct gpu *g, struct tree *t, const char **words);
void gpu_close(struct gpu *g);

#endif
