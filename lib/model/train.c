/* SPDX-License-Identifier: MIT */
/* train: see train.h; numerics.md section 7 by its numbers. */
#include "lib/model/train.h"

#include "lib/model/delayed.h"
#include "lib/model/exchange.h"
#include "lib/model/gradient.h"
#include "lib/model/update.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Whatever is exchanged beside the products so far is there. */
static void
settle_exchanges(struct train *t)
{
    if (train_overlaps(t))
        exchange_settle(t->net.k);
}

/* The weights of products, of the masters as they are. */
static int
make_weights(struct train *t)
{
    const struct optimizer *o = optimizer_of(&t->layout.arrays);
    settle_exchanges(t);
    for (size_t i = 0; i < t->net.table.n; i++) {
        const struct train_tensor *x = &t->tensor[i];
        if (!x->unpacked)
            continue;
        struct matrix from = t->layout.arrays.packed ? o->master(x) : t->masters[i];
        op_convert(t->net.k, &t->net.t[i].w, &from);
    }
    if (weights_make(&t->weights, t->masters) < 0)
        return -1;
    return weights_check(&t->weights, &t->bad_row);
}

/* Whether products of that step see the masters although there is a quantizer. */
static bool
is_before_quant(const struct train *t, uint64_t step)
{
    return t->weights.quantize && step < t->layout.quant_from;
}

/* Make the weights of products in the form of that step. */
static int
make_form(struct train *t, uint64_t step)
{
    t->net.unquantized = is_before_quant(t, step);
    for (size_t i = 0; i < t->net.table.n; i++)
        if (t->weights.packed[i].scale2)
            t->net.t[i].w = t->net.unquantized ? t->masters[i] : t->weights.packed[i];
    weights_begin(&t->weights); // forgets what a skipped step has left
    return make_weights(t);
}

/* The same, if they are of the other form. */
static int
settle_form(struct train *t, uint64_t step)
{
    return is_before_quant(t, step) == t->net.unquantized ? 0 : make_form(t, step);
}

int
train_ready(struct train *t)
{
    return make_form(t, t->step + 1);
}

static uint64_t
count_targets(const struct net_batch *b, size_t n)
{
    uint64_t targets = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < b[i].tokens; k++)
            targets += b[i].label[k] >= 0;
    return targets;
}

static int
no_memory(struct train *t)
{
    return err_set(t->err, ERR_MEMORY, "out of memory for a training");
}

static int
reserve_losses(struct train *t, size_t tokens)
{
    if (tokens <= t->cap_losses)
        return 0;
    free(t->losses.loss);
    t->losses.loss = calloc(2 * tokens, sizeof *t->losses.loss);
    t->cap_losses = t->losses.loss ? tokens : 0;
    t->losses.kl = t->losses.loss + t->cap_losses;
    return t->cap_losses ? 0 : no_memory(t);
}

static int
reserve_sums(struct train *t, size_t passes)
{
    if (passes <= t->cap_sums)
        return 0;
    free(t->sums);
    t->sums = calloc(passes, sizeof *t->sums);
    t->cap_sums = t->sums ? passes : 0;
    return t->sums ? 0 : no_memory(t);
}

/* The losses of a pass, added from zero in the order of its tokens. */
static int
run_pass(struct train *t, const struct net_batch *b, float scale,
         struct train_sums *sums)
{
    *sums = (struct train_sums){ 0 };
    if (reserve_losses(t, b->tokens) < 0 ||
        net_pass(&t->net, b, scale, &t->losses, NULL) < 0 ||
        (scale != 0 && delayed_read_clipped(t, &sums->clipped) < 0))
        return -1;
    for (size_t i = 0; i < b->tokens; i++) {
        bool taught = t->net.teacher && (!b->taught || b->taught[i]);
        *(taught ? &sums->ce : &sums->loss) += (double)t->losses.loss[i];
        sums->kl += taught ? (double)t->losses.kl[i] : 0;
        sums->taught += taught && b->label[i] >= 0;
    }
    return 0;
}

double
train_loss(const struct train *t, const struct train_sums *sums)
{
    const struct distill *d = &t->net.distill;
    double sum = sums->loss, T = (double)d->temperature;
    if (t->net.teacher)
        sum += (double)(1 - d->share) * sums->ce + (double)d->share * T * T * sums->kl;
    return sums->targets ? sum / (double)sums->targets : NAN;
}

double
train_ce(const struct train_sums *sums)
{
    return (sums->loss + sums->ce) / (double)sums->targets;
}

double
train_kl(const struct train_sums *sums)
{
    return sums->taught ? sums->kl / (double)sums->taught : 0;
}

static unsigned
own_rank(const struct train *t)
{
    return train_ranks(t) > 1 ? t->layout.comm->rank : 0;
}

/* Each rank has put its losses at sums[rank]: get the others'. */
static int
gather_sums(struct train *t, struct train_sums *sums)
{
    if (train_ranks(t) == 1)
        return 0;
    for (unsigned q = 0; q <= train_ranks(t); q++)
        t->part[q] = q * sizeof *sums;
    return comm_gather(t->layout.comm, sums, t->part) < 0 ? gradient_lost(t) : 0;
}

