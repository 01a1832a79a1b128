/* SPDX-License-Identifier: MIT */
/* samples: lines to samples, on all threads; all but the part of a thread is read only. */
#ifndef NIBBLE_DATA_SAMPLES_H
#define NIBBLE_DATA_SAMPLES_H

#include "lib/data/sink.h"

/* Scratch of one thread. */
struct worker {
    struct encoder *encoder; // NULL: inputs are ids
    struct rendered rendered;
    struct row row;
    struct buf repaired, content; // content: what a split hashes
};

/* Samples for one sink. */
struct pile {
    struct buf out;
    struct sizes sizes;
    struct tally tally;
};

/* Whole lines, and the samples made of them. */
struct part {
    size_t begin, end;    // of the group's text
    struct pile piles[2]; // for each output
    struct buf notes;     // a verbose host's: lines that were skipped
    struct buf remark;    // of the first row that has one
    struct err err;
    bool failed;
};

/* Lines of one file, processed in parallel as parts. */
struct group {
    const struct data_options *c;
    const struct tokenizer *t;
    struct worker *workers;
    struct row_form form;
    const char *name;    // of the file, escaped
    const char *unit;    // "line", or "item" of an array
    uint64_t base;       // of text in the file
    uint64_t first_line; // its number, from 1
    struct slice text;
    struct part *parts;
    size_t n_parts;
};

/* par_fn over parts; ctx is the group.  An error stays in the part; its samples before the
 * error are valid. */
int samples_of_part(void *ctx, size_t i, unsigned worker, struct err *err);

#endif
