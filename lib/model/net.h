/* SPDX-License-Identifier: MIT */
/* net: Qwen3, forward and backward, written once for every device.
 *
 * A net is the model's weights on a device; a pass takes tokens and leaves losses and
 * gradients.  Products take the weights as they are given (f32, bf16, f16, or NVFP4 or FP8
 * for the projections); a gradient is that of the product's weight, applied to whatever the
 * caller keeps as its master (straight through).
 */
#ifndef NIBBLE_MODEL_NET_H
#define NIBBLE_MODEL_NET_H

#include "kernels/kernels.h"
#include "lib/model/table.h"

struct net_tensor {
    struct matrix w; // (out, in) on the device; norms: (1, C) f32
    struct matrix
        fp8; // of a projection: w in E4M3, for passes of many tokens; no data: none
    /* (bounds) op_amax of the weights that share w's tensor scale: `fp8` is not kept, but
     * written before each of its products, see pass_weights; NULL: it is kept. */
    const float *bound;
    size_t bounds;
    struct matrix grad; // of the same shape; no data: not wanted
    /* Of a projection, (in) on the device: squares and largest magnitudes of what its products
     * take are added, of a group that shares its input to the first one's; NULL: not wanted. */
    double *squares;
    float *peak;
    /* Likewise: products of the columns within blocks of gram_width columns. */
    double *gram;
    size_t gram_width;
    /* Of a projection: `given` of struct quant_spec for its input, or 0.  Alike in a group that
     * shares it. */
    float input_enc;
};

enum net_loss {
    NET_CE,         // cross-entropy
    NET_SCALAR,     // mean |last hidden state - embedding of the label|
    NET_TORCHSHARP, // the same, and the embedding has a gradient from it, too
};

/* Operands of FP8 of a layer: inputs of q, k, v; of o; of gate, up; of down; and the gradients
 * of what these gave. */
enum { NET_FP8 = 8 };

/* Delayed scales: magnitudes of a step before, of (L, NET_FP8) operands; see delayed.h. */
struct net_delayed {
    float *magnitude; // on the host; 0: unknown
    float *host;      // (ranks, L, NET_FP8) scratch
    float *scaled;    // on the device: magnitudes with their margin
    struct fp8_found
        found; // on the device: magnitudes of this step so far, clipped values
};

/* A step that the device has been given before it was asked for: of the cache's next token, which
 * is the best after the last. */
struct net_ahead {
    const void *key; // the first layer's in the cache; NULL: none
    size_t used;     // tokens before
    int32_t id;
    int handle; // of the download of its own best
};

struct net {
    struct config c;
    struct kernels *k;
    struct table table;
    struct net_tensor *t; // (table.n)
    float *rope;          // (positions, D) cosines and sines, on the device
    size_t positions;
    enum net_loss kind;
    uint32_t frozen; // layers below this one, and the embedding, have no gradients
    bool recompute;  // keep a layer's input only, and compute the rest again
    /* How the inputs of projections are quantized, to NVFP4 like the weights; NULL: not at
     * all.  Straight through backward: a weight's gradient is that of the product that was
     * computed, an input's that of the weight. */
    const struct quant_spec *activations;
    bool
        fp8; // there are weights in FP8: inputs and gradients of their products are, too
    struct net_delayed *delayed; // of passes that learn; NULL: scales are current
    /* For now products take their inputs as they are, too: `activations` does not apply, and
     * the owner of the weights has not quantized them. */
    bool unquantized;
    /* Another model, on the same device and with the same vocabulary, from whose logits this
     * one learns, only with NET_CE and where a batch says so; NULL: none. */
    struct net *teacher;
    struct distill distill;
    /* Each may be NULL.  layer: called before the forward pass reads the weights of a layer.
     * begin: before the gradient of a row of the table is written in this pass; of several
     * that one product gives, of the first.  done: when it is complete for this pass, which
     * does not read the weights of that row again; the gradient may be overwritten. */
    void (*layer)(void *ctx, uint32_t layer);
    void (*begin)(void *ctx, size_t row);
    void (*done)(void *ctx, size_t row);
    void *ctx;
    struct err *err;
    struct pass *pass; // its memory is kept from pass to pass
    struct net_ahead ahead;
};

