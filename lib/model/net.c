/* SPDX-License-Identifier: MIT */
/* net: see net.h.  T tokens, C hidden, Q = heads * head_dim, K = kv_heads * head_dim, F
 * ffn, V vocabulary. */
#include "lib/model/net.h"

#include "lib/core/maths.h"
#include "lib/core/num.h"
#include "lib/nvfp4/tiles.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* What the way back needs of a layer, besides what it computes again: norms and the
 * product of gate and up. */
struct kept {
    void *h0;             // (T, C), the layer's input
    float *s0, *s1;       // (T), of h0's norm and of h1's
    void *q0, *k0, *v;    // before their norms: (T, Q), (T, K); (T, K)
    float *sq, *sk;       // (T * heads), (T * kv_heads)
    void *q, *key;        // after norm and rope
    void *att;            // (T, Q)
    float *lse;           // (heads, T)
    void *h1, *gate, *up; // (T, C), (T, F)
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
    struct kept *layer;    // (layers); with recompute all but h0 is one memory
    void *h, *top;         // last hidden state, normed
    float *s_top;          // (T)
    void *norm, *act;      // (T, C), (T, F)
    struct packed_rows in; // what products take of them, if that is quantized
    void *dh, *dn, *dact;  // (T, C), (T, F)
    void *dgate_up;    // (T, 2 F): columns of gate, up; in memory that datt, dqkv and
    void *datt, *dqkv; // act have, too.  (T, Q), (T, Q + 2 K): of queries, keys, values
    float *delta;      // (heads, T)
    void *learnt, *dlearnt; // rows of top that have labels
    void *logits;           // (rows, V)
    float *loss;            // (labels)
    size_t rows;            // of logits at a time
    int32_t *host;          // (2, T) labels and their rows
    float *host_loss;       // (T)
    void **owned;
    size_t n_owned, cap_owned;
};

enum { TILE = 256 }; // rows of a product that devices like

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
    if (p->n->done && p->n->t[row].grad.values)
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

/* Activations, and numbers that are f32 on every device. */
static void *
work(struct pass *p, size_t n)
{
    return take(p, PART_WORK, n * kernels_act(p->k));
}

static float *
work_f32(struct pass *p, size_t n)
{
    return take(p, PART_WORK, n * sizeof(float));
}

static void *
keep(struct pass *p, size_t n)
{
    return take(p, PART_KEPT, n * kernels_act(p->k));
}

static float *
keep_f32(struct pass *p, size_t n)
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
                        .s0 = keep_f32(p, t),
                        .s1 = keep_f32(p, t),
                        .q0 = keep(p, t * q),
                        .k0 = keep(p, t * kv),
                        .v = keep(p, t * kv),
                        .sq = keep_f32(p, t * c->heads),
                        .sk = keep_f32(p, t * c->kv_heads),
                        .q = keep(p, t * q),
                        .key = keep(p, t * kv),
                        .att = keep(p, t * q),
                        .lse = keep_f32(p, t * c->heads),
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

/* A pointer to activation n of those at p. */
static void *
at(const struct pass *p, void *activations, size_t n)
{
    return (char *)activations + n * kernels_act(p->k);
}

/* What is never there at the same time: on the way to a layer's output what `down` takes,
 * on the way back the gradients of gate and up, and after them those of attention. */
static void
take_in_turn(struct pass *p)
{
    const struct config *c = p->c;
    size_t t = p->room, q = (size_t)c->heads * c->head_dim,
           kv = (size_t)c->kv_heads * c->head_dim;
    size_t qkv = (size_t)round_up(t * (q + 2 * kv), TABLE_ALIGN), two = t * 2 * c->ffn;
    if (!p->back) {
        p->act = work(p, t * c->ffn);
        return;
    }
    p->act = p->dgate_up = p->dqkv = work(p, two > qkv + t * q ? two : qkv + t * q);
    p->datt = p->dqkv ? at(p, p->dqkv, qkv) : NULL;
}

static void
take_back(struct pass *p)
{
    const struct config *c = p->c;
    size_t t = p->room;
    p->dh = work(p, t * c->hidden);
    p->dn = work(p, t * c->hidden);
    p->dact = work(p, t * c->ffn);
    p->delta = work_f32(p, t * c->heads);
    p->dlearnt = work(p, p->room_labels * c->hidden);
}

