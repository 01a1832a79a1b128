/* SPDX-License-Identifier: MIT */
/* pass: see pass.h. */
#include "lib/model/pass.h"

#include "lib/base/grow.h"
#include "lib/base/num.h"
#include "lib/nvfp4/tiles.h"

#include <stdlib.h>

enum { LOGIT_ROWS = 256 }; // products are fastest with multiples of it

struct matrix
pass_act(const struct pass *p, const void *at, size_t cols)
{
    return kernels_act(p->k, at, p->tokens, cols);
}

struct net_tensor *
pass_tensor(const struct pass *p, enum role role, int layer)
{
    size_t i = table_index(&p->n->table, role, layer);
    return i < p->n->table.n ? &p->n->t[i] : NULL;
}

const struct matrix *
pass_weight(const struct pass *p, enum role role, int layer)
{
    const struct net_tensor *t = pass_tensor(p, role, layer);
    return p->fp8 && t->fp8.data ? &t->fp8 : &t->w;
}

/* In the planes that a product takes. */
static void
write_fp8(struct pass *p, struct matrix *w, const struct net_tensor *t, bool backward)
{
    if (backward && p->k->is.transposes)
        w->data = NULL;
    else
        w->transposed = NULL;
    op_to_fp8(p->k, w, &t->w, t->bound, t->bounds, NULL);
}

void
pass_weights(struct pass *p, struct matrix *w, size_t n, const enum role *role,
             int layer, bool backward)
{
    for (size_t i = 0; i < n; i++) {
        const struct net_tensor *t = pass_tensor(p, role[i], layer);
        w[i] = *pass_weight(p, role[i], layer);
        if (w[i].dtype == DT_F8_E4M3 && t->bound)
            write_fp8(p, &w[i], t, backward);
    }
}

enum role
pass_head(const struct pass *p)
{
    return pass_tensor(p, ROLE_HEAD, -1) ? ROLE_HEAD : ROLE_EMBED;
}

bool
pass_quantizes(const struct pass *p)
{
    return p->n->activations && !p->n->unquantized;
}

bool
pass_is_fp8(const struct pass *p, enum role role, int layer)
{
    return pass_weight(p, role, layer)->dtype == DT_F8_E4M3;
}

/* Which operand of FP8 it is, of all layers. */
static size_t
operand(enum role role, int layer, bool gradient)
{
    size_t input = role == ROLE_DOWN ? 3 : role >= ROLE_GATE ? 2 : role == ROLE_O;
    return (size_t)layer * NET_FP8 + (gradient ? NET_FP8 / 2 : 0) + input;
}

static const struct net_delayed *
delayed(const struct pass *p)
{
    return p->learns ? p->n->delayed : NULL;
}

/* Whether operand i takes the scale of a step before. */
static bool
is_delayed(const struct pass *p, size_t i)
{
    return delayed(p) && delayed(p)->magnitude[i] > 0;
}

float *
pass_amax(const struct pass *p, enum role role, int layer, bool gradient)
{
    size_t i = operand(role, layer, gradient);
    return pass_is_fp8(p, role, layer) && !is_delayed(p, i) ? &p->fp8_amax[i] : NULL;
}

/* What attention has written is read once more; others find the largest magnitude of what they
 * write. */
static void
find_amax(struct pass *p, const struct matrix *x, enum role role, int layer,
          bool gradient)
{
    float *amax = pass_amax(p, role, layer, gradient);
    if (amax && role == (gradient ? ROLE_Q : ROLE_O))
        op_amax(p->k, amax, x);
}

/* Operand i in the given planes of `to`.  What is found in it is kept the first time. */
static void
set_operand(struct pass *p, struct pass_fp8 *o, struct matrix *to, size_t cols,
            size_t i, bool first)
{
    const struct net_delayed *d = delayed(p);
    to->rows = p->tokens;
    to->cols = to->stride = cols;
    to->transposed_stride = (size_t)round_up(p->tokens, FP8_UNIT);
    *o =
        (struct pass_fp8){ .to = to,
                           .amax = is_delayed(p, i) ? &d->scaled[i] : &p->fp8_amax[i] };
    if (d && first) {
        o->of = (struct fp8_found){ &d->found.amax[i], d->found.lost };
        o->found = &o->of;
    }
}

