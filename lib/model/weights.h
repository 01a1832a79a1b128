/* SPDX-License-Identifier: MIT */
/* weights: what products see of a model whose projections are quantized.
 *
 * The bytes are those that an export writes: the same quantizer, tensor scale and input.
 */
#ifndef NIBBLE_MODEL_WEIGHTS_H
#define NIBBLE_MODEL_WEIGHTS_H

#include "lib/model/net.h"

struct weights {
    struct net *n;
    bool quantize, expand,
        share; // share: one tensor scale for q, k, v and for gate, up
    struct quant_spec spec;
    struct packed *packed; // (table.n) scale2 == NULL: as they are
    float *amax;           // (table.n) on the device: largest magnitudes
    float *host;           // (table.n) the same
    bool *known;           // (table.n) what weights_amax has given out
};

/* quant == NULL: nothing is quantized; share: those that engines run as one have one
 * multiplier, the first row's, and their expanded forms lie behind that of the first;
 * expand: to what products see, not packed.  Takes the memory, and points the net's
 * projections to it. */
int weights_open(struct weights *w, struct net *n, const struct quant_spec *quant,
                 bool share, bool expand);
void weights_close(struct weights *w);
/* Before values are updated: no amax is known. */
void weights_begin(struct weights *w);
/* Where an update of row i's values puts their amax, 0 before: the next weights_make does
 * not look for it. */
float *weights_amax(struct weights *w, size_t i);
/* Make them from values on the device, (table.n) of one type; NULL: leave that row. */
int weights_make(struct weights *w, const void *const *values, enum dtype dtype);
/* The first row whose values were not all finite; table.n: none. */
int weights_check(struct weights *w, size_t *row);
/* The first projection whose shape a chip's own products of NVFP4 do not take; or NULL. */
const struct row *weights_odd(const struct table *t);

#endif
