/* SPDX-License-Identifier: MIT */
/* weights: the weights of products, of a model whose projections are quantized.
 *
 * The bytes are those that an export writes: the same quantizer, tensor scale and input.
 */
#ifndef NIBBLE_MODEL_WEIGHTS_H
#define NIBBLE_MODEL_WEIGHTS_H

#include "lib/dist/comm.h"
#include "lib/model/net.h"

struct weights {
    struct net *n;
    bool quantize;
    bool expand;   // products take `expanded`; codes are kept only for other ranks
    bool share;    // one tensor scale for q, k, v and for gate, up
    bool fp8;      // products take E4M3 where they can
    bool pack_fp8; // codes are kept, E4M3 is made of them before each product
    struct quant_spec spec;
    struct matrix *packed; // (table.n) nvfp4, or E4M3; without scale2: not quantized
    // (table.n) nvfp4 that kept E4M3 is made of, in memory that groups use in turn
    struct matrix *codes;
    struct matrix shared_codes[2]; // that memory; with `overlaps` two
    float *bound;                  // (table.n) on the device: op_amax of codes
    uint8_t *scratch;              // E4M3 of the weights of one product at a time
    float *scratch_scale2;         // (LINEAR_MAX, FP8_SCALE_UNIT) theirs
    uint64_t *inexact;             // on the device: see n_inexact
    // weights in E4M3 when they were first made, and how many of them are not exact
    // there; 0 before
    uint64_t n_fp8, n_inexact;
    float *amax;       // (table.n) on the device: largest magnitudes
    float *host_amax;  // (table.n) the same
    bool *known;       // (table.n) amax is there, or will be: see weights_amax
    bool overlaps;     // codes are gathered while those of the next group are made
    bool *stale;       // (table.n) `expanded` is older than the codes
    struct comm *comm; // each of these ranks has its rows of masters; NULL: all
    float *all_amax;   // (ranks, table.n) on the device
    size_t *at;        // (EXCHANGE_TOGETHER, ranks + 1)
};

/* How they are made and kept. */
struct weights_form {
    const struct quant_spec *quant;              // NULL: nothing is quantized
    bool share, expand, fp8, pack_fp8, overlaps; // see struct weights
};

/* Allocate, and point the net's projections here.  With share the expanded forms of a group
 * lie one behind the other. */
int weights_open(struct weights *w, struct net *n, const struct weights_form *form);
/* From now on each rank has its part of the masters of quantized rows, see shard.h; of others each
 * has all. */
int weights_share(struct weights *w, struct comm *c);
void weights_close(struct weights *w);
/* Before masters are updated: no amax is known. */
void weights_begin(struct weights *w);
/* Where an update of row i's master puts its amax, 0 before: the next weights_make takes it
 * from there. */
float *weights_amax(struct weights *w, size_t i);
/* Quantize the masters, (table.n) on the device; no data: leave that row.  While the net is
 * unquantized only their amax is taken. */
int weights_make(struct weights *w, const struct matrix *master);
/* Before a pass reads the weights of a layer: what the last weights_make gathers of them is there. */
void weights_await(struct weights *w, uint32_t layer);
/* The first row whose master was not finite; table.n: none. */
int weights_check(struct weights *w, size_t *row);
/* The first projection whose shape native products do not take; or NULL. */
const struct row *weights_odd(const struct table *t);
/* The first that is no multiple of FP8_UNIT: it, and those that share its input, are multiplied
 * in the type of activations with fp8, too. */
const struct row *weights_not_fp8(const struct table *t);
/* Whether row i and all that share its input are multiples. */
bool weights_may_be_fp8(const struct table *t, size_t i);

#endif
