/* SPDX-License-Identifier: MIT */
/* net: see net.h.  T tokens, C hidden, Q = heads * head_dim, K = kv_heads * head_dim, F
 * ffn, V vocabulary. */
#include "lib/model/net.h"

#include "lib/core/maths.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* What the way back needs of a layer, besides what it computes again: norms and the
 * product of gate and up. */
struct kept {
    float *h0;             // (T, C), the layer's input
    float *q0, *k0, *v;    // before their norms: (T, Q), (T, K); (T, K)
    float *sq, *sk;        // (T * heads), (T * kv_heads)
    float *q, *key;        // after norm and rope
    float *att, *lse;      // (T, Q); (heads, T)
    float *h1, *gate, *up; // (T, C), (T, F)
};

/* The memory of passes, for as many tokens as one had so far. */
struct pass {
    struct net *n;
    struct kernels *k;
    const struct config *c;
    size_t room, room_labels; // what there is memory for
    bool back;
    size_t tokens, past, labels;
    int32_t *ids, *position, *first; // (T) on the device
    int32_t *label, *index;          // (labels) and the rows that they are of
    struct heads heads;
    struct kept *layer;     // (layers); with recompute all but h0 is one memory
    float *h, *top, *s_top; // last hidden state, normed; (T)
    float *norm, *s, *act;  // (T, C), (T), (T, F)
    float *dh, *dn, *dq, *dk, *dv, *datt, *dact;
    float *learnt, *dlearnt; // rows of top that have labels
    float *logits, *loss;    // (rows, V), (labels)
    size_t rows;             // of logits at a time
    int32_t *host;           // (2, T) labels and their rows
    float *host_loss;        // (T)
    void **owned;
    size_t n_owned, cap_owned;
};

enum { LOGITS = 1 << 25 }; // numbers of a chunk of logits

/* ---- a net ----------------------------------------------------------------------------- */

static int
make_rope(struct net *n)
{
    size_t dim = n->c.head_dim, half = dim / 2, count = n->positions * dim;
    float *host = malloc((count ? count : 1) * sizeof *host);
    double log_theta = maths_log(n->c.rope_theta);
    if (!host)
        return err_set(n->err, ERR_MEMORY, "out of memory for rotations");
    for (size_t i = 0; i < half; i++) {
        double f = maths_exp(-2.0 * (double)i / (double)dim * log_theta);
        for (size_t p = 0; p < n->positions; p++) {
            double s, c;
            maths_sincos((double)p * f, &s, &c);
            host[p * dim + i] = (float)c;
            host[p * dim + half + i] = (float)s;
        }
    }
    n->k->part = PART_OTHER;
    n->rope = n->k->alloc(n->k, count * sizeof *host);
    if (n->rope)
        n->k->upload(n->k, n->rope, host, count * sizeof *host);
    free(host);
    return n->rope ? 0 : -1;
}

int
net_open(struct net *n, const struct config *c, struct kernels *k, size_t positions,
         struct err *err)
{
    *n = (struct net){ .c = *c, .k = k, .positions = positions, .err = err };
    if (table_open(&n->table, c, !c->tied, err) < 0)
        return -1;
    n->t = calloc(n->table.n, sizeof *n->t);
    if (!n->t)
        return err_set(err, ERR_MEMORY, "out of memory for the model");
    return make_rope(n);
}

static void
give_back(struct net *n)
{
    struct pass *p = n->pass;
    if (!p)
        return;
    for (size_t i = 0; i < p->n_owned; i++)
        p->k->release(p->k, p->owned[i]);
    free(p->owned);
    free(p->layer);
    free(p->host);
    free(p->host_loss);
    free(p);
    n->pass = NULL;
}

void
net_close(struct net *n)
{
    give_back(n);
    if (n->rope)
        n->k->release(n->k, n->rope);
    free(n->t);
    table_close(&n->table);
    *n = (struct net){ 0 };
}

static size_t
row_of(const struct net *n, enum role role, int layer)
{
    size_t i = 0;
    while (i < n->table.n &&
           (n->table.row[i].role != role || n->table.row[i].layer != layer))
        i++;
    return i;
}

struct net_tensor *
net_find(struct net *n, enum role role, int layer)
{
    size_t i = row_of(n, role, layer);
    return i < n->table.n ? &n->t[i] : NULL;
}

