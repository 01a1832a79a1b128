/* SPDX-License-Identifier: MIT */
/* net: see net.h.  T tokens, C hidden, Q = heads * head_dim, K = kv_heads * head_dim, F
 * ffn, V vocabulary. */
#include "lib/model/net.h"

#include "lib/core/maths.h"

#include <stdlib.h>
#include <string.h>

/* What the way back needs of a layer. */
struct kept {
    float *h0, *n1, *s1;        // (T, C), (T, C), (T)
    float *q0, *k0, *v;         // before their norms: (T, Q), (T, K); (T, K)
    float *sq, *sk;             // (T * heads), (T * kv_heads)
    float *q, *key, *att, *lse; // after norm and rope; (T, Q); (heads, T)
    float *h1, *n2, *s2;        // (T, C), (T, C), (T)
    float *gate, *up, *act;     // (T, F)
};

struct pass {
    struct net *n;
    struct kernels *k;
    const struct config *c;
    size_t tokens;
    int32_t *ids, *label, *position, *first; // on the device
    struct heads heads;
    struct kept *layer;     // (layers)
    float *h, *top, *s_top; // last hidden state, normed; (T)
    float *dh, *dn, *dq, *dk, *dv, *datt, *dact;
    float *logits, *loss; // (rows, V), (T)
    size_t rows;          // of logits at a time
    void **owned;
    size_t n_owned, cap_owned;
};

enum { LOGITS = 1 << 22 }; // numbers of a chunk of logits

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

void
net_close(struct net *n)
{
    if (n->rope)
        n->k->release(n->k, n->rope);
    free(n->t);
    table_close(&n->table);
    *n = (struct net){ 0 };
}

struct net_tensor *
net_find(struct net *n, enum role role, int layer)
{
    for (size_t i = 0; i < n->table.n; i++)
        if (n->table.row[i].role == role && n->table.row[i].layer == layer)
            return &n->t[i];
    return NULL;
}

/* The head is the embedding where the model is tied. */
static struct net_tensor *
head_of(struct net *n)
{
    return n->c.tied ? net_find(n, ROLE_EMBED, -1) : net_find(n, ROLE_HEAD, -1);
}

/* ---- memory ------------------------------------------------------------------------------ */

static void *
take(struct pass *p, size_t bytes)
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
    void *m = p->k->alloc(p->k, bytes);
    if (m)
        p->owned[p->n_owned++] = m;
    return m;
}

static float *
floats(struct pass *p, size_t n)
{
    return take(p, n * sizeof(float));
}

static int32_t *
numbers(struct pass *p, const int32_t *host)
{
    int32_t *d = take(p, p->tokens * sizeof *d);
    if (d)
        p->k->upload(p->k, d, host, p->tokens * sizeof *d);
    return d;
}

static void
take_layer(struct pass *p, struct kept *l)
{
    const struct config *c = p->c;
    size_t t = p->tokens, q = (size_t)c->heads * c->head_dim,
           kv = (size_t)c->kv_heads * c->head_dim;
    *l = (struct kept){ .h0 = floats(p, t * c->hidden),
                        .n1 = floats(p, t * c->hidden),
                        .s1 = floats(p, t),
                        .q0 = floats(p, t * q),
                        .k0 = floats(p, t * kv),
                        .v = floats(p, t * kv),
                        .sq = floats(p, t * c->heads),
                        .sk = floats(p, t * c->kv_heads),
                        .q = floats(p, t * q),
                        .key = floats(p, t * kv),
                        .att = floats(p, t * q),
                        .lse = floats(p, t * c->heads),
                        .h1 = floats(p, t * c->hidden),
                        .n2 = floats(p, t * c->hidden),
                        .s2 = floats(p, t),
                        .gate = floats(p, t * c->ffn),
                        .up = floats(p, t * c->ffn),
                        .act = floats(p, t * c->ffn) };
}

