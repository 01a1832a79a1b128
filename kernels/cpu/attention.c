/* SPDX-License-Identifier: MIT */
/* attention: blocks of queries by blocks of keys, as products of panels; all scores never
 * exist at once.
 *
 * A row is a token and a query head; the heads that share a kv head are adjacent.  Tokens
 * are divided into spans of whole documents, across which none sees another.  One thread
 * works on a block of rows of a span in the forward pass, on a span and a kv head in the
 * backward pass.  Forward keeps all scores of its block of rows; backward needs only those
 * with a block of keys.
 *
 * Every sum goes over keys (or rows) in order, one fused multiply-add each, and the sum of
 * a softmax over lanes from the first key that the row sees.  Keys that it does not see add
 * exact zeros.  So a document gives the same bits wherever it is, and a token with its past
 * in a cache the same as with all tokens at once. */
#include "kernels/cpu/attention_few.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/flush.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"

#include "lib/base/maths.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 192,    // of a block, or those of one token
    KEYS = 96,     // of a block, a multiple of every mr and nr
    UNIT = 32,     // the widest panel
    SLACK = 16,    // floats that packing may write behind a panel
    MIN_SPAN = 96, // rows of a span, unless there is only one
};

/* Tokens that see none outside; before: blocks of the spans before. */
struct span {
    size_t token, end, before;
};

struct attention_job {
    struct cpu *c;
    const struct gemm_isa *isa;
    const struct heads *h;
    const float *q, *key, *value, *dout, *y, *lse_in; // backward: y is out
    float *out, *lse, *dq, *dkey, *dvalue;
    size_t dq_stride, dkv_stride;
    float scale;
    float *workspace;
    size_t worker_size;           // floats of each worker's part
    size_t workers;               // parts
    size_t group, block;          // heads of a kv head; tokens of a block
    size_t max_spans, max_tokens; // tokens: of a span
    const struct span *span;
    size_t spans, blocks, items;
};

/* ---- rows and panels --------------------------------------------------------------------- */

/* The rows of some tokens and a kv head, and the keys that they see. */
struct block {
    size_t kv, token, tokens, rows;
    size_t from, to; // keys
};

static struct block
block_of(const struct attention_job *j, size_t kv, const struct span *s, size_t i)
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
blocks_of(const struct attention_job *j, const struct span *s)
{
    return ceil_div(s->end - s->token, j->block);
}

static size_t
token_of(const struct attention_job *j, const struct block *b, size_t row)
{
    return b->token + row / j->group;
}

static size_t
head_of(const struct attention_job *j, const struct block *b, size_t row)
{
    return b->kv * j->group + row % j->group;
}

/* Offset of a row in q, out and dout. */
static size_t
row_offset(const struct attention_job *j, const struct block *b, size_t row)
{
    const struct heads *h = j->h;
    return (token_of(j, b, row) * h->query + head_of(j, b, row)) * h->dim;
}

static size_t
key_offset(const struct attention_job *j, size_t key, size_t kv)
{
    return (key * j->h->kv + kv) * j->h->dim;
}

/* Rows of a block, contiguous, times a factor. */
static void
gather_rows(const struct attention_job *j, float *out, const float *x,
            const struct block *b, float factor)
{
    size_t dim = j->h->dim;
    for (size_t r = 0; r < b->rows; r++)
        j->c->rows->scale(out + r * dim, factor, x + row_offset(j, b, r), dim);
}

/* Operands of a product: A in panels of mr rows, B in panels of nr columns. */
enum side { SIDE_A, SIDE_B };

static size_t
unit_of(const struct attention_job *j, enum side side)
{
    return side == SIDE_A ? j->isa->mr : j->isa->nr;
}

/* Panels of n rows of k elements: rows of A, or columns of B. */
static void
pack_rows(const struct attention_job *j, float *out, const float *x, size_t stride,
          size_t n, size_t k, enum side side)
{
    size_t unit = unit_of(j, side);
    for (size_t r = 0; r < n; r += unit, out += unit * k) {
        j->isa->pack(out, x + r * stride, stride, min(n - r, unit), k, unit);
        gemm_round_panel(j->isa, out, k, side == SIDE_A, 1);
    }
}

/* Panels of n columns of k elements: columns of B, or rows of A transposed. */
static void
pack_columns(const struct attention_job *j, float *out, const float *x, size_t stride,
             size_t k, size_t n, enum side side)
{
    size_t unit = unit_of(j, side);
    for (size_t col = 0; col < n; col += unit, out += unit * k) {
        size_t cols = min(n - col, unit);
        for (size_t r = 0; r < k; r++) {
            memcpy(out + r * unit, x + r * stride + col, cols * sizeof *out);
            memset(out + r * unit + cols, 0, (unit - cols) * sizeof *out);
        }
        gemm_round_panel(j->isa, out, k, side == SIDE_A, 1);
    }
}

