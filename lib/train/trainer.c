/* SPDX-License-Identifier: MIT */
/* trainer: see trainer.h. */
#include "lib/train/trainer.h"

#include "lib/base/machine.h"
#include "lib/base/num.h"
#include "lib/base/os.h"
#include "lib/load/rank_gpus.h"
#include "lib/load/training.h"
#include "lib/train/record.h"
#include "lib/train/save.h"
#include "lib/train/teacher.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const trainer_phases[] = {
    "start",         "model_loaded",        "batch_ready", "zero_grad_done",
    "backward_done", "optimizer_step_done", NULL
};

/* ---- observers ------------------------------------------------------------------------- */

/* One function of an observer; 0 where it has none. */
typedef int observer_call(const struct observer *o, struct trainer *t,
                          const void *event);

/* The wishes of all observers. */
static int
notify(struct trainer *t, observer_call *call, const void *event)
{
    int wishes = 0;
    for (size_t i = 0; t->observers[i]; i++) {
        int wish = call(t->observers[i], t, event);
        if (wish < 0)
            return -1;
        wishes |= wish;
    }
    return wishes;
}

static int
call_phase(const struct observer *o, struct trainer *t, const void *name)
{
    return o->phase ? o->phase(o->ctx, t, name) : 0;
}

static int
call_gradients(const struct observer *o, struct trainer *t, const void *loss)
{
    return o->gradients ? o->gradients(o->ctx, t, *(const double *)loss) : 0;
}

static int
call_step(const struct observer *o, struct trainer *t, const void *event)
{
    return o->step ? o->step(o->ctx, t, event) : 0;
}

static int
call_eval(const struct observer *o, struct trainer *t, const void *event)
{
    return o->eval ? o->eval(o->ctx, t, event) : 0;
}

static int
call_saving(const struct observer *o, struct trainer *t, const void *event)
{
    (void)event;
    return o->saving ? o->saving(o->ctx, t) : 0;
}

static int
call_saved(const struct observer *o, struct trainer *t, const void *now)
{
    return o->saved ? o->saved(o->ctx, t, *(const bool *)now) : 0;
}

static int
call_undone(const struct observer *o, struct trainer *t, const void *event)
{
    (void)event;
    return o->undone ? o->undone(o->ctx, t) : 0;
}

static int
call_rest(const struct observer *o, struct trainer *t, const void *event)
{
    (void)event;
    return o->rest ? o->rest(o->ctx, t) : 0;
}

/* ---- words ----------------------------------------------------------------------------- */

static int
warn_of_skipped(void *ctx, const struct trainer *t, const struct step_event *e)
{
    (void)ctx;
    if (e->result->outcome != TRAIN_DONE && !e->repeated)
        host_warn(t->run->host, "step %llu was skipped: %s",
                  (unsigned long long)t->train.step, e->result->reason);
    return 0;
}

static int
note_evaluation(void *ctx, const struct trainer *t, const struct eval_event *e)
{
    char parts[96] = "";
    (void)ctx;
    if (t->in->has_teacher)
        snprintf(parts, sizeof parts, " (cross-entropy %.6g, KL %.6g)",
                 train_ce(e->sums), train_kl(e->sums));
    host_note(t->run->host, "step %llu: evaluation loss %.6g%s over %llu tokens",
              (unsigned long long)t->train.step, train_loss(&t->train, e->sums), parts,
              (unsigned long long)e->sums->targets);
    return 0;
}

const struct observer trainer_words = { .step = warn_of_skipped,
                                        .eval = note_evaluation };

/* ---- memory ---------------------------------------------------------------------------- */

/* The driver's bytes: what is less free than before, minus our own allocations.  Libraries
 * load until the first step has ended; later differences are of other processes.  One that
 * starts before that is counted as the driver, unless it allocates much. */
