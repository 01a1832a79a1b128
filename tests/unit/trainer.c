/* SPDX-License-Identifier: MIT */
/* trainer: runs of lib/train with observers, outputs and memory that fail: each failure is an error
 * that comes back, and the checkpoint is that of the last save, whole. */
#include "lib/train/trainer.h"

#include "lib/train/agree.h"
#include "lib/train/copies.h"
#include "lib/train/dump.h"
#include "lib/train/finished.h"
#include "lib/train/keep.h"
#include "lib/train/log.h"
#include "lib/train/memory_report.h"
#include "lib/train/plan.h"
#include "lib/train/replay.h"
#include "lib/train/save.h"
#include "lib/train/tensorboard.h"
#include "tests/unit/model_files.h"
#include "tests/unit/run_options.h"
#include "tests/unit/samples.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

/* ---- an allocator that fails --------------------------------------------------------------- */

static atomic_long allocations; // since counting began
static atomic_long fails_at;    // the one that fails, from 1; 0: none

// The linker gives these names (see the Makefile).
// NOLINTBEGIN(cert-dcl37-c,cert-dcl51-cpp,bugprone-reserved-identifier)
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *text);

static bool
fails(void)
{
    bool one = atomic_fetch_add(&allocations, 1) + 1 == atomic_load(&fails_at);
    if (one)
        errno = ENOMEM;
    return one;
}

void *
__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *
__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *
__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

char *
__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}
// NOLINTEND(cert-dcl37-c,cert-dcl51-cpp,bugprone-reserved-identifier)

/* ---- an observer that counts, fails and wishes --------------------------------------------- */

enum event { PHASE, GRADIENTS, STEP, EVAL, SAVING, SAVED, UNDONE, REST, N_EVENTS };

static struct {
    unsigned calls[N_EVENTS];
    enum event fails;    // at the last call so far of which it fails
    unsigned fails_call; // 0: none
    int wishes[N_EVENTS];
    unsigned stops_at_step; // 0: none
    struct stop *stop;
    char steps[256]; // numbers of steps, S at saves, E at evaluations
} seen;

static int
see(enum event event, const struct trainer *t)
{
    if (++seen.calls[event] == seen.fails_call && seen.fails == event)
        return err_set(t->err, ERR_IO, "the observer has failed");
    return seen.wishes[event];
}

static void
note(const char *word)
{
    size_t n = strlen(seen.steps);
    snprintf(seen.steps + n, sizeof seen.steps - n, "%s ", word);
}

static int
see_phase(void *ctx, const struct trainer *t, const char *name)
{
    (void)ctx;
    CHECK(*name);
    return see(PHASE, t);
}

static int
see_gradients(void *ctx, struct trainer *t, double loss)
{
    (void)ctx;
    CHECK(loss > 0);
    return see(GRADIENTS, t);
}

static int
see_step(void *ctx, const struct trainer *t, const struct step_event *e)
{
    char word[32];
    (void)ctx;
    CHECK(e->result->tokens > 0 && e->ms >= 0);
    snprintf(word, sizeof word, "%llu", (unsigned long long)t->train.step);
    note(word);
    if (t->train.step == seen.stops_at_step)
        stop_request(seen.stop, SIGTERM);
    return see(STEP, t);
}

static int
see_eval(void *ctx, const struct trainer *t, const struct eval_event *e)
{
    (void)ctx;
    CHECK(e->sums->targets > 0);
    note("E");
    return see(EVAL, t);
}

static int
see_saving(void *ctx, const struct trainer *t)
{
    (void)ctx;
    return see(SAVING, t);
}

static int
see_saved(void *ctx, const struct trainer *t, bool now)
{
    (void)ctx;
    CHECK(trainer_saved_step(t) == t->train.step);
    note(now ? "S" : "s");
    return see(SAVED, t);
}

static int
see_undone(void *ctx, const struct trainer *t)
{
    (void)ctx;
    note("U");
    return see(UNDONE, t);
}

static int
see_rest(void *ctx, const struct trainer *t)
{
    (void)ctx;
    return see(REST, t);
}

static const struct observer observer = { .phase = see_phase,
                                          .gradients = see_gradients,
                                          .step = see_step,
                                          .eval = see_eval,
                                          .saving = see_saving,
                                          .saved = see_saved,
                                          .undone = see_undone,
                                          .rest = see_rest };

/* ---- a run --------------------------------------------------------------------------------- */

static struct ranks ranks;

