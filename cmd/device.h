/* SPDX-License-Identifier: MIT */
/* device: the options that say where and how a program computes. */
#ifndef NIBBLE_CMD_DEVICE_H
#define NIBBLE_CMD_DEVICE_H

#include "cmd/cmd.h"
#include "kernels/kernels.h"

struct device_options {
    const char *device; // cpu, cuda, cuda:N or auto
    enum device_compute { COMPUTE_AUTO, COMPUTE_F32, COMPUTE_BF16 } compute;
    enum device_path { PATH_AUTO, PATH_NATIVE, PATH_DEQUANT } path;
    bool fp4_activations, fast;
    unsigned threads;
    // settled, and then compute is not auto
    bool cuda;
    bool faster;     // --fast has an effect
    bool unlike;     // compute is not what the device takes by itself
    const char *why; // --fast has none
    int number;      // of the GPU
};

/* The arguments of --device, --compute, --path and --activations, or misuse. */
void device_take(struct device_options *o, const char *arg);
void device_take_compute(struct device_options *o, const char *arg);
void device_take_path(struct device_options *o, const char *arg);
void device_take_activations(struct device_options *o, const char *arg);

/* Choose what auto means.  What the device cannot do is not done another way: the
 * program ends and says so. */
struct device device_settle(struct device_options *o);
/* Open it; ends the program if it cannot be. */
struct kernels *device_open(const struct device_options *o, struct err *err);
/* Lines about what --fast did, if it was given. */
void device_say_fast(const struct device_options *o);
/* In a few words. */
void device_words(char *to, size_t n, const struct device_options *o);
/* Bytes that are free on it. */
uint64_t device_free(const struct device_options *o);
/* What this machine and build can do, as TSV. */
void device_diagnose(const struct device_options *o);

#endif
