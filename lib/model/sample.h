/* SPDX-License-Identifier: MIT */
/* sample: which token comes next.
 *
 * In this order: repetition penalty, temperature, the k best, the smallest set of best
 * ones whose probability is at least p (the one that crosses p is in it), a draw.  Equal
 * logits are ordered by id, lowest first.  A draw is a pure function of (seed, prompt,
 * token): Philox, use 5.
 */
#ifndef NIBBLE_MODEL_SAMPLE_H
#define NIBBLE_MODEL_SAMPLE_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sample_options {
    double temperature; // 0: argmax
    double top_p;       // of 0 .. 1; 1: all
    uint32_t top_k;     // 0: all
    double penalty;     // logits of tokens that were there: l / penalty, or l * penalty
                        // where l < 0; 1: none
    uint32_t seed;
};

struct sampler {
    struct sample_options o;
    size_t vocab;
    // private
    float *logits;  // (vocab) with the penalty
    double *weight; // (vocab)
    uint32_t *heap; // (vocab) ids
};

/* sampler_close is right after success and failure alike. */
int sampler_open(struct sampler *s, const struct sample_options *o, size_t vocab,
                 struct err *err);
void sampler_close(struct sampler *s);

/* The next id.  logits: (vocab) finite; before: the n ids of prompt and answer so far,
 * all below vocab; token: how many of the answer there are. */
uint32_t sampler_next(struct sampler *s, const float *logits, const uint32_t *before,
                      size_t n, uint64_t prompt, uint32_t token);

/* The k best ids, best first; k is at most vocab.  ids are the sampler's scratch, (k). */
const uint32_t *sampler_best(struct sampler *s, const float *logits, size_t k);

/* Index of the largest, the lowest of equal ones; some index if one is NaN. */
uint32_t logits_best(const float *logits, size_t n);
/* Whether all are finite. */
bool logits_finite(const float *logits, size_t n);
/* Log of the sum of their exponentials: log-probabilities are logits minus this. */
double logits_log_sum(const float *logits, size_t n);

#endif
