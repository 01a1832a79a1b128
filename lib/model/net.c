/* SPDX-License-Identifier: MIT */
/* net: see net.h. */
#include "lib/model/net.h"

#include "lib/base/maths.h"
#include "lib/base/num.h"
#include "lib/model/pass.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- a net ----------------------------------------------------------------------------- */

/* Cosines and sines of every position, in f64, rounded once. */
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
    n->rope = kernels_alloc(n->k, MEMORY_OTHER, count * sizeof *host);
    if (n->rope)
        kernels_upload(n->k, n->rope, host, count * sizeof *host);
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
    pass_free(n->pass);
    if (n->k)
        kernels_free(n->k, n->rope);
    free(n->t);
    table_close(&n->table);
    *n = (struct net){ 0 };
}

/* Forget a step that was given ahead.  It has written a key and a value behind those of its cache,
 * and memory of the pass; the device is done with it before what it is given next. */
static void
drop_ahead(struct net *n)
{
    if (n->ahead.key)
        kernels_download_end(n->k, n->ahead.handle, NULL, 0);
    n->ahead.key = NULL;
}

void
net_release(struct net *n)
{
    drop_ahead(n);
    pass_free(n->pass);
    n->pass = NULL;
}

static void
begin_tokens(struct pass *p, size_t tokens)
{
    drop_ahead(p->n);
    p->tokens = tokens;
    p->position = p->ids + tokens;
    p->learns = false;
    p->fp8 = p->n->fp8 && !p->n->unquantized;
}

static void
upload(struct pass *p, int32_t *to, const int32_t *from, size_t n)
{
    kernels_upload(p->k, to, from, n * sizeof *to);
}

/* ---- a pass ----------------------------------------------------------------------------------- */

/* Length of each document, if all have the same; else 0. */
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

static void
add_labels(struct pass *p, const struct net_batch *b, bool taught)
{
    for (size_t t = 0; t < b->tokens; t++)
        if (b->label[t] >= 0 && (!b->taught || b->taught[t]) == taught) {
            p->host[p->labels] = b->label[t];
            p->host[p->max_tokens + p->labels++] = (int32_t)t;
        }
}

/* The labels of a batch and their positions, those that no teacher has a part in first: so
 * each chunk of logits has one kind of loss. */
static void
list_labels(struct pass *p, const struct net_batch *b)
{
    p->labels = 0;
    add_labels(p, b, false);
    p->by_label = p->labels;
    add_labels(p, b, true);
    if (!p->n->teacher)
        p->by_label = p->labels;
}

/* Tokens and labels to the device.  all: logits of every token are wanted. */
static int
begin_pass(struct net *n, const struct net_batch *b, bool backward, bool all)
{
    size_t labels = 0;
    for (size_t t = 0; t < b->tokens; t++)
        labels += b->label[t] >= 0;
    if (net_reserve(n, b->tokens, all && b->tokens ? b->tokens : labels, backward) < 0)
        return -1;
    struct pass *p = n->pass;
    begin_tokens(p, b->tokens);
    p->learns = backward;
    p->past = 0;
    list_labels(p, b);
    upload(p, p->ids, b->ids, b->tokens);
    upload(p, p->position, b->position, b->tokens);
    upload(p, p->first, b->first, b->tokens);
    upload(p, p->label, p->host, labels);
    upload(p, p->index, p->host + p->max_tokens, labels);
    p->heads = (struct heads){ .tokens = b->tokens,
                               .query = n->c.heads,
                               .kv = n->c.kv_heads,
                               .dim = n->c.head_dim,
                               .first = p->first,
                               .length = length_of(b) };
    return 0;
}

static void
forward(struct pass *p)
{
    pass_embed(p);
    bool done = pass_layers(p);
    for (uint32_t i = 0; i < p->c->layers && !done; i++) {
        struct layer_acts *l = &p->layer[i];
        if (p->n->layer)
            p->n->layer(p->n->ctx, i);
        pass_layer(p, (int)i, l->key, l->value, pass_layer_input(p, i + 1));
    }
    pass_final_norm(p);
}

/* The labels' losses at their positions, on the host. */
static int
read_losses(struct pass *p, float *to, const float *from)
{
    if (kernels_download(p->k, p->host_loss, from, p->labels * sizeof *to) < 0)
        return -1;
    memset(to, 0, p->tokens * sizeof *to);
    for (size_t i = 0; i < p->labels; i++)
        to[p->host[p->max_tokens + i]] = p->host_loss[i];
    return 0;
}

