/* SPDX-License-Identifier: MIT */
/* run: the parts of a training, put together in their order. */
#include "cmd/trainstep/trainstep.h"

#include "cmd/cli/suffix.h"
#include "lib/load/rank_gpus.h"
#include "lib/train/agree.h"
#include "lib/train/dump.h"
#include "lib/train/finished.h"
#include "lib/train/log.h"
#include "lib/train/memory_report.h"
#include "lib/train/plan.h"
#include "lib/train/replay.h"
#include "lib/train/save.h"
#include "lib/train/tensorboard.h"

#include <stdlib.h>

enum { OBSERVERS = 16 }; // more than there are

/* All of them begin as zeros, and may be closed from there on. */
static struct run {
    const struct train_options *o;
    struct ranks *ranks;
    struct stop *stop;
    struct inputs in;
    struct run_config config;
    struct trainer trainer;
    struct rank_gpus gpus;
    struct keep keep;
    struct watch watch;
    struct replay replay;
    struct display display;
    struct log log;
    struct tensorboard tensorboard;
    struct memory_report report;
    const struct observer *observers[OBSERVERS];
    size_t n_observers;
    struct err err;
} self;

/* Pass on what a function of lib/train returned; an error ends the program. */
static int
must(int rc)
{
    if (rc < 0)
        cmd_ranks_die(&self.err);
    return rc;
}

/* ---- however the program ends ------------------------------------------------------------ */

/* For a signal's handler the guard knows the lock. */
static void
unlock(void)
{
    save_unlock(&self.trainer);
}

static void
write_report(void)
{
    struct err err = { 0 };
    if (memory_report_close(&self.report, &err) < 0)
        warn("%s", err.msg);
}

static void
at_exit(void (*fn)(void))
{
    if (atexit(fn) != 0)
        die(EXIT_MEMORY, "out of memory at the beginning");
}

/* ---- the checkpoint ---------------------------------------------------------------------- */

static void
open_input(struct run *r)
{
    struct run_config *c = &r->config;
    if (config_is_replay(c)) {
        must(replay_open(&r->replay, c));
        must(config_open(c, r->replay.earlier));
        must(replay_begin(&r->replay, c));
    } else {
        must(config_open(c, r->o->checkpoint));
        must(config_take_options(c));
    }
}

/* The samples of --eval, and what earlier runs have left. */
static void
open_keep(struct run *r)
{
    must(config_open_eval(&r->config));
    must(keep_open(&r->keep, &r->config, r->stop, &r->watch));
}

/* Whether an earlier run owes an evaluation or a copy of a finished checkpoint. */
static bool
owes(struct run *r)
{
    if (r->o->out || !keep_is_on(r->o))
        return false;
    open_keep(r);
    bool owed = keep_owes_evaluation(&r->keep) || must(keep_owes_copies(&r->keep));
    keep_close(&r->keep);
    return owed;
}

/* A finished checkpoint of which nothing is owed needs no lock.  Another run may have replaced
 * the file before we got the lock, so it is opened again. */
static void
open_locked(struct run *r)
{
    open_input(r);
    if (config_is_finished(&r->config) && !owes(r))
        return;
    at_exit(unlock);
    must(save_lock(&r->trainer));
    open_input(r);
}

/* Rank 0 locks and writes the checkpoint; the other ranks read it. */
static void
open_shared(struct run *r)
{
    bool leads = r->ranks->rank == 0 && !config_is_replay(&r->config);
    if (!config_is_replay(&r->config))
        must(config_settle_target(&r->config));
    if (leads)
        open_locked(r);
    must(ranks_wait(r->ranks, &r->err));
    if (!leads)
        open_input(r);
    must(agree_on_input(&r->config));
}

/* ---- nothing to do ----------------------------------------------------------------------- */

/* Pay what an earlier run owes of a finished checkpoint.  true: an evaluation is owed, too, for
 * which the model is needed. */
static bool
pays_evaluation(struct run *r)
{
    if (r->o->out || r->o->dry_run || config_is_replay(&r->config) || !keep_is_on(r->o))
        return false;
    open_keep(r);
    if (keep_owes_evaluation(&r->keep))
        return true;
    must(ranks_wait(r->ranks, &r->err)); // all know what is owed
    if (r->ranks->rank > 0 || r->trainer.lock.fd >= 0)
        must(keep_pay_copies(&r->keep));
    return false;
}

static void
end_without_patience(struct run *r)
{
    must(ranks_wait(r->ranks, &r->err));
    must(keep_pay_copies(&r->keep));
    if (r->ranks->rank == 0)
        finished_by_patience(&r->config, &r->keep);
}

static void
print_plan(struct run *r)
{
    struct buf b = { 0 };
    must(plan_settle(&r->config));
    must(plan_put(&r->config, &b));
    cmd_flush(&b);
    buf_free(&b);
}

/* ---- observers --------------------------------------------------------------------------- */

static void
observe(struct run *r, const struct observer *o)
{
    r->observers[r->n_observers++] = o;
}

