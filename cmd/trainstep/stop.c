/* SPDX-License-Identifier: MIT */
/* stop: signals that ask a run to stop, and its last words. */
#include "cmd/trainstep/trainstep.h"

#include "lib/base/os.h"

#include <errno.h>
#include <signal.h>

/* timeout(1) and terminals signal a process and then its group: a signal that follows so soon
 * is the same one. */
enum { SAME_MS = 300 };

static struct stop requested;
static atomic_llong stop_ms;

struct stop *
stop_requests(void)
{
    return &requested;
}

/* A second signal does not wait for the step. */
static void
on_stop(int sig)
{
    int kept = errno;
    long long first = 0, now = (long long)(os_seconds() * 1000) + 1;
    if (atomic_compare_exchange_strong(&stop_ms, &first, now)) {
        stop_request(&requested, sig);
    } else if (now - first >= SAME_MS) {
        if (!atomic_load(&requested.saved))
            cmd_die_by_signal(sig);
        guard_end(&cmd_guard);
        _exit(EXIT_PREEMPTED);
    }
    errno = kept;
}

void
stop_catch(void)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction stop = { .sa_handler = on_stop, .sa_flags = SA_RESTART }, old;
    sigfillset(&stop.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(signals[i], &stop, NULL);
    // If the reader of the table or the log is gone, the run is saved all the same.
    signal(SIGPIPE, SIG_IGN);
}

/* Say how to make the evaluation that a stop has cut short. */
static void
put_evaluation(struct buf *b, const struct trainer *t, const struct keep *k)
{
    const struct train_options *o = t->run->o;
    if (k->remembers && !o->out)
        buf_str(b, "all steps are taken; the same command makes the evaluation");
    else
        buf_printf(b,
                   "all steps are taken, but the evaluation is not finished; "
                   "generate --score %s makes it",
                   o->eval);
}

/* A stopped run has steps to take, a finished one can take more. */
static void
put_next_command(struct buf *b, const struct trainer *t, const struct keep *k,
                 uint64_t step)
{
    const struct train_options *o = t->run->o;
    unsigned long long left = t->run->end - step, end = t->run->end;
    if (left == 0 && t->in->has_eval && t->evaluated != step)
        put_evaluation(b, t, k);
    else if (left == 0)
        buf_str(b, "all steps are taken");
    else if (o->out && o->epochs > 0)
        buf_printf(b, "go on from it, without -o, with --epochs %.17g", o->epochs);
    else if (o->out && o->has_until)
        buf_printf(b, "go on from it, without -o, with --until %llu", end);
    else if (o->out)
        buf_printf(b, "go on from it, without -o, with -n %llu", left);
    else if (o->has_until || o->epochs > 0)
        buf_str(b, "go on with the same command");
    else
        buf_printf(b, "go on with the same command, but -n %llu", left);
}

static void
put_end(struct buf *b, const struct keep *k)
{
    if (keep_is_out_of_patience(k)) {
        buf_str(b, ": ");
        keep_report_patience(b, k);
        buf_str(b, "; it goes on without --patience, or with a larger one");
    } else {
        buf_str(b, "; -n, --until or --epochs takes more steps from it");
    }
    keep_report_best(b, k);
}

void
stop_report(struct buf *b, const struct trainer *t, const struct keep *k)
{
    unsigned long long step = trainer_saved_step(t), end = t->run->end;
    const char *file = trainer_saved_name(t);
    if (stop_signal(&requested)) {
        buf_printf(b, "%s: saved at step %llu of %llu; ", file, step, end);
        put_next_command(b, t, k, step);
    } else {
        buf_printf(b, "%s: %s step %llu", file, t->saved ? "saved at" : "stays at",
                   step);
        put_end(b, k);
    }
}

int
stop_end(const struct buf *words)
{
    int sig = stop_signal(&requested);
    if (sig && sig != STOP_FOR_OUTPUT && !atomic_load(&requested.saved))
        cmd_die_by_signal(sig);
    if (words->len && !words->failed)
        warn("%s", words->data);
    return sig == STOP_FOR_OUTPUT ? EXIT_TROUBLE : sig ? EXIT_PREEMPTED : EXIT_DONE;
}
