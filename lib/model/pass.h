/* SPDX-License-Identifier: MIT */
/* pass: the memory of forward and backward passes, private to lib/model.
 *
 * Dimensions as in kernels.h: T tokens of a pass, C hidden, Q = H * D, K = K * D in bytes of
 * rows of keys, F ffn, V vocabulary; N labels of a pass.  Activations are of the device's
 * type.
 */
#ifndef NIBBLE_MODEL_PASS_H
#define NIBBLE_MODEL_PASS_H

#include "lib/model/net.h"

/* Activations of a layer that its backward pass reads.  The norms' results and that of
 * swiglu are computed again. */
struct layer_acts {
    void *input;               // (T, C)
    float *rstd_input;         // (T)
    void *q_linear, *k_linear; // (T, Q), (T, K) before norm and rope
    float *rstd_q, *rstd_k;    // (T, H), (T, heads of keys)
    void *q, *key,
        *value;      // (T, Q), (T, K), (T, K); where a backward pass may be of FP8,
                     // q and key are one memory of all layers, computed again
    void *att;       // (T, Q)
    float *lse;      // (H, T)
    void *mid;       // (T, C) the input of the feed-forward part
    float *rstd_mid; // (T)
    void *gate, *up; // (T, F)
};

/* Grown to the largest pass so far, and kept from pass to pass. */
struct pass {
    struct net *n;
    struct kernels *k;
    const struct config *c;
    size_t max_tokens, max_labels; // capacity
    bool backward;                 // there is memory for it
    size_t tokens, past, labels;   // of this pass; past: tokens in the cache
    size_t by_label; // labels that no teacher has a part in; they come first
    int32_t *ids, *position, *first; // (T); positions lie behind the ids, and two bests
    bool repeats; // of a step: its operations know no more of the past than ATTEND_STEP
    // Of a step to its best, recorded or not: it makes the id and position the next ones.
    bool advances;
    int32_t *label, *index; // (N) labels, and the rows that have them
    struct heads heads;
    struct net_cache *const *each; // (T) token t is the next of this cache; NULL: all
                                   // tokens follow each other
    const struct net_run *run;     // or: tokens of each of these; NULL
    size_t runs;
    struct layer_acts *layer; // (L); with recompute all but the inputs is one memory
    void *out, *top;          // (T, C) of the last layer; normed
    float *rstd_top;          // (T)
    void *norm, *act;         // (T, C), (T, F) results of norms and of swiglu
    struct matrix packed;     // products' inputs in nvfp4, where those are quantized
    // of products of FP8: inputs; gradients of gate and up, and of what others gave
    struct matrix fp8_x, fp8_d_gate_up, fp8_dy;
    uint8_t
        *fp8_bytes; // of fp8_x, its rows or its columns; with norm in one memory with
                    // top, selected, dselected, which exist outside of layers only
    uint8_t
        *fp8_dqkv; // of fp8_dy, behind datt; until then q and key of a layer.  That of
                   // dh lies in dn, which is not in use then
    float *fp8_amax; // (L, NET_FP8) largest magnitudes of this pass
    bool fp8;        // weights that have a form in FP8 besides are multiplied in it
    bool learns;     // it has a backward pass
    bool repeated;   // a layer is computed again: what is counted has been
    void *dh, *dn, *dact; // (T, C), (T, C), (T, F)
    void *d_gate_up;      // (T, 2 F), in FP8 fp8_d_gate_up
    void *datt, *dqkv;    // (T, Q), (T, Q + 2 K); these two, d_gate_up and act share
    float *delta;         // (H, T)
    void *selected, *dselected; // (N, C) rows of top that have labels
    void *logits;               // (logit_rows, V)
    size_t logit_rows;          // at a time
    float *loss, *kl;           // (N); kl: with a teacher
    int32_t *host;              // (2, T) on the host: labels, and their rows
    float *host_loss;           // (T) on the host
    void **owned;
    size_t n_owned, cap_owned;
};

/* Activations of this pass at p, (T, cols). */
struct matrix pass_act(const struct pass *p, const void *at, size_t cols);
/* How many rows of f32 logits there is memory for. */
size_t pass_rows_f32(const struct pass *p);
void pass_free(struct pass *p);

/* The tensor of a role; NULL if the model has none. */
struct net_tensor *pass_tensor(const struct pass *p, enum role role, int layer);
/* The weight that this pass multiplies with. */
const struct matrix *pass_weight(const struct pass *p, enum role role, int layer);
/* The head is the embedding where the model is tied and has no head of its own. */
enum role pass_head(const struct pass *p);