/* What products take in, as NVFP4: the widest of their inputs. */
static void
take_packed_rows(struct pass *p)
{
    const struct config *c = p->c;
    struct packed_rows *in = &p->in;
    size_t wide = (size_t)c->heads * c->head_dim;
    wide = wide > c->hidden ? wide : c->hidden;
    wide = wide > c->ffn ? wide : c->ffn;
    in->scale2 = work_f32(p, p->room);
    if (p->k->is.fp4 == FP4_EXPANDED) {
        in->expanded = work(p, p->room * wide);
        return;
    }
    // Native products go to the end of a tile.
    size_t rows = p->k->is.fp4 == FP4_NATIVE ? tiles_rows(p->room) : p->room;
    in->codes = take(p, PART_WORK, rows * wide / 2);
    in->scales = take(p, PART_WORK, rows * wide / NVFP4_BLOCK);
    if (p->k->is.fp4 == FP4_NATIVE)
        in->tiles = take(p, PART_WORK, tiles_bytes(rows, wide / NVFP4_BLOCK));
}

static size_t
logit_rows(const struct pass *p)
{
    size_t rows = p->k->is.logits / p->c->vocab + 1;
    rows = rows > TILE ? rows - rows % TILE : rows;
    return rows < p->room_labels ? rows : p->room_labels;
}

/* A chunk of activations, or a row of f32. */
static size_t
logits_bytes(const struct pass *p)
{
    size_t bytes = p->rows * p->c->vocab * kernels_act(p->k);
    size_t row = p->rows ? p->c->vocab * sizeof(float) : 0;
    return bytes > row ? bytes : row;
}

/* How many rows of f32 it holds. */
static size_t
rows_f32(const struct pass *p)
{
    return logits_bytes(p) / (p->c->vocab * sizeof(float));
}

/* Whether the sizes of a pass are numbers: no array of it has more than 4 times the widest
 * row a position, in 4 bytes each. */