/* The head is the embedding where the model is tied and has no head of its own. */
static enum role
head_role(const struct net *n)
{
    return row_of(n, ROLE_HEAD, -1) < n->table.n ? ROLE_HEAD : ROLE_EMBED;
}

static void
done(struct pass *p, enum role role, int layer)
{
    size_t row = row_of(p->n, role, layer);
    if (p->n->done && p->n->t[row].grad)
        p->n->done(p->n->ctx, row);
}

/* ---- memory ------------------------------------------------------------------------------ */

static void *
take(struct pass *p, enum part part, size_t bytes)
{
    if (p->n_owned == p->cap_owned) {
        size_t cap = p->cap_owned ? 2 * p->cap_owned : 256;
        void **v = realloc(p->owned, cap * sizeof *v);
        if (!v) {
            err_set(p->n->err, ERR_MEMORY, "out of memory for a pass");
            return NULL;
        }
        p->owned = v;
        p->cap_owned = cap;
    }
    p->k->part = part;
    void *m = p->k->alloc(p->k, bytes);
    if (m)
        p->owned[p->n_owned++] = m;
    return m;
}

static float *
work(struct pass *p, size_t n)
{
    return take(p, PART_WORK, n * sizeof(float));
}

static float *
keep(struct pass *p, size_t n)
{
    return take(p, PART_KEPT, n * sizeof(float));
}

/* All of a layer but its input. */
static void
take_layer(struct pass *p, struct kept *l)
{
    const struct config *c = p->c;
    size_t t = p->room, q = (size_t)c->heads * c->head_dim,
           kv = (size_t)c->kv_heads * c->head_dim;
    *l = (struct kept){ .h0 = l->h0,
                        .q0 = keep(p, t * q),
                        .k0 = keep(p, t * kv),
                        .v = keep(p, t * kv),
                        .sq = keep(p, t * c->heads),
                        .sk = keep(p, t * c->kv_heads),
                        .q = keep(p, t * q),
                        .key = keep(p, t * kv),
                        .att = keep(p, t * q),
                        .lse = keep(p, t * c->heads),
                        .h1 = keep(p, t * c->hidden),
                        .gate = keep(p, t * c->ffn),
                        .up = keep(p, t * c->ffn) };
}

/* Without a way back all layers share everything. */
static void
take_layers(struct pass *p)
{
    size_t width = p->room * p->c->hidden;
    for (uint32_t i = 0; i < p->c->layers; i++) {
        struct kept *l = &p->layer[i];
        if (i == 0 || (p->back && i >= p->n->frozen && !p->n->recompute)) {
            l->h0 = keep(p, width);
            take_layer(p, l);
            continue;
        }
        *l = p->layer[0];
        if (p->back && i >= p->n->frozen)
            l->h0 = keep(p, width);
    }
}

static void
take_back(struct pass *p)
{
    const struct config *c = p->c;
    size_t t = p->room, q = (size_t)c->heads * c->head_dim,
           kv = (size_t)c->kv_heads * c->head_dim;
    p->dh = work(p, t * c->hidden);
    p->dn = work(p, t * c->hidden);
    p->dq = work(p, t * q);
    p->dk = work(p, t * kv);
    p->dv = work(p, t * kv);
    p->datt = work(p, t * q);
    p->dact = work(p, t * c->ffn);
    p->dlearnt = work(p, p->room_labels * c->hidden);
}

static size_t
logit_rows(const struct pass *p)
{
    size_t rows = LOGITS / p->c->vocab + 1;
    return rows < p->room_labels ? rows : p->room_labels;
}

