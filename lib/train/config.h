/* SPDX-License-Identifier: MIT */
/* config: resolves options and a checkpoint into one struct run_config.  It opens the files of a run,
 * gives every setting its value, and refuses what cannot be trained; it opens no device.  Behind config_settle and plan_settle a struct run_config is only read. */
#ifndef NIBBLE_TRAIN_CONFIG_H
#define NIBBLE_TRAIN_CONFIG_H

#include "lib/dist/ranks.h"
#include "lib/format/store.h"
#include "lib/load/load.h"
#include "lib/model/train.h"
#include "lib/train/course.h"
#include "lib/train/options.h"
#include "lib/train/state.h"

/* The open files that a run reads. */
struct inputs {
    struct store file; // the checkpoint at the start
    struct course data, eval;
    struct model teacher;
    uint8_t data_hash[XXH3_BYTES];
    bool has_file, has_data, has_eval, has_teacher;
};

struct run_config {
    const struct train_options *o;
    const struct host *host;
    struct ranks *ranks;
    struct err *err;
    struct inputs *in;
    struct device_options where; // settled
    struct device device;        // its properties, before it is opened
    struct config model;
    struct settings s;
    struct state st; // at the start, with the samples and the teacher of this run
    struct quant_spec quant, activations;
    struct train_layout layout;
    const char *quantizer;         // its name; NULL: products see the master
    size_t max_tokens, max_labels; // of a pass
    uint64_t in_step, end;         // the step of the checkpoint, the last step
    char *target;                  // the output
    uint64_t free_before; // free bytes of a GPU at the start; UINT64_MAX: unknown
    struct {
        uint64_t file_bytes;   // of the checkpoint
        uint64_t sent_bytes;   // by this rank, of a step
        const char *fits;      // yes, no or - (unknown)
        unsigned largest_rank; // whose plan is the largest
    } plan;
};

/* All return 0, or -1 with *r->err.  config_close is right after success and failure alike. */

/* Fill in what comes before the checkpoint; files that are both read and written are refused. */
int config_begin(struct run_config *r, const struct train_options *o,
                 struct ranks *ranks, struct inputs *in, struct err *err);
/* Settle where it is saved. */
int config_settle_target(struct run_config *r);
/* Open the checkpoint, and again after another run has replaced the file. */
int config_open(struct run_config *r, const char *path);
/* Options that hold from here on, and the last step. */
int config_take_options(struct run_config *r);
/* Open the samples of --eval, once. */
int config_open_eval(struct run_config *r);
/* The settings of all steps, the layout of memory but for the plan, and the samples. */
int config_settle(struct run_config *r);
/* Warn of settings that change nothing or repeat samples, refuse steps behind the schedule. */
int config_check_steps(const struct run_config *r);
/* Set the sizes of the largest pass, evaluation included, and of the longest document. */
int config_measure(struct run_config *r);
/* Whether gradients are released as they come: by clipping and passes of a step. */
void config_set_release(struct run_config *r);
/* Without --spike the window is dropped. */
void config_drop_spike(const struct run_config *r, struct state *st);
/* Whether the forward pass of that step is not quantized, though the checkpoint has a
 * quantizer. */
bool config_before_quant(const struct run_config *r, uint64_t step);
/* Refuse outputs that are files of an input, such as a model's tokenizer.json. */
int config_check_outputs(const struct run_config *r, const struct store *in);
void config_close(struct run_config *r);

static inline bool
config_is_finished(const struct run_config *r)
{
    return r->end <= r->in_step;
}

static inline bool
config_is_replay(const struct run_config *r)
{
    return r->o->replay.to > 0;
}

#endif