struct parts {
    struct inputs in;
    struct run_config config;
    struct trainer trainer;
    struct stop stop;
    struct keep keep;
    struct watch watch;
    struct log log;
    struct tensorboard tensorboard;
    struct memory_report report;
    const struct observer *observers[16];
    struct err err;
};
static struct parts p;

static int
open_observers(const struct train_options *o)
{
    size_t n = 0;
    p.observers[n++] = &observer;
    if (o->log && log_open(&p.log, &p.config, &p.stop) < 0)
        return -1;
    if (o->log)
        p.observers[n++] = &p.log.observer;
    if (o->tensorboard && tensorboard_open(&p.tensorboard, &p.config, &p.stop) < 0)
        return -1;
    if (o->tensorboard)
        p.observers[n++] = &p.tensorboard.observer;
    p.observers[n++] = &trainer_words;
    p.observers[n++] = &p.keep.observer;
    p.observers[n++] = &p.keep.at_last;
    p.observers[n++] = &p.watch.observer;
    if (o->dump)
        p.observers[n++] = &dump_observer;
    if (o->memory_report && memory_report_open(&p.report, &p.config, &p.stop) < 0)
        return -1;
    if (o->memory_report)
        p.observers[n++] = &p.report.observer;
    p.observers[n] = NULL;
    return 0;
}

static int
open_run(struct train_options *o)
{
    struct device device = device_settle(&o->where);
    p = (struct parts){ .stop = { 0 } };
    p.log.out.fd = p.tensorboard.out.fd = -1;
    seen.stop = &p.stop;
    heard = (struct heard){ 0 };
    int rc = config_begin(&p.config, o, &ranks, &p.in, &p.err);
    p.config.device = device;
    trainer_begin(&p.trainer, &p.config, &p.stop, p.observers);
    watch_begin(&p.watch);
    if (rc < 0 || config_settle_target(&p.config) < 0 ||
        config_open(&p.config, o->checkpoint) < 0 ||
        config_take_options(&p.config) < 0 || save_lock(&p.trainer) < 0 ||
        agree_on_input(&p.config) < 0 || config_settle(&p.config) < 0 ||
        keep_open(&p.keep, &p.config, &p.stop, &p.watch) < 0 ||
        config_check_steps(&p.config) < 0 || plan_settle(&p.config) < 0 ||
        trainer_open_device(&p.trainer) < 0 || agree_on_run(&p.trainer, &p.keep) < 0 ||
        save_check_place(&p.trainer) < 0 || trainer_open_model(&p.trainer) < 0 ||
        save_check(&p.trainer) < 0)
        return -1;
    return open_observers(o);
}

static int
train(struct train_options *o)
{
    if (open_run(o) < 0 || trainer_phase(&p.trainer, "start") < 0 ||
        keep_pay_copies(&p.keep) < 0)
        return -1;
    return trainer_run(&p.trainer);
}

static void
close_run(void)
{
    struct err err = { 0 };
    memory_report_close(&p.report, &err);
    log_close(&p.log, &err);
    tensorboard_close(&p.tensorboard, &err);
    keep_close(&p.keep);
    trainer_close(&p.trainer);
    config_close(&p.config);
}

/* Forget what was seen; at call n of that event it fails. */
static void
look(enum event event, unsigned n)
{
    memset(&seen, 0, sizeof seen);
    seen.fails = event;
    seen.fails_call = n;
}

/* The step of a checkpoint, all of whose bytes are right; -1: it is damaged, or not there. */
static int64_t
step_of(const char *path)
{
    struct err err = { 0 };
    struct store file;
    struct state st;
    struct settings s;
    const char *what;
    int64_t step = -1;
    if (checkpoint_open(&file, path, &guard, &err) == 0 &&
        store_verify(&file, true, 1, &what) == 0 && state_read(&st, &s, &file) == 0)
        step = (int64_t)st.step;
    store_close(&file);
    return step;
}

static void
copy(const char *from, const char *to)
{
    char command[256];
    snprintf(command, sizeof command, "cp %s %s", from, to);
    // NOLINTNEXTLINE(cert-env33-c): the words are ours
    NEED(system(command) == 0);
}

/* ---- what observers hear ------------------------------------------------------------------- */

