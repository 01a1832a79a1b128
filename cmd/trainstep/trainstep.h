/* SPDX-License-Identifier: MIT */
/* trainstep: what its sources share. */
#ifndef NIBBLE_CMD_TRAINSTEP_TRAINSTEP_H
#define NIBBLE_CMD_TRAINSTEP_TRAINSTEP_H

#include "cmd/cli/cmd.h"
#include "cmd/cli/device_rows.h"
#include "cmd/cli/ranks.h"
#include "lib/file/lock.h"
#include "lib/format/mp.h"
#include "lib/format/state.h"
#include "lib/format/store.h"
#include "lib/format/tok.h"
#include "lib/load/load.h"
#include "lib/model/train.h"

/* ---- settings.c: the options that change results ------------------------------------ */

enum order { ORDER_SHUFFLE, ORDER_FILE };
enum schedule { LR_CONSTANT, LR_LINEAR, LR_COSINE, LR_WSD };
enum loss_word { LOSS_CE, LOSS_SCALAR };
enum fp8_scales { SCALES_CURRENT, SCALES_DELAYED };

struct settings {
    bool has_accum; // a checkpoint or an option has it
    uint64_t batch, accum;
    uint64_t activations; // enum activations
    uint64_t seq_len;     // max input positions; 0: unset
    uint64_t seed, order;
    double lr, min_lr;
    uint64_t schedule, warmup, total_steps, decay; // decay 0: a tenth of total_steps
    double beta1, beta2, eps, weight_decay, clip;
    uint64_t clip_mode, loss, last_layers;
    uint64_t fp8_scales; // enum fp8_scales
    double spike, distill, distill_temp;
    double quant_from; // the first quantized step, or below 1 a fraction of total_steps
};

enum setting_kind { SET_U64, SET_F64, SET_WORD };
struct setting {
    const char *key, *option; // in a checkpoint; on the command line
    enum setting_kind kind;
    bool f32;      // SET_F64: kernels take it as f32
    bool late;     // of a later version: a checkpoint has it unless it is `first`
    size_t offset; // in struct settings
    const char *const *words; // SET_WORD
    const char *const
        *given;       // SET_WORD: those that the option takes, a prefix of words
    double low, high; // allowed range
    double first;     // in a new checkpoint
};
extern const struct setting settings_table[];
enum { SETTINGS = 25 };

void settings_begin(struct settings *s);
/* The argument of an option that the table has, or misuse. */
void settings_take(struct settings *s, const char *option, const char *arg);
/* Refuse combinations that make no sense. */
void settings_check(const struct settings *s);
void settings_copy(struct settings *to, const struct settings *from, size_t i);
/* The map "settings" of a checkpoint; unknown keys are refused. */
int settings_read(struct mp *m, struct settings *s);
void settings_put(msgpack_packer *pk, const struct settings *s);
/* A hash that stands among them, under a name that comes before those behind it. */
struct settings_hash {
    const char *key;
    const uint8_t *xxh3; // NULL: there is none
};
void settings_json(struct buf *b, const struct settings *s,
                   const struct settings_hash *hash, size_t n);
/* The same as lines, an option and its value. */
void settings_lines(struct buf *b, const struct settings *s);
/* The first step whose forward pass is quantized, if the checkpoint has a quantizer. */
uint64_t settings_quant_from(const struct settings *s);
/* Learning rate of step t = 1, 2, ... */
double settings_rate(const struct settings *s, uint64_t t);

/* ---- data.c: samples in the order of training ---------------------------------------- */

struct sample {
    uint32_t ids, targets;
};

struct data {
    struct tok_reader tok, taught; // taught: those of --teacher-data, which come last
    struct sample *sample;
    size_t n, cap;
    size_t by_label; // samples of tok
    uint32_t vocab;  // that the ids were compared with
    bool has_taught;
    bool packed;           // a sample has several documents
    uint64_t epoch, index; // of the next sample
    // the order of an epoch
    struct ticket *ticket;
    uint64_t ordered; // the epoch of ticket, if it is not NULL
    const struct settings *s;
    // the passes of a step
    struct net_batch *batch;
    size_t n_batches;
    struct buf32 {
        int32_t *v;
        size_t n, cap;
    } ids, label, position, first, is_taught;
};

/* Die unless a regular file begins as samples do, which a finished run does not read.  NULL: not given. */
void data_check_file(const char *path);
/* Read all samples and check them against the model; dies. */
void data_open(struct data *d, const char *path, const struct config *c);
/* One sample of that many positions, all of them targets, that is in no file: for a plan. */
void data_assume(struct data *d, uint32_t positions, const struct config *c);
/* The same as data_open, with others that a teacher teaches, while the first are learnt by label; dies. */
void data_open_taught(struct data *d, const char *path, const struct config *c);
/* Refuse another model than that for which they were read. */
void data_check(const struct data *d, const struct config *c);
/* What names the data in a checkpoint. */
void data_hash(const struct data *d, uint8_t xxh3[XXH3_BYTES]);
void data_close(struct data *d);
/* Check lengths against the settings; dies. */
void data_settle(struct data *d, const struct settings *s, const struct config *c);
/* Input positions of the longest sample. */
size_t data_length(const struct data *d);
/* Whether all samples are documents of one length. */
bool data_is_even(const struct data *d);
/* Make the passes of the next step; dies. */
void data_step(struct data *d);
/* Continue at that epoch and sample; dies if there is none. */
void data_seek(struct data *d, uint64_t epoch, uint64_t index);
/* Skip the samples of a step. */
void data_skip(struct data *d);
/* Max tokens and labels of any pass of the next steps; of very many steps a bound. */
void data_max(struct data *d, uint64_t steps, size_t *tokens, size_t *labels);
/* Samples [from, from + n) in file order as one pass. */
void data_range(struct data *d, size_t from, size_t n);

/* ---- state.c: the training state of a checkpoint without its arrays ------------------------------- */

_Static_assert((int)STATE_ROUTE == (int)ROUTE_SIZE, "a state holds any route");
_Static_assert((int)STATE_FP8 == (int)NET_FP8, "a state holds the scales of a layer");
/* Open a file; if it is a checkpoint, check that it has exactly the arrays of its training.
 * store_close(s) is right after success and failure alike. */
int checkpoint_open(struct store *s, const char *path, struct err *err);
int state_read(struct state *st, struct settings *s, const struct store *file);
void state_put(struct buf *b, const struct state *st, const struct settings *s);
/* Whether loss and norm are within z deviations of the window. */
bool spike_fits(const struct spike *w, double z, double loss, double norm);
void spike_add(struct spike *w, double loss, double norm);

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
    struct data data, eval;
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
