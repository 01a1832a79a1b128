/* SPDX-License-Identifier: MIT */
/* arrays: THE list of a training state's arrays: names, types, shapes and order, derived from
 * the tensor table.  Checkpoints are made, loaded, updated and saved by it.
 *
 * An array belongs to a tensor, and so many consecutive elements of the tensor share an
 * element of it.  What a rank holds is addressed by elements of tensors, as spans.
 */
#ifndef NIBBLE_MODEL_ARRAYS_H
#define NIBBLE_MODEL_ARRAYS_H

#include "kernels/kernels.h"
#include "lib/model/table.h"

/* Elements first .. first + count - 1 of a row of the table. */
struct span {
    size_t row;
    uint64_t first, count;
};

enum array_plane {
    ARRAY_MASTER,
    ARRAY_MASTER_SCALE, // of TorchSharp's packed weights
    ARRAY_M,
    ARRAY_M_SCALE,
    ARRAY_V,
    ARRAY_V_SCALE,
    ARRAY_PLANES
};

enum optimizer_kind { OPTIMIZER_ADAMW, OPTIMIZER_TORCHSHARP, OPTIMIZERS };

/* What decides about types.  A checkpoint has words for it, see optimizer.h. */
struct array_layout {
    enum dtype master; // AdamW: f32 or bf16
    enum moments moments;
    enum torchsharp_moments torchsharp; // of that optimizer
    enum optimizer_kind optimizer;
    // The optimizer packs the master: products take it as it is, and no quantizer is needed.
    bool packed;
};

/* How a plane of a tensor is stored: the bits of a group of elements are an element.  group
 * 0: a row of the tensor. */
struct array_form {
    const char *suffix;
    enum dtype dtype;
    uint64_t group;
    bool flat; // one dimension, whatever the tensor's rank
};

struct array {
    const char *name;
    size_t row; // of the table
    enum array_plane plane;
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[2];
    uint64_t bytes;
    uint64_t group; // elements of the tensor that share an element
};

struct arrays {
    struct array *v; // in file order: all masters, then all moments
    size_t n;
    struct arena arena;
};

int arrays_open(struct arrays *a, const struct table *t,
                const struct array_layout *layout, struct err *err);
void arrays_close(struct arrays *a);

/* The bytes of an array that hold a span: *at, and how many.  A span begins at a multiple of
 * a->group, and ends at one or at the end of its tensor, where an empty one may begin, too. */
uint64_t array_bytes(const struct array *a, const struct span *s, uint64_t *at);

#endif
