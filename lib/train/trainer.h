/* SPDX-License-Identifier: MIT */
/* trainer: takes the steps of a run, evaluates, saves, and goes back to the last save where a step
 * must not count.  Observers hear of all that, and the trainer knows none of them. */
#ifndef NIBBLE_TRAIN_TRAINER_H
#define NIBBLE_TRAIN_TRAINER_H

#include "lib/base/stop.h"
#include "lib/file/lock.h"
#include "lib/train/config.h"

struct trainer;

/* A step that was taken. */
struct step_event {
    const struct train_result *result;
    double rate, ms;
    double wait_ms; // of ms, in exchanges that have kept this rank from computing
    bool repeated;  // after an undone one: observers have heard of this step
};

struct eval_event {
    const struct train_sums *sums;
    double ms;
};

/* Wishes of an observer: its functions return their sum. */
enum { WISH_SAVE = 1, WISH_END = 2 };

/* Each function may be NULL.  It returns wishes, which must be the same for all ranks, or -1 with
 * *t->err, which ends the run.  Wishes are heard at steps (to save) and evaluations. */
struct observer {
    void *ctx;
    // trainer_phases has the names.
    int (*phase)(void *ctx, const struct trainer *t, const char *name);
    // The gradients of the first step are there, and its loss is known.
    int (*gradients)(void *ctx, struct trainer *t, double loss);
    int (*step)(void *ctx, const struct trainer *t, const struct step_event *e);
    int (*eval)(void *ctx, const struct trainer *t, const struct eval_event *e);
    int (*saving)(void *ctx, const struct trainer *t);
    // The file has the current step.  `now` tells whether a save has just put it there.
    int (*saved)(void *ctx, const struct trainer *t, bool now);
    int (*undone)(void *ctx, const struct trainer *t);
    // No further step comes.
    int (*rest)(void *ctx, const struct trainer *t);
};

extern const char *const trainer_phases[];
/* Notes evaluations, and warns of skipped steps.  Observers that write come before it. */
extern const struct observer trainer_words;

struct trainer {
    const struct run_config *run;
    struct stop *stop;
    const struct observer *const *observers; // ends with NULL
    struct err *err;
    struct inputs *in;
    struct ranks *ranks;
    struct kernels *k;
    struct train train;
    struct state st;
    struct lock lock;    // of the output
    int locked_file;     // the checkpoint itself, open and locked, or -1
    uint64_t driver;     // bytes of a GPU's driver and libraries, as measured
    uint64_t evaluated;  // the last step that was evaluated
    uint64_t saved_step; // if saved
    uint64_t file_bytes; // of a checkpoint
    char *fp8_amax;    // magnitudes of delayed scales as a checkpoint has them, or NULL
    struct buf bad;    // steps to skip when they are repeated, uint64_t each
    uint64_t observed; // the last step that observers have heard of
    unsigned quant_said; // what was noted about --quant-from
    bool saved;          // the output holds a step of this run
    bool over_limit;     // that was warned of
    bool inexact_said;   // the share of weights that FP8 rounds was noted
    bool failed;         // an observer failed before an update
    bool ended;          // a phase has ended the run, and nothing is to be saved
    bool satisfied;      // an observer wishes that no further step is taken
    bool opened;         // `train` is open
};

/* All return 0, or -1 with *t->err, which is that of the configuration.  trainer_close is right after
 * success and failure alike. */

/* Before anything else, also before trainer_lock. */
void trainer_begin(struct trainer *t, const struct run_config *run, struct stop *stop,
                   const struct observer *const *observers);
/* Open the device. */
int trainer_open_device(struct trainer *t);
/* Put the model on it. */
int trainer_open_model(struct trainer *t);
/* Notify observers of a phase.  --stop-after may set t->ended: then nothing else is to be done. */
int trainer_phase(struct trainer *t, const char *name);
/* Evaluate the weights as they are.  1: a stop was requested meanwhile. */
int trainer_evaluate(struct trainer *t);
/* Take the steps that are left, with their evaluations and saves, unless a stop is requested or an
 * observer is satisfied. */
int trainer_run(struct trainer *t);
void trainer_close(struct trainer *t);

/* The last save, or the checkpoint that the run began with: its step and its file. */
uint64_t trainer_saved_step(const struct trainer *t);
const char *trainer_saved_name(const struct trainer *t);
/* Bytes that the device and its driver take; on the CPU, bytes of the process. */
uint64_t trainer_memory(const struct trainer *t, bool peak);

#endif
