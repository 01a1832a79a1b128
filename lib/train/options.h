/* SPDX-License-Identifier: MIT */
/* options: the requests of a user to a training run, before the checkpoint is read. */
#ifndef NIBBLE_TRAIN_OPTIONS_H
#define NIBBLE_TRAIN_OPTIONS_H

#include "lib/base/host.h"
#include "lib/load/device.h"
#include "lib/train/settings.h"

struct train_options {
    const struct host *host;
    const char *checkpoint, *data, *out, *eval, *log, *tensorboard, *memory_report;
    const char *dump, *teacher, *teacher_data, *from, *stop_after;
    struct {
        uint64_t from, to;
    } replay; // steps; to == 0: none
    struct device_options where;
    bool new_teacher;
    bool dumps;                                  // of rank 0, which alone has `dump`
    bool dry_run, torchsharp, force, overcommit; // torchsharp: --compat
    bool has_until;
    uint64_t steps, until, eval_every, save_every, max_skips, chunk_rows;
    double epochs;                            // 0: not given
    uint64_t keep_last, keep_every, patience; // 0: off
    uint64_t log_every;
    bool keep_best, eval_first, allow_zero_lr;
    double stop_if_worse;  // 0: off
    uint64_t memory_limit; // bytes, 0: none
    enum recompute { RECOMPUTE_AUTO, RECOMPUTE_NONE, RECOMPUTE_BLOCK } recompute;
    struct settings given; // valid where is_given is set
    bool is_given[SETTINGS];
};

/* Whether the option of a setting was given. */
static inline bool
train_is_given(const struct train_options *o, const char *option)
{
    return o->is_given[settings_row(option)];
}

#endif
