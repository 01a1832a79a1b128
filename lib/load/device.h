/* SPDX-License-Identifier: MIT */
/* device: where and how a program computes. */
#ifndef NIBBLE_LOAD_DEVICE_H
#define NIBBLE_LOAD_DEVICE_H

#include "kernels/kernels.h"
#include "lib/base/host.h"
#include "lib/model/config.h"
#include "lib/model/table.h"

struct device_options {
    const struct host *host;
    const char *device; // cpu, cuda, cuda:N or auto
    enum device_compute {
        COMPUTE_AUTO,
        COMPUTE_F32,
        COMPUTE_BF16,
        COMPUTE_FP8
    } compute;
    enum device_path { PATH_AUTO, PATH_NATIVE, PATH_DEQUANT } path;
    bool fast;
    bool decodes; // the program does: products of few tokens dominate
    unsigned threads;
    // set by device_settle, after which compute is not auto
    bool cuda;
    bool faster;     // --fast: bf16; on a GPU, gradients in any order
    bool coarse;     // --fast: products of few tokens are those of cpu/coarse.h
    bool unlike;     // compute is not the device's default
    const char *why; // --fast has no effect, why
    int number;      // of the GPU
    bool fp4;        // products take activations in NVFP4
    bool native;     // computed by the chip's FP4 units
};

/* How activations are quantized; ACTIVATIONS_TORCHSHARP is nvfp4 with --compat torchsharp,
 * which is no word of --activations. */
enum activations { ACTIVATIONS_PLAIN, ACTIVATIONS_NVFP4, ACTIVATIONS_TORCHSHARP };
extern const char *const device_activations[];       // their names in files
extern const char *const device_activations_given[]; // those that the option takes

extern const char *const device_computes[], *const device_paths[];
/* Note which share of n weights products of FP8 round. */
void device_report_inexact(const struct host *host, uint64_t inexact, uint64_t n);
/* Note which projections are not multiplied in FP8, if there are any. */
void device_report_not_fp8(const struct host *host, const struct table *t);

/* Choose what auto means. */
struct device device_settle(struct device_options *o);
/* When model and activations are known: choose how products are computed, and whether --fast
 * is faster.  *chosen: NULL where activations are not quantized, else spec, filled in.  On a GPU
 * what auto chose is noted.  -1: the device cannot do what was requested. */
int device_products(struct device_options *o, struct device *d,
                    enum activations activations, const struct config *c,
                    struct quant_spec *spec, const struct quant_spec **chosen,
                    struct err *err);
/* Open it; NULL with *err, which names the device. */
struct kernels *device_open(const struct device_options *o, struct err *err);
/* Note what --fast does, if it was given, and whether --compute is emulated. */
void device_report_speed(const struct device_options *o);
/* A short description. */
void device_describe(char *to, size_t n, const struct device_options *o);
/* How the CPU would compute. */
struct cpu_kind device_cpu(const struct device_options *o);
/* Free bytes; UINT64_MAX: unknown. */
uint64_t device_free(const struct device_options *o);
/* Bytes that all processes use of an open GPU; 0: unknown. */
uint64_t device_used(const struct device_options *o);
/* Whether it is a GPU that shares the machine's memory. */
bool device_unified(const struct device_options *o);
#endif
