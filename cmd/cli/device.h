/* SPDX-License-Identifier: MIT */
/* device: the options that determine where and how a program computes. */
#ifndef NIBBLE_CMD_CLI_DEVICE_H
#define NIBBLE_CMD_CLI_DEVICE_H

#include "cmd/cli/cmd.h"
#include "kernels/kernels.h"
#include "lib/model/config.h"
#include "lib/model/table.h"

struct device_options {
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

/* What the rows of --device, --compute, --path and --fast set in a struct device_options. */
#define DEVICE_NAME(o)           CMD_CALL(&(o), device_take_name)
#define DEVICE_COMPUTE(o, words) CMD_CHOICE(&(o).compute, words, COMPUTE_AUTO)
#define DEVICE_PATH(o)           CMD_CHOICE(&(o).path, device_paths, PATH_AUTO)
#define DEVICE_FAST(o)           CMD_FLAG(&(o).fast)
void device_take_name(const struct cmd_option *row, const char *arg);
extern const char *const device_computes[], *const device_paths[];
/* Say which share of n weights products of FP8 round. */
void device_report_inexact(uint64_t inexact, uint64_t n);
/* Say which projections are not multiplied in FP8, if there are any. */
void device_report_not_fp8(const struct table *t);

/* Choose what auto means; dies if the device cannot do what was requested. */
struct device device_settle(struct device_options *o);
/* When model and activations are known: choose how products are computed, and whether --fast
 * is faster.  NULL: activations are not quantized; else spec, filled in.  Unless quiet it
 * prints what auto chose on a GPU. */
const struct quant_spec *device_products(struct device_options *o, struct device *d,
                                         enum activations activations,
                                         const struct config *c,
                                         struct quant_spec *spec, bool quiet);
/* Open it; ends the program if it cannot be. */
struct kernels *device_open(const struct device_options *o, struct err *err);
/* Print what --fast does, if it was given, and whether --compute is emulated. */
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
/* Print what this machine and build can do, as TSV. */
void device_diagnose(const struct device_options *o);

#endif