static void
check_order(void)
{
    struct train_options o = options("run.ckpt", 3);
    copy("m.ckpt", "run.ckpt");
    look(PHASE, 0);
    CHECK_SAY(train(&o) == 0, "%s", p.err.msg);
    close_run();
    CHECK_SAY(strcmp(seen.steps, "1 2 3 S ") == 0, "%s", seen.steps);
    CHECK(step_of("run.ckpt") == 3 && seen.calls[GRADIENTS] == 1);
    CHECK(seen.calls[REST] == 1 && seen.calls[PHASE] == 1 + 3 * 4);
    o.steps = 4;
    o.eval = "s.tok";
    o.eval_every = 2;
    o.save_every = 3;
    look(PHASE, 0);
    CHECK(train(&o) == 0);
    close_run();
    CHECK_SAY(strcmp(seen.steps, "4 E 5 6 E S 7 E S ") == 0, "%s", seen.steps);
    // Wishes: to save, which a step that is saved already needs not, and to end.
    o.save_every = o.eval_every = 0;
    look(PHASE, 0);
    seen.wishes[STEP] = WISH_SAVE;
    seen.wishes[EVAL] = WISH_SAVE | WISH_END;
    CHECK(train(&o) == 0);
    close_run();
    CHECK_SAY(strcmp(seen.steps, "8 S 9 S 10 S 11 E S ") == 0, "%s", seen.steps);
    o.eval_every = 1;
    look(PHASE, 0);
    seen.wishes[STEP] = WISH_SAVE;
    seen.wishes[EVAL] = WISH_SAVE | WISH_END;
    CHECK(train(&o) == 0);
    close_run();
    CHECK_SAY(strcmp(seen.steps, "12 E S ") == 0, "%s", seen.steps);
    CHECK(step_of("run.ckpt") == 12);
}

/* A stop is heard between steps; the run saves and is complete. */
static void
check_stop(void)
{
    struct train_options o = options("run.ckpt", 3);
    copy("m.ckpt", "run.ckpt");
    look(PHASE, 0);
    seen.stops_at_step = 2;
    CHECK(train(&o) == 0);
    CHECK(stop_signal(&p.stop) == SIGTERM && atomic_load(&p.stop.saved));
    close_run();
    CHECK_SAY(strcmp(seen.steps, "1 2 S ") == 0, "%s", seen.steps);
    CHECK(step_of("run.ckpt") == 2);
    o.eval = "s.tok"; // which is not begun
    look(PHASE, 0);
    seen.stops_at_step = 3;
    CHECK(train(&o) == 0 && p.trainer.evaluated == 0);
    close_run();
    CHECK_SAY(strcmp(seen.steps, "3 S ") == 0, "%s", seen.steps);
}

static void
check_phases(void)
{
    for (size_t i = 0; trainer_phases[i]; i++) {
        struct train_options o = options("run.ckpt", 3);
        copy("m.ckpt", "run.ckpt");
        o.stop_after = trainer_phases[i];
        look(PHASE, 0);
        CHECK(open_run(&o) == 0 && trainer_phase(&p.trainer, "start") == 0 &&
              trainer_phase(&p.trainer, "model_loaded") == 0);
        CHECK(trainer_run(&p.trainer) == 0 && p.trainer.ended);
        CHECK(strstr(heard.warnings, "; nothing was saved"));
        close_run();
        CHECK_SAY(*seen.steps == '\0', "%s: %s", trainer_phases[i], seen.steps);
        CHECK(step_of("run.ckpt") == 0);
    }
}

/* Whatever event fails, the run ends with that error, and the checkpoint is that of a save. */
static void
check_failures(void)
{
    for (int event = 0; event < N_EVENTS; event++) {
        struct train_options o = options("run.ckpt", 3);
        o.eval = "s.tok";
        o.eval_every = o.save_every = 1;
        for (unsigned n = 1; event != UNDONE && n < 4; n++) {
            copy("m.ckpt", "run.ckpt");
            look((enum event)event, n);
            int rc = train(&o);
            bool there = seen.calls[event] >= n;
            CHECK_SAY((rc < 0) == there, "event %d, call %u: %d", event, n, rc);
            if (there)
                CHECK_ERR(p.err, ERR_IO, "the observer has failed");
            uint64_t step = trainer_saved_step(&p.trainer);
            close_run();
            CHECK_SAY(step_of("run.ckpt") == (int64_t)step, "event %d, call %u", event,
                      n);
        }
    }
}

/* ---- outputs ------------------------------------------------------------------------------- */

