/* SPDX-License-Identifier: MIT */
/* watch: signs that a training has diverged.  A loss that is worse than guessing and a gradient
 * of zeros are warned of; --stop-if-worse ends the run before it saves. */
#include "cmd/trainstep/trainstep.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Consecutive steps that make a sign: one hard batch is none. */
enum { STEPS = 10 };

/* The loss of guessing times `worse` bounds the loss of those steps, times `far_worse` that of one
 * step. */
static const double worse = 1.5, far_worse = 4;

/* A cross-entropy of ln(V) is that of equal probabilities. */
static void
warn_of_guessing(struct run *r, double loss)
{
    const double guessing = log((double)r->c.vocab);
    struct watch *w = &r->watch;
    char words[64];
    w->high = loss > worse * guessing ? w->high + 1 : 0;
    if (r->s.loss != LOSS_CE || w->warned)
        return;
    if (w->high == STEPS)
        snprintf(words, sizeof words, "was above %.4g for %d steps", worse * guessing,
                 STEPS);
    else if (loss > far_worse * guessing)
        snprintf(words, sizeof words, "is %.4g", loss);
    else
        return;
    w->warned = true;
    warn("step %llu: the loss %s, and that of equal probabilities for all tokens is "
         "%.4g: "
         "the training has diverged: begin again from an earlier checkpoint with a "
         "lower "
         "--lr or a longer --warmup; --stop-if-worse 3 ends such a run before it saves",
         (unsigned long long)r->t.step, words, guessing);
}

static void
warn_of_zeros(struct run *r, double norm)
{
    if (norm != 0 || r->watch.zeros)
        return;
    r->watch.zeros = true;
    warn(
        "step %llu: the gradient norm is exactly 0: the weights learn nothing from the "
        "data: after a high loss the training has diverged: begin again from an "
        "earlier checkpoint with a lower --lr",
        (unsigned long long)r->t.step);
}

/* The steps since the last save are lost on purpose. */
static void
end_if_worse(struct run *r, double loss)
{
    struct watch *w = &r->watch;
    double times = r->o->stop_if_worse;
    if (times <= 0)
        return;
    w->worse = w->best > 0 && loss > times * w->best ? w->worse + 1 : 0;
    if (!(w->best > 0) || loss < w->best)
        w->best = loss;
    char q[TEXT_QUOTE];
    const char *file = run_saved_name(r);
    if (w->worse >= STEPS)
        die(EXIT_NONFINITE,
            "step %llu: the loss of %d steps in a row was above %g times the lowest "
            "one, "
            "%.6g: %s stays at step %llu: expected a lower --lr, or another "
            "--stop-if-worse",
            (unsigned long long)r->t.step, STEPS, times, w->best,
            text_quote(q, file, strlen(file)), (unsigned long long)run_saved_step(r));
}

/* The loss of a step is that of the weights before it. */
static void
note_sound(struct run *r, double loss)
{
    if (r->t.step == run_saved_step(r) + 1)
        r->watch.sound = loss <= worse * log((double)r->c.vocab);
}

void
watch_before_save(struct run *r)
{
    struct watch *w = &r->watch;
    bool replaces = r->saved || !r->o->out;
    if (!replaces || w->kept || !w->sound || !(w->high || w->zeros))
        return;
    w->kept = true;
    keep_sound(r);
}

void
watch_step(struct run *r, const struct train_result *res)
{
    if (res->outcome != TRAIN_DONE || r->replay)
        return;
    note_sound(r, res->loss);
    warn_of_guessing(r, res->loss);
    warn_of_zeros(r, res->grad_norm);
    end_if_worse(r, res->loss);
}