/* Those of n projections that share an input.  E4M3 that is not kept is written before: rows, or
 * with `backward` what the product for dx takes; it is there until the next call. */
void pass_weights(struct pass *p, struct matrix *w, size_t n, const enum role *role,
                  int layer, bool backward);

/* Whether products take their inputs in nvfp4. */
bool pass_quantizes(const struct pass *p);
/* Whether products of that projection are of FP8. */
bool pass_is_fp8(const struct pass *p, enum role role, int layer);
/* Where the largest magnitude of an operand of FP8 goes, which begins with 0: the input of that
 * projection, or the gradient of what it gave.  NULL: it is not wanted, since the product is of
 * another type or takes a delayed scale. */
float *pass_amax(const struct pass *p, enum role role, int layer, bool gradient);
/* What the product of x and the projection of that role is given for x: x itself, or its nvfp4
 * or FP8 form. */
const struct matrix *pass_input(struct pass *p, const struct matrix *x, enum role role,
                                int layer);
/* The same for the gradient of the weight, of FP8, after pass_input of the same x. */
const struct matrix *pass_input_again(struct pass *p, const struct matrix *x,
                                      enum role role, int layer);
/* What products are given for dy, the gradient of what they gave, until the next call: dy
 * itself, or its FP8 form.  Not of gate and up in FP8, which swiglu's gradient writes. */
const struct matrix *pass_gradient(struct pass *p, const struct matrix *dy,
                                   enum role role, int layer);

/* An operand of FP8 for an operation that writes it itself, instead of pass_input, or with
 * `again` of pass_input_again; and of gate and up instead of pass_gradient. */
struct pass_fp8 {
    const struct matrix *to;
    const float *amax; // it is scaled by this
    struct fp8_found of;
    const struct fp8_found *found; // `of`, or NULL: what is found there is not wanted
};
/* Whether one may: nothing reads what projections of that role take in another form. */
bool pass_writes_fp8(const struct pass *p, enum role role, int layer);
void pass_fp8_input(struct pass *p, struct pass_fp8 *o, enum role role, int layer,
                    bool again);
void pass_fp8_d_gate_up(struct pass *p, struct pass_fp8 *o, int layer);

/* ---- forward.c --------------------------------------------------------------------------- */

void pass_embed(struct pass *p);
/* Layer i to `out`, which may be its input.  key, value: (past + T, K), of which the past is
 * there. */
void pass_layer(struct pass *p, int i, void *key, void *value, void *out);
/* The same of one token of a step and all layers; false: the device has no such operation, and
 * nothing was done. */
bool pass_layers(struct pass *p);
/* The same from the token's id to its logits, in p->logits.  best: p->ids and p->position become
 * the largest one's id and the next position. */
bool pass_token(struct pass *p, bool best);
/* Where the best of a step at that position is, until that of the one after the next. */
int32_t *pass_best(const struct pass *p, size_t position);
/* The same up to the products of gate and up, which the backward pass computes again. */
void pass_layer_to_gate_up(struct pass *p, int i, void *key, void *value);
/* Where layer i has its input; the last one's output is p->out. */
void *pass_layer_input(struct pass *p, uint32_t i);
void pass_final_norm(struct pass *p);
/* Norms and rotation of q and k, of which there is one memory in FP8, once more. */
void pass_rotate_again(struct pass *p, int i);
/* f32 logits of tokens first .. first + n - 1 of this pass, at most pass_rows_f32 of them, in
 * p->logits. */
struct matrix pass_logits_f32(struct pass *p, size_t first, size_t n);
/* f32 logits of the last `rows` tokens, to the host. */
void pass_logits(struct pass *p, size_t rows, float *logits);
struct rope pass_rope(const struct pass *p, size_t heads);

/* ---- loss.c, backward.c ------------------------------------------------------------------- */

/* Rows of top that have labels to `selected`. */
void pass_select(struct pass *p);
/* Losses of rows with labels; with scale != 0 p->dn becomes the gradient of top. */
void pass_losses(struct pass *p, float scale);
void pass_backward(struct pass *p);
/* The gradient of that tensor, if there is one, will be written; is complete. */
void pass_begin(struct pass *p, enum role role, int layer);
void pass_done(struct pass *p, enum role role, int layer);

#endif