/* An output that cannot be written is a stop: the steps so far are saved. */
static void
check_outputs(void)
{
    struct train_options o = options("run.ckpt", 3);
    copy("m.ckpt", "run.ckpt");
    o.log = "/dev/full";
    look(PHASE, 0);
    CHECK(train(&o) == 0 && stop_signal(&p.stop) == STOP_FOR_OUTPUT);
    CHECK(
        strstr(heard.warnings, "/dev/full: No space left on device; the run is saved"));
    close_run();
    CHECK(step_of("run.ckpt") == 1);
    o.log = "none/log.jsonl";
    CHECK(train(&o) < 0);
    CHECK_ERR(p.err, ERR_IO, "none/log.jsonl");
    close_run();
    check_put("other.jsonl", "{\"a\":1}\n", 8);
    o.log = "other.jsonl";
    CHECK(train(&o) < 0);
    CHECK_ERR(p.err, ERR_FORMAT, "other.jsonl: is no log of trainstep");
    close_run();
    o.log = NULL;
    o.tensorboard = "s.tok/events";
    CHECK(train(&o) < 0);
    CHECK_ERR(p.err, ERR_IO, "s.tok/events");
    close_run();
    o.tensorboard = NULL;
    o.memory_report = "other.jsonl";
    CHECK(train(&o) < 0);
    CHECK_ERR(p.err, ERR_IO, "other.jsonl");
    close_run();
    o.memory_report = NULL;
    o.dump = "none/dump.safetensors";
    CHECK(train(&o) < 0);
    CHECK_ERR(p.err, ERR_IO, "none");
    close_run();
    CHECK(step_of("run.ckpt") == 1);
}

/* Copies and the list of evaluations. */
static void
check_keep(void)
{
    struct train_options o = options("run.ckpt", 3);
    copy("m.ckpt", "run.ckpt");
    o.eval = "s.tok";
    o.eval_every = 1;
    o.save_every = 1;
    o.keep_last = 2;
    o.keep_best = true;
    look(PHASE, 0);
    CHECK_SAY(train(&o) == 0, "%s", p.err.msg);
    CHECK(!keep_is_out_of_patience(&p.keep) && keep_has_evaluated(&p.keep));
    close_run();
    CHECK(step_of("run.ckpt.step1") == -1 && step_of("run.ckpt.step2") == 2);
    CHECK(step_of("run.ckpt.step3") == 3 && step_of("run.ckpt.best") > 0);
    check_put("run.ckpt.keep-last", "two\n", 4);
    CHECK(train(&o) < 0);
    CHECK_ERR(p.err, ERR_FORMAT, "run.ckpt.keep-last: line 1: expected a step");
    close_run();
    check_put("run.ckpt.keep-last", "2\n3\n", 4);
    check_put("run.ckpt.step4", "text", 4);
    CHECK(train(&o) < 0);
    CHECK_ERR(p.err, ERR_USAGE, "run.ckpt.step4: exists and is not a checkpoint");
    close_run();
    NEED(unlink("run.ckpt.step4") == 0);
    check_put("run.ckpt.eval.jsonl", "{]\n", 3);
    CHECK(train(&o) < 0);
    CHECK_ERR(p.err, ERR_FORMAT, "run.ckpt.eval.jsonl");
    CHECK(strstr(p.err.msg, "it is the list of evaluations of --keep-best"));
    close_run();
    NEED(unlink("run.ckpt.eval.jsonl") == 0);
    o.eval = "run.ckpt.eval.jsonl";
    CHECK(train(&o) < 0);
    close_run();
    CHECK(step_of("run.ckpt") == 4);
}

/* A training that goes wrong. */
static void
check_watch(void)
{
    struct train_options o = options("run.ckpt", 3);
    copy("m.ckpt", "run.ckpt");
    o.steps = 40;
    o.stop_if_worse = 1.01;
    give(&o, "lr", 3);
    look(PHASE, 0);
    CHECK(train(&o) < 0);
    CHECK_ERR(p.err, ERR_NONFINITE,
              "the loss of 10 steps in a row was above 1.01 times");
    close_run();
    CHECK(step_of("run.ckpt") == 0);
    o = options("run.ckpt", 3);
    o.memory_limit = (uint64_t)1 << 40;
    look(PHASE, 0);
    CHECK(open_run(&o) == 0);
    o.memory_limit = 1; // as if the process had grown
    CHECK(trainer_run(&p.trainer) < 0);
    CHECK_ERR(p.err, ERR_MEMORY, "GB in use, --memory-limit is 0.000");
    close_run();
}

/* ---- locks and finished runs --------------------------------------------------------------- */