static bool
pass_fits(const struct config *c, size_t tokens)
{
    uint64_t widest = (uint64_t)c->heads * c->head_dim, bytes;
    widest = c->ffn > widest ? c->ffn : widest;
    widest = c->vocab > widest ? c->vocab : widest;
    widest = c->hidden > widest ? c->hidden : widest;
    return mul_fits(&bytes, 16 * widest, tokens, INT64_MAX);
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
    if (!pass_fits(c, tokens))
        return err_set(n->err, ERR_MEMORY,
                       "a pass of %zu positions has more than 2^63 bytes", tokens);
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
    p->s_top = work_f32(p, tokens);
    p->norm = work(p, tokens * c->hidden);
    take_in_turn(p);
    if (n->activations)
        take_packed_rows(p);
    p->learnt = work(p, labels * c->hidden);
    p->rows = n->kind == NET_CE ? logit_rows(p) : 0;
    p->logits = take(p, PART_LOGITS, logits_bytes(p));
    p->loss = work_f32(p, labels);
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

/* What products take in, as NVFP4. */
static void
quantize_in(struct pass *p, const void *x, size_t width)
{
    p->in.rows = p->tokens;
    p->in.in = width;
    p->k->quantize_rows(p->k, &p->in, x, p->n->activations);
}

/* y = x W' + c */
static void
linear(struct pass *p, void *y, const void *x, enum role role, int layer, const void *c)
{
    const struct weight *w = weight(p, role, layer);
    if (!p->n->activations) {
        p->k->linear(p->k, y, x, w, p->tokens, c);
        return;
    }
    quantize_in(p, x, w->in);
    p->k->linear_fp4(p->k, y, &p->in, w, c);
}

/* y[i] = x W[i]' */
static void
linears(struct pass *p, void *const *y, const void *x, const enum role *role, size_t n,
        int layer)
{
    const struct weight *w[LINEAR_MANY];
    for (size_t i = 0; i < n; i++)
        w[i] = weight(p, role[i], layer);
    if (!p->n->activations) {
        p->k->linear_many(p->k, y, x, w, n, p->tokens);
        return;
    }
    quantize_in(p, x, w[0]->in);
    for (size_t i = 0; i < n; i++)
        p->k->linear_fp4(p->k, y[i], &p->in, w[i], NULL);
}

static void
norm(struct pass *p, float *scale, const void *x, enum role role, int layer)
{
    p->k->norm(p->k, p->norm, scale, x, gain(p, role, layer), p->tokens, p->c->hidden,
               (float)p->c->rms_eps);
}

static struct turn
turning(const struct pass *p, size_t heads)
{
    return (struct turn){ .table = p->n->rope,
                          .position = p->position,
                          .tokens = p->tokens,
                          .heads = heads,
                          .dim = p->c->head_dim,
                          .eps = (float)p->c->rms_eps };
}

/* Norm of each head, then rotation. */
static void
turn_heads(struct pass *p, void *out, float *scale, const void *in, enum role role,
           int layer, size_t heads)
{
    struct turn t = turning(p, heads);
    p->k->turn(p->k, out, scale, in, gain(p, role, layer), &t);
}

/* From h0 to h1 and, before the last product, what the rest takes.  key, value: of all
 * tokens that these see; those of the past are there. */
static void
most_of_layer(struct pass *p, int i, void *key, void *value)
{
    const struct config *c = p->c;
    struct kept *l = &p->layer[i];
    size_t behind = p->past * c->kv_heads * c->head_dim;
    void *const qkv[] = { l->q0, l->k0, at(p, value, behind) };
    void *const gate_up[] = { l->gate, l->up };
    norm(p, l->s0, l->h0, ROLE_INPUT_NORM, i);
    linears(p, qkv, p->norm, (const enum role[]){ ROLE_Q, ROLE_K, ROLE_V }, 3, i);
    turn_heads(p, l->q, l->sq, l->q0, ROLE_Q_NORM, i, c->heads);
    turn_heads(p, at(p, key, behind), l->sk, l->k0, ROLE_K_NORM, i, c->kv_heads);
    p->k->attention(p->k, l->att, l->lse, l->q, key, value, &p->heads);
    linear(p, l->h1, l->att, ROLE_O, i, l->h0);
    norm(p, l->s1, l->h1, ROLE_POST_NORM, i);
    linears(p, gate_up, p->norm, (const enum role[]){ ROLE_GATE, ROLE_UP }, 2, i);
}

/* To `out`, which may be the layer's input. */
static void
forward_layer(struct pass *p, int i, void *key, void *value, void *out)
{
    struct kept *l = &p->layer[i];
    most_of_layer(p, i, key, value);
    p->k->swiglu(p->k, p->act, l->gate, l->up, p->tokens * p->c->ffn);
    linear(p, out, p->act, ROLE_DOWN, i, l->h1);
}

/* Where layer i finds its input; the last one's output is h. */
static void *
input_of(struct pass *p, uint32_t i)
{
    return i < p->c->layers ? p->layer[i].h0 : p->h;
}

static void
embed(struct pass *p)
{
    p->k->embed(p->k, input_of(p, 0), weight(p, ROLE_EMBED, -1), p->ids, p->tokens);
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
        forward_layer(p, (int)i, l->key, l->v, input_of(p, i + 1));
    }
    final_norm(p);
}

/* ---- loss ----------------------------------------------------------------------------------- */

/* As few chunks as there must be, about equal. */
static size_t
even_rows(const struct pass *p)
{
    size_t chunks = (p->labels + p->rows - 1) / p->rows;
    size_t rows = chunks ? (p->labels + chunks - 1) / chunks : 1;
    size_t whole = (rows + TILE - 1) / TILE * TILE;
    return whole <= p->rows ? whole : rows;
}

/* Of rows that have labels, some at a time: logits, on the way back their gradients. */
static void
cross_entropy(struct pass *p, float scale)
{
    struct kernels *k = p->k;
    enum role role = head_role(p->n);
    struct net_tensor *head = net_find(p->n, role, -1);
    size_t hidden = p->c->hidden, vocab = p->c->vocab, most = even_rows(p);
    for (size_t r = 0; r < p->labels; r += most) {
        size_t rows = p->labels - r < most ? p->labels - r : most;
        const void *top = at(p, p->learnt, r * hidden);
        k->linear(k, p->logits, top, &head->w, rows, NULL);
        k->cross_entropy(k, p->loss + r, p->logits, p->label + r, rows, vocab, scale);
        if (scale == 0)
            continue;
        k->linear_dx(k, at(p, p->dlearnt, r * hidden), p->logits, &head->w, rows, NULL);
        if (head->grad.values)
            k->linear_dw(k, &head->grad, p->logits, top, vocab, hidden, rows,
                         p->n->add || r > 0);
    }
    if (scale != 0 && role == ROLE_HEAD)
        done(p, role, -1);
}

