/* SPDX-License-Identifier: MIT */
/* attention: rows of queries against blocks of keys, as products; never all against all.
 *
 * A row is a token and a query head; the heads that share a kv head are together.  Tokens
 * are divided where none looks back, into spans of whole documents.  A block of rows of a
 * span is the work of one thread forward, a span with a kv head backward.  Forward keeps
 * the scores of a block of rows; backward needs only those of a block of keys.
 *
 * Every sum goes over keys (or rows) in their order, one fused multiply-add each, and the
 * sum of a softmax over lanes from the first key that the row sees.  Keys that it does
 * not see add exact zeros.  So a document gives the same bits wherever it stands, and a
 * token with its past in a cache the same as with all tokens at once. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"

#include "lib/core/maths.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 192, // of a block, or a token's
    KEYS = 96,  // of a block, a multiple of every mr and nr
    UNIT = 32,  // the widest panel
    SLACK = 16, // what turn may write too much
    SPAN = 96,  // rows of a span at least, or there is only one
};

/* Tokens that see none outside; blocks of those before. */
struct span {
    size_t token, end, before;
};

struct job {
    struct cpu *c;
    const struct gemm_isa *isa;
    const struct heads *h;
    const float *q, *key, *value, *dout, *y, *kept;
    float *out, *lse, *dq, *dkey, *dvalue;
    size_t q_row, kv_row; // of the last three
    float scale;
    float *room;
    size_t room_size;     // floats of each worker
    size_t workers;       // that have one
    size_t group, block;  // heads of a kv head; tokens of a block
    size_t most, longest; // spans that there may be, tokens of one
    const struct span *span;
    size_t spans, blocks, items;
};

static size_t
up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- rows and panels --------------------------------------------------------------------- */

/* Queries of a block: some tokens with a kv head, and the keys that they see. */
struct block {
    size_t kv, token, tokens, rows;
    size_t from, to; // keys
};

static struct block
block_of(const struct job *j, size_t kv, const struct span *s, size_t i)
{
    const struct heads *h = j->h;
    struct block b = { .kv = kv, .token = s->token + i * j->block };
    b.tokens = min(s->end - b.token, j->block);
    b.rows = b.tokens * j->group;
    b.to = h->past + b.token + b.tokens;
    b.from = b.to;
    for (size_t t = 0; t < b.tokens; t++)
        b.from = min(b.from, (size_t)h->first[b.token + t]);
    return b;
}

static size_t
blocks_of(const struct job *j, const struct span *s)
{
    return ceil_div(s->end - s->token, j->block);
}

static size_t
token_of(const struct job *j, const struct block *b, size_t row)
{
    return b->token + row / j->group;
}

static size_t
head_of(const struct job *j, const struct block *b, size_t row)
{
    return b->kv * j->group + row % j->group;
}

/* Where a row's numbers are in q, out and their gradients. */
static size_t
at_row(const struct job *j, const struct block *b, size_t row)
{
    const struct heads *h = j->h;
    return (token_of(j, b, row) * h->query + head_of(j, b, row)) * h->dim;
}

static size_t
at_key(const struct job *j, size_t key, size_t kv)
{
    return (key * j->h->kv + kv) * j->h->dim;
}

/* Rows that lie apart, together, times a factor. */
static void
gather(const struct job *j, float *out, const float *x, const struct block *b,
       float factor)
{
    size_t dim = j->h->dim;
    for (size_t r = 0; r < b->rows; r++)
        j->c->rows->scale(out + r * dim, factor, x + at_row(j, b, r), dim);
}

/* A product's operands: those on the left in panels of mr rows, the others of nr columns. */
enum side { LEFT, RIGHT };

static size_t
unit_of(const struct job *j, enum side side)
{
    return side == LEFT ? j->isa->mr : j->isa->nr;
}

/* n rows of k as panels of some of them. */
static void
turn_rows(const struct job *j, float *out, const float *x, size_t line, size_t n,
          size_t k, enum side side)
{
    size_t unit = unit_of(j, side);
    for (size_t r = 0; r < n; r += unit, out += unit * k) {
        j->isa->turn(out, x + r * line, line, min(n - r, unit), k, unit);
        gemm_form(j->isa, out, k, side == LEFT, 1);
    }
}