/* Which of n keys from `key` on a token sees: *low .. *high - 1. */
static void
visible(const struct attention_job *j, size_t token, size_t key, size_t n, size_t *low,
        size_t *high)
{
    size_t first = (size_t)j->h->first[token], end = j->h->past + token + 1;
    *low = first > key ? min(first - key, n) : 0;
    *high = end > key ? min(end - key, n) : 0;
    *high = *high < *low ? *low : *high;
}

static void
clear_invisible(float *row, size_t low, size_t high, size_t n)
{
    memset(row, 0, low * sizeof *row);
    memset(row + high, 0, (n - high) * sizeof *row);
}

/* Rows or columns of n in panels, whatever the width of a panel. */
static size_t
in_panels(size_t n)
{
    return pad_to(n, UNIT) + UNIT;
}

/* A worker's part of the workspace; an item's where there are no more items than parts. */
static float *
part_of(const struct attention_job *j, size_t item, unsigned worker)
{
    return j->workspace + (j->items <= j->workers ? item : worker) * j->worker_size;
}

/* The next n floats of it. */
static float *
take(float **part, size_t n)
{
    float *p = *part;
    *part += pad_to(n + SLACK, UNIT);
    return p;
}

/* ---- forward ------------------------------------------------------------------------------- */

struct forward {
    float *rows, *row_panels; // (rows, dim)
    float *keys, *values;     // panels of a block of keys
    float *score, *p;         // (rows, stride); panels of those of a block of keys
    float *out, *sum;         // (rows, dim), (rows)
    size_t stride;
};

static struct forward
forward_buffers(const struct attention_job *j, float *part, size_t *size)
{
    float *start = part;
    size_t rows = j->block * j->group;
    size_t dim = in_panels(j->h->dim), all = in_panels(rows);
    struct forward f = { .stride = pad_to(j->h->past + j->max_tokens, KEYS) };
    f.rows = take(&part, rows * dim);
    f.row_panels = take(&part, all * dim);
    f.keys = take(&part, KEYS * dim);
    f.values = take(&part, KEYS * dim);
    f.score = take(&part, rows * f.stride);
    f.p = take(&part, all * KEYS);
    f.out = take(&part, rows * dim);
    f.sum = take(&part, rows);
    if (size)
        *size = (size_t)(part - start);
    return f;
}

/* Few rows are multiplied by keys and values where these lie. */
static bool
is_few(const struct block *b)
{
    return b->rows <= FEW_ROWS;
}

static struct few
few_of(const struct attention_job *j, const struct forward *f, const struct block *b,
       const float *keys)
{
    return (struct few){ .x = keys + key_offset(j, b->from, b->kv),
                         .stride = j->h->kv * j->h->dim,
                         .n = b->to - b->from,
                         .rows = b->rows,
                         .dim = j->h->dim,
                         .score_stride = f->stride,
                         .bf16 = j->isa->round_panel };
}

static void
scores_of_few(const struct attention_job *j, const struct forward *f,
              const struct block *b)
{
    struct few few = few_of(j, f, b, j->key);
    uint64_t mode = few.bf16 ? flush_begin(FLUSH_ALL) : 0;
    if (few.bf16)
        j->isa->round(f->rows, f->rows, few.rows * few.dim, 1);
    j->c->few->scores(&few, f->score, f->rows);
    if (few.bf16)
        flush_end(mode);
}

static void
values_of_few(const struct attention_job *j, const struct forward *f,
              const struct block *b)
{
    struct few few = few_of(j, f, b, j->value);
    uint64_t mode = few.bf16 ? flush_begin(FLUSH_ALL) : 0;
    for (size_t r = 0; r < few.rows && few.bf16; r++)
        j->isa->round(f->score + r * f->stride, f->score + r * f->stride, few.n, 1);
    j->c->few->values(&few, f->out, f->score);
    if (few.bf16)
        flush_end(mode);
}

static void
scores_of_many(const struct attention_job *j, const struct forward *f,
               const struct block *b)
{
    size_t dim = j->h->dim, stride = j->h->kv * dim;
    pack_rows(j, f->row_panels, f->rows, dim, b->rows, dim, SIDE_A);
    for (size_t key = b->from; key < b->to; key += KEYS) {
        size_t n = min(b->to - key, KEYS);
        pack_rows(j, f->keys, j->key + key_offset(j, key, b->kv), stride, n, dim,
                  SIDE_B);
        gemm_panels(j->isa, f->row_panels, f->keys, f->score + (key - b->from),
                    f->stride, b->rows, n, dim, false);
    }
}

