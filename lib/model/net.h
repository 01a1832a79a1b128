/* SPDX-License-Identifier: MIT */
/* net: Qwen3, forward and backward, written once for every device.
 *
 * A net is the model's weights on a device; a pass takes tokens and leaves losses and
 * gradients.  Products take the weights as they are given (f32, bf16, f16, or NVFP4 for
 * the projections); a gradient is that of the product's weight, applied to whatever the
 * caller keeps as its master (straight through).
 */
#ifndef NIBBLE_MODEL_NET_H
#define NIBBLE_MODEL_NET_H

#include "kernels/kernels.h"
#include "lib/model/table.h"

struct net_tensor {
    struct weight w; // on the device; norms: out == 1, f32
    float *grad;     // (numel) on the device, NULL: not wanted
};

struct net {
    struct config c;
    struct kernels *k;
    struct table table;
    struct net_tensor *t; // (table.n)
    float *rope;          // (positions, head_dim) cosines and sines, on the device
    size_t positions;
    struct err *err;
};

/* Tokens of one pass: documents one after the other. */
struct net_batch {
    size_t tokens;
    const int32_t *ids;
    const int32_t *label;    // the next token, or -1 where none is to be learnt
    const int32_t *position; // in its document
    const int32_t *first;    // index of the first token of its document
};

/* positions: how long documents may be.  Weights and gradients are the caller's. */
int net_open(struct net *n, const struct config *c, struct kernels *k, size_t positions,
             struct err *err);
void net_close(struct net *n);
/* The tensor of a role; NULL if the table has none. */
struct net_tensor *net_find(struct net *n, enum role role, int layer);

/* One pass.  loss: (tokens) of each position, 0 without a label; scale: what gradients
 * are multiplied by, 0 for none at all; logits: (tokens, vocab) or NULL.  All three are
 * the host's. */
int net_pass(struct net *n, const struct net_batch *b, float scale, float *loss,
             float *logits);

#endif
