/* SPDX-License-Identifier: MIT */
/* table: THE list of a model's tensors, derived from its configuration.
 *
 * Loading, the memory plan, the optimizer and every exporter walk this one; there is no
 * second list of layer names.
 */
#ifndef NIBBLE_MODEL_TABLE_H
#define NIBBLE_MODEL_TABLE_H

#include "lib/base/arena.h"
#include "lib/model/config.h"

struct row {
    const char *name; // Hugging Face's
    enum role role;
    int layer; // -1 outside
    unsigned rank;
    uint64_t shape[2];
    uint64_t numel;
    bool quantized; // one of the seven projections
};

#define TABLE_EMBED ARCH_EMBED ARCH_WEIGHT
#define TABLE_HEAD  ARCH_HEAD ARCH_WEIGHT

struct table {
    struct row *row;      // in the order of files: embedding, layers, norm, head
    size_t n, final_norm; // final_norm: its row
    size_t layer_rows;    // rows of a layer
    int at[ROLES];        // where a role stands among those; -1: the model has none
    uint64_t parameters;
    struct arena arena;
};

/* Where tensors that one product may take lie one behind the other, each begins at a
 * multiple of it; so they do without a gap if their bytes are one. */
enum { TABLE_ALIGN = 256 };

/* with_head: a row for lm_head.weight.  For a tied model it would be a copy. */
int table_open(struct table *t, const struct config *c, bool with_head,
               struct err *err);
void table_close(struct table *t);
/* Where a tensor of that name stands in a file, whatever the model's size: embedding,
 * layers ascending, norm, head; other names behind them. */
uint64_t table_place(struct slice name);

/* By the name alone, for files without a configuration: whether NVFP4 files hold it
 * quantized (a projection or the head), and whether it is the head. */
bool table_quantizes(struct slice name);
bool table_is_head(struct slice name);
/* What engines run as one GEMM; *prefix is what the names of its parts begin with. */
enum fused { FUSED_NONE, FUSED_QKV, FUSED_GATE_UP };
enum fused table_fused(struct slice name, struct slice *prefix);
/* How many rows from i on are fused; they stand together.  1: row i is alone. */
size_t table_fused_rows(const struct table *t, size_t i);

const struct row *table_find(const struct table *t, struct slice name);
/* The row of a tensor, in constant time; t->n: there is none. */
size_t table_index(const struct table *t, enum role role, int layer);

#endif