static void
compute_scores(const struct attention_job *j, const struct forward *f,
               const struct block *b)
{
    gather_rows(j, f->rows, j->q, b, j->scale);
    if (is_few(b))
        scores_of_few(j, f, b);
    else
        scores_of_many(j, f, b);
}

/* Exponentials of scores, 0 for keys that the row does not see, and their sums. */
static void
softmax(const struct attention_job *j, const struct forward *f, const struct block *b)
{
    const struct rows_isa *rows = j->c->rows;
    size_t n = b->to - b->from, low, high;
    for (size_t r = 0; r < b->rows; r++) {
        float *row = f->score + r * f->stride;
        size_t t = token_of(j, b, r);
        visible(j, t, b->from, n, &low, &high);
        float max = rows->max(row + low, high - low);
        f->sum[r] = rows->exp_sum(row + low, max, high - low);
        clear_invisible(row, low, high, n);
        j->lse[head_of(j, b, r) * j->h->tokens + t] =
            max + (float)maths_log((double)f->sum[r]);
    }
}

static void
values_of_many(const struct attention_job *j, const struct forward *f,
               const struct block *b)
{
    size_t dim = j->h->dim, stride = j->h->kv * dim;
    for (size_t key = b->from; key < b->to; key += KEYS) {
        size_t n = min(b->to - key, KEYS);
        pack_rows(j, f->p, f->score + (key - b->from), f->stride, b->rows, n, SIDE_A);
        pack_columns(j, f->values, j->value + key_offset(j, key, b->kv), stride, n, dim,
                     SIDE_B);
        gemm_panels(j->isa, f->p, f->values, f->out, dim, b->rows, dim, n,
                    key > b->from);
    }
}

static void
sum_values(const struct attention_job *j, const struct forward *f,
           const struct block *b)
{
    size_t dim = j->h->dim;
    if (is_few(b))
        values_of_few(j, f, b);
    else
        values_of_many(j, f, b);
    for (size_t r = 0; r < b->rows; r++)
        j->c->rows->scale(j->out + row_offset(j, b, r), 1 / f->sum[r], f->out + r * dim,
                          dim);
}

/* The last blocks first: they see the most keys. */
static int
forward(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct attention_job *j = ctx;
    size_t block = j->blocks - 1 - i / j->h->kv;
    const struct span *s = j->span + j->spans - 1;
    while (s->before > block)
        s--;
    struct block b = block_of(j, i % j->h->kv, s, block - s->before);
    struct forward f = forward_buffers(j, part_of(j, i, worker), NULL);
    (void)err;
    compute_scores(j, &f, &b);
    softmax(j, &f, &b);
    sum_values(j, &f, &b);
    return 0;
}

/* ---- backward ------------------------------------------------------------------------------ */

struct backward {
    float *q, *dout;           // (rows, dim), q times scale
    float *q_rows, *dout_rows; // their panels
    float *q_cols, *dout_cols; // their panels of columns
    float *key_rows, *value_rows, *key_cols;
    float *p, *ds; // (rows, KEYS)
    float *panels; // of one of them
    float *dq;     // (rows, dim)
    float *mean;   // (rows) dot products of dout and out
};

/* Offset of a row in dq. */
static size_t
dq_offset(const struct attention_job *j, const struct block *b, size_t row)
{
    return token_of(j, b, row) * j->dq_stride + head_of(j, b, row) * j->h->dim;
}

static struct backward
backward_buffers(const struct attention_job *j, float *part, size_t *size)
{
    float *start = part;
    size_t rows = j->block * j->group;
    struct backward f = { 0 };
    size_t dim = in_panels(j->h->dim), all = in_panels(rows);
    float **of_rows[] = { &f.q,      &f.dout,      &f.q_rows, &f.dout_rows,
                          &f.q_cols, &f.dout_cols, &f.dq };
    float **of_keys[] = { &f.key_rows, &f.value_rows, &f.key_cols };
    float **of_both[] = { &f.p, &f.ds, &f.panels };
    for (size_t i = 0; i < 7; i++)
        *of_rows[i] = take(&part, all * dim);
    for (size_t i = 0; i < 3; i++)
        *of_keys[i] = take(&part, KEYS * dim);
    for (size_t i = 0; i < 3; i++)
        *of_both[i] = take(&part, all * KEYS);
    f.mean = take(&part, rows);
    if (size)
        *size = (size_t)(part - start);
    return f;
}

