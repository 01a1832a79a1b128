/* SPDX-License-Identifier: MIT */
/* train: one optimizer step after the other on a device.
 *
 * It holds the arrays of a checkpoint (masters and moments) and what a step needs
 * besides.  Where arrays come from and go to is the caller's: see train_array.
 */
#ifndef NIBBLE_MODEL_TRAIN_H
#define NIBBLE_MODEL_TRAIN_H

#include "lib/model/weights.h"

enum clip_mode {
    CLIP_GLOBAL, // by the norm of all gradients
    CLIP_PREV,   // by that of the step before
    CLIP_TENSOR, // each tensor by its own
};

/* What touches memory, fixed for a run. */
struct train_layout {
    enum dtype master; // f32 or bf16
    enum moments moments;
    // Unless SEED_NONE all is kept packed as the seed does; the others say nothing then.
    enum seed_moments seed;
    const struct quant_spec *quant;       // NULL: products see the master
    const struct quant_spec *activations; // NULL: products take them as they are
    bool share;
    uint32_t last_layers; // only these are trained; 0: everything
    enum net_loss loss;
    bool recompute;
    bool release;  // update as soon as a gradient is complete, and keep none
    bool one_pass; // a step has one pass: nothing is added to a gradient
    bool expand;   // keep what products see as bf16, not packed; changes no number
    size_t positions;
};

/* The numbers of a step. */
struct train_numbers {
    float lr, beta1, beta2, eps, decay, clip; // clip 0: off
    enum clip_mode mode;
    uint32_t seed;
    size_t chunk_rows; // of a weight at a time, 0: all; changes no number
};

/* An array of the checkpoint. */
struct train_array {
    const char *name;
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[2];
    uint64_t bytes;
    void *device; // NULL: frozen, not in memory: as it was
};

struct train_tensor {
    struct adam_state state;
    struct seed_state seed; // instead of it
    // What products take as f32, of norms whose master is not and of what only the seed's
    // optimizer packs.
    float *gain;
    bool trained;
    double norm; // of its gradient, in this step
};

/* What became of a step. */
enum train_outcome {
    TRAIN_DONE,
    TRAIN_SKIPPED, // nothing has changed
    TRAIN_SPOILT,  // skipped, but too late: arrays are to be read again
};

struct train_result {
    enum train_outcome outcome;
    char reason[160]; // why it was skipped
    double loss;      // mean over targets
    double grad_norm; // before clipping
    double clip;      // what gradients were multiplied by
    uint64_t tokens, targets;
};

/* Asked before the update whether loss and gradient norm are fit to be used. */
typedef bool train_judge(void *ctx, double loss, double grad_norm);

struct train {
    struct net net;
    struct weights weights;
    struct train_layout layout;
    struct train_numbers numbers; // of this step
    struct train_tensor *tensor;  // (table.n)
    struct train_array *array;    // in file order
    size_t n_arrays;
    uint64_t step, t; // steps taken, steps applied
    double last_norm; // of the step before; negative: none
    size_t bad_row;   // of a weight that is not finite; table.n: none
    train_judge *judge;
    void *judge_ctx;
    // private
    struct arena arena;
    float *scratch;  // a released gradient
    double *squares; // (table.n) on the device
    float *clips;    // (table.n) on the device
    double *host;    // (table.n)
    size_t *order;   // (table.n) rows whose gradients were released in this pass
    size_t n_order;
    float clip;          // of all gradients
    const void **values; // (table.n) masters
    struct adam_step adam;
    struct train_result *result;
    float *loss;
    size_t cap_loss;
    bool moved;
    struct err *err;
};

/* Take the memory; the arrays are zeros then.  train_close is right after success and
 * failure alike. */
int train_open(struct train *t, const struct config *c, struct kernels *k,
               const struct train_layout *layout, struct err *err);
void train_close(struct train *t);
/* The arrays were filled: make of them what products see. */
int train_ready(struct train *t);

/* Step t->step + 1 of the passes b[0..n-1]. -1: an error of the device; everything else
 * is in *r.  A step that is skipped counts. */
int train_step(struct train *t, const struct net_batch *b, size_t n,
               struct train_result *r);
/* A step that is not run, as if it had been skipped. */
void train_pass_over(struct train *t);
/* Mean loss over the targets of a batch: sum and number are added to. */
int train_eval(struct train *t, const struct net_batch *b, double *sum,
               uint64_t *targets);

#endif