static void
scalar_loss(struct pass *p, float scale)
{
    struct net_tensor *e = net_find(p->n, ROLE_EMBED, -1);
    float *learns = scale != 0 && p->n->kind == NET_SEED ? e->grad.values : NULL;
    p->k->l1(p->k, p->loss, scale != 0 ? p->dlearnt : NULL, learns, p->learnt, &e->w,
             p->label, p->labels, scale);
}

/* Nothing but rows grows in the gradient of an embedding that is not the head. */
static void
clear_rows(struct pass *p)
{
    struct net *n = p->n;
    bool product = n->kind == NET_CE && p->labels;
    for (size_t i = 0; i < n->table.n && !n->add; i++) {
        const struct row *r = &n->table.row[i];
        bool written = product && r->role == head_role(n);
        if ((r->role == ROLE_EMBED || r->role == ROLE_HEAD) && n->t[i].grad.values &&
            !written)
            n->k->zero(n->k, n->t[i].grad.values, (size_t)r->numel * sizeof(float));
    }
}

/* Losses of the rows with labels; on the way back dn becomes the gradient of top. */
static void
losses(struct pass *p, float scale)
{
    struct kernels *k = p->k;
    size_t hidden = p->c->hidden;
    k->gather(k, p->learnt, p->top, p->index, p->labels, hidden);
    if (scale != 0)
        clear_rows(p);
    if (p->n->kind == NET_CE)
        cross_entropy(p, scale);
    else
        scalar_loss(p, scale);
    if (scale == 0)
        return;
    k->zero(k, p->dn, p->tokens * hidden * kernels_act(k));
    k->scatter(k, p->dn, p->dlearnt, p->index, p->labels, hidden);
}

/* Logits of the last `rows` positions, to the host. */
static void
all_logits(struct pass *p, size_t rows, float *logits)
{
    struct kernels *k = p->k;
    const struct weight *head = weight(p, head_role(p->n), -1);
    size_t hidden = p->c->hidden, vocab = p->c->vocab, from = p->tokens - rows;
    for (size_t r = 0, most = rows_f32(p); r < rows; r += most) {
        size_t n = rows - r < most ? rows - r : most;
        k->logits(k, p->logits, at(p, p->top, (from + r) * hidden), head, n);
        k->download(k, logits + r * vocab, p->logits, n * vocab * sizeof *logits);
    }
}

/* ---- backward ------------------------------------------------------------------------------- */

/* The gradient of W; nothing looks at W any more. */
static void
learn(struct pass *p, enum role role, int layer, const void *dy, const void *x)
{
    struct net_tensor *t = net_find(p->n, role, layer);
    if (t->grad.values)
        p->k->linear_dw(p->k, &t->grad, dy, x, t->w.out, t->w.in, p->tokens, p->n->add);
    done(p, role, layer);
}

/* What a product took of x, of that width: x itself, or in `room`, which may be x, what it
 * was after quantizing. */
static const void *
taken(struct pass *p, void *room, const void *x, size_t width)
{
    if (!p->n->activations)
        return x;
    quantize_in(p, x, width);
    p->k->unpack_rows(p->k, room, &p->in);
    return room;
}

/* dx = dy W + c and the gradient of W. */
static void
back_linear(struct pass *p, enum role role, int layer, void *dx, const void *dy,
            const void *x, const void *c)
{
    p->k->linear_dx(p->k, dx, dy, weight(p, role, layer), p->tokens, c);
    learn(p, role, layer, dy, x);
}

/* dx of several weights that took one x; dy: the gradients' columns of each. */
static void
back_linears(struct pass *p, const enum role *role, size_t n, int layer, void *dx,
             const void *dy)
{
    const struct weight *w[LINEAR_MANY];
    for (size_t i = 0; i < n; i++)
        w[i] = weight(p, role[i], layer);
    p->k->linear_many_dx(p->k, dx, dy, w, n, p->tokens, NULL);
}