static void
check_lock(void)
{
    struct train_options o = options("link.ckpt", 3);
    copy("m.ckpt", "run.ckpt");
    int fd = open("run.ckpt", O_RDONLY | O_CLOEXEC);
    NEED(fd >= 0 && flock(fd, LOCK_EX) == 0 && link("run.ckpt", "link.ckpt") == 0);
    look(PHASE, 0);
    CHECK(open_run(&o) < 0);
    CHECK_ERR(p.err, ERR_USAGE, "link.ckpt: another process trains the same file");
    close_run();
    close(fd);
    CHECK(open_run(&o) == 0);
    close_run();
}

static void
check_finished(void)
{
    struct train_options o = options("run.ckpt", 3);
    copy("m.ckpt", "run.ckpt");
    look(PHASE, 0);
    CHECK(train(&o) == 0);
    close_run();
    o.has_until = true;
    o.until = 3;
    o.dump = "none.safetensors";
    CHECK(open_run(&o) == 0);
    CHECK(finished_check(&p.config) < 0);
    CHECK_ERR(p.err, ERR_USAGE, "nothing to do, and none.safetensors is not made");
    close_run();
    o.dump = NULL;
    o.out = "m.ckpt";
    o.force = true;
    CHECK(open_run(&o) == 0);
    CHECK(finished_check(&p.config) < 0);
    CHECK_ERR(p.err, ERR_USAGE, "m.ckpt: is at step 0, and run.ckpt at step 3 already");
    close_run();
    copy("run.ckpt", "same.ckpt");
    o.out = "same.ckpt";
    CHECK(open_run(&o) == 0 && finished_check(&p.config) == 0);
    CHECK(strstr(heard.warnings, "run.ckpt: at step 3: nothing to do"));
    close_run();
}

/* ---- without memory ------------------------------------------------------------------------ */

/* A run with all that lib/train has; which allocation fails is the error of that run, or of an output,
 * or it was one that can be done without. */
static struct train_options
everything(void)
{
    struct train_options o = options("run.ckpt", 3);
    o.steps = 2;
    o.eval = "s.tok";
    o.eval_every = o.save_every = 1;
    o.keep_last = 1;
    o.keep_best = true;
    o.stop_if_worse = 100;
    o.log = "log.jsonl";
    o.tensorboard = "events";
    o.memory_report = "memory.json";
    o.dump = "dump.safetensors";
    o.teacher = "model.safetensors";
    o.force = true;
    return o;
}

static void
run_without(long n)
{
    struct train_options o = everything();
    look(PHASE, 0);
    // NOLINTNEXTLINE(cert-env33-c): the words are ours
    NEED(system("rm -f run.ckpt* log.jsonl; rm -rf events; cp m.ckpt run.ckpt") == 0);
    atomic_store(&allocations, 0);
    atomic_store(&fails_at, n);
    int rc = train(&o);
    atomic_store(&fails_at, 0);
    bool stopped = stop_signal(&p.stop) == STOP_FOR_OUTPUT;
    uint64_t saved = trainer_saved_step(&p.trainer);
    CHECK_SAY(rc < 0 ? p.err.kind == ERR_MEMORY && *p.err.msg
                     : stopped || saved == o.steps,
              "allocation %ld: %d, error %d \"%s\", step %llu", n, rc, p.err.kind,
              p.err.msg, (unsigned long long)saved);
    close_run();
    // A save may fail when its file is in its place already.
    int64_t step = step_of("run.ckpt");
    CHECK_SAY(step == (int64_t)saved || (rc < 0 && step == (int64_t)saved + 1),
              "allocation %ld", n);
}

static void
check_memory(void)
{
    enum { RUNS = 80 };
    run_without(0);
    long all = atomic_load(&allocations);
    NEED(all > RUNS);
    for (long i = 0; i < RUNS; i++)
        run_without(1 + i * all / RUNS + check_random((uint64_t)i) % (all / RUNS));
}

int
main(void)
{
    static const struct comm_ending none;
    struct err err = { 0 };
    check_scratch();
    signal(SIGXFSZ, SIG_IGN);
    NEED(ranks_find(&ranks, &none, &err) == 0 && ranks.size == 1);
    put_samples("s.tok", 7, 96);
    make_model("m.ckpt", true);
    make_model("model.safetensors", true);
    check_order();
    check_stop();
    check_phases();
    check_failures();
    check_outputs();
    check_keep();
    check_watch();
    check_lock();
    check_finished();
    check_memory();
    return check_end();
}