int
net_pass(struct net *n, const struct net_batch *b, float scale,
         const struct net_losses *losses, float *logits)
{
    // of the same size, so that its memory stays when n's is reserved
    if ((n->teacher && begin_pass(n->teacher, b, false, logits != NULL) < 0) ||
        begin_pass(n, b, scale != 0, logits != NULL) < 0)
        return -1;
    struct pass *p = n->pass;
    if (n->teacher && p->by_label < p->labels) {
        forward(n->teacher->pass);
        pass_select(n->teacher->pass);
    }
    forward(p);
    if (logits)
        pass_logits(p, p->tokens, logits);
    pass_losses(p, scale);
    if (scale != 0)
        pass_backward(p);
    if (n->teacher && read_losses(p, losses->kl, p->kl) < 0)
        return -1;
    return read_losses(p, losses->loss, p->loss);
}

/* ---- with a cache ------------------------------------------------------------------------------- */

int
net_cache_open(struct net_cache *c, struct net *n, size_t capacity)
{
    size_t layers = n->c.layers, row = (size_t)n->c.kv_heads * n->c.head_dim;
    uint64_t bytes;
    *c = (struct net_cache){ .n = n, .capacity = capacity };
    if (!mul_fits(&bytes, capacity, 2 * layers * sizeof(float) * row, INT64_MAX))
        return err_set(n->err, ERR_MEMORY,
                       "a cache of %zu positions has more than 2^63 bytes", capacity);
    c->key = calloc(layers, sizeof *c->key);
    c->value = calloc(layers, sizeof *c->value);
    if (!c->key || !c->value)
        return err_set(n->err, ERR_MEMORY, "out of memory for a cache");
    size_t size = capacity * row * (dtype_bits(n->k->is.act) / 8);
    char *all = kernels_alloc(n->k, MEMORY_CACHE, 2 * layers * size);
    for (size_t i = 0; i < layers && all; i++) {
        c->key[i] = all + 2 * i * size;
        c->value[i] = all + (2 * i + 1) * size;
    }
    return all ? 0 : -1;
}

void
net_cache_changed(struct net_cache *c)
{
    if (c->n->ahead.key == c->key[0])
        drop_ahead(c->n);
}

void
net_cache_close(struct net_cache *c)
{
    if (c->key)
        net_cache_changed(c);
    if (c->key && c->value)
        kernels_free(c->n->k, c->key[0]); // all of it
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
    assert(c->used + tokens <= c->capacity && c->capacity <= n->positions &&
           rows <= tokens);
    begin_tokens(p, tokens);
    p->past = c->used;
    upload(p, p->ids, ids, tokens);
    for (size_t t = 0; t < tokens; t++)
        p->host[t] = (int32_t)(c->used + t);
    upload(p, p->position, p->host, tokens);
    op_zero(p->k, p->first, tokens * sizeof *p->first);
    p->heads = (struct heads){ .tokens = tokens,
                               .past = c->used,
                               .query = n->c.heads,
                               .kv = n->c.kv_heads,
                               .dim = n->c.head_dim,
                               .first = p->first };
    return 0;
}

/* n activations as f32 on the host, by way of the memory of logits. */
static int
read_activations(struct pass *p, float *host, const void *x, size_t n)
{
    struct kernels *k = p->k;
    size_t max = pass_rows_f32(p) * p->c->vocab;
    for (size_t i = 0; i < n; i += max) {
        size_t count = n - i < max ? n - i : max;
        struct matrix from = kernels_act(k, dtype_at(k->is.act, x, i), 1, count),
                      to = matrix_of(DT_F32, p->logits, 1, count);
        op_convert(k, &to, &from);
        if (kernels_download(k, host + i, p->logits, count * sizeof *host) < 0)
            return -1;
    }
    return 0;
}

/* The tokens through all layers, to p->top. */
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
        pass_embed(n->pass);
    for (uint32_t i = 0; i < n->c.layers && rc == 0; i++) {
        void *out = pass_layer_input(n->pass, i + 1);
        pass_layer(n->pass, (int)i, c->key[i], c->value[i], out);
        if (hidden) {
            rc = read_activations(n->pass, host, out, width);
            rc = rc < 0 ? rc : hidden(ctx, i, host, tokens);
        }
    }
    if (rc == 0) {
        pass_final_norm(n->pass);
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
    if (logits)
        pass_logits(n->pass, rows, logits);
    return n->err->kind ? -1 : 0;
}