int
net_reserve(struct net *n, size_t tokens, size_t labels, bool back)
{
    const struct config *c = &n->c;
    struct pass *p = n->pass;
    if (p && p->room >= tokens && p->room_labels >= labels && (p->back || !back))
        return 0;
    if (p) { // grow only
        tokens = tokens > p->room ? tokens : p->room;
        labels = labels > p->room_labels ? labels : p->room_labels;
        back = back || p->back;
        give_back(n);
    }
    n->pass = p = calloc(1, sizeof *p);
    if (!p)
        return err_set(n->err, ERR_MEMORY, "out of memory for a pass");
    *p = (struct pass){ .n = n, .k = n->k, .c = c, .back = back };
    p->room = tokens;
    p->room_labels = labels;
    p->layer = calloc(c->layers, sizeof *p->layer);
    p->host = calloc(2 * tokens + 1, sizeof *p->host);
    p->host_loss = calloc(tokens + 1, sizeof *p->host_loss);
    if (!p->layer || !p->host || !p->host_loss)
        return err_set(n->err, ERR_MEMORY, "out of memory for a pass");
    p->ids = take(p, PART_OTHER, tokens * sizeof(int32_t));
    p->position = take(p, PART_OTHER, tokens * sizeof(int32_t));
    p->first = take(p, PART_OTHER, tokens * sizeof(int32_t));
    p->label = take(p, PART_OTHER, labels * sizeof(int32_t));
    p->index = take(p, PART_OTHER, labels * sizeof(int32_t));
    take_layers(p);
    p->h = work(p, tokens * c->hidden);
    p->top = work(p, tokens * c->hidden);
    p->s_top = work(p, tokens);
    p->norm = work(p, tokens * c->hidden);
    p->s = work(p, tokens);
    p->act = work(p, tokens * c->ffn);
    p->learnt = work(p, labels * c->hidden);
    p->rows = n->kind == NET_CE ? logit_rows(p) : 0;
    p->logits = take(p, PART_LOGITS, p->rows * c->vocab * sizeof(float));
    p->loss = work(p, labels);
    if (back)
        take_back(p);
    return n->err->kind ? -1 : 0;
}

static void
upload(struct pass *p, int32_t *to, const int32_t *from, size_t n)
{
    p->k->upload(p->k, to, from, n * sizeof *to);
}

/* ---- forward ------------------------------------------------------------------------------ */

static const struct weight *
weight(struct pass *p, enum role role, int layer)
{
    return &net_find(p->n, role, layer)->w;
}

static const float *
gain(struct pass *p, enum role role, int layer)
{
    return net_find(p->n, role, layer)->w.values;
}

static void
linear(struct pass *p, float *y, const float *x, enum role role, int layer, bool add)
{
    p->k->linear(p->k, y, x, weight(p, role, layer), p->tokens, add);
}

static void
norm(struct pass *p, const float *x, enum role role, int layer)
{
    p->k->norm(p->k, p->norm, p->s, x, gain(p, role, layer), p->tokens, p->c->hidden,
               (float)p->c->rms_eps);
}

/* Norm of each head, then rotation. */
static void
turn_heads(struct pass *p, float *out, float *scale, const float *in, enum role role,
           int layer, size_t heads)
{
    size_t dim = p->c->head_dim;
    p->k->norm(p->k, out, scale, in, gain(p, role, layer), p->tokens * heads, dim,
               (float)p->c->rms_eps);
    p->k->rope(p->k, out, p->n->rope, p->position, p->tokens, heads, dim, false);
}

static void
copy(struct pass *p, float *to, const float *from, size_t n)
{
    p->k->copy(p->k, to, from, n * sizeof *to);
}

/* key, value: of all tokens that these see; those of the past are there. */
static void
forward_layer(struct pass *p, int i, float *key, float *value)
{
    struct kernels *k = p->k;
    const struct config *c = p->c;
    struct kept *l = &p->layer[i];
    size_t t = p->tokens, behind = p->past * c->kv_heads * c->head_dim;
    norm(p, p->h, ROLE_INPUT_NORM, i);
    linear(p, l->q0, p->norm, ROLE_Q, i, false);
    linear(p, l->k0, p->norm, ROLE_K, i, false);
    linear(p, value + behind, p->norm, ROLE_V, i, false);
    turn_heads(p, l->q, l->sq, l->q0, ROLE_Q_NORM, i, c->heads);
    turn_heads(p, key + behind, l->sk, l->k0, ROLE_K_NORM, i, c->kv_heads);
    k->attention(k, l->att, l->lse, l->q, key, value, &p->heads);
    linear(p, p->h, l->att, ROLE_O, i, true);
    copy(p, l->h1, p->h, t * c->hidden);
    norm(p, p->h, ROLE_POST_NORM, i);
    linear(p, l->gate, p->norm, ROLE_GATE, i, false);
    linear(p, l->up, p->norm, ROLE_UP, i, false);
    k->swiglu(k, p->act, l->gate, l->up, t * c->ffn);
    linear(p, p->h, p->act, ROLE_DOWN, i, true);
}

