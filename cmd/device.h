/* SPDX-License-Identifier: MIT */
/* device: the options that say where and how a program computes. */
#ifndef NIBBLE_CMD_DEVICE_H
#define NIBBLE_CMD_DEVICE_H

#include "cmd/cmd.h"
#include "kernels/kernels.h"
#include "lib/model/config.h"

struct device_options {
    const char *device; // cpu, cuda, cuda:N or auto
    enum device_compute { COMPUTE_AUTO, COMPUTE_F32, COMPUTE_BF16 } compute;
    enum device_path { PATH_AUTO, PATH_NATIVE, PATH_DEQUANT } path;
    bool fast;
    bool decodes; // the program does: products of few tokens are what takes time
    unsigned threads;
    // settled, and then compute is not auto
    bool cuda;
    bool faster;     // --fast: bf16; on a GPU, gradients in any order
    bool coarse;     // --fast: products of few tokens are those of cpu/coarse.h
    bool unlike;     // compute is not what the device takes by itself
    const char *why; // --fast has no effect
    int number;      // of the GPU
    bool fp4;        // products take activations in NVFP4
    bool native;     // by the chip's own
};

/* How activations are quantized; ACTIVATIONS_TORCHSHARP is nvfp4 with --compat torchsharp,
 * which is no word of --activations. */
enum activations { ACTIVATIONS_PLAIN, ACTIVATIONS_NVFP4, ACTIVATIONS_TORCHSHARP };
extern const char *const device_activations[];       // their names in files
extern const char *const device_activations_given[]; // those that the option takes

/* What the rows of --device, --compute, --path and --fast set in a struct device_options. */
#define DEVICE_NAME(o)    CMD_CALL(&(o), device_take)
#define DEVICE_COMPUTE(o) CMD_CHOICE(&(o).compute, device_computes, COMPUTE_AUTO)
#define DEVICE_PATH(o)    CMD_CHOICE(&(o).path, device_paths, PATH_AUTO)
#define DEVICE_FAST(o)    CMD_FLAG(&(o).fast)
void device_take(const struct cmd_option *row, const char *arg);
extern const char *const device_computes[], *const device_paths[];

/* Choose what auto means.  What the device cannot do is not done another way: the
 * program ends and says so. */
struct device device_settle(struct device_options *o);
/* Then, when it is known of what model the products are and what they take in, who
 * computes them, and whether --fast is any faster.  NULL: nothing is quantized; else *spec,
 * which is filled in.  Unless quiet the choice that auto made on a GPU is said. */
const struct quant_spec *device_products(struct device_options *o, struct device *d,
                                         enum activations activations,
                                         const struct config *c,
                                         struct quant_spec *spec, bool quiet);
/* Open it; ends the program if it cannot be. */
struct kernels *device_open(const struct device_options *o, struct err *err);
/* Lines about what --fast does, if it was given. */
void device_say_fast(const struct device_options *o);
/* In a few words. */
void device_words(char *to, size_t n, const struct device_options *o);
/* How the CPU would compute. */
struct cpu_kind device_cpu(const struct device_options *o);
/* Bytes that are free on it; UINT64_MAX: not known. */
uint64_t device_free(const struct device_options *o);
/* Bytes that all processes use of a GPU, which is open; 0: not known. */
uint64_t device_used(const struct device_options *o);
/* Whether it is a GPU that shares the machine's memory. */
bool device_unified(const struct device_options *o);
/* What this machine and build can do, as TSV. */
void device_diagnose(const struct device_options *o);

#endif