/* Observers that only read come first: they write a step before another observer may end the run. */
static void
open_observers(struct run *r)
{
    const struct run_config *c = &r->config;
    display_open(&r->display, c, r->stop);
    if (r->o->log) {
        must(log_open(&r->log, c, r->stop));
        observe(r, &r->log.observer);
    }
    if (r->o->tensorboard) {
        must(tensorboard_open(&r->tensorboard, c, r->stop));
        observe(r, &r->tensorboard.observer);
    }
    observe(r, &trainer_words);
    observe(r, &r->display.observer);
    if (!config_is_replay(c)) {
        observe(r, &r->keep.observer);
        observe(r, &r->watch.observer);
    }
    if (r->o->memory_report) {
        must(memory_report_open(&r->report, c, r->stop));
        at_exit(write_report);
        observe(r, &r->report.observer);
    }
    if (!config_is_replay(c))
        observe(r, &r->keep.at_last);
    if (r->o->dump)
        observe(r, &dump_observer);
}

static void
close_observers(struct run *r)
{
    progress_clear();
    must(memory_report_close(&r->report, &r->err));
    if (r->o->log)
        must(log_close(&r->log, &r->err));
    if (r->o->tensorboard)
        must(tensorboard_close(&r->tensorboard, &r->err));
}

/* ---- training ---------------------------------------------------------------------------- */

static void
open_trainer(struct run *r)
{
    struct trainer *t = &r->trainer;
    bool replays = config_is_replay(&r->config);
    must(plan_settle(&r->config));
    must(trainer_open_device(t));
    must(agree_on_run(t, &r->keep));
    if (!replays)
        must(save_check_place(t));
    must(rank_gpus_join(&r->gpus, r->ranks, t->k, r->o->host, &r->err));
    must(trainer_open_model(t));
    if (replays)
        must(replay_check_route(&r->replay, t));
    else if (r->ranks->rank == 0 && !config_is_finished(&r->config))
        must(save_check(t));
}

/* Do what an earlier run owes, and --eval-first, which a run that was cut has done. */
static void
pay(struct run *r)
{
    bool first = r->o->eval_first && !keep_has_evaluated(&r->keep);
    must(keep_pay_copies(&r->keep));
    if (r->in.has_eval && (first || keep_owes_evaluation(&r->keep)))
        must(trainer_evaluate(&r->trainer));
}

static void
train(struct run *r)
{
    struct trainer *t = &r->trainer;
    must(trainer_phase(t, "start"));
    must(trainer_phase(t, "model_loaded"));
    stop_catch();
    if (!t->ended && !config_is_replay(&r->config))
        pay(r);
    must(trainer_run(t));
}

/* Close all; the exit status.  The message about the end comes last. */
static int
close_run(struct run *r)
{
    struct buf words = { 0 };
    bool ended = r->trainer.ended;
    if (!ended && !config_is_replay(&r->config) && !r->o->host->quiet)
        stop_report(&words, &r->trainer, &r->keep);
    close_observers(r);
    keep_close(&r->keep);
    trainer_close(&r->trainer);
    config_close(&r->config);
    int status = ended ? EXIT_DONE : stop_end(&words);
    buf_free(&words);
    return status;
}

static int
train_and_answer(struct run *r)
{
    bool differs = false;
    if (!config_is_replay(&r->config) && !config_is_finished(&r->config))
        must(config_check_steps(&r->config)); // of a replay they are not the user's
    open_trainer(r);
    open_observers(r);
    train(r);
    if (config_is_replay(&r->config) && !r->trainer.ended)
        must(replay_answer(&r->replay, &r->trainer, &differs));
    int status = close_run(r);
    replay_close(&r->replay);
    return status ? status : differs ? EXIT_NO : EXIT_DONE;
}

/* ---- all --------------------------------------------------------------------------------- */

static void
begin_run(struct run *r, const struct train_options *o, const struct device *device)
{
    r->o = o;
    r->ranks = cmd_ranks();
    r->stop = stop_requests();
    must(config_begin(&r->config, o, r->ranks, &r->in, &r->err));
    r->config.device = *device;
    suffix_check("-o", o->out, "ckpt");
    suffix_check("--dump", o->dump, "safetensors");
    trainer_begin(&r->trainer, &r->config, r->stop, r->observers);
    watch_begin(&r->watch);
}

/* Whether there is something to train or to evaluate; what ranks other than 0 do not do is said. */
static bool
prepare(struct run *r)
{
    struct run_config *c = &r->config;
    bool leads = r->ranks->rank == 0;
    if (r->o->dry_run)
        open_input(r);
    else
        open_shared(r);
    warn_lines(&r->in.file.warnings);
    if (config_is_finished(c) && !pays_evaluation(r)) {
        if (leads)
            must(finished_check(c));
        return false;
    }
    // After the lock: a run that was killed has freed its memory by now.
    c->free_before = c->device.host ? UINT64_MAX : device_free(&c->where);
    must(config_settle(c));
    if (config_is_replay(c))
        must(replay_check_inputs(&r->replay, c));
    if (r->o->dry_run) {
        if (leads)
            print_plan(r);
        return false;
    }
    must(keep_open(&r->keep, c, r->stop, &r->watch));
    if (keep_is_out_of_patience(&r->keep)) {
        end_without_patience(r);
        return false;
    }
    return true;
}

int
run(const struct train_options *o, const struct device *device)
{
    begin_run(&self, o, device);
    if (prepare(&self))
        return train_and_answer(&self);
    unlock();
    return EXIT_DONE;
}
