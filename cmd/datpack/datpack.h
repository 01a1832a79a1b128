/* SPDX-License-Identifier: MIT */
/* datpack: what its parts share.  plan.c decides what the output holds, produce.c makes
 * the bytes, datpack.c parses and puts the two together. */
#ifndef NIBBLE_CMD_DATPACK_H
#define NIBBLE_CMD_DATPACK_H

#include "cmd/cmd.h"
#include "cmd/select.h"
#include "cmd/values.h"
#include "lib/core/names.h"
#include "lib/format/view.h"
#include "lib/format/writer.h"
#include "lib/model/table.h"

enum head_wish { HEAD_AUTO, HEAD_TIE, HEAD_UNTIE };
enum dtype_wish { WISH_KEEP, WISH_F16, WISH_BF16, WISH_F32, WISH_NVFP4 };

enum { MAX_RENAMES = 256 };

struct rename {
    const char *old, *new;
    bool hit;
};

struct config_datpack {
    struct cmd cmd;
    struct select select;
    const char *out, *to, *like, *config_path;
    enum dtype_wish dtype;
    bool dtype_given;
    struct rename rename[MAX_RENAMES];
    size_t n_renames;
    enum head_wish head;
    uint64_t shard_bytes;
    bool strict, force, seed_compat, init, directory, shards_given;
    uint32_t init_seed;
    unsigned threads;
    // new checkpoints; NULL: not given
    const char *master, *moments, *quant, *variant, *criterion, *share;
};

/* Where the bytes of an output tensor come from. */
enum how {
    HOW_COPY,       // payload of `entry`, as it is
    HOW_SCALES,     // the same, of E4M3 scales, which are checked
    HOW_CONVERT,    // values of `view`, rounded to the target dtype
    HOW_RECIPROCAL, // 1 / the one f32 of `entry`
    HOW_RANDOM,     // --init
    HOW_ONE,        // --init: norm gains
    HOW_ZERO,
};

struct item {
    const char *name;
    enum dtype dtype;
    unsigned rank;
    const uint64_t *shape;
    uint64_t numel;
    enum how how;
    struct store *s;
    const struct tensor *entry;
    const struct view *view;
    enum dtype source;     // of HOW_RANDOM: rounded to this first
    uint32_t row;          // of HOW_RANDOM: in the tensor table
    uint64_t place, order; // for sorting
};

struct input {
    struct store store;
    struct views views;
    uint8_t xxh3[XXH3_BYTES];
};

struct plan {
    const struct config_datpack *c;
    struct input *inputs; // and last the one of --like
    size_t n_inputs;      // without it
    bool has_like;
    struct item *item;
    size_t n, cap;
    struct slice config; // text; p == NULL: none
    struct config model;
    bool is_model;        // config is there and was understood
    struct table table;   // what --init makes: candidates point into it
    struct table weights; // what a checkpoint must hold
    double init_range;
    struct arena arena;
    struct err *err;
};

/* plan.c: read the inputs, decide. */
int plan_open(struct plan *p, const struct config_datpack *c, char **paths, size_t n,
              struct err *err);
void plan_close(struct plan *p);

/* produce.c: the payload of one item into the writer. */
struct producer;
struct producer *producer_open(struct plan *p, struct writer *w,
                               struct progress *progress);
int producer_item(struct producer *x, const struct item *it);
void producer_close(struct producer *x);

#endif
