/* SPDX-License-Identifier: MIT */
/* run_options: the options of a small training run on a processor, for unit programs. */
#ifndef NIBBLE_TESTS_UNIT_RUN_OPTIONS_H
#define NIBBLE_TESTS_UNIT_RUN_OPTIONS_H

#include "lib/train/config.h"

#include "tests/unit/samples.h"

/* So many steps of a checkpoint over the samples in s.tok. */
static inline struct train_options
options(const char *checkpoint, uint64_t steps)
{
    host.isa = isa_best();
    return (struct train_options){
        .host = &host,
        .checkpoint = checkpoint,
        .data = "s.tok",
        .where = { .host = &host, .device = "cpu", .threads = 1 },
        .steps = steps,
        .max_skips = 5,
        .log_every = 1,
    };
}

/* Set an option of a setting, as a command line does. */
static inline void
give(struct train_options *o, const char *option, double v)
{
    struct err err = { 0 };
    size_t i = settings_row(option);
    o->is_given[i] = true;
    if (settings_table[i].kind == SET_F64)
        NEED(settings_set_number(&o->given, i, v, &err) == 0);
    else
        settings_set_count(&o->given, i, (uint64_t)v);
}

#endif