/* k rows of n as panels of some columns. */
static void
cut_rows(const struct job *j, float *out, const float *x, size_t line, size_t k,
         size_t n, enum side side)
{
    size_t unit = unit_of(j, side);
    for (size_t col = 0; col < n; col += unit, out += unit * k) {
        size_t cols = min(n - col, unit);
        for (size_t r = 0; r < k; r++) {
            memcpy(out + r * unit, x + r * line + col, cols * sizeof *out);
            memset(out + r * unit + cols, 0, (unit - cols) * sizeof *out);
        }
        gemm_form(j->isa, out, k, side == LEFT, 1);
    }
}

/* What a row sees of n keys from `key` on: from *low to *high - 1 of them. */
static void
seen(const struct job *j, size_t token, size_t key, size_t n, size_t *low, size_t *high)
{
    size_t first = (size_t)j->h->first[token], end = j->h->past + token + 1;
    *low = first > key ? min(first - key, n) : 0;
    *high = end > key ? min(end - key, n) : 0;
    *high = *high < *low ? *low : *high;
}

static void
clear_unseen(float *row, size_t low, size_t high, size_t n)
{
    memset(row, 0, low * sizeof *row);
    memset(row + high, 0, (n - high) * sizeof *row);
}

/* Room for n of something in panels, whatever a panel's width. */
static size_t
with_panel(size_t n)
{
    return up(n, UNIT) + UNIT;
}

/* A worker's memory; where there are no more items than those, an item's. */
static float *
room_of(const struct job *j, size_t item, unsigned worker)
{
    return j->room + (j->items <= j->workers ? item : worker) * j->room_size;
}

/* Pieces of it. */
static float *
take(float **room, size_t n)
{
    float *p = *room;
    *room += up(n + SLACK, UNIT);
    return p;
}

/* ---- forward ------------------------------------------------------------------------------- */

struct forward {
    float *rows, *turned; // (rows, dim); their panels
    float *keys, *values; // of a block of keys
    float *score, *part;  // (rows, line); the panels of a block of keys
    float *out, *sum;     // (rows, dim), (rows)
    size_t line;
};

static struct forward
forward_room(const struct job *j, float *room, size_t *size)
{
    float *start = room;
    size_t rows = j->block * j->group;
    size_t dim = with_panel(j->h->dim), all = with_panel(rows);
    struct forward f = { .line = up(j->h->past + j->longest, KEYS) };
    f.rows = take(&room, rows * dim);
    f.turned = take(&room, all * dim);
    f.keys = take(&room, KEYS * dim);
    f.values = take(&room, KEYS * dim);
    f.score = take(&room, rows * f.line);
    f.part = take(&room, all * KEYS);
    f.out = take(&room, rows * dim);
    f.sum = take(&room, rows);
    if (size)
        *size = (size_t)(room - start);
    return f;
}

static void
make_scores(const struct job *j, const struct forward *f, const struct block *b)
{
    size_t dim = j->h->dim, line = j->h->kv * dim;
    gather(j, f->rows, j->q, b, j->scale);
    turn_rows(j, f->turned, f->rows, dim, b->rows, dim, LEFT);
    for (size_t key = b->from; key < b->to; key += KEYS) {
        size_t n = min(b->to - key, KEYS);
        turn_rows(j, f->keys, j->key + at_key(j, key, b->kv), line, n, dim, RIGHT);
        gemm_panels(j->isa, f->turned, f->keys, f->score + (key - b->from), f->line,
                    b->rows, n, dim, false);
    }
}

/* Exponentials, and their sums; what a row does not see is 0. */
static void
softmax(const struct job *j, const struct forward *f, const struct block *b)
{
    const struct rows_isa *rows = j->c->rows;
    size_t n = b->to - b->from, low, high;
    for (size_t r = 0; r < b->rows; r++) {
        float *row = f->score + r * f->line;
        size_t t = token_of(j, b, r);
        seen(j, t, b->from, n, &low, &high);
        float most = rows->max(row + low, high - low);
        f->sum[r] = rows->exp_sum(row + low, most, high - low);
        clear_unseen(row, low, high, n);
        j->lse[head_of(j, b, r) * j->h->tokens + t] =
            most + (float)maths_log((double)f->sum[r]);
    }
}

