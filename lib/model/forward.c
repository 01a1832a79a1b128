/* SPDX-License-Identifier: MIT */
/* forward: from token ids to the normed output of the last layer. */
#include "lib/model/pass.h"

#include <stdlib.h>

static const float *
gain(const struct pass *p, enum role role, int layer)
{
    return pass_tensor(p, role, layer)->w.data;
}

/* What a projection takes, for those who calibrate by it. */
static void
watch(struct pass *p, enum role role, int layer, const struct matrix *x)
{
    const struct net_tensor *t = pass_tensor(p, role, layer);
    if (t->squares)
        op_column_stats(p->k, t->squares, t->peak, x);
    if (t->gram)
        op_block_gram(p->k, t->gram, t->gram_width, x);
}

/* What the product of x and that projection is given for x. */
static struct matrix
input_of(struct pass *p, const struct matrix *x, enum role role, int layer)
{
    watch(p, role, layer, x);
    return *pass_input(p, x, role, layer);
}

/* y[i] = x W[i]' for weights that share x, in the form that they take. */
static void
linears(struct pass *p, size_t n, const struct matrix *y, const struct matrix *x,
        const enum role *role, int layer)
{
    struct matrix w[LINEAR_MAX];
    pass_weights(p, w, n, role, layer, false);
    op_linear(p->k, n, y, x, w, NULL);
}

/* Whether the products of that role may be part of an operation that is several in one: those
 * are for decoding, and what they make in between is nowhere to be seen. */
static bool
may_fuse(const struct pass *p, enum role role, int layer)
{
    const struct net_tensor *t = pass_tensor(p, role, layer);
    return p->each && !pass_quantizes(p) && !t->squares && !t->gram;
}

/* y = x W' + c, x in the form that the product takes. */
static void
linear(struct pass *p, void *y, const struct matrix *x, enum role role, int layer,
       const void *c)
{
    struct matrix w;
    pass_weights(p, &w, 1, &role, layer, false);
    struct matrix out = pass_act(p, y, w.rows), add = pass_act(p, c, w.rows);
    op_linear(p->k, 1, &out, x, &w, &add);
}

/* The norm of x in the form that the projections of that role take.  In FP8 nothing reads the
 * bf16 form, so only E4M3 is written. */
static struct matrix
normed(struct pass *p, float *rstd, const void *x, enum role norm, enum role role,
       int layer)
{
    struct matrix y = pass_act(p, p->norm, p->c->hidden),
                  in = pass_act(p, x, p->c->hidden);
    const float *g = gain(p, norm, layer);
    bool fp8 = pass_writes_fp8(p, role, layer);
    struct pass_fp8 o;
    y.amax = pass_amax(p, role, layer, false);
    y.data = fp8 ? NULL : y.data;
    if (y.data || y.amax)
        op_norm(p->k, &y, rstd, &in, g, (float)p->c->rms_eps);
    if (!fp8)
        return input_of(p, &y, role, layer);
    pass_fp8_input(p, &o, role, layer, false);
    op_norm_to_fp8(p->k, o.to, rstd, &in, g, (float)p->c->rms_eps, o.amax, o.found);
    return *o.to;
}

struct rope
pass_rope(const struct pass *p, size_t heads)
{
    return (struct rope){ .table = p->n->rope,
                          .position = p->position,
                          .heads = heads,
                          .dim = p->c->head_dim,
                          .eps = (float)p->c->rms_eps };
}

static void
qk_norm_rope(struct pass *p, void *y, float *rstd, const void *x, enum role role,
             int layer, size_t heads)
{
    struct rope r = pass_rope(p, heads);
    struct matrix to = pass_act(p, y, heads * r.dim),
                  from = pass_act(p, x, heads * r.dim);
    op_qk_norm_rope(p->k, &to, rstd, &from, gain(p, role, layer), &r);
}

