/* SPDX-License-Identifier: MIT */
/* saving: the arrays of a training into a checkpoint, by all ranks together.
 *
 * There is one file, which rank 0 has begun.  Each rank writes the bytes that it has and puts them
 * on the disk; of what all have, each writes an equal share.  An array's hash is that of its
 * bytes in their order, whoever has them: ranks hash an array one after the other, and hand on
 * the state of the hash, while those before are at later arrays.  So it is no slower for that, and
 * neither a hash nor anything else of a file depends on the number of ranks. */
#ifndef NIBBLE_LOAD_SAVING_H
#define NIBBLE_LOAD_SAVING_H

#include "lib/format/writer.h"
#include "lib/load/training.h"

/* All ranks call it.  w: rank 0's writer, opened for `target` with training_list; others: NULL.
 * What no rank holds is copied from `from`.  0: all is written, on the disk but for what rank 0
 * has still to commit.  -1: the error is that of t.  1: another rank has failed, and w must not be
 * committed. */
int saving_write(struct train *t, struct store *from, struct writer *w,
                 const char *target, unsigned threads)
    __attribute__((warn_unused_result));

#endif