static void
measure_driver(struct trainer *t)
{
    const struct run_config *r = t->run;
    uint64_t before = r->free_before, own, now, gone;
    if (r->device.host || !t->k || t->train.step > r->in_step + 1)
        return;
    now = device_free(&r->where);
    own = t->k->usage.total;
    gone = before != UINT64_MAX && now < before ? before - now : 0;
    if (gone > own + t->driver)
        t->driver = gone - own < 2 * r->device.driver ? gone - own : r->device.driver;
}

uint64_t
trainer_memory(const struct trainer *t, bool peak)
{
    if (t->run->device.host)
        return machine_resident(peak);
    return (peak ? t->k->usage.total_peak : t->k->usage.total) + t->driver;
}

static double
gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

static int
check_memory(struct trainer *t)
{
    const struct run_config *r = t->run;
    uint64_t limit = r->o->memory_limit, used = limit ? trainer_memory(t, false) : 0;
    if (used <= limit)
        return 0;
    // On a GPU memory of other processes looks like the driver's: no reason to end.
    if (r->device.host || t->k->usage.total + r->device.driver > limit)
        return err_set(t->err, ERR_MEMORY,
                       "step %llu: %.3f GB in use, --memory-limit is %.3f",
                       (unsigned long long)t->train.step, gib(used), gib(limit));
    if (!t->over_limit)
        host_warn(r->host,
                  "%.3f GB in use, driver and libraries have %.3f of them, or others "
                  "of the same GPU; --memory-limit is %.3f",
                  gib(used), gib(t->driver), gib(limit));
    t->over_limit = true;
    return 0;
}

/* ---- phases ---------------------------------------------------------------------------- */

int
trainer_phase(struct trainer *t, const char *name)
{
    const struct run_config *r = t->run;
    if (t->ended)
        return 0;
    if (r->o->memory_report)
        measure_driver(t);
    if (notify(t, call_phase, name) < 0)
        return -1;
    if (r->host->verbose && t->train.step == r->in_step)
        host_warn(r->host, "%s: %.3f GB in use", name, gib(trainer_memory(t, false)));
    if (!r->o->stop_after || strcmp(name, r->o->stop_after) != 0)
        return 0;
    t->ended = true;
    host_note(r->host, "stopped after %s of step %llu; nothing was saved", name,
              (unsigned long long)t->train.step);
    return 0;
}

/* Whether the gradients of a step may be used. */
static bool
before_update(void *ctx, double loss, double norm)
{
    struct trainer *t = ctx;
    const struct settings *s = &t->run->s;
    if (trainer_phase(t, "backward_done") < 0 ||
        (!t->ended && t->train.step == t->run->in_step &&
         notify(t, call_gradients, &loss) < 0))
        t->failed = true;
    if (t->failed || t->ended)
        return false;
    return s->spike == 0 || spike_fits(&t->st.spike, s->spike, loss, norm);
}

/* ---- opening --------------------------------------------------------------------------- */

void
trainer_begin(struct trainer *t, const struct run_config *run, struct stop *stop,
              const struct observer *const *observers)
{
    *t = (struct trainer){ .run = run,
                           .stop = stop,
                           .observers = observers,
                           .err = run->err,
                           .in = run->in,
                           .ranks = run->ranks,
                           .lock = { .fd = -1 },
                           .locked_file = -1 };
}

int
trainer_open_device(struct trainer *t)
{
    const struct run_config *r = t->run;
    char words[64];
    t->k = device_open(&r->where, t->err);
    if (!t->k)
        return -1;
    device_describe(words, sizeof words, &r->where);
    if (strcmp(r->where.device, "auto") == 0)
        host_note(r->host, "device: %s", words);
    device_report_speed(&r->where);
    return 0;
}

/* Note once which share of the weights FP8 rounds; with --quant-from that is known late. */
static void
report_inexact(struct trainer *t)
{
    const struct weights *w = &t->train.weights;
    if (t->inexact_said || w->n_fp8 == 0)
        return;
    t->inexact_said = true;
    device_report_inexact(t->run->where.host, w->n_inexact, w->n_fp8);
}

