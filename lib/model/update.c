/* SPDX-License-Identifier: MIT */
/* update: see update.h; numerics.md section 7 by its numbers. */
#include "lib/model/update.h"

#include "lib/base/maths.h"
#include "lib/model/exchange.h"
#include "lib/model/optimizer.h"
#include "lib/model/shard.h"
#include "lib/model/squares.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Squares of gradients must stay finite in f32, in sums, too. */
static const double max_norm = 1e18;

void
update_skip(struct train *t, const char *fmt, ...)
{
    struct train_result *r = t->result;
    va_list ap;
    if (r->outcome != TRAIN_DONE)
        return;
    r->outcome = t->moved ? TRAIN_SPOILT : TRAIN_SKIPPED;
    va_start(ap, fmt);
    vsnprintf(r->reason, sizeof r->reason, fmt, ap);
    va_end(ap);
}

/* ---- clipping --------------------------------------------------------------------------- */

static double
clip_for(const struct train *t, double norm)
{
    double limit = (double)t->numbers.clip;
    if (limit <= 0 || norm < 0)
        return 1;
    return fmin(1, limit / (norm + 1e-6));
}

/* What the gradient of a tensor is multiplied by, as the host knows it. */
static double
tensor_clip(const struct train *t, size_t i)
{
    return t->numbers.mode == CLIP_TENSOR ? clip_for(t, t->tensor[i].norm)
                                          : (double)t->clip;
}

/* The same as the device finds it, without the host. */
static float *
device_clip(struct train *t, size_t i, const float *before)
{
    op_clip(t->net.k, &t->clips[i], &t->squares[i], t->clip,
            t->numbers.mode == CLIP_TENSOR ? t->numbers.clip : 0, max_norm, before);
    return &t->clips[i];
}

/* Whether a gradient can be used: its norm is finite, clipped it is not too large. */
static bool
usable(struct train *t, size_t i)
{
    double norm = t->tensor[i].norm;
    if (norm * tensor_clip(t, i) <= max_norm)
        return true;
    update_skip(t, "the gradient of %s %s", t->net.table.row[i].name,
                isfinite(norm) ? "is too large" : "is not finite");
    return false;
}

/* ---- the optimizer------------------------------------------------------------------------ */

/* 1 - beta^t */
static float
bias_correction(double beta, uint64_t t)
{
    if (beta <= 0)
        return 1;
    double log = maths_log(beta) * (double)t;
    return log < -600 ? 1 : (float)(1 - maths_exp(log));
}

void
update_begin(struct train *t)
{
    const struct train_numbers *n = &t->numbers;
    // beta is a float in the formula, so it is one here, too.
    t->adam = (struct adam_step){ .lr = n->lr,
                                  .beta1 = n->beta1,
                                  .beta2 = n->beta2,
                                  .eps = n->eps,
                                  .bias_correction1 =
                                      bias_correction((double)n->beta1, t->t + 1),
                                  .bias_correction2 =
                                      bias_correction((double)n->beta2, t->t + 1),
                                  .seed = n->seed,
                                  .step = (uint32_t)(t->step + 1) };
    weights_begin(&t->weights);
    t->n_released = 0;
    t->clip = n->mode == CLIP_PREV ? (float)clip_for(t, t->last_norm) : 1;
}

static void
run_updates(struct train *t, struct updates *u)
{
    op_adamw(t->net.k, u->list, u->n);
    u->n = 0;
}

static void
update(struct train *t, size_t i, const float *clip, struct updates *u)
{
    const struct row *r = &t->net.table.row[i];
    struct adam_step a = t->adam;
    a.row = (uint32_t)i;
    a.decay = r->rank == 2 ? t->numbers.decay : 0;
    a.clip = clip;
    optimizer_of(&t->layout.arrays)->update(t, i, &a, u);
}

/* ---- kept gradients ---------------------------------------------------------------------- */

static int
download_norms(struct train *t)
{
    size_t n = t->net.table.n;
    if (kernels_download(t->net.k, t->host_squares, t->squares,
                         n * sizeof *t->host_squares) < 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (t->tensor[i].trained)
            t->tensor[i].norm = sqrt(t->host_squares[i]);
    return 0;
}

int
update_measure(struct train *t)
{
    size_t n = t->net.table.n;
    if (train_shards(t))
        return squares_measure(t) < 0 ? -1 : download_norms(t);
    struct matrix *grad = calloc(n, sizeof *grad);
    if (!grad)
        return err_set(t->err, ERR_MEMORY, "out of memory for a training");
    for (size_t i = 0; i < n; i++)
        grad[i] = t->tensor[i].grad;
    op_sum_squares(t->net.k, t->squares, grad, n);
    free(grad);
    return download_norms(t);
}

double
update_norm(const struct train *t)
{
    double sum = 0;
    for (size_t i = 0; i < t->net.table.n; i++)
        if (t->tensor[i].trained)
            sum += t->tensor[i].norm * t->tensor[i].norm;
    return sqrt(sum);
}

/* What the others have updated, while the next ones are. */
static int
gather_master(struct train *t, size_t i)
{
    const struct adam_state *s = &t->tensor[i].state;
    struct comm *c = t->layout.comm;
    shard_parts(t->part, &t->net.table, i, c->size);
    for (unsigned q = 0; q <= c->size; q++)
        t->part[q] *= dtype_bits(s->dtype) / 8;
    struct exchange_array master = { EXCHANGE_MASTER, i, s->master, t->part };
    exchange_begin(t->net.k);
    int rc = exchange_gather(t->net.k, c, &master, 1);
    exchange_end(t->net.k, EXCHANGE_ALL);
    return rc;
}

void
update_all(struct train *t)
{
    struct train_result *r = t->result;
    struct updates u;
    bool each = t->numbers.mode == CLIP_TENSOR;
    u.n = 0;
    if (t->numbers.mode == CLIP_GLOBAL)
        t->clip = (float)clip_for(t, r->grad_norm);
    r->clip = (double)t->clip;
    for (size_t i = 0; i < t->net.table.n; i++)
        if (t->tensor[i].trained)
            usable(t, i);
    if (!each)
        kernels_upload(t->net.k, t->clips, &t->clip, sizeof t->clip);
    for (size_t i = 0; i < t->net.table.n && r->outcome == TRAIN_DONE; i++) {
        if (!t->tensor[i].trained)
            continue;
        update(t, i, each ? device_clip(t, i, NULL) : t->clips, &u);
        if (!train_shards(t) || train_parts_master(t, i))
            continue;
        run_updates(t, &u);
        if (gather_master(t, i) < 0)
            return;
    }
    run_updates(t, &u);
}

/* ---- released gradients ------------------------------------------------------------------- */

void
update_released(void *ctx, size_t i)
{
    struct train *t = ctx;
    const float *before =
        t->n_released ? &t->clips[t->released[t->n_released - 1]] : NULL;
    struct updates u;
    u.n = 0;
    op_sum_squares(t->net.k, &t->squares[i], &t->tensor[i].grad, 1);
    update(t, i, device_clip(t, i, before), &u);
    run_updates(t, &u);
    t->released[t->n_released++] = i;
}

int
update_settle_released(struct train *t)
{
    if (download_norms(t) < 0)
        return -1;
    for (size_t i = 0; i < t->n_released && usable(t, t->released[i]); i++)
        t->moved = true;
    return 0;
}