static void
mix_values(const struct job *j, const struct forward *f, const struct block *b)
{
    size_t dim = j->h->dim, line = j->h->kv * dim;
    for (size_t key = b->from; key < b->to; key += KEYS) {
        size_t n = min(b->to - key, KEYS);
        turn_rows(j, f->part, f->score + (key - b->from), f->line, b->rows, n, LEFT);
        cut_rows(j, f->values, j->value + at_key(j, key, b->kv), line, n, dim, RIGHT);
        gemm_panels(j->isa, f->part, f->values, f->out, dim, b->rows, dim, n,
                    key > b->from);
    }
    for (size_t r = 0; r < b->rows; r++)
        j->c->rows->scale(j->out + at_row(j, b, r), 1 / f->sum[r], f->out + r * dim,
                          dim);
}

/* The last blocks first: they see most keys. */
static int
forward(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    size_t block = j->blocks - 1 - i / j->h->kv;
    const struct span *s = j->span + j->spans - 1;
    while (s->before > block)
        s--;
    struct block b = block_of(j, i % j->h->kv, s, block - s->before);
    struct forward f = forward_room(j, room_of(j, i, worker), NULL);
    (void)err;
    make_scores(j, &f, &b);
    softmax(j, &f, &b);
    mix_values(j, &f, &b);
    return 0;
}

/* ---- backward ------------------------------------------------------------------------------ */

struct backward {
    float *q, *dout;               // (rows, dim), q times scale
    float *q_turned, *dout_turned; // panels of rows
    float *q_cut, *dout_cut;       // panels of columns
    float *key_turned, *value_turned, *key_cut;
    float *p, *ds; // (rows, KEYS)
    float *part;   // panels of one of them
    float *dq;     // (rows, dim)
    float *mean;   // (rows)
};

/* Where a row's gradient is in dq. */
static size_t
at_dq(const struct job *j, const struct block *b, size_t row)
{
    return token_of(j, b, row) * j->q_row + head_of(j, b, row) * j->h->dim;
}

static struct backward
backward_room(const struct job *j, float *room, size_t *size)
{
    float *start = room;
    size_t rows = j->block * j->group;
    struct backward f = { 0 };
    size_t dim = with_panel(j->h->dim), all = with_panel(rows);
    float **of_rows[] = { &f.q,     &f.dout,     &f.q_turned, &f.dout_turned,
                          &f.q_cut, &f.dout_cut, &f.dq };
    float **of_keys[] = { &f.key_turned, &f.value_turned, &f.key_cut };
    float **of_both[] = { &f.p, &f.ds, &f.part };
    for (size_t i = 0; i < 7; i++)
        *of_rows[i] = take(&room, all * dim);
    for (size_t i = 0; i < 3; i++)
        *of_keys[i] = take(&room, KEYS * dim);
    for (size_t i = 0; i < 3; i++)
        *of_both[i] = take(&room, all * KEYS);
    f.mean = take(&room, rows);
    if (size)
        *size = (size_t)(room - start);
    return f;
}

static void
pack_rows(const struct job *j, const struct backward *f, const struct block *b)
{
    size_t dim = j->h->dim;
    gather(j, f->q, j->q, b, j->scale);
    gather(j, f->dout, j->dout, b, 1);
    turn_rows(j, f->q_turned, f->q, dim, b->rows, dim, LEFT);
    turn_rows(j, f->dout_turned, f->dout, dim, b->rows, dim, LEFT);
    cut_rows(j, f->q_cut, f->q, dim, b->rows, dim, RIGHT);
    cut_rows(j, f->dout_cut, f->dout, dim, b->rows, dim, RIGHT);
    for (size_t r = 0; r < b->rows; r++)
        f->mean[r] = j->c->rows->dot(f->dout + r * dim, j->y + at_row(j, b, r), dim);
}