/* Steps that were not of FP8, or had current scales, have left no magnitudes: the next one takes
 * current scales. */
static int
restore_scales(struct trainer *t)
{
    const struct net_delayed *d = t->train.net.delayed;
    size_t n = train_n_magnitudes(&t->train), bytes = n * sizeof(float);
    struct slice kept = t->st.fp8_amax;
    t->st.fp8_amax = (struct slice){ 0 };
    if (!d)
        return 0;
    if (kept.n && kept.n != bytes)
        return err_set(t->err, ERR_FORMAT,
                       "%s: \"fp8_amax\": %zu bytes, the model has %zu",
                       t->in->file.name, kept.n, bytes);
    for (size_t i = 0; i < n; i++)
        d->magnitude[i] =
            kept.n ? num_from_bits_f32(load_le32(kept.p + i * sizeof(float))) : 0;
    return 0;
}

static int
restore_counters(struct trainer *t)
{
    t->train.step = t->st.step;
    t->train.t = t->st.t;
    t->train.last_norm = t->st.grad_norm;
    return restore_scales(t);
}

/* Make the weights of products; all ranks together. */
static int
make_ready(struct trainer *t)
{
    if (ranks_wait(t->ranks, t->err) < 0)
        return -1;
    ranks_begin_work(t->ranks);
    return train_ready(&t->train);
}

static void
note_route(struct trainer *t)
{
    char was[TEXT_QUOTE];
    if (*t->st.route && strcmp(t->st.route, t->k->route) != 0 &&
        !config_is_replay(t->run))
        host_warn(t->run->host, "%s: trained by \"%s\" so far, from here on by \"%s\"",
                  t->in->file.name, text_quote(was, t->st.route, strlen(t->st.route)),
                  t->k->route);
    snprintf(t->st.route, sizeof t->st.route, "%s", t->k->route);
}

int
trainer_open_model(struct trainer *t)
{
    const struct run_config *r = t->run;
    struct train *train = &t->train;
    double start = os_seconds();
    t->st = r->st;
    t->file_bytes = r->plan.file_bytes;
    t->observed = r->in_step;
    t->opened = true;
    if (train_open(train, &r->model, t->k, &r->layout, t->err) < 0 ||
        training_load(train, &t->in->file, r->where.threads) < 0)
        return -1;
    if (train->net.fp8)
        device_report_not_fp8(r->where.host, &train->net.table);
    if (teacher_load(r, train) < 0)
        return -1;
    train->judge = before_update;
    train->judge_ctx = t;
    if (restore_counters(t) < 0 || make_ready(t) < 0 ||
        net_reserve(&train->net, r->max_tokens, r->max_labels, true) < 0)
        return -1;
    ranks_end_work(t->ranks);
    report_inexact(t);
    if (r->host->verbose)
        host_warn(r->host, "%s: loaded %.1f GB in %.2f s", t->in->file.name,
                  gib(t->file_bytes), os_seconds() - start);
    note_route(t);
    return 0;
}

void
trainer_close(struct trainer *t)
{
    if (t->opened) {
        train_close(&t->train);
        teacher_unload(t->run);
    }
    if (t->k)
        kernels_close(t->k);
    save_unlock(t);
    buf_free(&t->bad);
    free(t->fp8_amax);
    t->opened = false;
    t->k = NULL;
    t->fp8_amax = NULL;
}

/* ---- saves ----------------------------------------------------------------------------- */

uint64_t
trainer_saved_step(const struct trainer *t)
{
    return t->saved ? t->saved_step : t->run->in_step;
}

const char *
trainer_saved_name(const struct trainer *t)
{
    const struct train_options *o = t->run->o;
    return o->out && t->saved ? o->out : o->checkpoint;
}

static int
save(struct trainer *t)
{
    static const bool now = true;
    if (record_note(t) < 0 || notify(t, call_saving, NULL) < 0 || save_write(t) < 0)
        return -1;
    t->saved = true;
    t->saved_step = t->train.step;
    save_unlock_file(t);
    atomic_store(&t->stop->saved, true);
    return notify(t, call_saved, &now) < 0 ? -1 : 0;
}