static int
begin(struct pass *p, struct net *n, const struct net_batch *b, bool back)
{
    const struct config *c = &n->c;
    size_t t = b->tokens, q = (size_t)c->heads * c->head_dim,
           kv = (size_t)c->kv_heads * c->head_dim;
    *p = (struct pass){ .n = n, .k = n->k, .c = c, .tokens = t };
    p->layer = calloc(c->layers, sizeof *p->layer);
    if (!p->layer)
        return err_set(n->err, ERR_MEMORY, "out of memory for a pass");
    p->ids = numbers(p, b->ids);
    p->label = numbers(p, b->label);
    p->position = numbers(p, b->position);
    p->first = numbers(p, b->first);
    p->heads = (struct heads){ t, 0, c->heads, c->kv_heads, c->head_dim, p->first };
    for (uint32_t l = 0; l < c->layers; l++)
        take_layer(p, &p->layer[l]);
    p->h = floats(p, t * c->hidden);
    p->top = floats(p, t * c->hidden);
    p->s_top = floats(p, t);
    p->rows = LOGITS / c->vocab + 1 < t ? LOGITS / c->vocab + 1 : t;
    p->logits = floats(p, p->rows * c->vocab);
    p->loss = floats(p, t);
    if (back) {
        p->dh = floats(p, t * c->hidden);
        p->dn = floats(p, t * c->hidden);
        p->dq = floats(p, t * q);
        p->dk = floats(p, t * kv);
        p->dv = floats(p, t * kv);
        p->datt = floats(p, t * q);
        p->dact = floats(p, t * c->ffn);
    }
    return n->err->kind ? -1 : 0;
}