bool
pass_writes_fp8(const struct pass *p, enum role role, int layer)
{
    const struct net_tensor *t = pass_tensor(p, role, layer);
    return pass_is_fp8(p, role, layer) && !t->squares && !t->gram;
}

void
pass_fp8_input(struct pass *p, struct pass_fp8 *o, enum role role, int layer,
               bool again)
{
    bool columns = again && p->k->is.transposes;
    p->fp8_x.data = columns ? NULL : p->fp8_bytes;
    p->fp8_x.transposed = columns ? p->fp8_bytes : NULL;
    set_operand(p, o, &p->fp8_x, pass_tensor(p, role, layer)->w.cols,
                operand(role, layer, false), !again && !p->repeated);
}

/* Rows, and columns behind them where products take those. */
static void
place_gradient(struct pass *p, struct matrix *m, void *at, size_t cols)
{
    m->data = at;
    m->transposed = p->k->is.transposes
                        ? (uint8_t *)at + (size_t)round_up(p->tokens, FP8_UNIT) * cols
                        : NULL;
}

void
pass_fp8_d_gate_up(struct pass *p, struct pass_fp8 *o, int layer)
{
    size_t cols = 2 * (size_t)p->c->ffn;
    place_gradient(p, &p->fp8_d_gate_up, p->d_gate_up, cols);
    set_operand(p, o, &p->fp8_d_gate_up, cols, operand(ROLE_GATE, layer, true), true);
}

const struct matrix *
pass_input(struct pass *p, const struct matrix *x, enum role role, int layer)
{
    struct matrix *in = &p->packed;
    if (pass_is_fp8(p, role, layer)) {
        struct pass_fp8 o;
        find_amax(p, x, role, layer, false);
        pass_fp8_input(p, &o, role, layer, false);
        op_to_fp8(p->k, o.to, x, o.amax, 1, o.found);
        return o.to;
    }
    if (!pass_quantizes(p))
        return x;
    const struct net_tensor *t = pass_tensor(p, role, layer);
    struct quant_spec spec = *p->n->activations;
    spec.given = t->input_enc;
    in->rows = x->rows;
    in->cols = in->stride = x->cols;
    op_quantize(p->k, in, x, NULL, 0, &spec);
    return in;
}

const struct matrix *
pass_input_again(struct pass *p, const struct matrix *x, enum role role, int layer)
{
    struct pass_fp8 o;
    pass_fp8_input(p, &o, role, layer, true);
    op_to_fp8(p->k, o.to, x, o.amax, 1, NULL);
    return o.to;
}

const struct matrix *
pass_gradient(struct pass *p, const struct matrix *dy, enum role role, int layer)
{
    struct pass_fp8 o;
    if (!pass_is_fp8(p, role, layer))
        return dy;
    find_amax(p, dy, role, layer, true);
    place_gradient(p, &p->fp8_dy, role == ROLE_Q ? p->fp8_dqkv : p->dn, dy->cols);
    set_operand(p, &o, &p->fp8_dy, dy->cols, operand(role, layer, true), true);
    op_to_fp8(p->k, o.to, dy, o.amax, 1, o.found);
    return o.to;
}

/* ---- allocation ----------------------------------------------------------------------- */

static void *
own(struct pass *p, enum memory what, size_t bytes)
{
    if (!GROW(p->owned, p->n_owned, p->cap_owned, 256)) {
        err_set(p->n->err, ERR_MEMORY, "out of memory for a pass");
        return NULL;
    }
    void *m = kernels_alloc(p->k, what, bytes);
    if (m)
        p->owned[p->n_owned++] = m;
    return m;
}

static void *
own_act(struct pass *p, enum memory what, size_t n)
{
    return own(p, what, n * (dtype_bits(p->k->is.act) / 8));
}

static float *
own_f32(struct pass *p, enum memory what, size_t n)
{
    return own(p, what, n * sizeof(float));
}

static int32_t *
own_ids(struct pass *p, size_t n)
{
    return own(p, MEMORY_OTHER, n * sizeof(int32_t));
}

/* Whether q and key are computed again. */
static bool
rotates_again(const struct pass *p)
{
    return p->n->fp8 && p->backward;
}

