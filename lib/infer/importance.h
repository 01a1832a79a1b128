/* SPDX-License-Identifier: MIT */
/* importance: how much the columns of weights matter. */
#ifndef NIBBLE_INFER_IMPORTANCE_H
#define NIBBLE_INFER_IMPORTANCE_H

#include "lib/format/tok.h"
#include "lib/infer/session.h"

/* What the products of projections and head take, over all tokens of --score,
 * into the file of --dump-importance: for each of them the mean square of each column, the
 * largest magnitude, and with --hessian the mean products of columns. */
int importance_begin(struct session *s);
int importance_write(struct session *s, const struct tok_reader *tok, uint64_t tokens);
void importance_end(struct session *s);

#endif