/* An observer wishes the current step to be in the file. */
static int
save_by_wish(struct trainer *t)
{
    static const bool before = false;
    if (trainer_saved_step(t) < t->train.step)
        return save(t);
    return notify(t, call_saved, &before) < 0 ? -1 : 0;
}

/* ---- evaluations ----------------------------------------------------------------------- */

/* Whether one of the ranks was asked to stop; all are between the same steps.  -1: *t->err. */
static int
stop_was_asked(struct trainer *t)
{
    int signal = stop_signal(t->stop);
    if (ranks_meet(t->ranks, &signal, t->err) < 0)
        return -1;
    if (signal)
        stop_request(t->stop, signal);
    return signal != 0;
}

/* Add the losses of the batch that begins at sample `at`, if it is there for this rank. */
static int
evaluate_batch(struct trainer *t, size_t at, struct train_sums *sums)
{
    struct course *e = &t->in->eval;
    bool has_own = at < e->n;
    if (has_own && course_range(e, at, (size_t)t->run->s.batch, t->err) < 0)
        return -1;
    ranks_begin_work(t->ranks);
    if (train_eval(&t->train, has_own ? e->batch : NULL, sums) < 0)
        return -1;
    ranks_end_work(t->ranks);
    return 0;
}

int
trainer_evaluate(struct trainer *t)
{
    double start = os_seconds();
    struct train_sums sums = { 0 };
    size_t batch = (size_t)t->run->s.batch, own = t->ranks->rank * batch;
    for (size_t at = 0; at < t->in->eval.n; at += t->ranks->size * batch) {
        int stopped = stop_was_asked(t);
        if (stopped)
            return stopped;
        if (evaluate_batch(t, at + own, &sums) < 0)
            return -1;
    }
    const struct eval_event event = { &sums, (os_seconds() - start) * 1000 };
    t->evaluated = t->train.step;
    int wishes = notify(t, call_eval, &event);
    if (wishes < 0)
        return -1;
    t->satisfied = wishes & WISH_END;
    return wishes & WISH_SAVE ? save_by_wish(t) : 0;
}

/* ---- a step ---------------------------------------------------------------------------- */

static struct train_numbers
numbers(const struct run_config *r, double rate)
{
    const struct settings *s = &r->s;
    return (struct train_numbers){ .lr = (float)rate,
                                   .beta1 = (float)s->beta1,
                                   .beta2 = (float)s->beta2,
                                   .eps = (float)s->eps,
                                   .decay = (float)s->weight_decay,
                                   .clip = (float)s->clip,
                                   .mode = (enum clip_mode)s->clip_mode,
                                   .seed = (uint32_t)s->seed,
                                   .chunk_rows = (size_t)r->o->chunk_rows };
}

static bool
is_bad(const struct trainer *t, uint64_t step)
{
    const char *bad = t->bad.data;
    for (size_t i = 0; i < t->bad.len; i += sizeof step)
        if (memcmp(bad + i, &step, sizeof step) == 0)
            return true;
    return false;
}

/* The state of a checkpoint again, with the inputs of this run. */
static int
restore_state(struct trainer *t, const struct store *from)
{
    struct settings unused;
    struct state was = t->st, *st = &t->st;
    struct course *d = &t->in->data;
    if (state_read(st, &unused, from) < 0)
        return -1;
    bool same = st->has_sampler && memcmp(st->data, was.data, XXH3_BYTES) == 0;
    if (course_seek(d, same ? st->epoch : 0, same ? st->index : 0, t->err) < 0)
        return -1;
    memcpy(st->data, was.data, XXH3_BYTES);
    memcpy(st->tokenizer, was.tokenizer, SHA256_BYTES);
    memcpy(st->route, was.route, sizeof was.route);
    memcpy(st->teacher, was.teacher, XXH3_BYTES);
    memcpy(st->teacher_data, was.teacher_data, XXH3_BYTES);
    st->has_teacher = was.has_teacher;
    st->has_teacher_data = was.has_teacher_data;
    st->has_sampler = true;
    st->has_tokenizer = was.has_tokenizer;
    config_drop_spike(t->run, st);
    return restore_counters(t);
}

