/* SPDX-License-Identifier: MIT */
/* answer: what the model says to one prompt. */
#ifndef NIBBLE_INFER_ANSWER_H
#define NIBBLE_INFER_ANSWER_H

#include "lib/infer/meter.h"
#include "lib/infer/session.h"
#include "lib/infer/stream.h"

/* How a prompt is answered: as the options say, unless its request says otherwise. */
struct answer_settings {
    uint32_t max_tokens;
    struct sample_options sample;
    const struct slice *stop; // (n_stops), not empty texts
    size_t n_stops;
    enum template_think think;
    uint32_t answers; // to each prompt
};

enum why { WHY_LENGTH, WHY_END, WHY_STOP, WHY_CONTEXT, WHY_INTERRUPT };

struct answer {
    struct session *s;
    struct sequence *q; // of prompt and answer
    const struct answer_settings *how;
    struct meter *meter; // NULL: none
    uint64_t index;      // of the prompt or turn
    uint32_t number;     // of the answer, if its prompt has several; from 0
    uint64_t draw;       // the number that its draws depend on
    size_t prompt;       // tokens of q before the answer
    size_t computed;     // prompt tokens that were not in the cache
    size_t n;            // of the answer
    struct stream stream;
    enum why why;
    uint32_t end;    // the id that ended it, if why is WHY_END
    double *logprob; // (n), with --json
    struct buf top;  // with --top-logprobs: JSON arrays, one a token
    float *logits;   // (n, vocab), with --logits
    size_t cap;
    double started, first_s, decode_s; // first: from the prompt to the first token
    double prefill_s; // its part of first_s, if prompts were computed together
};

/* The settings of the options. */
struct answer_settings answer_settings(const struct session *s);

/* Tokens that there is to be a cache for when an answer begins. */
size_t answer_tokens(size_t prompt, const struct answer_settings *how);

/* An answer to the prompt in q, which fits the context: index, draw and meter are the caller's
 * to set.  print: the host gets its text while it is made.  answer_free in any case. */
void answer_open(struct answer *a, struct session *s, struct sequence *q,
                 const struct answer_settings *how, bool print);
/* Generate it. */
int answer_make(struct answer *a);
/* In steps: begin computes what the next token is chosen by, of n answers together, which lack
 * tokens as session_together allows if there are several, with (n, vocab) scratch; next chooses
 * it, then it must be computed (session_follow, session_step) before the next one; 1: the answer
 * is complete, or was interrupted, and end is called. */
int answer_begin(struct answer *const *a, size_t n, float *logits);
int answer_next(struct answer *a);
int answer_end(struct answer *a);
void answer_free(struct answer *a);

/* The line of its text, or what of it was not printed; or its ids. */
void answer_put(struct buf *b, const struct answer *a);
/* The text, cut into thoughts and what is no thought if the thinking switch was used; a thought
 * that has no end is all there is.  Thoughts without p: none. */
void answer_cut(const struct answer *a, struct slice *thoughts, struct slice *text);
/* The members "reasoning_content", if the thinking switch was used, and "text", which is null
 * without a tokenizer. */
void answer_json_text(struct buf *b, const struct answer *a);
/* The members of its object, from "ids" to "timing". */
void answer_json(struct buf *b, const struct answer *a);
/* The members "first_token_ms" and "tokens_per_s" (of the tokens after it, 0 without), behind a
 * comma. */
void answer_put_speed(struct buf *b, const struct answer *a);
/* A line to the host: how fast it was; whether one is wanted. */
bool answer_reports(const struct infer_options *c);
void answer_report(const struct answer *a);

#endif