static void
pack_block(const struct attention_job *j, const struct backward *f,
           const struct block *b)
{
    size_t dim = j->h->dim;
    gather_rows(j, f->q, j->q, b, j->scale);
    gather_rows(j, f->dout, j->dout, b, 1);
    pack_rows(j, f->q_rows, f->q, dim, b->rows, dim, SIDE_A);
    pack_rows(j, f->dout_rows, f->dout, dim, b->rows, dim, SIDE_A);
    pack_columns(j, f->q_cols, f->q, dim, b->rows, dim, SIDE_B);
    pack_columns(j, f->dout_cols, f->dout, dim, b->rows, dim, SIDE_B);
    for (size_t r = 0; r < b->rows; r++)
        f->mean[r] =
            j->c->rows->dot(f->dout + r * dim, j->y + row_offset(j, b, r), dim);
}

/* p and ds of n keys. */
static void
compute_ds(const struct attention_job *j, const struct backward *f,
           const struct block *b, size_t key, size_t n)
{
    const struct rows_isa *rows = j->c->rows;
    size_t dim = j->h->dim, stride = j->h->kv * dim, low, high;
    size_t at = key_offset(j, key, b->kv);
    pack_rows(j, f->key_rows, j->key + at, stride, n, dim, SIDE_B);
    pack_rows(j, f->value_rows, j->value + at, stride, n, dim, SIDE_B);
    gemm_panels(j->isa, f->q_rows, f->key_rows, f->p, KEYS, b->rows, n, dim, false);
    gemm_panels(j->isa, f->dout_rows, f->value_rows, f->ds, KEYS, b->rows, n, dim,
                false);
    for (size_t r = 0; r < b->rows; r++) {
        float *p = f->p + r * KEYS, *ds = f->ds + r * KEYS;
        size_t t = token_of(j, b, r);
        float lse = j->lse_in[head_of(j, b, r) * j->h->tokens + t];
        visible(j, t, key, n, &low, &high);
        rows->exp_sum(p + low, lse, high - low);
        rows->softmax_bwd(ds + low, p + low, f->mean[r], high - low);
        clear_invisible(p, low, high, n);
        clear_invisible(ds, low, high, n);
    }
}

/* dkey, dvalue and dq grow by the products of some rows with n keys. */
static void
add_gradients(const struct attention_job *j, const struct backward *f,
              const struct block *b, size_t key, size_t n)
{
    size_t dim = j->h->dim, stride = j->h->kv * dim;
    size_t at = key_offset(j, key, b->kv), to = key * j->dkv_stride + b->kv * dim;
    pack_columns(j, f->panels, f->p, KEYS, b->rows, n, SIDE_A);
    gemm_panels(j->isa, f->panels, f->dout_cols, j->dvalue + to, j->dkv_stride, n, dim,
                b->rows, true);
    pack_columns(j, f->panels, f->ds, KEYS, b->rows, n, SIDE_A);
    gemm_panels(j->isa, f->panels, f->q_cols, j->dkey + to, j->dkv_stride, n, dim,
                b->rows, true);
    pack_rows(j, f->panels, f->ds, KEYS, b->rows, n, SIDE_A);
    pack_columns(j, f->key_cols, j->key + at, stride, n, dim, SIDE_B);
    gemm_panels(j->isa, f->panels, f->key_cols, f->dq, dim, b->rows, dim, n,
                key > b->from);
}

static int
backward(void *ctx, size_t item, unsigned worker, struct err *err)
{
    const struct attention_job *j = ctx;
    const struct span *s = &j->span[item / j->h->kv];
    size_t dim = j->h->dim, kv = item % j->h->kv;
    struct backward f = backward_buffers(j, part_of(j, item, worker), NULL);
    (void)err;
    for (size_t i = 0; i < blocks_of(j, s); i++) {
        struct block b = block_of(j, kv, s, i);
        pack_block(j, &f, &b);
        for (size_t key = b.from; key < b.to; key += KEYS) {
            size_t n = min(b.to - key, KEYS);
            compute_ds(j, &f, &b, key, n);
            add_gradients(j, &f, &b, key, n);
        }
        for (size_t r = 0; r < b.rows; r++)
            j->c->rows->scale(j->dq + dq_offset(j, &b, r), j->scale, f.dq + r * dim,
                              dim);
    }
    return 0;
}