static int
go_back(struct trainer *t, struct store *to)
{
    if (training_load(&t->train, to, t->run->where.threads) < 0 ||
        restore_state(t, to) < 0 || make_ready(t) < 0)
        return -1;
    ranks_end_work(t->ranks);
    return 0;
}

/* A step that must not count has changed tensors: go back to the last save and repeat the
 * steps without it. */
static int
undo(struct trainer *t, const struct train_result *res)
{
    const struct run_config *r = t->run;
    struct store from;
    int rc;
    buf_add(&t->bad, &t->train.step, sizeof t->train.step);
    if (t->bad.failed)
        return err_set(t->err, ERR_MEMORY, "out of memory");
    host_warn(r->host, "step %llu is undone: %s", (unsigned long long)t->train.step,
              res->reason);
    if (t->saved) {
        rc = checkpoint_open(&from, r->target, r->host->guard, t->err);
        if (rc == 0)
            rc = go_back(t, &from);
        store_close(&from);
    } else {
        rc = go_back(t, &t->in->file);
    }
    if (rc < 0 || notify(t, call_undone, NULL) < 0)
        return -1;
    if (!r->o->out) // the checkpoint is as it was saved last, and a stop may leave it so
        atomic_store(&t->stop->saved, true);
    return 0;
}

static int
count_outcome(struct trainer *t, const struct train_result *res)
{
    if (res->outcome == TRAIN_DONE) {
        t->st.skips = 0;
        if (t->run->s.spike > 0) {
            t->st.has_spike = true;
            spike_add(&t->st.spike, res->loss, res->grad_norm);
        }
        return 0;
    }
    if (++t->st.skips < t->run->o->max_skips)
        return 0;
    return err_set(
        t->err, ERR_NONFINITE,
        "step %llu: %s; %llu steps in a row were skipped; the checkpoint is that "
        "of step %llu",
        (unsigned long long)t->train.step, res->reason, (unsigned long long)t->st.skips,
        (unsigned long long)trainer_saved_step(t));
}

/* Note which steps are quantized, and when the first one comes; an undone one comes again. */
static void
report_quant(struct trainer *t)
{
    enum { UNSAID, BEFORE, AFTER } now;
    const struct run_config *r = t->run;
    uint64_t from = settings_quant_from(&r->s);
    now = config_before_quant(r, t->train.step + 1) ? BEFORE : AFTER;
    if (from <= 1 || from <= r->in_step || t->quant_said >= now)
        return;
    t->quant_said = now;
    if (now == BEFORE)
        host_note(r->host, "steps before %llu are not quantized",
                  (unsigned long long)from);
    else
        host_note(r->host, "from step %llu on the forward pass uses NVFP4 weights (%s)",
                  (unsigned long long)from, r->quantizer);
}

/* Seconds in which exchanges have kept this rank from computing so far. */
static double
exchanged(const struct trainer *t)
{
    const struct comm *c = ranks_comm(t->ranks);
    return c ? c->waited + kernels_exchanged(t->k) : 0;
}

/* Count the next step, which is one of t->bad, without taking it. */
static int
pass_over(struct trainer *t, struct train_result *res)
{
    if (course_skip(&t->in->data, t->err) < 0)
        return -1;
    train_pass_over(&t->train);
    res->loss = res->grad_norm = NAN;
    snprintf(res->reason, sizeof res->reason, "a gradient was not finite");
    return 0;
}