static void
embed(struct pass *p)
{
    p->k->embed(p->k, p->h, weight(p, ROLE_EMBED, -1), p->ids, p->tokens);
}

static void
final_norm(struct pass *p)
{
    p->k->norm(p->k, p->top, p->s_top, p->h, gain(p, ROLE_FINAL_NORM, -1), p->tokens,
               p->c->hidden, (float)p->c->rms_eps);
}

static void
forward(struct pass *p)
{
    embed(p);
    for (uint32_t i = 0; i < p->c->layers; i++) {
        struct kept *l = &p->layer[i];
        copy(p, l->h0, p->h, p->tokens * p->c->hidden);
        forward_layer(p, (int)i, l->key, l->v);
    }
    final_norm(p);
}

/* ---- loss ----------------------------------------------------------------------------------- */

/* Of rows that have labels, some at a time: logits, on the way back their gradients. */
static void
cross_entropy(struct pass *p, float scale)
{
    struct kernels *k = p->k;
    enum role role = head_role(p->n);
    struct net_tensor *head = net_find(p->n, role, -1);
    size_t hidden = p->c->hidden, vocab = p->c->vocab;
    for (size_t at = 0; at < p->labels; at += p->rows) {
        size_t rows = p->labels - at < p->rows ? p->labels - at : p->rows;
        const float *top = p->learnt + at * hidden;
        k->linear(k, p->logits, top, &head->w, rows, false);
        k->cross_entropy(k, p->loss + at, p->logits, p->label + at, rows, vocab, scale);
        if (scale == 0)
            continue;
        k->linear_dx(k, p->dlearnt + at * hidden, p->logits, &head->w, rows, false);
        if (head->grad)
            k->linear_dw(k, head->grad, p->logits, top, vocab, hidden, rows);
    }
    if (scale != 0 && role == ROLE_HEAD)
        done(p, role, -1);
}

static void
scalar_loss(struct pass *p, float scale)
{
    struct net_tensor *e = net_find(p->n, ROLE_EMBED, -1);
    float *learns = scale != 0 && p->n->kind == NET_SEED ? e->grad : NULL;
    p->k->l1(p->k, p->loss, scale != 0 ? p->dlearnt : NULL, learns, p->learnt, &e->w,
             p->label, p->labels, scale);
}

/* Losses of the rows with labels; on the way back dn becomes the gradient of top. */
static void
losses(struct pass *p, float scale)
{
    struct kernels *k = p->k;
    size_t hidden = p->c->hidden;
    k->gather(k, p->learnt, p->top, p->index, p->labels, hidden);
    if (p->n->kind == NET_CE)
        cross_entropy(p, scale);
    else
        scalar_loss(p, scale);
    if (scale == 0)
        return;
    k->zero(k, p->dn, p->tokens * hidden * sizeof *p->dn);
    k->scatter(k, p->dn, p->dlearnt, p->index, p->labels, hidden);
}

/* Logits of the last `rows` positions, to the host. */
static void
all_logits(struct pass *p, size_t rows, float *logits)
{
    struct kernels *k = p->k;
    const struct weight *head = weight(p, head_role(p->n), -1);
    size_t hidden = p->c->hidden, vocab = p->c->vocab, from = p->tokens - rows;
    for (size_t at = 0; at < rows; at += p->rows) {
        size_t n = rows - at < p->rows ? rows - at : p->rows;
        k->linear(k, p->logits, p->top + (from + at) * hidden, head, n, false);
        k->download(k, logits + at * vocab, p->logits, n * vocab * sizeof *logits);
    }
}

/* ---- backward ------------------------------------------------------------------------------- */

/* dx (+)= dy W and the gradient of W. */
static void
back_linear(struct pass *p, enum role role, int layer, float *dx, const float *dy,
            const float *x, bool add)
{
    struct net_tensor *t = net_find(p->n, role, layer);
    p->k->linear_dx(p->k, dx, dy, &t->w, p->tokens, add);
    if (t->grad)
        p->k->linear_dw(p->k, t->grad, dy, x, t->w.out, t->w.in, p->tokens);
    done(p, role, layer);
}

