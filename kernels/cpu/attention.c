/* SPDX-License-Identifier: MIT */
/* attention: a row of scores at a time, never a square of them. */
#include "kernels/cpu/cpu.h"

#include "lib/core/maths.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct job {
    const struct cpu *c;
    const struct heads *h;
    const float *q, *key, *value, *dout, *y;
    float *out, *lse, *dq, *dkey, *dvalue;
    float scale;
};

static size_t
at_query(const struct heads *h, size_t token, size_t head)
{
    return (token * h->query + head) * h->dim;
}

static size_t
at_kv(const struct heads *h, size_t token, size_t head)
{
    return (token * h->kv + head) * h->dim;
}

/* score[j] of keys first .. past + token, j from 0; returns how many. */
static size_t
scores(const struct job *j, float *score, size_t token, size_t head, size_t kv)
{
    const struct heads *h = j->h;
    size_t first = (size_t)h->first[token], n = h->past + token - first + 1;
    const float *q = j->q + at_query(h, token, head);
    for (size_t i = 0; i < n; i++)
        score[i] =
            j->c->rows->dot(q, j->key + at_kv(h, first + i, kv), h->dim) * j->scale;
    return n;
}

/* One query head, all of its rows. */
static int
forward(void *ctx, size_t head, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    const struct heads *h = j->h;
    const struct rows_isa *rows = j->c->rows;
    size_t kv = head / (h->query / h->kv);
    float *score = malloc((h->past + h->tokens + 1) * sizeof *score);
    (void)worker;
    if (!score)
        return err_set(err, ERR_MEMORY, "out of memory for attention");
    for (size_t t = 0; t < h->tokens; t++) {
        size_t n = scores(j, score, t, head, kv), first = (size_t)h->first[t];
        float *out = j->out + at_query(h, t, head);
        float most = rows->most(score, n);
        float sum = rows->exp_sum(score, score, most, n);
        memset(out, 0, h->dim * sizeof *out);
        for (size_t i = 0; i < n; i++)
            rows->axpy(out, score[i] / sum, j->value + at_kv(h, first + i, kv), h->dim);
        j->lse[head * h->tokens + t] = most + (float)maths_log((double)sum);
    }
    free(score);
    return 0;
}

/* One kv head with the query heads that use it. */
static int
backward(void *ctx, size_t kv, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    const struct heads *h = j->h;
    const struct rows_isa *rows = j->c->rows;
    size_t group = h->query / h->kv;
    float *p = malloc((h->tokens + 1) * sizeof *p);
    (void)worker;
    if (!p)
        return err_set(err, ERR_MEMORY, "out of memory for attention");
    for (size_t head = kv * group; head < (kv + 1) * group; head++)
        for (size_t t = 0; t < h->tokens; t++) {
            size_t n = scores(j, p, t, head, kv), first = (size_t)h->first[t];
            size_t at = at_query(h, t, head);
            const float *dout = j->dout + at;
            float mean = rows->dot(dout, j->y + at, h->dim);
            rows->exp_sum(p, p, j->lse[head * h->tokens + t], n);
            memset(j->dq + at, 0, h->dim * sizeof *j->dq);
            for (size_t i = 0; i < n; i++) {
                size_t from = at_kv(h, first + i, kv);
                float dp = rows->dot(dout, j->value + from, h->dim);
                float ds = p[i] * (dp - mean) * j->scale;
                rows->axpy(j->dvalue + from, p[i], dout, h->dim);
                rows->axpy(j->dq + at, ds, j->key + from, h->dim);
                rows->axpy(j->dkey + from, ds, j->q + at, h->dim);
            }
        }
    free(p);
    return 0;
}

void
cpu_attention(struct kernels *k, float *out, float *lse, const float *q,
              const float *key, const float *value, const struct heads *h)
{
    struct cpu *c = (struct cpu *)k;
    struct job j = { .c = c,
                     .h = h,
                     .q = q,
                     .key = key,
                     .value = value,
                     .out = out,
                     .lse = lse,
                     .scale = 1 / sqrtf((float)h->dim) };
    cpu_for(c, h->query, forward, &j);
}

void
cpu_attention_dx(struct kernels *k, float *dq, float *dkey, float *dvalue,
                 const float *dout, const float *out, const float *lse, const float *q,
                 const float *key, const float *value, const struct heads *h)
{
    struct cpu *c = (struct cpu *)k;
    size_t bytes = h->tokens * h->kv * h->dim * sizeof *dkey;
    struct job j = { .c = c,
                     .h = h,
                     .q = q,
                     .key = key,
                     .value = value,
                     .dout = dout,
                     .y = out,
                     .dq = dq,
                     .dkey = dkey,
                     .dvalue = dvalue,
                     .scale = 1 / sqrtf((float)h->dim) };
    j.lse = (float *)(uintptr_t)lse; // read only here
    memset(dkey, 0, bytes);
    memset(dvalue, 0, bytes);
    cpu_for(c, h->kv, backward, &j);
}