/* All of a layer but its input. */
static void
alloc_layer(struct pass *p, struct layer_acts *l)
{
    const struct config *c = p->c;
    const enum memory what = MEMORY_ACTIVATIONS;
    size_t t = p->max_tokens, q = (size_t)c->heads * c->head_dim,
           kv = (size_t)c->kv_heads * c->head_dim;
    *l = (struct layer_acts){ .input = l->input,
                              .rstd_input = own_f32(p, what, t),
                              .rstd_mid = own_f32(p, what, t),
                              .q_linear = own_act(p, what, t * q),
                              .k_linear = own_act(p, what, t * kv),
                              .value = own_act(p, what, t * kv),
                              .rstd_q = own_f32(p, what, t * c->heads),
                              .rstd_k = own_f32(p, what, t * c->kv_heads),
                              .att = own_act(p, what, t * q),
                              .lse = own_f32(p, what, t * c->heads),
                              .mid = own_act(p, what, t * c->hidden),
                              .gate = own_act(p, what, t * c->ffn),
                              .up = own_act(p, what, t * c->ffn) };
    if (rotates_again(p))
        return;
    l->q = own_act(p, what, t * q);
    l->key = own_act(p, what, t * kv);
}

/* Layers without a backward pass share one memory. */
static void
alloc_layers(struct pass *p)
{
    size_t width = p->max_tokens * p->c->hidden;
    for (uint32_t i = 0; i < p->c->layers; i++) {
        struct layer_acts *l = &p->layer[i];
        bool trained = p->backward && i >= p->n->frozen;
        if (i == 0 || (trained && !p->n->recompute)) {
            l->input = own_act(p, MEMORY_ACTIVATIONS, width);
            alloc_layer(p, l);
            continue;
        }
        *l = p->layer[0];
        if (trained)
            l->input = own_act(p, MEMORY_ACTIVATIONS, width);
    }
}

static size_t
larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Bytes of a gradient of that many columns in FP8. */
static size_t
fp8_gradient_bytes(const struct pass *p, size_t cols)
{
    size_t bytes = (size_t)round_up(p->max_tokens, FP8_UNIT) * cols;
    return p->k->is.transposes ? 2 * bytes : bytes;
}

/* One memory for what never exists at the same time: forward swiglu's result; backward the
 * gradients of gate and up, and after them those of attention.  Where there is FP8, behind
 * these q and key, forward, too; and after them the gradients of q, k and v in FP8. */
static void
alloc_shared(struct pass *p)
{
    const struct config *c = p->c;
    size_t t = p->max_tokens, q = (size_t)c->heads * c->head_dim,
           kv = (size_t)c->kv_heads * c->head_dim, act = dtype_bits(p->k->is.act) / 8;
    size_t qkv = (size_t)round_up(t * (q + 2 * kv), TABLE_ALIGN),
           att = (size_t)round_up(t * q, TABLE_ALIGN), bytes = t * 2 * c->ffn * act;
    if (!p->backward) {
        p->act = own_act(p, MEMORY_WORK, t * c->ffn);
        return;
    }
    bytes = larger(bytes, (qkv + t * q) * act);
    if (p->n->fp8) {
        size_t behind =
            larger(att * act + t * kv * act, fp8_gradient_bytes(p, q + 2 * kv));
        bytes = larger(bytes, fp8_gradient_bytes(p, 2 * (size_t)c->ffn));
        bytes = larger(bytes, (qkv + att) * act + behind);
    }
    p->dqkv = own(p, MEMORY_WORK, bytes);
    p->act = p->d_gate_up = p->dqkv;
    p->datt = dtype_at(p->k->is.act, p->dqkv, qkv);
    p->fp8_dqkv = dtype_at(p->k->is.act, p->datt, att);
    for (uint32_t i = 0; i < c->layers && rotates_again(p); i++) {
        p->layer[i].q = p->fp8_dqkv;
        p->layer[i].key = dtype_at(p->k->is.act, p->fp8_dqkv, att);
    }
}

