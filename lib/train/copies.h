/* SPDX-License-Identifier: MIT */
/* copies: checkpoints of earlier steps beside the one of a run, as NAME.stepN (--keep-last,
 * --keep-every), each a reflink or a hard link: a save replaces the checkpoint by renaming, so a link
 * keeps the bytes.  The file NAME.keep-last lists the copies that --keep-last made and may
 * remove. */
#ifndef NIBBLE_TRAIN_COPIES_H
#define NIBBLE_TRAIN_COPIES_H

#include "lib/train/config.h"

/* Suffixes of the names of what a run keeps beside its checkpoint. */
#define COPY_BEST  ".best"
#define COPY_EVALS ".eval.jsonl"

/* All return -1 with *r->err where they fail. */

/* The name of the output and the suffix; to be freed.  NULL: no memory. */
char *copies_name(const struct run_config *r, const char *suffix);
/* Replace the file at path. */
int copies_write_text(const struct run_config *r, const char *path, const struct buf *b,
                      struct err *err);
/* Open the checkpoint at path.  Returns its step, or -1 where the file is missing or is not a
 * checkpoint.  The caller closes *file. */
int64_t copies_open(const struct run_config *r, struct store *file, const char *path,
                    struct err *err);

/* Copy the checkpoint `from`, which is at that step, to the name with the suffix. */
int copies_make(const struct run_config *r, const char *from, const char *suffix,
                uint64_t step);
/* Make the copy that is due behind a save of that step, and remove the older ones. */
int copies_saved(const struct run_config *r, uint64_t step);
/* Whether --keep-every asks for a save at this step. */
bool copies_due(const struct run_config *r, uint64_t step);
/* Give the output, which is at that step, its name as a copy, before a save replaces it: the host hears
 * whether that was done. */
int copies_keep_sound(const struct run_config *r, uint64_t step);

/* 1: an earlier run ended between a save and its copies, or while it wrote one. */
int copies_owed(const struct run_config *r);
/* Make the missing copies, and remove what is left over; that needs the lock. */
int copies_pay(const struct run_config *r);

#endif
