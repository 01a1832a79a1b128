/* SPDX-License-Identifier: MIT */
/* keep: copies of some saves (copies.h), NAME.best among them (--keep-best), and the evaluations by
 * which --keep-best and --patience decide.
 *
 * The evaluations are in a file of their own, NAME.eval.jsonl, since the bytes of a checkpoint do not
 * depend on them; lines of other samples do not count.  A line of another training, or of a step
 * that the checkpoint does not have, is dropped. */
#ifndef NIBBLE_TRAIN_KEEP_H
#define NIBBLE_TRAIN_KEEP_H

#include "lib/train/watch.h"

struct keep {
    struct observer observer;
    struct observer at_last; // makes NAME.best when all else of a save is done
    const struct run_config *run;
    struct stop *stop;
    struct watch *watch;
    bool open;
    bool remembers;                  // there are evaluations
    struct buf lines;                // of the evaluations up to the current step
    char data[2 * XXH3_BYTES + 1];   // of --eval, as a line names it
    char origin[2 * XXH3_BYTES + 1]; // of the weights that the training began with
    uint64_t n, last, best, since; // how many count; steps; how many after the best one
    double loss;                   // of the best one
    int64_t kept;                  // step of the checkpoint NAME.best, -1: unknown
    double kept_loss; // its evaluation; INFINITY: no NAME.best of this training
    bool owes_best;   // NAME.best is to become the current step
    double owed_loss; // whose evaluation is this
};

/* Whether an option asks for copies or for a record of evaluations. */
bool keep_is_on(const struct train_options *o);
/* Read the evaluations of earlier runs, once.  -1: *r->err; keep_close is right then, too. */
int keep_open(struct keep *k, const struct run_config *r, struct stop *stop,
              struct watch *watch);
void keep_close(struct keep *k);
/* 1: an earlier run ended between a save and its copies, or while it wrote one; -1: *r->err. */
int keep_owes_copies(const struct keep *k);
/* Make the missing copies; it needs the lock. */
int keep_pay_copies(struct keep *k);
/* Whether an evaluation of this training is remembered. */
bool keep_has_evaluated(const struct keep *k);
/* Whether an earlier run was to evaluate the step of the checkpoint and did not. */
bool keep_owes_evaluation(const struct keep *k);
/* Whether --patience ends the run; then words about that. */
bool keep_is_out_of_patience(const struct keep *k);
void keep_report_patience(struct buf *b, const struct keep *k);
/* Append words about NAME.best, if it is known. */
void keep_report_best(struct buf *b, const struct keep *k);
/* Append the facts that all ranks must have read, as lines. */
void keep_facts(struct buf *b, const struct keep *k);

#endif