/* And their own gradients. */
static void
learn_all(struct pass *p, const enum role *role, size_t n, int layer, const void *dy,
          const void *x)
{
    const struct weight *w[LINEAR_MANY];
    const struct grad *grad[LINEAR_MANY];
    bool wanted = true;
    for (size_t i = 0; i < n; i++) {
        struct net_tensor *t = net_find(p->n, role[i], layer);
        w[i] = &t->w;
        grad[i] = &t->grad;
        wanted = wanted && t->grad.values;
    }
    if (wanted)
        p->k->linear_many_dw(p->k, grad, dy, x, w, n, p->tokens, p->n->add);
    for (size_t i = 0; i < n; i++)
        done(p, role[i], layer);
}

/* The gradient of a norm's gain, from nothing if it is not added to. */
static float *
gain_grad(struct pass *p, struct net_tensor *t)
{
    if (t->grad.values && !p->n->add)
        p->k->zero(p->k, t->grad.values, t->w.in * sizeof(float));
    return t->grad.values;
}

/* y: NULL, or where the norm comes once more, which reads x anyway. */
static void
back_norm(struct pass *p, enum role role, int layer, void *dx, void *y, const void *dy,
          const void *x, const float *scale, const void *c)
{
    struct net_tensor *t = net_find(p->n, role, layer);
    p->k->norm_dx(p->k, dx, gain_grad(p, t), y, dy, x, scale, t->w.values, p->tokens,
                  p->c->hidden, c);
    done(p, role, layer);
}

/* d: columns of dqkv. */
static void
back_heads(struct pass *p, void *d, const void *in, const float *scale, enum role role,
           int layer, size_t heads)
{
    struct net_tensor *t = net_find(p->n, role, layer);
    struct turn turn = turning(p, heads);
    turn.row = p->heads.row;
    p->k->turn_dx(p->k, d, gain_grad(p, t), in, scale, t->w.values, &turn);
    done(p, role, layer);
}

static void
backward_layer(struct pass *p, int i)
{
    struct kernels *k = p->k;
    const struct config *c = p->c;
    struct kept *l = &p->layer[i];
    size_t q = (size_t)c->heads * c->head_dim, kv = (size_t)c->kv_heads * c->head_dim;
    void *dq = p->dqkv, *dk = at(p, dq, q), *dv = at(p, dk, kv);
    const enum role qkv[] = { ROLE_Q, ROLE_K, ROLE_V };
    const enum role gate_up[] = { ROLE_GATE, ROLE_UP };
    const void *in;
    if (p->n->recompute) // ends with the norm of h1
        most_of_layer(p, i, l->key, l->v);
    k->linear_dx(k, p->dact, p->dh, weight(p, ROLE_DOWN, i), p->tokens, NULL);
    k->swiglu_dx(k, p->dgate_up, p->dact, l->gate, l->up, p->tokens, c->ffn);
    learn(p, ROLE_DOWN, i, p->dh, taken(p, p->dact, p->dact, c->ffn));
    back_linears(p, gate_up, 2, i, p->dn, p->dgate_up);
    back_norm(p, ROLE_POST_NORM, i, p->dh, p->n->recompute ? NULL : p->norm, p->dn,
              l->h1, l->s1, p->dh);
    in = taken(p, p->norm, p->norm, c->hidden);
    learn_all(p, gate_up, 2, i, p->dgate_up, in);
    in = taken(p, p->dqkv, l->att, q); // what will be there is not yet
    back_linear(p, ROLE_O, i, p->datt, p->dh, in, NULL);
    k->attention_dx(k, dq, dk, dv, p->datt, l->att, l->lse, l->q, l->key, l->v,
                    p->delta, &p->heads);
    back_heads(p, dq, l->q0, l->sq, ROLE_Q_NORM, i, c->heads);
    back_heads(p, dk, l->k0, l->sk, ROLE_K_NORM, i, c->kv_heads);
    back_linears(p, qkv, 3, i, p->dn, p->dqkv);
    back_norm(p, ROLE_INPUT_NORM, i, p->dh, p->norm, p->dn, l->h0, l->s0, p->dh);
    in = taken(p, p->norm, p->norm, c->hidden);
    learn_all(p, qkv, 3, i, p->dqkv, in);
}

static void
backward(struct pass *p)
{
    struct net_tensor *embed = net_find(p->n, ROLE_EMBED, -1);
    back_norm(p, ROLE_FINAL_NORM, -1, p->dh, NULL, p->dn, p->h, p->s_top, NULL);
    for (int i = (int)p->c->layers - 1; i >= (int)p->n->frozen; i--)
        backward_layer(p, i);
    if (embed->grad.values) {
        p->k->embed_dw(p->k, embed->grad.values, p->dh, p->ids, p->tokens,
                       p->c->hidden);
        done(p, ROLE_EMBED, -1);
    }
}