static void
alloc_backward(struct pass *p)
{
    const struct config *c = p->c;
    size_t t = p->max_tokens, dn = t * c->hidden * (dtype_bits(p->k->is.act) / 8);
    p->dh = own_act(p, MEMORY_WORK, t * c->hidden);
    p->dn = own(p, MEMORY_WORK,
                p->n->fp8 ? larger(dn, fp8_gradient_bytes(p, c->hidden)) : dn);
    p->dact = own_act(p, MEMORY_WORK, t * c->ffn);
    p->delta = own_f32(p, MEMORY_WORK, t * c->heads);
    if (!p->n->fp8)
        p->dselected = own_act(p, MEMORY_WORK, p->max_labels * c->hidden);
}

/* Inputs of products as nvfp4: the widest of them. */
static void
alloc_packed(struct pass *p)
{
    const struct config *c = p->c;
    struct matrix *in = &p->packed;
    size_t wide = (size_t)c->heads * c->head_dim;
    wide = wide > c->hidden ? wide : c->hidden;
    wide = wide > c->ffn ? wide : c->ffn;
    in->dtype = DT_NVFP4;
    in->per_row = true;
    in->scale2 = own_f32(p, MEMORY_WORK, p->max_tokens);
    if (p->k->is.fp4 == FP4_EXPANDED) {
        in->expanded = own_act(p, MEMORY_WORK, p->max_tokens * wide);
        return;
    }
    // Native products go to the end of a tile.
    bool native = p->k->is.fp4 == FP4_NATIVE;
    size_t rows = native ? tiles_rows(p->max_tokens) : p->max_tokens;
    in->data = own(p, MEMORY_WORK, rows * wide / 2);
    in->scales = own(p, MEMORY_WORK, rows * wide / NVFP4_BLOCK);
    if (native)
        in->tiles = own(p, MEMORY_WORK, tiles_bytes(rows, wide / NVFP4_BLOCK));
}

/* Of a pass without FP8. */
static void
alloc_norms(struct pass *p)
{
    size_t hidden = p->c->hidden;
    p->top = own_act(p, MEMORY_WORK, p->max_tokens * hidden);
    p->norm = own_act(p, MEMORY_WORK, p->max_tokens * hidden);
    p->selected = own_act(p, MEMORY_WORK, p->max_labels * hidden);
}

/* Inputs of products as FP8, the widest of them, of which rows or columns are there, and the
 * norms' results that are not of FP8: both within layers only.  So their memory is that of what
 * is there between the last layer forward and backward. */
static void
alloc_fp8(struct pass *p)
{
    const struct config *c = p->c;
    enum dtype act = p->k->is.act;
    size_t tokens = (size_t)round_up(p->max_tokens, FP8_UNIT),
           size = dtype_bits(act) / 8,
           wide = larger((size_t)c->heads * c->head_dim, larger(c->hidden, c->ffn));
    size_t x = (size_t)round_up(tokens * wide, TABLE_ALIGN),
           top = (size_t)round_up(p->max_tokens * c->hidden, TABLE_ALIGN),
           selected = (size_t)round_up(p->max_labels * c->hidden, TABLE_ALIGN);
    p->top =
        own(p, MEMORY_WORK,
            larger(x + top * size, (top + (p->backward ? 2 : 1) * selected) * size));
    p->selected = dtype_at(act, p->top, top);
    p->dselected = dtype_at(act, p->selected, selected);
    p->fp8_bytes = p->top;
    p->norm = dtype_at(DT_F8_E4M3, p->top, x);
    p->fp8_amax = own_f32(p, MEMORY_WORK, (size_t)c->layers * NET_FP8);
    p->fp8_x.dtype = p->fp8_d_gate_up.dtype = p->fp8_dy.dtype = DT_F8_E4M3;
    p->fp8_x.scale2 = own_f32(p, MEMORY_WORK, 1);
    if (!p->backward)
        return;
    p->fp8_dy.scale2 = own_f32(p, MEMORY_WORK, 1);
    p->fp8_d_gate_up.scale2 = own_f32(p, MEMORY_WORK, 1);
}

static size_t
rows_of_logits(const struct pass *p)
{
    size_t rows = p->k->is.max_logits / p->c->vocab + 1;
    rows = rows > LOGIT_ROWS ? rows - rows % LOGIT_ROWS : rows;
    return rows < p->max_labels ? rows : p->max_labels;
}

