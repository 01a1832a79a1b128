/* SPDX-License-Identifier: MIT */
/* trainstep: what its sources share. */
#ifndef NIBBLE_CMD_TRAINSTEP_TRAINSTEP_H
#define NIBBLE_CMD_TRAINSTEP_TRAINSTEP_H

#include "cmd/cli/cmd.h"
#include "cmd/cli/device_rows.h"
#include "cmd/cli/ranks.h"
#include "lib/file/lock.h"
#include "lib/load/load.h"
#include "lib/model/train.h"
#include "lib/train/course.h"
#include "lib/train/state.h"

/* ---- spark.c: the loss so far, as a sparkline ---------------------------------------- */

enum { SPARK_COLUMNS = 32 };
struct spark {
    double sum[SPARK_COLUMNS];      // of the finite losses of a column
    uint64_t finite[SPARK_COLUMNS]; // how many
    size_t columns;
    uint64_t per, steps; // steps a column; steps of the last column so far
};

void spark_add(struct spark *s, double loss);
/* Draw the last columns. */
void spark_draw(struct buf *b, const struct spark *s, size_t max_columns, bool utf8);

/* ---- run.c, save.c, log.c ----------------------------------------------------------------- */

struct options {
    struct cmd cmd;
    const char *checkpoint, *data, *out, *eval, *log, *tensorboard, *memory_report;
    const char *dump, *teacher, *teacher_data, *from, *stop_after;
    struct {
        uint64_t from, to;
    } replay; // steps; to == 0: none
    struct device_options where;
    bool new_teacher;
    bool dumps; // of rank 0, which alone has `dump`
    bool dry_run, diagnose, torchsharp, force, overcommit; // torchsharp: --compat
    uint64_t steps, until, eval_every, save_every, max_skips, chunk_rows;
    double epochs;                            // 0: not given
    uint64_t keep_last, keep_every, patience; // 0: off
    uint64_t log_every;
    bool keep_best, eval_first, allow_zero_lr;
    double stop_if_worse;  // 0: off
    uint64_t memory_limit; // bytes, 0: none
    double rank_timeout;   // seconds
    uint64_t gpus;         // 0: not given
    const char *rendezvous;
    enum recompute { RECOMPUTE_AUTO, RECOMPUTE_NONE, RECOMPUTE_BLOCK } recompute;
    struct settings given; // valid where the option was given
};

struct logs;
struct replay;
struct keep;

/* watch.c: signs that a training has diverged.  All zeros before the first step. */
struct watch {
    double best;    // lowest loss of a step; 0: none
    uint64_t worse; // steps in a row whose loss was above --stop-if-worse times that
    uint64_t high;  // steps in a row whose loss was worse than guessing
    bool warned;    // of a loss that is worse than guessing
    bool zeros;     // of a gradient of zeros
    bool sound;     // the loss of the weights of the last save was no worse than that
    bool kept;      // such a save has got another name, once in a run
};

/* Streams that a run writes while it trains. */
enum output { OUTPUT_TABLE, OUTPUT_LOG, OUTPUT_EVENTS, OUTPUTS };

/* display.c: of the table and the status line below it. */
enum column { STEP, LOSS, TOKENS, LR, NORM, TOK_S, MFU, MEM, MS, SKIPPED, COLUMNS };
struct display {
    double row[COLUMNS]; // of the last step
    bool owed;           // --log-every left it out so far
    bool progress, utf8; // there is a status line; the terminal shows UTF-8
    bool terminal;       // the table is on one, too
    bool head;           // the names are printed
    unsigned from;       // the columns that are shown
    double started, drawn;
    uint64_t first_step, tokens;
    struct spark spark;
};