/* p and ds of n keys. */
static void
make_gradients(const struct job *j, const struct backward *f, const struct block *b,
               size_t key, size_t n)
{
    const struct rows_isa *rows = j->c->rows;
    size_t dim = j->h->dim, line = j->h->kv * dim, low, high;
    size_t at = at_key(j, key, b->kv);
    turn_rows(j, f->key_turned, j->key + at, line, n, dim, RIGHT);
    turn_rows(j, f->value_turned, j->value + at, line, n, dim, RIGHT);
    gemm_panels(j->isa, f->q_turned, f->key_turned, f->p, KEYS, b->rows, n, dim, false);
    gemm_panels(j->isa, f->dout_turned, f->value_turned, f->ds, KEYS, b->rows, n, dim,
                false);
    for (size_t r = 0; r < b->rows; r++) {
        float *p = f->p + r * KEYS, *ds = f->ds + r * KEYS;
        size_t t = token_of(j, b, r);
        float lse = j->kept[head_of(j, b, r) * j->h->tokens + t];
        seen(j, t, key, n, &low, &high);
        rows->exp_sum(p + low, lse, high - low);
        rows->softmax_bwd(ds + low, p + low, f->mean[r], high - low);
        clear_unseen(p, low, high, n);
        clear_unseen(ds, low, high, n);
    }
}

/* What n keys and their values get of some rows, and these of them. */
static void
add_gradients(const struct job *j, const struct backward *f, const struct block *b,
              size_t key, size_t n)
{
    size_t dim = j->h->dim, line = j->h->kv * dim;
    size_t at = at_key(j, key, b->kv), to = key * j->kv_row + b->kv * dim;
    cut_rows(j, f->part, f->p, KEYS, b->rows, n, LEFT);
    gemm_panels(j->isa, f->part, f->dout_cut, j->dvalue + to, j->kv_row, n, dim,
                b->rows, true);
    cut_rows(j, f->part, f->ds, KEYS, b->rows, n, LEFT);
    gemm_panels(j->isa, f->part, f->q_cut, j->dkey + to, j->kv_row, n, dim, b->rows,
                true);
    turn_rows(j, f->part, f->ds, KEYS, b->rows, n, LEFT);
    cut_rows(j, f->key_cut, j->key + at, line, n, dim, RIGHT);
    gemm_panels(j->isa, f->part, f->key_cut, f->dq, dim, b->rows, dim, n,
                key > b->from);
}

static int
backward(void *ctx, size_t item, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    const struct span *s = &j->span[item / j->h->kv];
    size_t dim = j->h->dim, kv = item % j->h->kv;
    struct backward f = backward_room(j, room_of(j, item, worker), NULL);
    (void)err;
    for (size_t i = 0; i < blocks_of(j, s); i++) {
        struct block b = block_of(j, kv, s, i);
        pack_rows(j, &f, &b);
        for (size_t key = b.from; key < b.to; key += KEYS) {
            size_t n = min(b.to - key, KEYS);
            make_gradients(j, &f, &b, key, n);
            add_gradients(j, &f, &b, key, n);
        }
        for (size_t r = 0; r < b.rows; r++)
            j->c->rows->scale(j->dq + at_dq(j, &b, r), j->scale, f.dq + r * dim, dim);
    }
    return 0;
}

/* ---- the operations ------------------------------------------------------------------------ */

/* Tokens that have so many rows. */
static size_t
tokens_of(const struct job *j, size_t rows)
{
    return rows / j->group ? rows / j->group : 1;
}

/* What is known before the documents are looked at. */
static struct job
shape_of(const struct heads *h)
{
    struct job j = { .h = h, .scale = 1 / sqrtf((float)h->dim), .longest = h->tokens };
    j.group = h->query / h->kv;
    j.block = min(tokens_of(&j, ROWS), h->tokens);
    j.most = h->tokens / tokens_of(&j, SPAN) + 1;
    if (h->length && !h->past) {
        size_t span = ceil_div(tokens_of(&j, SPAN), h->length) * h->length;
        j.longest = min(span, h->tokens);
        j.most = ceil_div(h->tokens, j.longest);
    }
    return j;
}