/* Tokens of one pass: documents one after the other. */
struct net_batch {
    size_t tokens;
    const int32_t *ids;
    const int32_t *label;    // the next token, or -1: no target
    const int32_t *position; // in its document
    const int32_t *first;    // index of the first token of its document
    /* Whether a token is learnt from the teacher, else from its label alone; NULL: all are. */
    const int32_t *taught;
};

/* positions: how long documents may be.  Weights and gradients are the caller's. */
int net_open(struct net *n, const struct config *c, struct kernels *k, size_t positions,
             struct err *err);
void net_close(struct net *n);

/* Allocate for passes of so many tokens and labels, with or without the backward pass, also
 * in the teacher. */
int net_reserve(struct net *n, size_t tokens, size_t labels, bool backward);
/* Free that memory, n's alone. */
void net_release(struct net *n);

/* What is known of each position after a pass: (tokens) on the host, 0 without a label. */
struct net_losses {
    float *loss; // cross-entropy, or what `kind` asks for
    float *kl;   // from the teacher's logits where it teaches; without one NULL will do
};

/* One pass.  scale: what gradients are multiplied by, 0 for none at all; logits: (tokens,
 * vocab) on the host, or NULL. */
int net_pass(struct net *n, const struct net_batch *b, float scale,
             const struct net_losses *losses, float *logits);

/* Keys and values of the tokens so far. */
struct net_cache {
    struct net *n;
    size_t capacity, used; // tokens
    void **key, **value;   // (L) of (capacity, K * D); one allocation
};

int net_cache_open(struct net_cache *c, struct net *n, size_t capacity);
void net_cache_close(struct net_cache *c);
/* After keys or values were written by other means than the functions below. */
void net_cache_changed(struct net_cache *c);

/* Called with the hidden state (T, C) after each layer, on the host; -1 stops. */
typedef int net_hidden_fn(void *ctx, uint32_t layer, const float *hidden,
                          size_t tokens);

/* Run tokens, in FP8 where there is a form of the weights in it, that follow those in the cache, which has capacity for them, and add them to it.
 * logits: (rows, V) on the host, of the last `rows` of them; or NULL, if net_score follows. */
int net_extend(struct net *n, struct net_cache *c, const int32_t *ids, size_t tokens,
               size_t rows, float *logits, net_hidden_fn *hidden, void *ctx);
/* The same; *id is that of the largest logit of the last token, -1 if not all are finite. */
int net_argmax(struct net *n, struct net_cache *c, const int32_t *ids, size_t tokens,
               int32_t *id, net_hidden_fn *hidden, void *ctx);

/* One token for each of `count` sequences, which follows those in its cache and is added to it: a
 * sequence gets the same bits whatever the others are, on the CPU those of net_extend.  logits: (count, V) on the host; or NULL, and best: (count) the largest,
 * -1 if not all are finite; it may be ids.  more: a step of the best is likely to come next, so a
 * device may begin it. */
int net_step(struct net *n, struct net_cache *const *c, const int32_t *ids,
             size_t count, float *logits, int32_t *best, bool more);

/* Tokens of a sequence that follow those in its cache, which has capacity for them. */
struct net_run {
    struct net_cache *cache;
    const int32_t *ids;
    size_t tokens;
};

/* The same for tokens of each of `count` sequences, two or more of each; logits and best are of the
 * last ones.  With the bits of net_extend of each, if all of them together are at most as many as the
 * device calls alike, or each is more, and nothing is in FP8. */
int net_extend_each(struct net *n, const struct net_run *run, size_t count,
                    float *logits, int32_t *best);

/* What is known of tokens, on the host; losses and divergence are 0 without a label. */
struct net_scores {
    float *ce;     // (rows) cross-entropy
    int32_t *best; // (rows) the largest logit; -1: one is not finite
    // beside the teacher, if there is one
    float *teacher_ce, *kl; // KL(teacher || net)
    int32_t *teacher_best;
};

/* Score the last `rows` tokens of the preceding net_extend, which reserved as many rows, of n
 * and, if it has one, of its teacher.  label: (rows) the next token, -1: no target. */
int net_score(struct net *n, const int32_t *label, size_t rows,
              const struct net_scores *to);

#endif