struct run {
    const struct options *o;
    struct replay *replay;       // NULL: no --replay
    struct device_options where; // settled
    struct settings s;
    struct state st;
    char *fp8_amax;  // those of delayed scales as a checkpoint has them; NULL: none
    struct store in; // the checkpoint at the start
    struct config c;
    struct course data, eval;
    uint8_t data_hash[XXH3_BYTES];
    bool has_data, has_eval, has_teacher;
    struct device device; // its properties, before it is opened
    struct kernels *k;
    uint64_t free_before; // free bytes of a GPU at the start; UINT64_MAX: unknown
    uint64_t driver;      // bytes of its driver and libraries, as measured
    struct train t;
    struct model teacher;
    struct quant_spec quant, activations;
    struct train_layout layout;
    const char *quantizer;         // its name; NULL: products see the master
    size_t max_tokens, max_labels; // of a pass
    uint64_t in_step, end;         // the step of `in`, the last step
    uint64_t sent_bytes;           // by this rank, of a step as it is planned
    double wait_ms;                // of the last step, to exchange
    char *target;                  // the output
    struct lock lock;              // of the target
    uint64_t evaluated;            // the last step that was evaluated
    uint64_t file_bytes;           // of the checkpoint, from the plan
    const char *fits;              // the plan: yes, no or - (unknown)
    uint64_t saved_step;
    struct watch watch, watch_saved; // now; at the last save
    uint64_t *bad;                   // steps to skip when they are repeated
    size_t n_bad;
    struct logs *logs;
    struct display display;
    struct keep *keep; // NULL: neither --keep-best, --patience nor --stop-if-worse
    struct err err;
    unsigned quant_said;   // what was printed about --quant-from
    unsigned largest_rank; // whose plan is the largest
    int locked_file;       // the checkpoint itself, open and locked, or -1
    bool over_limit;       // the warning about it was printed
    bool inexact_said;     // the share of weights that FP8 rounds was printed
    bool saved;            // target holds a step of this run
    bool failed[OUTPUTS];  // an output that cannot be written gets no more
};

/* Whether the forward pass of that step is not quantized, though the checkpoint has a
 * quantizer. */
bool run_before_quant(const struct run *r, uint64_t step);

/* Estimate of the bytes of a checkpoint of t. */
uint64_t save_bytes(const struct run *r, const struct train *t);
void save_lock(struct run *r);
void save_unlock(void);
/* Check before the first step that there is space for the largest save; dies. */
void save_check(struct run *r);
/* Check that all ranks see the place where rank 0 writes; dies. */
void save_check_place(struct run *r);
void save_write(struct run *r);
/* The provenance and the state that a save would write now. */
void save_describe(struct run *r, struct buf *provenance, struct buf *state);
/* Append the inputs of the training that `in` is a checkpoint of: its checkpoint at step 0. */
int save_origin(struct store *in, struct buf *b, struct err *err);

void log_open(struct run *r);
void log_step(struct run *r, const struct train_result *res, double rate, double ms);
void log_eval(struct run *r, const struct train_sums *sums, double ms);
/* Sample memory, in a phase of the step. */
void log_phase(struct run *r, const char *phase);
/* After a save: write the memory report up to here. */
void log_saved(struct run *r);
void log_close(struct run *r);
/* Write all bytes, unless a stop is requested meanwhile.  An output that cannot be written ends
 * the run after a save (stop_for_output). */
void log_put(struct run *r, enum output to, const void *bytes, size_t n);
uint64_t log_rss(bool peak);
uint64_t log_memory(const struct run *r, bool peak);
/* Measure r->driver, up to the end of the first step. */
void log_driver(struct run *r);

/* ---- display.c: what standard output and a terminal show --------------------------------- */

void display_open(struct run *r);
void display_step(struct run *r, const struct train_result *res, double rate,
                  double ms);
/* No further step comes: the row of the last one, if it was left out. */
void display_end(struct run *r);

/* ---- keep.c: copies of some saves, and the evaluations that decide --------------------- */

/* Whether an option asks for copies or for a record of evaluations. */
bool keep_is_on(const struct options *o);
/* Read the evaluations of earlier runs, once; dies. */
void keep_open(struct run *r);
/* Call both after keep_open.  keep_owes_copies: whether an earlier run ended between a save and its
 * copies, or while it wrote one.  keep_pay_copies makes the missing copies; it needs the lock. */
