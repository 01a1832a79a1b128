/* SPDX-License-Identifier: MIT */
/* pack: tensors of any containers into a new one: what datpack and nvquant share.
 *
 * A command fills in a struct pack and calls pack_run.  plan.c decides what the output
 * holds, quantize.c which of it is quantized and how, produce.c and nvfp4.c make the
 * bytes, output.c writes them with their provenance.
 */
#ifndef NIBBLE_IO_PACK_PACK_H
#define NIBBLE_IO_PACK_PACK_H

#include "lib/io/io.h"
#include "lib/io/select.h"

enum head_wish { HEAD_AUTO, HEAD_TIE, HEAD_UNTIE };
enum dtype_wish {
    WISH_NONE, // what suits the target
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
    const struct io *io;
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
    // nvquant: only what is selected changes its type, the rest keeps it
    bool quantize, dequantize;
    // of the quantizer, and of a new checkpoint; NULL: not given
    const char *quant, *variant, *criterion, *share, *master, *moments;
    bool exhaustive;
    struct kernels *gpu; // that quantizes; NULL: the CPU does
};

/* The words of --variant, --criterion, --share-scale, NULL behind the last; those
 * of --quant by number. */
extern const char *const pack_variants[], *const pack_criteria[], *const pack_shares[];
const char *pack_quant(size_t i);

/* 0, or -1 with the error; *c is filled in with what was settled on the way. */
int pack_run(struct pack *c, char **paths, size_t n, struct err *err);

#endif