/* Also t->ended. */
static int
compute(struct trainer *t, struct train_result *res)
{
    struct course *d = &t->in->data;
    if (course_step(d, t->err) < 0 || trainer_phase(t, "batch_ready") < 0 ||
        trainer_phase(t, "zero_grad_done") < 0)
        return -1;
    if (t->ended)
        return 0;
    ranks_begin_work(t->ranks);
    if (train_step(&t->train, d->batch, d->n_batches, res) < 0 || t->failed)
        return -1;
    ranks_end_work(t->ranks);
    return 0;
}

/* Count a step and tell observers; *due: one of them wishes that it is saved. */
static int
report_step(struct trainer *t, struct step_event *e, bool *due)
{
    const struct train_result *res = e->result;
    measure_driver(t);
    report_inexact(t);
    if (trainer_phase(t, "optimizer_step_done") < 0)
        return -1;
    if (t->ended)
        return 0;
    e->repeated = t->train.step <= t->observed;
    if (!e->repeated)
        t->observed = t->train.step;
    int wishes = notify(t, call_step, e);
    if (wishes < 0 || count_outcome(t, res) < 0)
        return -1;
    *due = wishes & WISH_SAVE;
    return 0;
}

/* 1: the step was undone.  Also t->ended. */
static int
take_step(struct trainer *t, bool *due)
{
    struct train_result res = { .outcome = TRAIN_SKIPPED };
    struct step_event event = { .result = &res,
                                .rate = settings_rate(&t->run->s, t->train.step + 1) };
    double start = os_seconds(), before = exchanged(t);
    t->train.numbers = numbers(t->run, event.rate);
    report_quant(t);
    bool bad = is_bad(t, t->train.step + 1);
    if ((bad ? pass_over(t, &res) : compute(t, &res)) < 0)
        return -1;
    if (t->ended)
        return 0;
    if (res.outcome == TRAIN_SPOILT)
        return undo(t, &res) < 0 ? -1 : 1;
    event.ms = (os_seconds() - start) * 1000;
    event.wait_ms = (exchanged(t) - before) * 1000;
    return report_step(t, &event, due);
}

/* ---- all steps ------------------------------------------------------------------------- */

/* Steps that are repeated after an undone one have been evaluated. */
static int
evaluate_if_due(struct trainer *t, bool *evaluated)
{
    uint64_t every = t->run->o->eval_every, step = t->train.step;
    *evaluated = false;
    if (!t->in->has_eval || !every || step % every)
        return 0;
    int stopped = step > t->evaluated ? trainer_evaluate(t) : 0;
    *evaluated = stopped == 0;
    return stopped < 0 ? -1 : 0;
}

static int
save_if_due(struct trainer *t, bool wished)
{
    uint64_t every = t->run->o->save_every, step = t->train.step;
    bool due = wished || (every && step % every == 0);
    return due && step < t->run->end && trainer_saved_step(t) < step ? save(t) : 0;
}

/* A step and what is due behind it. */
static int
advance(struct trainer *t, bool *evaluated)
{
    bool due = false;
    int undone = take_step(t, &due);
    if (undone || t->ended)
        return undone < 0 ? -1 : 0;
    if (check_memory(t) < 0 || evaluate_if_due(t, evaluated) < 0)
        return -1;
    return save_if_due(t, due);
}

/* What a run of all its steps ends with. */
static int
finish_run(struct trainer *t, bool evaluated)
{
    if (t->in->has_eval && !evaluated && t->evaluated != t->train.step &&
        !t->satisfied && trainer_evaluate(t) < 0)
        return -1;
    return trainer_saved_step(t) < t->train.step ? save(t) : 0;
}

int
trainer_run(struct trainer *t)
{
    bool evaluated = false;
    while (t->train.step < t->run->end && !t->ended) {
        int stopped = stop_was_asked(t);
        if (stopped < 0)
            return -1;
        if (stopped || t->satisfied)
            break;
        if (advance(t, &evaluated) < 0)
            return -1;
    }
    if (t->ended)
        return 0;
    if (notify(t, call_rest, NULL) < 0)
        return -1;
    return config_is_replay(t->run) ? 0 : finish_run(t, evaluated);
}
