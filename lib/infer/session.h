/* SPDX-License-Identifier: MIT */
/* session: runs sequences of tokens through an open model, and has the tokenizer of that model. */
#ifndef NIBBLE_INFER_SESSION_H
#define NIBBLE_INFER_SESSION_H

#include "lib/infer/options.h"
#include "lib/load/load.h"
#include "lib/text/tokenizer.h"

#include <signal.h>

enum { MAX_END = 32 }; // ids that end an answer

/* The tokens of a prompt and its answer, and what was computed of them. */
struct sequence {
    struct ids ids;         // the cache holds the first of them
    size_t prompt, end;     // ids of the prompt; the most that there may be
    struct net_cache cache; // if has_cache
    bool has_cache;
    // of the next token
    int32_t argmax;      // if the session is greedy
    const float *logits; // (vocab) otherwise; borrowed, until more is computed
    double log_sum;      // of their exponentials, with --json
};

/* An open model. */
struct session {
    struct infer_options *c;
    struct model model;
    struct quant_spec activations; // of model
    struct kernels *k;
    struct tokenizer *t; // NULL: only ids
    char *tokenizer;     // the path of its file
    struct encoder *e;
    struct sampler sampler;
    size_t limit;          // max positions
    uint32_t end[MAX_END]; // ids that end an answer
    size_t n_end;
    bool greedy;         // only the argmax of the next token is needed
    float *logits;       // (vocab) of session_follow
    struct par *pool;    // for logits of several prompts; NULL: greedy, or one
    size_t together;     // max. tokens of longer prompts to compute together; 0: none
    bool asked_together; // together is set
    bool apart;          // each prompt is computed by itself
    const volatile sig_atomic_t *stop; // set by a signal: the answer ends; NULL: none
    net_hidden_fn *hidden;             // called with hidden states, or NULL
    void *hidden_ctx;
    struct err *err;
};

int session_open(struct session *s, struct infer_options *c, struct err *err);
void session_close(struct session *s);
/* Set s->greedy by the settings of s->c, after a change of them. */
void session_settle_draws(struct session *s);
void sequence_free(struct sequence *q);
/* Reserve cache for n tokens of q in all, at most s->limit, so that it need not grow. */
int session_reserve(struct session *s, struct sequence *q, size_t n);
/* Whether there is memory for that. */
bool session_fits(const struct session *s, const struct sequence *q, size_t n);
/* How many tokens a prompt of n may share with one that begins with the same `common`: their keys
 * and values have the bits that it gets alone, and tokens are left to be computed. */
size_t session_shares(const struct session *s, size_t common, size_t n);
/* How many of the n tokens of a prompt others may share when it is computed. */
size_t session_shareable(const struct session *s, size_t n);
/* How many tokens of q, with their keys and values in its cache, others may share. */
size_t session_shared(const struct session *s, const struct sequence *q);
/* Copy keys and values of the first n tokens to the cache of q, which has capacity for them. */
int session_copy(struct session *s, struct sequence *q, const struct net_cache *from,
                 size_t n);
/* Run n tokens of q through the model in chunks, which end at multiples of their size; the logits of the
 * last `rows` into logits, or with NULL the argmax of the last into q->argmax.  1 if s->stop was
 * set before all was done. */
int session_extend(struct session *s, struct sequence *q, const uint32_t *ids, size_t n,
                   size_t rows, float *logits);
/* Run the tokens of q that its cache lacks; its argmax or logits are of the next. */
int session_follow(struct session *s, struct sequence *q);
/* Whether products of n tokens read weights as they are stored, which have bits of their own:
 * prompts for which it is not the same are not computed together. */
bool session_reads_stored(const struct session *s, size_t n);
/* Max. number of tokens, in all, of prompts to compute together, of which one has n; 0: this one by
 * itself. */
size_t session_together(struct session *s, size_t n);
/* Allocate a pass of that number of tokens, if it is not 0, before caches take all memory. */
int session_reserve_together(struct session *s, size_t n, size_t sequences);
/* Free it: from now on each prompt is computed by itself. */
void session_apart(struct session *s);
/* session_follow for n sequences that lack one token each, or two and more each as
 * session_together allows; logits: (n, vocab) scratch.  Each gets the bits that it gets alone. */
int session_step(struct session *s, struct sequence *const *q, size_t n, float *logits);
bool session_ends(const struct session *s, uint32_t id);

#endif