static void
back_norm(struct pass *p, enum role role, int layer, float *dx, const float *dy,
          const float *x, const float *scale, size_t rows, size_t n, bool add)
{
    struct net_tensor *t = net_find(p->n, role, layer);
    p->k->norm_dx(p->k, dx, t->grad, dy, x, scale, t->w.values, rows, n, add);
    done(p, role, layer);
}

static void
back_heads(struct pass *p, float *d, const float *in, const float *scale,
           enum role role, int layer, size_t heads)
{
    size_t dim = p->c->head_dim;
    p->k->rope(p->k, d, p->n->rope, p->position, p->tokens, heads, dim, true);
    back_norm(p, role, layer, d, d, in, scale, p->tokens * heads, dim, false);
}

static void
backward_layer(struct pass *p, int i)
{
    struct kernels *k = p->k;
    const struct config *c = p->c;
    struct kept *l = &p->layer[i];
    size_t t = p->tokens;
    if (p->n->recompute) {
        copy(p, p->h, l->h0, t * c->hidden);
        forward_layer(p, i, l->key, l->v);
    }
    k->swiglu(k, p->act, l->gate, l->up, t * c->ffn);
    back_linear(p, ROLE_DOWN, i, p->dact, p->dh, p->act, false);
    k->swiglu_dx(k, l->gate, l->up, p->dact, t * c->ffn);
    norm(p, l->h1, ROLE_POST_NORM, i);
    back_linear(p, ROLE_GATE, i, p->dn, l->gate, p->norm, false);
    back_linear(p, ROLE_UP, i, p->dn, l->up, p->norm, true);
    back_norm(p, ROLE_POST_NORM, i, p->dh, p->dn, l->h1, p->s, t, c->hidden, true);
    back_linear(p, ROLE_O, i, p->datt, p->dh, l->att, false);
    k->attention_dx(k, p->dq, p->dk, p->dv, p->datt, l->att, l->lse, l->q, l->key, l->v,
                    &p->heads);
    back_heads(p, p->dq, l->q0, l->sq, ROLE_Q_NORM, i, c->heads);
    back_heads(p, p->dk, l->k0, l->sk, ROLE_K_NORM, i, c->kv_heads);
    norm(p, l->h0, ROLE_INPUT_NORM, i);
    back_linear(p, ROLE_Q, i, p->dn, p->dq, p->norm, false);
    back_linear(p, ROLE_K, i, p->dn, p->dk, p->norm, true);
    back_linear(p, ROLE_V, i, p->dn, p->dv, p->norm, true);
    back_norm(p, ROLE_INPUT_NORM, i, p->dh, p->dn, l->h0, p->s, t, c->hidden, true);
}

static void
backward(struct pass *p)
{
    struct net_tensor *embed = net_find(p->n, ROLE_EMBED, -1);
    size_t hidden = p->c->hidden;
    back_norm(p, ROLE_FINAL_NORM, -1, p->dh, p->dn, p->h, p->s_top, p->tokens, hidden,
              false);
    for (int i = (int)p->c->layers - 1; i >= (int)p->n->frozen; i--)
        backward_layer(p, i);
    if (embed->grad) {
        p->k->embed_dw(p->k, embed->grad, p->dh, p->ids, p->tokens, hidden);
        done(p, ROLE_EMBED, -1);
    }
}

/* ---- a pass ----------------------------------------------------------------------------------- */

/* What the device must know of the tokens. */
static int
begin(struct net *n, const struct net_batch *b, bool back, bool all)
{
    size_t labels = 0;
    for (size_t t = 0; t < b->tokens; t++)
        labels += b->label[t] >= 0;
    if (net_reserve(n, b->tokens, all && b->tokens ? b->tokens : labels, back) < 0)
        return -1;
    struct pass *p = n->pass;
    p->tokens = b->tokens;
    p->past = 0;
    p->labels = 0;
    for (size_t t = 0; t < b->tokens; t++)
        if (b->label[t] >= 0) {
            p->host[p->labels] = b->label[t];
            p->host[p->room + p->labels++] = (int32_t)t;
        }
    upload(p, p->ids, b->ids, b->tokens);
    upload(p, p->position, b->position, b->tokens);
    upload(p, p->first, b->first, b->tokens);
    upload(p, p->label, p->host, labels);
    upload(p, p->index, p->host + p->room, labels);
    p->heads = (struct heads){ .tokens = b->tokens,
                               .query = n->c.heads,
                               .kv = n->c.kv_heads,
                               .dim = n->c.head_dim,
                               .first = p->first };
    return 0;
}

