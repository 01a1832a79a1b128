/* SPDX-License-Identifier: MIT */
/* watch: see watch.h. */
#include "lib/train/watch.h"

#include "lib/base/text.h"
#include "lib/train/copies.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Consecutive steps that make a sign: one hard batch is none. */
enum { STEPS = 10 };

/* The loss of guessing times `worse` bounds the loss of those steps, times `far_worse` that of one
 * step. */
static const double worse = 1.5, far_worse = 4;

/* A cross-entropy of ln(V) is that of equal probabilities. */
static double
guessing(const struct trainer *t)
{
    return log((double)t->run->model.vocab);
}

static void
warn_of_guessing(struct watch_state *w, const struct trainer *t, double loss)
{
    const double even = guessing(t);
    char words[64];
    w->high = loss > worse * even ? w->high + 1 : 0;
    if (t->run->s.loss != LOSS_CE || w->warned)
        return;
    if (w->high == STEPS)
        snprintf(words, sizeof words, "was above %.4g for %d steps", worse * even,
                 STEPS);
    else if (loss > far_worse * even)
        snprintf(words, sizeof words, "is %.4g", loss);
    else
        return;
    w->warned = true;
    host_warn(
        t->run->host,
        "step %llu: the loss %s, and that of equal probabilities for all tokens is "
        "%.4g: the training has diverged: begin again from an earlier checkpoint with "
        "a lower --lr or a longer --warmup; --stop-if-worse 3 ends such a run before "
        "it saves",
        (unsigned long long)t->train.step, words, even);
}

static void
warn_of_zeros(struct watch_state *w, const struct trainer *t, double norm)
{
    if (norm != 0 || w->zeros)
        return;
    w->zeros = true;
    host_warn(
        t->run->host,
        "step %llu: the gradient norm is exactly 0: the weights learn nothing from the "
        "data: after a high loss the training has diverged: begin again from an "
        "earlier checkpoint with a lower --lr",
        (unsigned long long)t->train.step);
}

/* The steps since the last save are lost on purpose. */
static int
end_if_worse(struct watch_state *w, const struct trainer *t, double loss)
{
    double times = t->run->o->stop_if_worse;
    char q[TEXT_QUOTE];
    const char *file = trainer_saved_name(t);
    if (times <= 0)
        return 0;
    w->worse = w->best > 0 && loss > times * w->best ? w->worse + 1 : 0;
    if (!(w->best > 0) || loss < w->best)
        w->best = loss;
    if (w->worse < STEPS)
        return 0;
    return err_set(
        t->err, ERR_NONFINITE,
        "step %llu: the loss of %d steps in a row was above %g times the lowest one, "
        "%.6g: %s stays at step %llu: expected a lower --lr, or another "
        "--stop-if-worse",
        (unsigned long long)t->train.step, STEPS, times, w->best,
        text_quote(q, file, strlen(file)), (unsigned long long)trainer_saved_step(t));
}

/* The loss of a step is that of the weights before it. */
static void
note_sound(struct watch_state *w, const struct trainer *t, double loss)
{
    if (t->train.step == trainer_saved_step(t) + 1)
        w->sound = loss <= worse * guessing(t);
}

static int
on_step(void *ctx, const struct trainer *t, const struct step_event *e)
{
    struct watch *watch = ctx;
    struct watch_state *w = &watch->now;
    const struct train_result *res = e->result;
    if (res->outcome != TRAIN_DONE)
        return 0;
    note_sound(w, t, res->loss);
    warn_of_guessing(w, t, res->loss);
    warn_of_zeros(w, t, res->grad_norm);
    return end_if_worse(w, t, res->loss);
}

/* Rank 0 writes. */
static int
on_saving(void *ctx, const struct trainer *t)
{
    struct watch *watch = ctx;
    struct watch_state *w = &watch->now;
    bool replaces = t->saved || !t->run->o->out;
    if (t->ranks->rank || !replaces || w->kept || !w->sound || !(w->high || w->zeros))
        return 0;
    w->kept = true;
    return copies_keep_sound(t->run, trainer_saved_step(t));
}

static int
on_saved(void *ctx, const struct trainer *t, bool now)
{
    struct watch *w = ctx;
    (void)t;
    if (now)
        w->saved = w->now;
    return 0;
}

static int
on_undone(void *ctx, const struct trainer *t)
{
    struct watch *w = ctx;
    (void)t;
    w->now = w->saved;
    return 0;
}

void
watch_begin(struct watch *w)
{
    *w = (struct watch){ .observer = { .ctx = w,
                                       .step = on_step,
                                       .saving = on_saving,
                                       .saved = on_saved,
                                       .undone = on_undone } };
}

void
watch_restore(struct watch *w, double best, uint64_t worse_steps)
{
    // An undone step goes back to it before the first save, too.
    w->now = (struct watch_state){ .best = best, .worse = worse_steps };
    w->saved = w->now;
}