/* Add the losses of a pass. */
static void
add_sums(struct train_sums *to, const struct train_sums *from)
{
    to->loss += from->loss;
    to->ce += from->ce;
    to->kl += from->kl;
    to->targets += from->targets;
    to->taught += from->taught;
    to->clipped += from->clipped;
}

/* The losses of a step: those of its passes, added in their order. */
static void
add_losses(struct train *t, size_t passes)
{
    struct train_result *r = t->result;
    struct train_sums all = { .targets = r->targets };
    for (size_t i = 0; i < passes; i++) {
        add_sums(&all, &t->sums[i]);
        if (isfinite(all.loss) && isfinite(all.ce) && !isfinite(all.kl))
            update_skip(t, "the divergence from the teacher is not finite");
        if (!isfinite(train_loss(t, &all)))
            update_skip(t, "the loss is not finite");
    }
    r->loss = train_loss(t, &all);
    r->ce = train_ce(&all);
    r->kl = train_kl(&all);
    r->fp8_clipped = all.clipped;
}

/* All gradients are complete: judge, clip, update. */
static int
apply(struct train *t)
{
    struct train_result *r = t->result;
    if (r->outcome == TRAIN_DONE && !t->layout.release && update_measure(t) < 0)
        return -1;
    r->grad_norm = update_norm(t);
    if (t->judge && r->outcome == TRAIN_DONE &&
        !t->judge(t->judge_ctx, r->loss, r->grad_norm))
        update_skip(t, "a spike");
    if (r->outcome == TRAIN_DONE && !t->layout.release)
        update_all(t);
    return 0;
}

static int
run_step(struct train *t, const struct net_batch *b, size_t n)
{
    struct train_result *r = t->result;
    size_t rank = own_rank(t), ranks = train_ranks(t);
    assert(n % ranks == 0);
    if (t->bad_row < t->net.table.n)
        update_skip(t, "the weight %s is not finite",
                    t->net.table.row[t->bad_row].name);
    if (r->targets == 0)
        update_skip(t, "no token is to be learnt");
    if (r->outcome != TRAIN_DONE)
        return 0;
    if (reserve_sums(t, n) < 0)
        return -1;
    update_begin(t);
    delayed_begin(t);
    r->clip = (double)t->clip;
    for (size_t i = 0; i < n; i += ranks) {
        t->first_pass = i == 0;
        t->last_pass = i + ranks == n;
        t->own_free = false;
        if (run_pass(t, &b[i + rank], 1 / (float)r->targets, &t->sums[i + rank]) < 0 ||
            gather_sums(t, &t->sums[i]) < 0 ||
            (t->layout.release && update_settle_released(t) < 0))
            return -1;
    }
    add_losses(t, n);
    if (r->outcome != TRAIN_DONE || !train_shards(t)) // otherwise squares_measure does
        settle_exchanges(t);
    return apply(t);
}

int
train_step(struct train *t, const struct net_batch *b, size_t n, struct train_result *r)
{
    *r = (struct train_result){
        .loss = NAN, .ce = NAN, .kl = NAN, .grad_norm = NAN, .clip = 1
    };
    t->result = r;
    t->moved = false;
    for (size_t i = 0; i < n; i++)
        r->tokens += b[i].tokens;
    r->targets = count_targets(b, n);
    int rc = settle_form(t, t->step + 1);
    if (rc == 0)
        rc = run_step(t, b, n);
    t->result = NULL;
    if (rc < 0 || t->err->kind)
        return -1;
    t->step++;
    if (r->outcome != TRAIN_DONE)
        return 0;
    t->t++;
    t->last_norm = r->grad_norm;
    if (delayed_keep(t) < 0 || make_weights(t) < 0)
        return -1;
    if (t->bad_row < t->net.table.n) {
        r->outcome = TRAIN_SPOILT;
        snprintf(r->reason, sizeof r->reason, "the weight %s is not finite any more",
                 t->net.table.row[t->bad_row].name);
    }
    return 0;
}

void
train_pass_over(struct train *t)
{
    t->step++;
}

int
train_eval(struct train *t, const struct net_batch *b, struct train_sums *sums)
{
    if (settle_form(t, t->step ? t->step : 1) < 0)
        return -1;
    unsigned rank = own_rank(t), ranks = train_ranks(t);
    if (reserve_sums(t, ranks) < 0)
        return -1;
    t->sums[rank] = (struct train_sums){ 0 };
    if (b && run_pass(t, b, 0, &t->sums[rank]) < 0)
        return -1;
    // The passes of others wait for weights that this rank sends, and this rank for their sums.
    if (!b && train_overlaps(t))
        exchange_finish(t->net.k);
    t->sums[rank].targets = b ? count_targets(b, 1) : 0;
    if (gather_sums(t, t->sums) < 0)
        return -1;
    for (unsigned q = 0; q < ranks; q++)
        add_sums(sums, &t->sums[q]);
    return 0;
}
