/* SPDX-License-Identifier: MIT */
/* plan: which tensors the output holds, in what order and type, and where their bytes
 * come from.
 *
 * Candidates are the selected tensors of all inputs.  The head of a tied model is
 * settled, then the target makes items of them: as they are, like a reference, or as a
 * checkpoint.
 */
#ifndef NIBBLE_CONVERT_PLAN_H
#define NIBBLE_CONVERT_PLAN_H

#include "lib/base/names.h"
#include "lib/convert/pack.h"
#include "lib/format/view.h"
#include "lib/format/writer.h"
#include "lib/load/values.h"
#include "lib/model/arrays.h"
#include "lib/model/table.h"
#include "lib/nvfp4/quant.h"

/* Where the bytes of an output tensor come from. */
enum how {
    HOW_COPY,       // payload of `entry`, unchanged
    HOW_SCALES,     // the same, of E4M3 scales, which are validated
    HOW_CONVERT,    // values of `view`, rounded to the target dtype
    HOW_RECIPROCAL, // 1 / the one f32 of `entry`
    HOW_SWAPPED,    // that f32, a scale of `view`'s dialect, as another dialect has it
    HOW_F32,        // the one f32 `f32`
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
    float f32;             // of HOW_F32
    enum dtype source;     // of HOW_RANDOM: rounded to this first
    uint32_t row;          // of HOW_RANDOM: in the tensor table
    uint64_t place, order; // for sorting
};

/* An NVFP4 tensor of the output whose bytes are made here: quantized, or converted from one
 * dialect to another. */
struct nvfp4 {
    const char *name;
    struct item source; // its values: HOW_CONVERT or HOW_RANDOM
    const struct view_dialect *dialect;
    bool quantize; // false: codes and scales of source.view
    uint64_t cols;
    struct nvfp4 *group, *next; // the first that shares its tensor scale, and a list
    struct matrix on_gpu;       // values that wait to be quantized; data NULL: none
    bool scanned;               // amax is valid
    float amax;                 // of its own values
    // made with the codes, kept until they are written
    bool made, scales_written;
    uint8_t *scales; // (numel / 16), NULL when no longer needed
    struct quant_error error;
    float *factor;     // while it is quantized with --hessian
    float *importance; // (cols + VALUES_CHUNK) of columns, repeated; NULL: all alike
};

struct input {
    struct store store;
    struct views views;
    uint8_t xxh3[XXH3_BYTES];
    // tensors of it that no input before had, or that replaced one, of another shape
    size_t added, replaced, reshaped;
};

/* Values that underflowed: below the normal numbers of their new type, and rounded. */
struct lost {
    uint64_t under, zero; // values that underflowed; how many of these became 0
    uint64_t max;         // in one tensor, which is `worst`
    const char *worst;
    enum dtype dtype; // of `worst`
    bool mixed;       // the tensors have several dtypes
};

struct plan {
    struct pack *c;       // options; defaults are filled in
    struct input *inputs; // (n_inputs + has_like) last the reference of --like
    size_t n_inputs;
    bool has_like, has_importance, has_input_scales;
    struct input importance, input_scales; // the files of these options; no views
    struct item *item;
    size_t n, cap;
    struct nvfp4 **nvfp4;
    size_t n_nvfp4, cap_nvfp4;
    struct quant_spec spec; // of all that is quantized
    bool share;             // one tensor scale for fused projections
    bool inherits;          // spec is that of a checkpoint
    bool one_level;         // the NVFP4 tensors of the inputs have one level of scales
    bool asked;             // by --quant or --share-scale
    struct lost lost;
    bool requantizes;      // an NVFP4 tensor is quantized again, as was asked for
    bool keeps_plain;      // an input has NVFP4: its plain projections stay plain
    bool w4a4;             // every NVFP4 tensor of the output has an activation scale
    const char *tokenizer; // the file that --tokenizer names, or has; NULL: not given
    struct slice config;   // text; p == NULL: none
    struct config model;
    bool is_model;        // config was parsed
    struct table table;   // of --init: candidates point into it
    struct table weights; // what a complete model has
    struct arrays arrays; // of a new checkpoint
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
    uint64_t place; // in its file, or in the order of a model
    uint64_t order; // of gathering
    bool used, dropped;
    bool fused;    // plain, but servers fuse it with an NVFP4 tensor
    bool quantize; // in any case: the head of an NVFP4 file
};

struct candidates {
    struct candidate *v;
    size_t n, cap;
    struct names names;
};

static inline bool
is_wide_float(enum dtype d)
{
    return d == DT_F16 || d == DT_BF16 || d == DT_F32 || d == DT_F64;
}

/* ---- plan_open.c */
int plan_open(struct plan *p, struct pack *c, char **paths, size_t n, struct err *err);
void plan_close(struct plan *p);

/* ---- plan.c */
int plan_no_memory(struct plan *p);
/* The text of b, which is freed, for the life of the plan; NULL with the error. */
const char *plan_text(struct plan *p, struct buf *b);
/* The traits of the output's container. */
const struct traits *plan_target(const struct plan *p);
/* Whether all inputs are of the output's container: then only what was asked for changes. */
bool plan_rewrites(const struct plan *p);
/* Whether --dtype asks for floats. */
bool plan_wishes_wide(const struct plan *p);
/* Whether entries of another program's NVFP4 tensors stay what they are, and with them
 * whatever serves only that program. */