/* Norms, rotation and attention of each token to the cache of its sequence, in one operation. */
static bool
attend(struct pass *p, int i)
{
    const struct config *c = p->c;
    const struct layer_acts *l = &p->layer[i];
    enum dtype act = p->k->is.act;
    size_t q = (size_t)c->heads * c->head_dim, kv = (size_t)c->kv_heads * c->head_dim,
           n;
    for (size_t first = 0; first < p->tokens; first += n) {
        void *key[ATTEND_MAX], *value[ATTEND_MAX];
        size_t past[ATTEND_MAX];
        for (n = 0; n < ATTEND_MAX && first + n < p->tokens; n++) {
            const struct net_cache *of = p->each[first + n];
            key[n] = of->key[i];
            value[n] = of->value[i];
            past[n] = of->used;
        }
        const struct attend a = { .tokens = n,
                                  .query = c->heads,
                                  .kv = c->kv_heads,
                                  .dim = c->head_dim,
                                  .table = p->n->rope,
                                  .q_gain = gain(p, ROLE_Q_NORM, i),
                                  .k_gain = gain(p, ROLE_K_NORM, i),
                                  .eps = (float)c->rms_eps,
                                  .position = p->position + first,
                                  .key = key,
                                  .value = value,
                                  .past = past };
        struct matrix out = kernels_act(p->k, dtype_at(act, l->att, first * q), n, q),
                      in = kernels_act(p->k, dtype_at(act, l->q_linear, first * q), n,
                                       q),
                      k = kernels_act(p->k, dtype_at(act, l->k_linear, first * kv), n,
                                      kv),
                      v = kernels_act(p->k, dtype_at(act, l->value, first * kv), n, kv);
        if (!op_attend(p->k, &out, &in, &k, &v, &a))
            return false;
    }
    return true;
}

/* Attention of `tokens` tokens from `first` on to a cache, which gets their keys and values. */
static void
attention_to(struct pass *p, int i, const struct net_cache *to, size_t first,
             size_t tokens)
{
    const struct config *c = p->c;
    const struct layer_acts *l = &p->layer[i];
    enum dtype act = p->k->is.act;
    size_t q = (size_t)c->heads * c->head_dim, kv = (size_t)c->kv_heads * c->head_dim,
           bytes = tokens * kv * (dtype_bits(act) / 8), all = to->used + tokens;
    struct heads h = p->heads;
    h.tokens = tokens;
    h.past = to->used;
    op_copy(p->k, dtype_at(act, to->key[i], to->used * kv),
            dtype_at(act, l->key, first * kv), bytes);
    op_copy(p->k, dtype_at(act, to->value[i], to->used * kv),
            dtype_at(act, l->value, first * kv), bytes);
    struct matrix out = kernels_act(p->k, dtype_at(act, l->att, first * q), tokens, q),
                  query = kernels_act(p->k, dtype_at(act, l->q, first * q), tokens, q),
                  keys = kernels_act(p->k, to->key[i], all, kv),
                  values = kernels_act(p->k, to->value[i], all, kv);
    op_attention(p->k, &out, l->lse, &query, &keys, &values, &h);
}

/* Of each token to the cache of its sequence. */
static void
attention_each(struct pass *p, int i)
{
    if (i == 0)
        op_zero(p->k, p->first, sizeof *p->first);
    for (size_t t = 0; t < p->tokens; t++)
        attention_to(p, i, p->each[t], t, 1);
}

static void
attention_runs(struct pass *p, int i)
{
    size_t first = 0;
    if (i == 0)
        op_zero(p->k, p->first, p->tokens * sizeof *p->first);
    for (size_t r = 0; r < p->runs; first += p->run[r++].tokens)
        attention_to(p, i, p->run[r].cache, first, p->run[r].tokens);
}

/* From the input to q_linear, k_linear and value. */
static void
qkv(struct pass *p, int i, void *value)
{
    const struct config *c = p->c;
    struct layer_acts *l = &p->layer[i];
    size_t q = (size_t)c->heads * c->head_dim, kv = (size_t)c->kv_heads * c->head_dim;
    const struct matrix in = pass_act(p, l->input, c->hidden),
                        y[] = { pass_act(p, l->q_linear, q),
                                pass_act(p, l->k_linear, kv), pass_act(p, value, kv) };
    const enum role role[] = { ROLE_Q, ROLE_K, ROLE_V };
    if (may_fuse(p, ROLE_Q, i)) {
        const struct matrix w[] = { pass_tensor(p, ROLE_Q, i)->w,
                                    pass_tensor(p, ROLE_K, i)->w,
                                    pass_tensor(p, ROLE_V, i)->w };
        if (op_norm_linear(p->k, 3, y, &in, gain(p, ROLE_INPUT_NORM, i),
                           (float)c->rms_eps, w))
            return;
    }
    struct matrix x = normed(p, l->rstd_input, l->input, ROLE_INPUT_NORM, ROLE_Q, i);
    linears(p, 3, y, &x, role, i);
}

/* From q_linear and k_linear to q and key. */
static void
rotate(struct pass *p, int i, void *key)
{
    struct layer_acts *l = &p->layer[i];
    qk_norm_rope(p, l->q, l->rstd_q, l->q_linear, ROLE_Q_NORM, i, p->c->heads);
    qk_norm_rope(p, key, l->rstd_k, l->k_linear, ROLE_K_NORM, i, p->c->kv_heads);
}

void
pass_rotate_again(struct pass *p, int i)
{
    if (p->n->fp8)
        rotate(p, i, p->layer[i].key);
}