/* Threads that can have work. */
static size_t
workers_of(const struct job *j, unsigned threads, bool back)
{
    size_t items = j->most;
    if (!back)
        items += ceil_div(j->h->tokens, j->block);
    return min(items * j->h->kv, threads);
}

/* Bytes to work in: first what the workers have, then spans. */
static size_t
room_bytes(struct job *j, unsigned threads, bool back)
{
    if (back)
        backward_room(j, NULL, &j->room_size);
    else
        forward_room(j, NULL, &j->room_size);
    j->workers = workers_of(j, threads, back);
    return j->workers * j->room_size * sizeof *j->room + j->most * sizeof *j->span;
}

size_t
cpu_attention_workspace(const struct cpu_kind *c, const struct heads *h)
{
    struct job j = shape_of(h);
    return room_bytes(&j, c->threads, false);
}

size_t
cpu_attention_bwd_workspace(const struct cpu_kind *c, const struct heads *h)
{
    struct job j = shape_of(h);
    return room_bytes(&j, c->threads, true);
}

/* From the last token on; what is left at the start is a span however short. */
static void
divide(struct job *j, struct span *span)
{
    const struct heads *h = j->h;
    size_t least_tokens = tokens_of(j, SPAN), end = h->tokens, low = SIZE_MAX;
    struct span *s = span + j->most;
    for (size_t t = h->tokens; t-- > 0;) {
        low = min(low, (size_t)h->first[t]);
        if (t == 0 || (low >= h->past + t && end - t >= least_tokens)) {
            *--s = (struct span){ .token = t, .end = end };
            end = t;
        }
    }
    j->span = s;
    j->spans = (size_t)(span + j->most - s);
    for (size_t i = 0; i < j->spans; i++) {
        s[i].before = j->blocks;
        j->blocks += blocks_of(j, &s[i]);
    }
}

/* Room and spans; false: nothing to do, or no memory. */
static bool
begin(struct job *j, struct cpu *c, bool back)
{
    size_t bytes = room_bytes(j, par_threads(c->pool), back);
    j->c = c;
    j->isa = c->gemm;
    j->room = cpu_workspace(c, bytes);
    if (!j->room || !j->h->tokens)
        return false;
    divide(j, (struct span *)(void *)(j->room + j->workers * j->room_size));
    j->items = (back ? j->spans : j->blocks) * j->h->kv;
    return true;
}

void
cpu_attention(struct kernels *k, const struct matrix *out, float *lse,
              const struct matrix *q, const struct matrix *key,
              const struct matrix *value, const struct heads *h)
{
    struct job j = shape_of(h);
    j.q = q->data;
    j.key = key->data;
    j.value = value->data;
    j.out = out->data;
    j.lse = lse;
    if (begin(&j, cpu_of(k), false))
        cpu_for(cpu_of(k), j.items, forward, &j);
}

static void
zero_rows(const struct matrix *m)
{
    for (size_t r = 0; r < m->rows; r++)
        memset((float *)m->data + r * m->stride, 0, m->cols * sizeof(float));
}

void
cpu_attention_bwd(struct kernels *k, const struct matrix *dq, const struct matrix *dkey,
                  const struct matrix *dvalue, const struct matrix *dout,
                  const struct matrix *out, const float *lse, const struct matrix *q,
                  const struct matrix *key, const struct matrix *value, float *work,
                  const struct heads *h)
{
    struct job j = shape_of(h);
    (void)work;
    j.q = q->data;
    j.key = key->data;
    j.value = value->data;
    j.dout = dout->data;
    j.y = out->data;
    j.kept = lse;
    j.dq = dq->data;
    j.dkey = dkey->data;
    j.dvalue = dvalue->data;
    j.q_row = dq->stride;
    j.kv_row = dkey->stride;
    zero_rows(dkey);
    zero_rows(dvalue);
    if (begin(&j, cpu_of(k), true))
        cpu_for(cpu_of(k), j.items, backward, &j);
}