bool plan_keeps_foreign(const struct plan *p);
/* An -s that matched no tensor is an error. */
int plan_check_globs(struct plan *p, const struct select *s);
/* The output of --like, and a new checkpoint. */
int plan_like(struct plan *p, struct candidates *all);       // like.c
int plan_checkpoint(struct plan *p, struct candidates *all); // checkpoint.c

/* ---- sources.c */
/* The inputs, the reference of --like, and the configuration. */
int sources_open(struct plan *p, char **paths, size_t n);
void sources_close(struct plan *p);

/* ---- candidates.c */
int candidates_gather(struct plan *p, struct candidates *all);
struct candidate *candidate_named(const struct candidates *all, const char *name);
/* *c in the position of *was. */
void candidate_replace(struct candidate *was, const struct candidate *c);
int candidate_add(struct plan *p, struct candidates *all, const struct candidate *c);
/* The position of an entry among those of all inputs. */
uint64_t candidate_place(const struct plan *p, const struct input *in,
                         const struct tensor *entry);
/* The candidates must be the tensors of the configuration, which must be there. */
int candidates_check_model(struct plan *p, struct candidates *all);
/* 1: equal in dtype, shape and bytes; 0: not; -1. */
int candidate_same(struct plan *p, const struct candidate *a,
                   const struct candidate *b);

/* ---- merge.c */
/* Two whole models of different configurations are an error. */
int merge_check(struct plan *p);

/* ---- config_text.c */
/* Make the model untied. */
int config_text_untie(struct plan *p);
/* After the items: make the text agree with the output in quantization and type. */
int config_text_settle(struct plan *p);

/* ---- head.c, head_match.c */
/* What becomes of the head of a tied model. */
int head_settle(struct plan *p, struct candidates *all);
/* Whether the NVFP4 head can be the embedding, quantized by one of our quantizers: 1, 0
 * or -1. */
int head_is_quantized(const struct plan *p, const struct candidate *head,
                      const struct candidate *embed);

/* ---- items.c */
struct item *item_new(struct plan *p);
/* The entry of an NVFP4 tensor X.weight: X SUFFIX; of any other name: NAME SUFFIX. */
const char *item_plane_name(struct plan *p, const char *name, const char *suffix);
/* The values of a candidate as `dtype`, not yet in the plan. */
struct item item_values(const struct candidate *c, const char *name, enum dtype dtype);
/* The candidate as one tensor of that dtype. */
int item_plain(struct plan *p, const struct candidate *c, const char *name,
               enum dtype dtype);
/* The entries of an NVFP4 tensor; ref: a tensor of --like that it takes the place of. */
int item_planes(struct plan *p, const struct candidate *c, const struct view *ref);
/* The activation scale of a W4A4 tensor, under the name that the target has for it: that of
 * --input-scales, else that of its input. */
int item_input_scale(struct plan *p, const struct candidate *c);
/* The tensor scale is a number above 0; one that looks as if multiplier and divisor were
 * confused is worth a warning. */
int item_check_scale2(struct plan *p, const struct candidate *c);

/* ---- target.c */
/* The type that the target gives a candidate. */
enum dtype target_dtype(const struct plan *p, const struct candidate *c);
/* Add the candidate as the target has it. */
int target_add(struct plan *p, const struct candidate *c);
/* Quantize it; ref: the tensor of --like. */
int target_quantized(struct plan *p, const struct candidate *c, const struct view *ref);

/* ---- quantizer_choice.c */
/* Set p->spec and p->share by options, inherited settings and defaults. */
int quantize_settle(struct plan *p);
/* What the target cannot hold is refused when the first tensor is to be quantized. */
int quantize_check_target(struct plan *p);

/* ---- quantized.c */
/* Whether the candidate becomes NVFP4. */
bool quantize_wants(const struct plan *p, const struct candidate *c);
/* 0 if it can; else -1 with the reason. */
int quantize_check(struct plan *p, const struct candidate *c);
/* The planes of the candidate in a dialect; ref: those of --like. */
int quantize_add(struct plan *p, const struct candidate *c, bool quantize,
                 const struct view_dialect *dialect, const struct view *ref);

/* ---- importance.c */
/* Open the file of --importance, if it is given. */
int importance_open(struct plan *p);
/* Whether any tensor of the plan is quantized with it: else it was given in vain. */
int importance_check_use(const struct plan *p);
/* The vector of a tensor that is quantized. */
int importance_load(struct plan *p, struct nvfp4 *t);
/* With --hessian: the factors of nvfp4_feedback for t, to be freed; NULL: an error. */
float *importance_factor(struct plan *p, const struct nvfp4 *t);

/* ---- input_scales.c */
/* Open the file of --input-scales, if it is given; then check that it is of this model, whose
 * tensors are p->weights. */
int input_scales_open(struct plan *p);
int input_scales_check(struct plan *p);
/* The largest magnitude of what a tensor's product takes. */
int input_scales_find(struct plan *p, const struct candidate *c, float *amax);

/* ---- groups.c */
/* Before the items: which projections of an NVFP4 source stay plain. */
int groups_settle_plain(struct plan *p, struct candidates *all);
/* After the items: which tensors share a tensor scale. */
int quantize_group(struct plan *p);

#endif
