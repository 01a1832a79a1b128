/* SPDX-License-Identifier: MIT */
/* course: gives samples in the order of training.  Their ids are read from the file for each step;
 * ids of a pipe are kept in memory. */
#ifndef NIBBLE_TRAIN_COURSE_H
#define NIBBLE_TRAIN_COURSE_H

#include "lib/format/tok.h"
#include "lib/model/config.h"
#include "lib/model/net.h"
#include "lib/train/settings.h"

struct length {
    uint32_t ids, targets; // of a sample
};

struct course {
    struct tok_reader tok, taught; // taught: those of --teacher-data, which come last
    struct length *sample;
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
        bool failed; // out of memory
    } ids, label, position, first, is_taught;
};

/* Whether a regular file begins as samples do, which a finished run does not read.  NULL: not
 * given. */
int course_check_file(const char *path, struct err *err);
/* Read all samples and check them against the model.  course_close is right after a failure, too. */
int course_open(struct course *d, const char *path, const struct config *c,
                struct err *err);
/* One sample of that many positions, all of them targets, that is in no file: for a plan. */
int course_assume(struct course *d, uint32_t positions, const struct config *c,
                  struct err *err);
/* Behind course_open: add others that a teacher teaches, while the first are learnt by label. */
int course_open_taught(struct course *d, const char *path, const struct config *c,
                       struct err *err);
/* Refuse another model than that for which they were read. */
int course_check(const struct course *d, const struct config *c, struct err *err);
/* What names the data in a checkpoint. */
void course_hash(const struct course *d, uint8_t xxh3[XXH3_BYTES]);
void course_close(struct course *d);
/* Check lengths against the settings. */
int course_settle(struct course *d, const struct settings *s, const struct config *c,
                  struct err *err);
/* Input positions of the longest sample. */
size_t course_length(const struct course *d);
/* Whether all samples are documents of one length. */
bool course_is_even(const struct course *d);
/* Make the passes of the next step. */
int course_step(struct course *d, struct err *err);
/* Continue at that epoch and sample; -1 if there is none. */
int course_seek(struct course *d, uint64_t epoch, uint64_t index, struct err *err);
/* Skip the samples of a step. */
int course_skip(struct course *d, struct err *err);
/* Max tokens and labels of any pass of the next steps; of very many steps a bound. */
int course_max(struct course *d, uint64_t steps, size_t *tokens, size_t *labels,
               struct err *err);
/* Samples [from, from + n) in file order as one pass. */
int course_range(struct course *d, size_t from, size_t n, struct err *err);

#endif