/* ---- a pass ----------------------------------------------------------------------------------- */

/* Of each document, if all have the same; else 0. */
static size_t
length_of(const struct net_batch *b)
{
    size_t length = 1;
    while (length < b->tokens && b->first[length] == b->first[0])
        length++;
    for (size_t t = 0; t < b->tokens; t++)
        if ((size_t)b->first[t] != t - t % length)
            return 0;
    return b->tokens % length ? 0 : length;
}

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
                               .first = p->first,
                               .length = length_of(b),
                               .row = (n->c.heads + 2 * (size_t)n->c.kv_heads) *
                                      n->c.head_dim };
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
    uint64_t bytes;
    *c = (struct net_cache){ .n = n, .room = room };
    if (!mul_fits(&bytes, room, sizeof(float) * row, INT64_MAX))
        return err_set(n->err, ERR_MEMORY,
                       "a cache of %zu positions has more than 2^63 bytes", room);
    c->key = calloc(layers, sizeof *c->key);
    c->value = calloc(layers, sizeof *c->value);
    if (!c->key || !c->value)
        return err_set(n->err, ERR_MEMORY, "out of memory for a cache");
    n->k->part = PART_CACHE;
    for (size_t i = 0; i < layers; i++) {
        c->key[i] = n->k->alloc(n->k, room * row * kernels_act(n->k));
        c->value[i] = n->k->alloc(n->k, room * row * kernels_act(n->k));
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

/* Activations as f32 on the host; the memory for the way is what is not in use. */
static int
look(struct pass *p, float *host, const void *x, size_t n)
{
    struct kernels *k = p->k;
    size_t step = rows_f32(p) * p->c->vocab;
    for (size_t i = 0; i < n; i += step) {
        size_t part = n - i < step ? n - i : step;
        k->convert(k, p->logits, (const char *)x + i * kernels_act(k), k->is.act, part);
        if (k->download(k, host + i, p->logits, part * sizeof *host) < 0)
            return -1;
    }
    return 0;
}

/* The tokens through all layers: top is there then. */
static int
extend(struct net *n, struct net_cache *c, const int32_t *ids, size_t tokens,
       size_t rows, net_hidden_fn *hidden, void *ctx)
{
    size_t width = tokens * n->c.hidden;
    float *host = hidden ? malloc(width * sizeof *host) : NULL;
    if (hidden && !host)
        return err_set(n->err, ERR_MEMORY, "out of memory for hidden states");
    int rc = begin_extend(n, c, ids, tokens, rows);
    if (rc == 0)
        embed(n->pass);
    for (uint32_t i = 0; i < n->c.layers && rc == 0; i++) {
        void *out = input_of(n->pass, i + 1);
        forward_layer(n->pass, (int)i, c->key[i], c->value[i], out);
        if (hidden) {
            rc = look(n->pass, host, out, width);
            rc = rc < 0 ? rc : hidden(ctx, i, host, tokens);
        }
    }
    if (rc == 0) {
        final_norm(n->pass);
        c->used += tokens;
        rc = n->err->kind ? -1 : 0;
    }
    free(host);
    return rc;
}

int
net_extend(struct net *n, struct net_cache *c, const int32_t *ids, size_t tokens,
           size_t rows, float *logits, net_hidden_fn *hidden, void *ctx)
{
    if (extend(n, c, ids, tokens, rows, hidden, ctx) < 0)
        return -1;
    all_logits(n->pass, rows, logits);
    return n->err->kind ? -1 : 0;
}

int
net_best(struct net *n, struct net_cache *c, const int32_t *ids, size_t tokens,
         int32_t *id, net_hidden_fn *hidden, void *ctx)
{
    if (extend(n, c, ids, tokens, 1, hidden, ctx) < 0)
        return -1;
    struct pass *p = n->pass;
    const void *last = at(p, p->top, (tokens - 1) * p->c->hidden);
    p->k->logits(p->k, p->logits, last, weight(p, head_role(n), -1), 1);
    p->k->best(p->k, p->ids, p->logits, p->c->vocab); // ids have been looked up
    return p->k->download(p->k, id, p->ids, sizeof *id);
}