bool keep_owes_copies(struct run *r);
void keep_pay_copies(struct run *r);
/* Whether an evaluation of this training is remembered. */
bool keep_has_evaluated(const struct run *r);
/* Whether an earlier run was to evaluate the step of the checkpoint and did not. */
bool keep_owes_evaluation(const struct run *r);
/* Whether --keep-every asks for a save at this step. */
bool keep_due(const struct run *r);
/* Before a save: record what --stop-if-worse knows of its step. */
void keep_saving(struct run *r);
void keep_sound(struct run *r);
/* After a save: copy it. */
void keep_saved(struct run *r);
/* After an evaluation; may save. */
void keep_evaluated(struct run *r, double loss, uint64_t targets);
/* Whether --patience ends the run, and words about that. */
bool keep_is_out_of_patience(const struct run *r);
void keep_report_patience(struct buf *b, const struct run *r);
/* Which copy is the best one, if there is one. */
void keep_report_best(struct buf *b, const struct run *r);
/* What all ranks must have read, as lines. */
void keep_facts(struct buf *b, const struct run *r);
void keep_close(struct run *r);

/* ---- watch.c: signs that a training has diverged ---------------------------------------- */

/* After a step; ends the run for --stop-if-worse. */
void watch_step(struct run *r, const struct train_result *res);
void watch_before_save(struct run *r);

/* ---- memory_plan.c ------------------------------------------------------------------------ */

void plan_print(struct run *r);
/* Peak bytes of the device in this run. */
uint64_t plan_bytes(struct run *r, struct usage *usage);
/* Choose the fastest layout that fits; without --overcommit refuse if none does. */
void plan_settle(struct run *r);
/* Set the sizes of the largest pass, evaluation included, and of the longest document. */
void run_measure(struct run *r);
/* Whether gradients are released as they come: by clipping and passes of a step. */
void run_set_release(struct run *r);
/* Refuse outputs that are files of an input, such as a model's tokenizer.json. */
void run_check_outputs(const struct run *r, const struct store *in);

/* ---- teacher.c: --teacher ------------------------------------------------------------------ */

/* Open its file and check that it may teach this model; dies.  Without --teacher nothing. */
void teacher_open(struct run *r);
/* Put it on the device of t, which learns from it from then on; dies. */
void teacher_load(struct run *r, struct train *t);
/* After t and before the device is closed. */
void teacher_unload(struct run *r);
void teacher_close(struct run *r);

/* ---- replay.c: --replay, each dies where it cannot answer ------------------------------------ */

/* Open the checkpoint that is to be compared; the name of the one to begin with, which the caller
 * opens. */
const char *replay_open(struct run *r);
/* Check that one, and take the settings of the steps. */
void replay_begin(struct run *r);
/* Data and teacher are open; the device is. */
void replay_check_inputs(struct run *r);
void replay_check_route(const struct run *r);
/* The exit status, after the last step. */
int replay_answer(struct run *r);

/* ---- stop.c: signals ----------------------------------------------------------------------- */

/* From here on SIGINT, SIGTERM and SIGHUP, if they were not ignored, ask to stop; a second
 * one ends the program.  Before, they end it: there is nothing to save. */
void stop_catch(void);
/* Request a stop as that signal would. */
void stop_request(int sig);
/* Print that an output could not be written, and request a stop: the run saves, then ends with
 * EXIT_TROUBLE. */
void stop_for_output(const struct err *err);
/* Record that the checkpoint of the run is saved: a stop ends with status 75 from now on. */
void stop_saved(void);
/* Whether a stop was requested of this process; of several see ranks_meet. */
bool run_stopped(void);
/* The signal that requested it, 0: none. */
int stop_signal(void);
/* The last save, or the checkpoint that the run began with: its step and its file. */
uint64_t run_saved_step(const struct run *r);
const char *run_saved_name(const struct run *r);
/* Say where the run was saved, and how to continue. */
void stop_report(struct buf *b, const struct run *r);
/* Print that; the exit status.  A stopped run without a saved file dies of the signal. */
int stop_end(const struct run *r, const struct buf *words);

#endif