int
net_argmax(struct net *n, struct net_cache *c, const int32_t *ids, size_t tokens,
           int32_t *id, net_hidden_fn *hidden, void *ctx)
{
    if (extend(n, c, ids, tokens, 1, hidden, ctx) < 0)
        return -1;
    struct pass *p = n->pass;
    struct matrix logits = pass_logits_f32(p, tokens - 1, 1);
    op_argmax(p->k, p->ids, &logits); // the ids have been looked up
    return kernels_download(p->k, id, p->ids, sizeof *id);
}

/* ---- a token for each of several caches ------------------------------------------------------- */

/* Tokens of several caches; their keys and values are made in memory of the pass. */
static int
begin_several(struct net *n, size_t tokens, size_t caches)
{
    if (net_reserve(n, tokens, caches, false) < 0)
        return -1;
    struct pass *p = n->pass;
    begin_tokens(p, tokens);
    p->past = 0;
    p->heads = (struct heads){ .query = n->c.heads,
                               .kv = n->c.kv_heads,
                               .dim = n->c.head_dim,
                               .first = p->first };
    return 0;
}

/* Ids and positions to the device, at once. */
static int
begin_step(struct net *n, struct net_cache *const *c, const int32_t *ids, size_t count)
{
    if (begin_several(n, count, count) < 0)
        return -1;
    struct pass *p = n->pass;
    p->fp8 = false;
    p->each = c;
    for (size_t t = 0; t < count; t++) {
        assert(c[t]->used < c[t]->capacity && c[t]->capacity <= n->positions);
        p->host[t] = ids[t];
        p->host[count + t] = (int32_t)c[t]->used;
    }
    upload(p, p->ids, p->host, 2 * count);
    return 0;
}

/* best: (tokens) ids of the largest logits. */
static int
best_of_each(struct pass *p, int32_t *best)
{
    size_t max = pass_rows_f32(p);
    for (size_t r = 0; r < p->tokens; r += max) {
        size_t n = p->tokens - r < max ? p->tokens - r : max;
        struct matrix logits = pass_logits_f32(p, r, n);
        op_argmax(p->k, p->ids + r, &logits); // the ids have been looked up
    }
    return kernels_download(p->k, best, p->ids, p->tokens * sizeof *best);
}

/* ---- tokens of each of several caches --------------------------------------------------------- */

static int
begin_runs(struct net *n, const struct net_run *run, size_t count)
{
    size_t tokens = 0, at = 0;
    for (size_t r = 0; r < count; r++)
        tokens += run[r].tokens;
    if (begin_several(n, tokens, count) < 0)
        return -1;
    struct pass *p = n->pass;
    p->run = run;
    p->runs = count;
    for (size_t r = 0; r < count; r++) {
        const struct net_cache *c = run[r].cache;
        assert(c->used + run[r].tokens <= c->capacity && c->capacity <= n->positions);
        for (size_t t = 0; t < run[r].tokens; t++, at++) {
            p->host[at] = run[r].ids[t];
            p->host[tokens + at] = (int32_t)(c->used + t);
        }
    }
    upload(p, p->ids, p->host, 2 * tokens);
    return 0;
}

/* The rows of the last tokens are all that is left: each goes to a place at or before its own, which
 * no later one comes from. */
static void
keep_last(struct pass *p)
{
    enum dtype act = p->k->is.act;
    size_t row = p->c->hidden, end = 0;
    for (size_t r = 0; r < p->runs; r++) {
        end += p->run[r].tokens;
        if (r + 1 < end)
            op_copy(p->k, dtype_at(act, p->out, r * row),
                    dtype_at(act, p->out, (end - 1) * row),
                    row * (dtype_bits(act) / 8));
    }
    p->tokens = p->runs;
}