static void
end(struct pass *p)
{
    for (size_t i = 0; i < p->n_owned; i++)
        p->k->release(p->k, p->owned[i]);
    free(p->owned);
    free(p->layer);
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

/* Norm of each head, then rotation. */
static void
turn_heads(struct pass *p, float *out, float *scale, const float *in, enum role norm,
           int layer, size_t heads)
{
    size_t dim = p->c->head_dim;
    p->k->norm(p->k, out, scale, in, gain(p, norm, layer), p->tokens * heads, dim,
               (float)p->c->rms_eps);
    p->k->rope(p->k, out, p->n->rope, p->position, p->tokens, heads, dim, false);
}

static void
copy(struct pass *p, float *to, const float *from, size_t n)
{
    p->k->copy(p->k, to, from, n * sizeof *to);
}

static void
forward_layer(struct pass *p, int i)
{
    struct kernels *k = p->k;
    const struct config *c = p->c;
    struct kept *l = &p->layer[i];
    size_t t = p->tokens, width = t * c->hidden;
    float eps = (float)c->rms_eps;
    copy(p, l->h0, p->h, width);
    k->norm(k, l->n1, l->s1, l->h0, gain(p, ROLE_INPUT_NORM, i), t, c->hidden, eps);
    k->linear(k, l->q0, l->n1, weight(p, ROLE_Q, i), t, false);
    k->linear(k, l->k0, l->n1, weight(p, ROLE_K, i), t, false);
    k->linear(k, l->v, l->n1, weight(p, ROLE_V, i), t, false);
    turn_heads(p, l->q, l->sq, l->q0, ROLE_Q_NORM, i, c->heads);
    turn_heads(p, l->key, l->sk, l->k0, ROLE_K_NORM, i, c->kv_heads);
    k->attention(k, l->att, l->lse, l->q, l->key, l->v, &p->heads);
    k->linear(k, p->h, l->att, weight(p, ROLE_O, i), t, true);
    copy(p, l->h1, p->h, width);
    k->norm(k, l->n2, l->s2, l->h1, gain(p, ROLE_POST_NORM, i), t, c->hidden, eps);
    k->linear(k, l->gate, l->n2, weight(p, ROLE_GATE, i), t, false);
    k->linear(k, l->up, l->n2, weight(p, ROLE_UP, i), t, false);
    k->swiglu(k, l->act, l->gate, l->up, t * c->ffn);
    k->linear(k, p->h, l->act, weight(p, ROLE_DOWN, i), t, true);
}

static void
forward(struct pass *p)
{
    struct kernels *k = p->k;
    const struct config *c = p->c;
    k->embed(k, p->h, weight(p, ROLE_EMBED, -1), p->ids, p->tokens);
    for (uint32_t i = 0; i < c->layers; i++)
        forward_layer(p, (int)i);
    k->norm(k, p->top, p->s_top, p->h, gain(p, ROLE_FINAL_NORM, -1), p->tokens,
            c->hidden, (float)c->rms_eps);
}

/* ---- loss ----------------------------------------------------------------------------------- */

/* Logits of some rows at a time; on the way back they become their own gradients. */
static void
losses(struct pass *p, float scale, float *logits)
{
    struct kernels *k = p->k;
    struct net_tensor *head = head_of(p->n);
    size_t hidden = p->c->hidden, vocab = p->c->vocab;
    for (size_t at = 0; at < p->tokens; at += p->rows) {
        size_t rows = p->tokens - at < p->rows ? p->tokens - at : p->rows;
        const float *top = p->top + at * hidden;
        k->linear(k, p->logits, top, &head->w, rows, false);
        if (logits)
            k->download(k, logits + at * vocab, p->logits,
                        rows * vocab * sizeof *logits);
        k->cross_entropy(k, p->loss + at, p->logits, p->label + at, rows, vocab, scale);
        if (scale == 0)
            continue;
        k->linear_dx(k, p->dn + at * hidden, p->logits, &head->w, rows, false);
        if (head->grad)
            k->linear_dw(k, head->grad, p->logits, top, vocab, hidden, rows);
    }
}

/* ---- backward ------------------------------------------------------------------------------- */

/* dx (+)= dy W and the gradient of W. */
static void
back_linear(struct pass *p, enum role role, int layer, float *dx, const float *dy,
            const float *x, bool add)
{
    struct net_tensor *t = net_find(p->n, role, layer);
    if (dx)
        p->k->linear_dx(p->k, dx, dy, &t->w, p->tokens, add);
    if (t->grad)
        p->k->linear_dw(p->k, t->grad, dy, x, t->w.out, t->w.in, p->tokens);
}

static void
back_norm(struct pass *p, enum role role, int layer, float *dx, const float *dy,
          const float *x, const float *scale, size_t rows, size_t n, bool add)
{
    struct net_tensor *t = net_find(p->n, role, layer);
    p->k->norm_dx(p->k, dx, t->grad, dy, x, scale, t->w.values, rows, n, add);
}

static void
back_heads(struct pass *p, float *d, const float *in, const float *scale,
           enum role norm, int layer, size_t heads)
{
    size_t dim = p->c->head_dim;
    p->k->rope(p->k, d, p->n->rope, p->position, p->tokens, heads, dim, true);
    back_norm(p, norm, layer, d, d, in, scale, p->tokens * heads, dim, false);
}

static void
backward_layer(struct pass *p, int i)
{
    struct kernels *k = p->k;
    const struct config *c = p->c;
    struct kept *l = &p->layer[i];
    size_t t = p->tokens;
    back_linear(p, ROLE_DOWN, i, p->dact, p->dh, l->act, false);
    k->swiglu_dx(k, l->gate, l->up, p->dact, t * c->ffn);
    back_linear(p, ROLE_GATE, i, p->dn, l->gate, l->n2, false);
    back_linear(p, ROLE_UP, i, p->dn, l->up, l->n2, true);
    back_norm(p, ROLE_POST_NORM, i, p->dh, p->dn, l->h1, l->s2, t, c->hidden, true);
    back_linear(p, ROLE_O, i, p->datt, p->dh, l->att, false);
    k->attention_dx(k, p->dq, p->dk, p->dv, p->datt, l->att, l->lse, l->q, l->key, l->v,
                    &p->heads);
    back_heads(p, p->dq, l->q0, l->sq, ROLE_Q_NORM, i, c->heads);
    back_heads(p, p->dk, l->k0, l->sk, ROLE_K_NORM, i, c->kv_heads);
    back_linear(p, ROLE_Q, i, p->dn, p->dq, l->n1, false);
    back_linear(p, ROLE_K, i, p->dn, p->dk, l->n1, true);
    back_linear(p, ROLE_V, i, p->dn, p->dv, l->n1, true);
    back_norm(p, ROLE_INPUT_NORM, i, p->dh, p->dn, l->h0, l->s1, t, c->hidden, true);
}

static void
backward(struct pass *p)
{
    struct net_tensor *embed = net_find(p->n, ROLE_EMBED, -1);
    size_t hidden = p->c->hidden;
    back_norm(p, ROLE_FINAL_NORM, -1, p->dh, p->dn, p->h, p->s_top, p->tokens, hidden,
              false);
    for (int i = (int)p->c->layers - 1; i >= 0; i--)
        backward_layer(p, i);
    if (embed->grad)
        p->k->embed_dw(p->k, embed->grad, p->dh, p->ids, p->tokens, hidden);
}

int
net_pass(struct net *n, const struct net_batch *b, float scale, float *loss,
         float *logits)
{
    struct pass p;
    int rc = begin(&p, n, b, scale != 0);
    if (rc == 0) {
        forward(&p);
        losses(&p, scale, logits);
        if (scale != 0)
            backward(&p);
        rc = n->k->download(n->k, loss, p.loss, b->tokens * sizeof *loss);
    }
    end(&p);
    return rc;
}