/* From the input to att. */
static void
attention(struct pass *p, int i, void *all_keys, void *all_values)
{
    const struct config *c = p->c;
    struct layer_acts *l = &p->layer[i];
    size_t q = (size_t)c->heads * c->head_dim, kv = (size_t)c->kv_heads * c->head_dim;
    void *key = dtype_at(p->k->is.act, all_keys, p->past * kv);
    void *value = dtype_at(p->k->is.act, all_values, p->past * kv);
    qkv(p, i, value);
    if (p->each && attend(p, i))
        return;
    p->repeats = false; // what follows knows the past by value
    rotate(p, i, key);
    if (p->each || p->run) {
        p->each ? attention_each(p, i) : attention_runs(p, i);
        return;
    }
    struct matrix out = pass_act(p, l->att, q), queries = pass_act(p, l->q, q);
    struct matrix keys = kernels_act(p->k, all_keys, p->past + p->tokens, kv),
                  values = kernels_act(p->k, all_values, p->past + p->tokens, kv);
    op_attention(p->k, &out, l->lse, &queries, &keys, &values, &p->heads);
}

static void
to_mid(struct pass *p, int i, void *key, void *value)
{
    struct layer_acts *l = &p->layer[i];
    attention(p, i, key, value);
    struct matrix att = pass_act(p, l->att, (size_t)p->c->heads * p->c->head_dim),
                  x = input_of(p, &att, ROLE_O, i);
    linear(p, l->mid, &x, ROLE_O, i, l->input);
}

static void
gate_up(struct pass *p, int i)
{
    const struct config *c = p->c;
    struct layer_acts *l = &p->layer[i];
    const enum role role[] = { ROLE_GATE, ROLE_UP };
    const struct matrix y[] = { pass_act(p, l->gate, c->ffn),
                                pass_act(p, l->up, c->ffn) };
    struct matrix x = normed(p, l->rstd_mid, l->mid, ROLE_POST_NORM, ROLE_GATE, i);
    linears(p, 2, y, &x, role, i);
}

void
pass_layer_to_gate_up(struct pass *p, int i, void *key, void *value)
{
    to_mid(p, i, key, value);
    gate_up(p, i);
}

/* swiglu in the form that the projection after it takes, and none other is written. */
static struct matrix
activated(struct pass *p, struct matrix *y, int i)
{
    struct layer_acts *l = &p->layer[i];
    struct matrix gate = pass_act(p, l->gate, y->cols),
                  up = pass_act(p, l->up, y->cols);
    bool fp8 = pass_writes_fp8(p, ROLE_DOWN, i);
    struct pass_fp8 o;
    y->amax = pass_amax(p, ROLE_DOWN, i, false);
    y->data = fp8 ? NULL : y->data;
    if (y->data || y->amax)
        op_swiglu(p->k, y, &gate, &up);
    if (!fp8)
        return input_of(p, y, ROLE_DOWN, i);
    pass_fp8_input(p, &o, ROLE_DOWN, i, false);
    op_swiglu_to_fp8(p->k, o.to, &gate, &up, o.amax, o.found);
    return *o.to;
}

/* From mid to the input of the last projection. */
static struct matrix
swiglu(struct pass *p, int i)
{
    const struct config *c = p->c;
    struct layer_acts *l = &p->layer[i];
    struct matrix act = pass_act(p, p->act, c->ffn),
                  in = pass_act(p, l->mid, c->hidden);
    if (may_fuse(p, ROLE_GATE, i)) {
        const struct matrix w[] = { pass_tensor(p, ROLE_GATE, i)->w,
                                    pass_tensor(p, ROLE_UP, i)->w };
        if (op_norm_swiglu(p->k, &act, &in, gain(p, ROLE_POST_NORM, i),
                           (float)c->rms_eps, w))
            return input_of(p, &act, ROLE_DOWN, i);
    }
    gate_up(p, i);
    return activated(p, &act, i);
}

void
pass_layer(struct pass *p, int i, void *key, void *value, void *out)
{
    to_mid(p, i, key, value);
    struct matrix x = swiglu(p, i);
    linear(p, out, &x, ROLE_DOWN, i, p->layer[i].mid);
}

/* One token's way through layer i as part of that through all of them; false: something wants
 * to see what is made in between. */
