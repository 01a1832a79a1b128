/* SPDX-License-Identifier: MIT */
/* score: the loss of a model over the target tokens of a .tok, and how far the model is from
 * another one. */
#ifndef NIBBLE_INFER_SCORE_H
#define NIBBLE_INFER_SCORE_H

#include "lib/dist/ranks.h"
#include "lib/infer/session.h"

/* Score the samples of s->c->score, which ranks take in turn, and print the result. */
int score_file(struct session *s, struct ranks *ranks);

#endif
