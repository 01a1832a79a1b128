/* SPDX-License-Identifier: MIT */
/* training: the arrays of a training between a checkpoint and a device, by spans. */
#ifndef NIBBLE_LOAD_TRAINING_H
#define NIBBLE_LOAD_TRAINING_H

#include "lib/format/store.h"
#include "lib/format/writer.h"
#include "lib/model/train.h"

/* The layout of a checkpoint by its words for master and moments (doc/FORMAT.md section 4);
 * false: they do not go together. */
bool training_layout(struct array_layout *l, const char *master, const char *moments);

/* Check that a checkpoint has exactly the arrays that its own configuration and its words for
 * master and moments call for.  Every program that opens a checkpoint calls this: an array that
 * the training does not have would be covered by no comparison.  Passes files that are not
 * checkpoints and checkpoints of models that are not supported.  -1: *err. */
int training_check(const struct store *s, struct err *err);

/* Load the arrays that are kept in memory.  All are checked against their hashes, also those
 * that stay in the file, since every checkpoint that is saved has a copy of them.  The error
 * is that of t. */
int training_load(struct train *t, struct store *from, unsigned threads);

/* The arrays for a writer, whose names and shapes are t's; free it.  NULL: out of memory. */
struct wtensor *training_list(const struct train *t);
/* Bytes of array i that this rank holds, or of `from` if none does: where they lie if that is the
 * host's memory, else in `buffer`; NULL: *err.  A device is asked by one thread at a time. */
const void *training_read(const struct train *t, struct store *from, size_t i,
                          uint64_t at, void *buffer, size_t n, struct err *err);

/* How the arrays of t differ from those of a checkpoint. */
struct training_diff {
    size_t differing; // arrays; 0: none, and nothing else is valid
    size_t array;     // the first of them, in t->arrays
    uint64_t element; // the first one there
    size_t bytes;     // of an element, and they
    uint8_t own[8], other[8];
};
/* Compare each byte with those of `with`, which has the same kinds of arrays; what is not held is
 * that of `from`.  Threads take an array each.  -1: the error is that of t. */
int training_compare(struct train *t, struct store *from, struct store *with,
                     unsigned threads, struct training_diff *d);

#endif