static bool
layer_step(struct pass *p, int i, struct layer_step *step)
{
    static const enum role role[LAYER_WEIGHTS] = { ROLE_Q,    ROLE_K,  ROLE_V,   ROLE_O,
                                                   ROLE_GATE, ROLE_UP, ROLE_DOWN };
    for (size_t w = 0; w < LAYER_WEIGHTS; w++) {
        if (!may_fuse(p, role[w], i))
            return false;
        step->w[w] = pass_tensor(p, role[w], i)->w;
    }
    step->input_gain = gain(p, ROLE_INPUT_NORM, i);
    step->mid_gain = gain(p, ROLE_POST_NORM, i);
    step->q_gain = gain(p, ROLE_Q_NORM, i);
    step->k_gain = gain(p, ROLE_K_NORM, i);
    step->key = p->each[0]->key[i];
    step->value = p->each[0]->value[i];
    return true;
}

/* The same of all layers; NULL: as above, or there is no memory. */
static struct layer_step *
list_layers(struct pass *p, struct layer_steps *all)
{
    const struct config *c = p->c;
    bool may = p->each && p->tokens == 1 && !p->n->layer;
    struct layer_step *step = may ? calloc(c->layers, sizeof *step) : NULL;
    for (uint32_t i = 0; step && i < c->layers; i++)
        if (!layer_step(p, (int)i, &step[i])) {
            free(step);
            return NULL;
        }
    if (step)
        *all = (struct layer_steps){ .layer = step,
                                     .layers = c->layers,
                                     .query = c->heads,
                                     .kv = c->kv_heads,
                                     .dim = c->head_dim,
                                     .table = p->n->rope,
                                     .eps = (float)c->rms_eps,
                                     .position = p->position,
                                     .past = p->each[0]->used };
    return step;
}

bool
pass_layers(struct pass *p)
{
    struct layer_steps all;
    struct layer_step *step = list_layers(p, &all);
    struct matrix x = pass_act(p, pass_layer_input(p, 0), p->c->hidden),
                  y = pass_act(p, pass_layer_input(p, p->c->layers), p->c->hidden);
    bool done = step && op_layers(p->k, &y, &x, &all);
    free(step);
    return done;
}

/* Behind ids and positions. */
static int32_t *
bests(const struct pass *p)
{
    return p->ids + 2 * p->max_tokens;
}

int32_t *
pass_best(const struct pass *p, size_t position)
{
    return p->advances ? bests(p) + position % 2 : p->ids;
}

bool
pass_token(struct pass *p, bool best)
{
    struct layer_steps all;
    struct layer_step *step =
        may_fuse(p, pass_head(p), -1) ? list_layers(p, &all) : NULL;
    struct matrix logits = matrix_of(DT_F32, p->logits, 1, p->c->vocab);
    const struct token_ends ends = { .id = p->ids,
                                     .embed = &pass_tensor(p, ROLE_EMBED, -1)->w,
                                     .gain = gain(p, ROLE_FINAL_NORM, -1),
                                     .head = &pass_tensor(p, pass_head(p), -1)->w,
                                     .logits = &logits,
                                     .best = best ? bests(p) : NULL };
    bool done = step && op_token(p->k, &all, &ends);
    p->advances = done && best;
    free(step);
    return done;
}

void *
pass_layer_input(struct pass *p, uint32_t i)
{
    return i < p->c->layers ? p->layer[i].input : p->out;
}

void
pass_embed(struct pass *p)
{
    struct matrix y = pass_act(p, pass_layer_input(p, 0), p->c->hidden);
    if (p->fp8_amax && !p->each)
        op_zero(p->k, p->fp8_amax, p->c->layers * NET_FP8 * sizeof *p->fp8_amax);
    op_embed(p->k, &y, &pass_tensor(p, ROLE_EMBED, -1)->w, p->ids);
}

void
pass_final_norm(struct pass *p)
{
    struct matrix to = pass_act(p, p->top, p->c->hidden),
                  in = pass_act(p, p->out, p->c->hidden);
    op_norm(p->k, &to, p->rstd_top, &in, gain(p, ROLE_FINAL_NORM, -1),
            (float)p->c->rms_eps);
}

struct matrix
pass_logits_f32(struct pass *p, size_t first, size_t n)
{
    struct matrix top = pass_act(p, p->top, p->c->hidden),
                  x = matrix_rows(&top, first, n),
                  y = matrix_of(DT_F32, p->logits, n, p->c->vocab);
    watch(p, pass_head(p), -1, &x);
    op_linear(p->k, 1, &y, &x, &pass_tensor(p, pass_head(p), -1)->w, NULL);
    return y;
}

void
pass_logits(struct pass *p, size_t rows, float *logits)
{
    size_t vocab = p->c->vocab, first = p->tokens - rows;
    for (size_t r = 0, max = pass_rows_f32(p); r < rows; r += max) {
        size_t n = rows - r < max ? rows - r : max;
        struct matrix y = pass_logits_f32(p, first + r, n);
        kernels_download(p->k, logits + r * vocab, y.data, n * vocab * sizeof *logits);
    }
}