int
net_pass(struct net *n, const struct net_batch *b, float scale, float *loss,
         float *logits)
{
    if (begin(n, b, scale != 0, logits != NULL) < 0)
        return -1;
    struct pass *p = n->pass;
    forward(p);
    if (logits)
        all_logits(p, p->tokens, logits);
    losses(p, scale);
    if (scale != 0)
        backward(p);
    if (n->k->download(n->k, p->host_loss, p->loss, p->labels * sizeof *loss) < 0)
        return -1;
    memset(loss, 0, b->tokens * sizeof *loss);
    for (size_t i = 0; i < p->labels; i++)
        loss[p->host[p->room + i]] = p->host_loss[i];
    return 0;
}

/* ---- with a cache ------------------------------------------------------------------------------- */

int
net_cache_open(struct net_cache *c, struct net *n, size_t room)
{
    size_t layers = n->c.layers, row = (size_t)n->c.kv_heads * n->c.head_dim;
    *c = (struct net_cache){ .n = n, .room = room };
    c->key = calloc(layers, sizeof *c->key);
    c->value = calloc(layers, sizeof *c->value);
    if (!c->key || !c->value)
        return err_set(n->err, ERR_MEMORY, "out of memory for a cache");
    n->k->part = PART_CACHE;
    for (size_t i = 0; i < layers; i++) {
        c->key[i] = n->k->alloc(n->k, room * row * sizeof(float));
        c->value[i] = n->k->alloc(n->k, room * row * sizeof(float));
    }
    return n->err->kind ? -1 : 0;
}

void
net_cache_close(struct net_cache *c)
{
    for (size_t i = 0; c->key && c->value && i < c->n->c.layers; i++) {
        c->n->k->release(c->n->k, c->key[i]);
        c->n->k->release(c->n->k, c->value[i]);
    }
    free(c->key);
    free(c->value);
    *c = (struct net_cache){ 0 };
}

/* One document, which began `past` tokens ago. */
static int
begin_extend(struct net *n, const struct net_cache *c, const int32_t *ids,
             size_t tokens, size_t rows)
{
    if (net_reserve(n, tokens, rows ? rows : 1, false) < 0)
        return -1;
    struct pass *p = n->pass;
    assert(c->used + tokens <= c->room && c->room <= n->positions && rows <= tokens);
    p->tokens = tokens;
    p->past = c->used;
    upload(p, p->ids, ids, tokens);
    for (size_t t = 0; t < tokens; t++)
        p->host[t] = (int32_t)(c->used + t);
    upload(p, p->position, p->host, tokens);
    p->k->zero(p->k, p->first, tokens * sizeof *p->first);
    p->heads = (struct heads){ .tokens = tokens,
                               .past = c->used,
                               .query = n->c.heads,
                               .kv = n->c.kv_heads,
                               .dim = n->c.head_dim,
                               .first = p->first };
    return 0;
}

int
net_extend(struct net *n, struct net_cache *c, const int32_t *ids, size_t tokens,
           size_t rows, float *logits, net_hidden_fn *hidden, void *ctx)
{
    size_t width = tokens * n->c.hidden;
    float *host = hidden ? malloc(width * sizeof *host) : NULL;
    if (hidden && !host)
        return err_set(n->err, ERR_MEMORY, "out of memory for hidden states");
    int rc = begin_extend(n, c, ids, tokens, rows);
    if (rc == 0)
        embed(n->pass);
    for (uint32_t i = 0; i < n->c.layers && rc == 0; i++) {
        forward_layer(n->pass, (int)i, c->key[i], c->value[i]);
        if (hidden) {
            rc = n->k->download(n->k, host, n->pass->h, width * sizeof *host);
            rc = rc < 0 ? rc : hidden(ctx, i, host, tokens);
        }
    }
    if (rc == 0) {
        final_norm(n->pass);
        all_logits(n->pass, rows, logits);
        c->used += tokens;
        rc = n->err->kind ? -1 : 0;
    }
    free(host);
    return rc;
}
