/* SPDX-License-Identifier: MIT */
/* plan: what the parts of pack share. */
#ifndef NIBBLE_IO_PACK_PLAN_H
#define NIBBLE_IO_PACK_PLAN_H

#include "lib/core/names.h"
#include "lib/format/view.h"
#include "lib/format/writer.h"
#include "lib/io/pack/pack.h"
#include "lib/io/values.h"
#include "lib/model/table.h"
#include "lib/nvfp4/quant.h"

/* Where the bytes of an output tensor come from. */
enum how {
    HOW_COPY,       // payload of `entry`, as it is
    HOW_SCALES,     // the same, of E4M3 scales, which are checked
    HOW_CONVERT,    // values of `view`, rounded to the target dtype
    HOW_RECIPROCAL, // 1 / the one f32 of `entry`
    HOW_SWAPPED,    // that f32, a scale of `view`'s dialect, as another dialect has it
    HOW_NVFP4,      // a plane of `nvfp4`
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
    struct nvfp4 *nvfp4;
    enum view_plane plane;
    enum dtype source;     // of HOW_RANDOM: rounded to this first
    uint32_t row;          // of HOW_RANDOM: in the tensor table
    uint64_t place, order; // for sorting
};

/* An NVFP4 tensor of the output whose bytes are made here: quantized, or changed on the
 * way from one dialect to another. */
struct nvfp4 {
    const char *name;
    struct item source; // its values: HOW_CONVERT or HOW_RANDOM
    const struct view_dialect *dialect;
    bool quantize; // false: codes and scales of source.view
    uint64_t cols;
    struct nvfp4 *group, *next; // those that share one tensor scale: first, then a list
    bool scanned;               // amax is known
    float amax;                 // its own
    // made with the codes, kept until they are written
    bool made, scales_written;
    uint8_t *scales; // (numel / 16), NULL when not needed any more
    struct quant_error error;
};

struct input {
    struct store store;
    struct views views;
    uint8_t xxh3[XXH3_BYTES];
};

struct candidate;

/* Values that were rounded because they are smaller than the normal numbers of their new
 * type. */
struct lost {
    uint64_t under, zero; // values that underflowed; how many of these became 0
    uint64_t max;         // of one tensor: worst
    const char *worst;
    enum dtype dtype; // of that one
    bool mixed;       // others have another
};

struct plan {
    struct pack *c;       // options; words of the quantizer are filled in
    struct input *inputs; // and last the one of --like
    size_t n_inputs;      // without it
    bool has_like;
    struct item *item;
    size_t n, cap;
    struct nvfp4 **nvfp4;
    size_t n_nvfp4, cap_nvfp4;
    struct quant_spec spec; // of all that is quantized
    bool share;             // one tensor scale for fused projections
    bool inherits;          // spec is that of a checkpoint
    bool one_level;         // the NVFP4 tensors of the inputs have no second
    bool asked;             // --quant or --share-scale was given
    struct lost lost;
    bool requantizes;    // an NVFP4 input does not fit and was asked to change
    bool keeps_plain;    // the source holds NVFP4: what it left plain stays so
    bool w4a4;           // every NVFP4 tensor of the output has an activation scale
    struct slice config; // text; p == NULL: none
    struct config model;
    bool is_model;        // config is there and was understood
    struct table table;   // what --init makes: candidates point into it
    struct table weights; // what a model must hold
    double init_range;
    struct arena arena;
    struct err *err;
};

/* A tensor that the output may hold. */
struct candidate {
    const char *name;
    struct input *in; // NULL with --init
    const struct view *view;
    const struct row *row; // with --init
    uint32_t row_number;
    enum dtype dtype;
    unsigned rank;
    const uint64_t *shape;
    uint64_t numel;
    uint64_t place; // where it stands in its file, or should stand in a model
    uint64_t order; // of its first appearance
    bool taken, dropped;
    bool fused;    // plain, and what servers run with it as one GEMM is NVFP4
    bool quantize; // whatever else is said: the head of an NVFP4 file
};

/* plan.c: read the inputs, decide. */
int plan_open(struct plan *p, struct pack *c, char **paths, size_t n, struct err *err);
void plan_close(struct plan *p);
int plan_no_memory(struct plan *p);
struct item *plan_item(struct plan *p);
/* The values of a candidate as `dtype`. */
struct item plan_values(const struct candidate *c, const char *name, enum dtype dtype);

/* head.c */
/* Whether the NVFP4 head can be the embedding, quantized by one of ours: 1, 0 or -1. */
int head_is_quantized(const struct plan *p, const struct candidate *head,
                      const struct candidate *embed);

/* quantize.c */
/* Settle p->spec and p->share by options, inherited settings and defaults. */
int quantize_settle(struct plan *p);
/* Whether the candidate becomes NVFP4. */
bool quantize_wants(const struct plan *p, const struct candidate *c);
/* 0 if it can; else -1 with the reason. */
int quantize_check(struct plan *p, const struct candidate *c);
/* The planes of the candidate in a dialect; ref: those of --like. */
int quantize_add(struct plan *p, const struct candidate *c, bool quantize,
                 const struct view_dialect *dialect, const struct view *ref);
/* After the last: who shares a scale with whom. */
int quantize_group(struct plan *p);

/* produce.c: the payload of one item into the writer. */
struct producer;
struct producer *producer_open(struct plan *p, struct writer *w,
                               struct io_progress *progress);
int producer_item(struct producer *x, const struct item *it);
void producer_close(struct producer *x);
/* What to add to a message of values that `d` does not hold: the option that helps, if
 * there is one that holds numbers up to max. */
const char *produce_way_out(const struct plan *p, enum dtype d, double max);

#endif