/* ---- the operations ------------------------------------------------------------------------ */

/* Tokens of that many rows, 1 at least. */
static size_t
tokens_of(const struct attention_job *j, size_t rows)
{
    return rows / j->group ? rows / j->group : 1;
}

/* What does not depend on where documents begin. */
static struct attention_job
shape_of(const struct heads *h)
{
    struct attention_job j = { .h = h,
                               .scale = 1 / sqrtf((float)h->dim),
                               .max_tokens = h->tokens };
    j.group = h->query / h->kv;
    j.block = min(tokens_of(&j, ROWS), h->tokens);
    j.max_spans = h->tokens / tokens_of(&j, MIN_SPAN) + 1;
    if (h->length && !h->past) {
        size_t span = ceil_div(tokens_of(&j, MIN_SPAN), h->length) * h->length;
        j.max_tokens = min(span, h->tokens);
        j.max_spans = ceil_div(h->tokens, j.max_tokens);
    }
    return j;
}

/* Threads that there is work for. */
static size_t
workers_of(const struct attention_job *j, unsigned threads, bool bwd)
{
    size_t items = j->max_spans;
    if (!bwd)
        items += ceil_div(j->h->tokens, j->block);
    return min(items * j->h->kv, threads);
}

/* Bytes of workspace: parts of the workers, then spans. */
static size_t
workspace_bytes(struct attention_job *j, unsigned threads, bool bwd)
{
    if (bwd)
        backward_buffers(j, NULL, &j->worker_size);
    else
        forward_buffers(j, NULL, &j->worker_size);
    j->workers = workers_of(j, threads, bwd);
    return j->workers * j->worker_size * sizeof *j->workspace +
           j->max_spans * sizeof *j->span;
}

size_t
cpu_attention_workspace(const struct cpu_kind *c, const struct heads *h)
{
    struct attention_job j = shape_of(h);
    return workspace_bytes(&j, c->threads, false);
}

size_t
cpu_attention_bwd_workspace(const struct cpu_kind *c, const struct heads *h)
{
    struct attention_job j = shape_of(h);
    return workspace_bytes(&j, c->threads, true);
}

/* Spans from the last token on; what is left at the start is one, however short. */
static void
divide(struct attention_job *j, struct span *span)
{
    const struct heads *h = j->h;
    size_t min_tokens = tokens_of(j, MIN_SPAN), end = h->tokens, low = SIZE_MAX;
    struct span *s = span + j->max_spans;
    for (size_t t = h->tokens; t-- > 0;) {
        low = min(low, (size_t)h->first[t]);
        if (t == 0 || (low >= h->past + t && end - t >= min_tokens)) {
            *--s = (struct span){ .token = t, .end = end };
            end = t;
        }
    }
    j->span = s;
    j->spans = (size_t)(span + j->max_spans - s);
    for (size_t i = 0; i < j->spans; i++) {
        s[i].before = j->blocks;
        j->blocks += blocks_of(j, &s[i]);
    }
}

/* Workspace and spans; false: nothing to do, or no memory. */
static bool
begin_attention(struct attention_job *j, struct cpu *c, bool bwd)
{
    size_t bytes = workspace_bytes(j, par_threads(c->pool), bwd);
    j->c = c;
    j->isa = c->gemm;
    j->workspace = cpu_workspace(c, bytes);
    if (!j->workspace || !j->h->tokens)
        return false;
    divide(j, (struct span *)(void *)(j->workspace + j->workers * j->worker_size));
    j->items = (bwd ? j->spans : j->blocks) * j->h->kv;
    return true;
}

void
cpu_attention(struct kernels *k, const struct matrix *out, float *lse,
              const struct matrix *q, const struct matrix *key,
              const struct matrix *value, const struct heads *h)
{
    struct attention_job j = shape_of(h);
    j.q = q->data;
    j.key = key->data;
    j.value = value->data;
    j.out = out->data;
    j.lse = lse;
    if (begin_attention(&j, cpu_of(k), false))
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
    struct attention_job j = shape_of(h);
    (void)work;
    j.q = q->data;
    j.key = key->data;
    j.value = value->data;
    j.dout = dout->data;
    j.y = out->data;
    j.lse_in = lse;
    j.dq = dq->data;
    j.dkey = dkey->data;
    j.dvalue = dvalue->data;
    j.dq_stride = dq->stride;
    j.dkv_stride = dkey->stride;
    zero_rows(dkey);
    zero_rows(dvalue);
    if (begin_attention(&j, cpu_of(k), true))
        cpu_for(cpu_of(k), j.items, backward, &j);
}
