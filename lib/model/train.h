/* SPDX-License-Identifier: MIT */
/* train: one optimizer step after the other on a device.
 *
 * It holds the arrays of a checkpoint (masters and moments) and what a step needs
 * besides.  Loading and saving are the caller's, by `arrays` and `held`.
 */
#ifndef NIBBLE_MODEL_TRAIN_H
#define NIBBLE_MODEL_TRAIN_H

#include "lib/dist/comm.h"
#include "lib/model/optimizer.h"
#include "lib/model/weights.h"

enum clip_mode {
    CLIP_GLOBAL, // by the norm of all gradients
    CLIP_PREV,   // by that of the step before
    CLIP_TENSOR, // each tensor by its own
};

/* What decides about memory, fixed for a run. */
struct train_layout {
    struct array_layout arrays;
    const struct quant_spec *quant;       // NULL: products see the master
    const struct quant_spec *activations; // NULL: products take them as they are
    uint64_t
        quant_from; // steps before this one are run without `quant` and `activations`
    bool share;     // one tensor scale for q, k, v and for gate, up
    uint32_t last_layers; // only these are trained; 0: everything
    enum net_loss loss;
    bool recompute;
    bool release;  // update as soon as a gradient is complete, and keep none
    bool one_pass; // a step has one pass: its gradients are the step's
    bool expand;   // keep the weights of products as bf16, not packed; no bit changes
    bool fp8;      // products of what is quantized are of FP8
    bool pack_fp8; // keep its weights packed, not as E4M3, nor `expand`; no bit changes
    bool delayed;  // with scales of the step before, see delayed.h
    size_t positions;
    struct comm *comm; // NULL: one rank
    bool
        whole; // each rank holds all moments and gradients, not its parts; no bit changes
};

/* Parameters of a step. */
struct train_numbers {
    float lr, beta1, beta2, eps, decay, clip; // clip 0: off
    enum clip_mode mode;
    uint32_t seed;
    size_t chunk_rows; // of a weight at a time, 0: all; no bit changes
};

/* What is in memory of an array of the checkpoint. */
struct train_held {
    struct span span; // elements of its tensor
    void *device;     // NULL: frozen, not in memory: as it was in the file
};

/* Memories that gradients of passes share: while the one is exchanged a product writes to the
 * other. */
enum { TRAIN_PIECES = 2, TRAIN_OWN = TRAIN_PIECES };

struct train_tensor {
    // what the optimizer keeps
    struct adam_state state;
    struct torchsharp_state torchsharp;
    size_t rows, cols; // of the tensor; a vector is a row
    // f32 copy that products take, where they cannot take the master: of norms, and of what
    // only TorchSharp's optimizer packs.
    float *unpacked;
    struct matrix grad; // of the step: that of the only pass, or the sum over passes
    bool trained;
    unsigned piece; // where a pass's gradient is: a shared memory, or TRAIN_OWN
    double norm;    // of its gradient, in this step
};

/* How a step ended. */
enum train_outcome {
    TRAIN_DONE,
    TRAIN_SKIPPED, // nothing has changed
    TRAIN_SPOILT,  // skipped too late: the arrays must be read again
};

struct train_result {
    enum train_outcome outcome;
    char reason[160]; // why it was skipped
    double loss;      // mean over targets
    double ce, kl; // with a teacher: what it is made of; kl: per target that it teaches
    double grad_norm; // before clipping
    double clip;      // factor of all gradients
    uint64_t tokens, targets;
    uint64_t fp8_clipped; // inputs and gradients above the largest number of E4M3
};

/* Sums of losses over targets. */
struct train_sums {
    double loss;   // by label: cross-entropy, or what the loss is
    double ce, kl; // where a teacher teaches
    uint64_t targets, taught;
    uint64_t clipped; // see fp8_clipped
};

/* Called before the update: whether loss and gradient norm may be used. */
typedef bool train_judge(void *ctx, double loss, double grad_norm);

/* Sums of squares of blocks of gradients, see squares.c. */
struct squares {
    struct matrix *grad; // (table.n) this rank's parts
    double *device;      // the sums of blocks of all ranks
    double *host, *tree; // those of all ranks, and of a tensor
    size_t *at;          // (ranks + 1) bytes: where those of a rank begin
    size_t *next;        // (ranks)
};