int
net_extend_each(struct net *n, const struct net_run *run, size_t count, float *logits,
                int32_t *best)
{
    int rc = 0;
    if (begin_runs(n, run, count) < 0)
        return -1;
    struct pass *p = n->pass;
    pass_embed(p);
    for (uint32_t i = 0; i < n->c.layers; i++)
        pass_layer(p, (int)i, p->layer[i].key, p->layer[i].value,
                   pass_layer_input(p, i + 1));
    keep_last(p);
    pass_final_norm(p);
    p->run = NULL;
    for (size_t r = 0; r < count; r++)
        run[r].cache->used += run[r].tokens;
    if (logits)
        pass_logits(p, count, logits);
    else
        rc = best_of_each(p, best);
    return n->err->kind ? -1 : rc;
}

/* ---- one token again and again ---------------------------------------------------------------- */

/* The step of one token is the same again and again, but for the cache and where in it. */
struct step_key {
    uintptr_t cache, part, best;
};

static struct step_key
step_key(const struct net_cache *c, size_t used, bool best)
{
    return (struct step_key){ (uintptr_t)c->key[0], used / ATTEND_STEP, best };
}

/* To its logits or the largest of them; whether the device had it recorded. */
static bool
run_one(struct pass *p, float *logits)
{
    struct step_key key = step_key(p->each[0], p->each[0]->used, !logits);
    if (kernels_replay(p->k, &key, sizeof key))
        return true;
    p->repeats = true;
    if (!pass_token(p, !logits)) {
        forward(p);
        struct matrix all = pass_logits_f32(p, 0, 1);
        if (!logits)
            op_argmax(p->k, p->ids, &all);
    }
    kernels_recorded(p->k, p->repeats);
    return false;
}

/* Give the device the step after the one of c that it has now, so that it need not wait for the
 * host: the largest logit's id is where the next step expects it.  Only what is recorded, so
 * that no memory is asked for. */
static void
go_ahead(struct net *n, const struct net_cache *c)
{
    struct pass *p = n->pass;
    int32_t next = (int32_t)(c->used + 1);
    struct step_key now = step_key(c, c->used, true),
                    key = step_key(c, c->used + 1, true);
    if (c->used + 1 >= c->capacity || memcmp(&now, &key, sizeof key) != 0)
        return;
    if (!p->advances)
        upload(p, p->position, &next, 1);
    if (!kernels_replay(p->k, &key, sizeof key))
        return; // an error
    n->ahead.handle = kernels_download_begin(p->k, pass_best(p, c->used + 1),
                                             sizeof n->ahead.id, p->advances);
    if (n->ahead.handle >= 0) {
        n->ahead.key = c->key[0];
        n->ahead.used = c->used + 1;
    }
}

/* The best after one token, whose step the device may have been given before. */
static int
step_best(struct net *n, struct net_cache *const *c, const int32_t *id, int32_t *best,
          bool more)
{
    struct net_ahead *a = &n->ahead;
    bool recorded = a->key == c[0]->key[0] && a->used == c[0]->used && a->id == *id;
    int handle = a->handle;
    if (recorded) {
        a->key = NULL;
    } else {
        if (begin_step(n, c, id, 1) < 0)
            return -1;
        recorded = run_one(n->pass, NULL);
        handle = kernels_download_begin(n->k, pass_best(n->pass, c[0]->used),
                                        sizeof *best, n->pass->advances);
    }
    if (handle < 0) // also of a device whose memory is the host's
        return kernels_download(n->k, best, n->pass->ids, sizeof *best);
    if (recorded && more)
        go_ahead(n, c[0]);
    int rc = kernels_download_end(n->k, handle, best, sizeof *best);
    a->id = *best;
    return rc;
}

int
net_step(struct net *n, struct net_cache *const *c, const int32_t *ids, size_t count,
         float *logits, int32_t *best, bool more)
{
    int rc = 0;
    if (count == 1 && !logits) {
        rc = step_best(n, c, ids, best, more);
    } else {
        if (begin_step(n, c, ids, count) < 0)
            return -1;
        count == 1 ? (void)run_one(n->pass, logits) : forward(n->pass);
    }
    struct pass *p = n->pass;
    p->each = NULL;
    for (size_t t = 0; t < count; t++)
        c[t]->used++;
    if (count == 1 && logits)
        rc = kernels_download(p->k, logits, p->logits, p->c->vocab * sizeof *logits);
    else if (logits)
        pass_logits(p, count, logits);
    else if (count > 1)
        rc = best_of_each(p, best);
    return n->err->kind ? -1 : rc;
}