/* Some rows of activations, or a few of f32, so that a step reads the head once. */
static size_t
logits_bytes(const struct pass *p)
{
    size_t bytes = p->logit_rows * p->c->vocab * (dtype_bits(p->k->is.act) / 8);
    size_t rows = p->logit_rows < ATTEND_MAX ? p->logit_rows : ATTEND_MAX;
    size_t few = rows * p->c->vocab * sizeof(float);
    return bytes > few ? bytes : few;
}

size_t
pass_rows_f32(const struct pass *p)
{
    return logits_bytes(p) / (p->c->vocab * sizeof(float));
}

/* Whether the sizes of a pass fit 63 bits: no array of it has more than 4 times the widest
 * row a position, in 4 bytes each. */
static bool
fits(const struct config *c, size_t tokens)
{
    uint64_t widest = (uint64_t)c->heads * c->head_dim, bytes;
    widest = c->ffn > widest ? c->ffn : widest;
    widest = c->vocab > widest ? c->vocab : widest;
    widest = c->hidden > widest ? c->hidden : widest;
    return mul_fits(&bytes, 16 * widest, tokens, INT64_MAX);
}

static int
alloc_host(struct pass *p)
{
    p->layer = calloc(p->c->layers, sizeof *p->layer);
    p->host = calloc(2 * p->max_tokens + 1, sizeof *p->host);
    p->host_loss = calloc(p->max_tokens + 1, sizeof *p->host_loss);
    if (!p->layer || !p->host || !p->host_loss)
        return err_set(p->n->err, ERR_MEMORY, "out of memory for a pass");
    return 0;
}

static void
alloc_device(struct pass *p)
{
    size_t tokens = p->max_tokens, labels = p->max_labels, hidden = p->c->hidden;
    p->ids = own_ids(p, 2 * tokens + 2);
    p->first = own_ids(p, tokens);
    p->label = own_ids(p, labels);
    p->index = own_ids(p, labels);
    alloc_layers(p);
    p->out = own_act(p, MEMORY_WORK, tokens * hidden);
    p->rstd_top = own_f32(p, MEMORY_WORK, tokens);
    alloc_shared(p);
    if (p->n->activations)
        alloc_packed(p);
    if (p->n->fp8)
        alloc_fp8(p);
    else
        alloc_norms(p);
    p->logit_rows = p->n->kind == NET_CE ? rows_of_logits(p) : 0;
    p->logits = own(p, MEMORY_LOGITS, logits_bytes(p));
    p->loss = own_f32(p, MEMORY_WORK, labels);
    if (p->n->teacher)
        p->kl = own_f32(p, MEMORY_WORK, labels);
    if (p->backward)
        alloc_backward(p);
}

int
net_reserve(struct net *n, size_t tokens, size_t labels, bool backward)
{
    struct pass *p = n->pass;
    if (n->teacher && net_reserve(n->teacher, tokens, labels, false) < 0)
        return -1;
    if (p && p->max_tokens >= tokens && p->max_labels >= labels &&
        (p->backward || !backward) && (p->kl || !n->teacher))
        return 0;
    if (p) { // grow only
        tokens = tokens > p->max_tokens ? tokens : p->max_tokens;
        labels = labels > p->max_labels ? labels : p->max_labels;
        backward = backward || p->backward;
        pass_free(p);
    }
    n->pass = NULL;
    if (!fits(&n->c, tokens))
        return err_set(n->err, ERR_MEMORY,
                       "a pass of %zu positions has more than 2^63 bytes", tokens);
    n->pass = p = calloc(1, sizeof *p);
    if (!p)
        return err_set(n->err, ERR_MEMORY, "out of memory for a pass");
    *p = (struct pass){ .n = n,
                        .k = n->k,
                        .c = &n->c,
                        .max_tokens = tokens,
                        .max_labels = labels,
                        .backward = backward };
    if (alloc_host(p) < 0)
        return -1;
    alloc_device(p);
    return n->err->kind ? -1 : 0;
}

void
pass_free(struct pass *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n_owned; i++)
        kernels_free(p->k, p->owned[i]);
    free(p->owned);
    free(p->layer);
    free(p->host);
    free(p->host_loss);
    free(p);
}