struct train {
    struct net net;
    struct weights weights;
    struct train_layout layout;
    struct train_numbers numbers; // of this step
    struct train_tensor *tensor;  // (table.n)
    struct arrays arrays;
    struct train_held *held; // (arrays.n)
    uint64_t step, t;        // steps so far, and those of them that updated
    double last_norm;        // of the step before; negative: none
    size_t bad_row;          // of a weight that is not finite; table.n: none
    train_judge *judge;
    void *judge_ctx;
    // private
    void *piece[TRAIN_PIECES]; // gradients released, or added, before the next ones
    double *squares;           // (table.n) on the device
    float *clips;              // (table.n) on the device
    double *host_squares;      // (table.n)
    size_t *released;          // (table.n) rows whose gradients this pass has released
    size_t n_released;
    float clip;             // of all gradients
    struct matrix *masters; // (table.n) no data: not quantized
    struct adam_step adam;
    struct train_result *result;
    void *received; // (ranks - 1, this rank's part) gradients of other ranks' passes
    size_t *part;   // (ranks + 1)
    struct matrix *term; // (ranks) of what is added
    struct squares blocks;
    bool first_pass, last_pass; // of this rank, in a step
    bool own_free; // gradients with memory of their own may be written in this pass
    struct net_losses losses;
    size_t cap_losses;
    struct train_sums *sums; // of each pass
    size_t cap_sums;
    bool moved; // released gradients have changed weights
    struct err *err;
};

/* Ranks that take part in a step; a plan is made by each alone. */
static inline unsigned
train_ranks(const struct train *t)
{
    return t->layout.comm && !t->net.k->dry ? t->layout.comm->size : 1;
}

/* Whether exchanges go on beside products: those of GPUs do. */
static inline bool
train_overlaps(const struct train *t)
{
    return t->layout.comm && t->layout.comm->size > 1 && !t->net.k->is.host;
}

/* Whether each rank holds moments and gradients of its parts only.  A plan is that of its rank.
 * The packed optimizer has no parts. */
static inline bool
train_shards(const struct train *t)
{
    const struct train_layout *l = &t->layout;
    return l->comm && l->comm->size > 1 && !l->whole && !l->arrays.packed;
}
/* Whether of the master, too: products see its quantized form only. */
static inline bool
train_parts_master(const struct train *t, size_t i)
{
    return train_shards(t) && t->layout.quant && t->layout.quant_from <= 1 &&
           t->net.table.row[i].quantized;
}
/* Whether each rank has a part of an array. */
static inline bool
train_has_parts(const struct train *t, const struct array *a)
{
    return a->plane < ARRAY_M ? train_parts_master(t, a->row) : train_shards(t);
}
/* What this rank, or another one, updates of row i. */
struct span train_span(const struct train *t, size_t i);
struct span train_span_of(const struct train *t, size_t i, unsigned rank);
/* Bytes of a rank's parts: its plan without them is that of every rank. */
uint64_t train_part_bytes(const struct train *t, unsigned rank);

/* How many magnitudes there are in t->net.delayed, which is NULL where scales are current.  They
 * are the caller's to set before a step, and to save. */
size_t train_n_magnitudes(const struct train *t);

/* Allocate; the arrays are zero then.  train_close is right after success and failure
 * alike. */
int train_open(struct train *t, const struct config *c, struct kernels *k,
               const struct train_layout *layout, struct err *err);
void train_close(struct train *t);
/* The arrays were filled: make the weights of products from them. */
int train_ready(struct train *t);

/* Step t->step + 1 of the passes b[0..n-1], of which rank r takes r, r + ranks, ...; ranks divide
 * n.  -1: an error of the device; everything else is in *r, and the same for all ranks.  A step
 * that is skipped counts. */
int train_step(struct train *t, const struct net_batch *b, size_t n,
               struct train_result *r);
/* Count a step that is not run, as if it had been skipped. */
void train_pass_over(struct train *t);
/* Add the losses of each rank's batch, in the order of ranks, quantized or not like the step just
 * done (before any: like the first one).  b NULL: there is none for this rank. */
int train_eval(struct train *t, const struct net_batch *b, struct train_sums *sums);
/* What is trained by: their mix, per target.  And what it is made of: cross-entropy per
 * target, divergence per target that a teacher teaches. */
double train_loss(const struct train *t, const struct train_sums *sums);
double train_ce(const struct train_sums *sums);
double train_kl(const struct train_sums *sums);

#endif
