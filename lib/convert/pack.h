/* SPDX-License-Identifier: MIT */
/* pack: conversion of tensors of any containers into a new one, for datpack and nvquant.
 *
 * A command fills in a struct pack and calls pack_run.  plan.h: what the output holds,
 * which of it is quantized and how.  produce.h: the bytes.  output.h: the file, its
 * provenance and the report.
 */
#ifndef NIBBLE_CONVERT_PACK_H
#define NIBBLE_CONVERT_PACK_H

#include "lib/base/host.h"
#include "lib/load/select.h"

enum head_wish { HEAD_AUTO, HEAD_TIE, HEAD_UNTIE };
enum dtype_wish {
    WISH_NONE, // the default of the target
    WISH_KEEP,
    WISH_F16,
    WISH_BF16,
    WISH_F32,
    WISH_NVFP4
};

enum { MAX_RENAMES = 256 };

struct rename {
    const char *old, *new;
    bool hit;
};

struct pack {
    const struct host *host;
    struct select select;    // which tensors the output holds
    struct select quantized; // nvquant: which are quantized, or dequantized
    const char *out, *to, *like, *config_path, *tokenizer, *report;
    enum dtype_wish dtype;
    struct rename rename[MAX_RENAMES];
    size_t n_renames;
    enum head_wish head;
    uint64_t shard_bytes;
    bool strict, force, torchsharp, init, directory;
    uint32_t init_seed;
    unsigned threads;
    // nvquant: only selected tensors change their type
    bool quantize, dequantize;
    // of the quantizer, and of a new checkpoint; NULL: the default
    const char *quant, *variant, *criterion, *share, *master, *moments;
    const char
        *importance; // a file of weights of columns, and with hessian their products
    const char *input_scales; // a file of largest magnitudes of activations
    bool exhaustive, hessian;
    struct kernels *gpu; // to quantize on; NULL: the CPU
};

/* The words of --variant, --criterion, --share-scale, NULL behind the last; those
 * of --quant by number. */
extern const char *const pack_variants[], *const pack_criteria[], *const pack_shares[];
const char *pack_quant(size_t i);

/* 0, or -1 with the error; defaults in *c are filled in. */
int pack_run(struct pack *c, char **paths, size_t n, struct err *err);

#endif
