/* SPDX-License-Identifier: MIT */
/* stop: signals that end a run after the current step is saved, and the message about it. */
#include "cmd/trainstep/trainstep.h"

#include "lib/base/os.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

/* timeout(1) and terminals signal a process and then its group: a signal that follows so soon
 * is the same one. */
enum { SAME_MS = 300 };

/* An output that cannot be written is a stop like a signal, so that all ranks hear of it.  It has the
 * number of a signal that no handler is installed for. */
enum { OUTPUT_FAILED = SIGXFSZ };

static atomic_int requested; // a signal; 0: none
static atomic_llong stop_ms;
static atomic_bool has_saved;

int
stop_signal(void)
{
    return atomic_load(&requested);
}

bool
run_stopped(void)
{
    return stop_signal() != 0;
}

void
stop_request(int sig)
{
    int none = 0;
    atomic_compare_exchange_strong(&requested, &none, sig);
}

void
stop_for_output(const struct err *err)
{
    warn("%s; the run is saved and ends", err->msg);
    stop_request(OUTPUT_FAILED);
}

void
stop_saved(void)
{
    atomic_store(&has_saved, true);
}

/* A second signal does not wait for the step. */
static void
on_stop(int sig)
{
    int kept = errno;
    long long first = 0, now = (long long)(os_seconds() * 1000) + 1;
    if (atomic_compare_exchange_strong(&stop_ms, &first, now)) {
        stop_request(sig);
    } else if (now - first >= SAME_MS) {
        if (!atomic_load(&has_saved))
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

/* A stopped run has steps to take, a finished one can take more. */
static void
put_next_command(struct buf *b, const struct run *r, uint64_t step)
{
    const struct options *o = r->o;
    unsigned long long left = r->end - step, end = r->end;
    bool owes_evaluation = r->has_eval && r->evaluated != step;
    if (left == 0 && owes_evaluation && r->keep && !o->out)
        buf_str(b, "all steps are taken; the same command makes the evaluation");
    else if (left == 0 && owes_evaluation)
        buf_printf(b,
                   "all steps are taken, but the evaluation is not finished; "
                   "generate --score %s makes it",
                   o->eval);
    else if (left == 0)
        buf_str(b, "all steps are taken");
    else if (o->out && o->epochs > 0)
        buf_printf(b, "go on from it, without -o, with --epochs %.17g", o->epochs);
    else if (o->out && cmd_given(&o->cmd, "until"))
        buf_printf(b, "go on from it, without -o, with --until %llu", end);
    else if (o->out)
        buf_printf(b, "go on from it, without -o, with -n %llu", left);
    else if (cmd_given(&o->cmd, "until") || o->epochs > 0)
        buf_str(b, "go on with the same command");
    else
        buf_printf(b, "go on with the same command, but -n %llu", left);
}

static void
put_end(struct buf *b, const struct run *r)
{
    if (keep_is_out_of_patience(r)) {
        buf_str(b, ": ");
        keep_report_patience(b, r);
        buf_str(b, "; it goes on without --patience, or with a larger one");
    } else {
        buf_str(b, "; -n, --until or --epochs takes more steps from it");
    }
    keep_report_best(b, r);
}

uint64_t
run_saved_step(const struct run *r)
{
    return r->saved ? r->saved_step : r->in_step;
}

const char *
run_saved_name(const struct run *r)
{
    return r->o->out && r->saved ? r->o->out : r->o->checkpoint;
}

void
stop_report(struct buf *b, const struct run *r)
{
    unsigned long long step = run_saved_step(r), end = r->end;
    const char *file = run_saved_name(r);
    if (r->replay)
        return; // its answer is the last line
    if (run_stopped()) {
        buf_printf(b, "%s: saved at step %llu of %llu; ", file, step, end);
        put_next_command(b, r, step);
    } else {
        buf_printf(b, "%s: %s step %llu", file, r->saved ? "saved at" : "stays at",
                   step);
        put_end(b, r);
    }
}

int
stop_end(const struct run *r, const struct buf *words)
{
    int sig = stop_signal();
    if (sig && sig != OUTPUT_FAILED && !atomic_load(&has_saved))
        cmd_die_by_signal(sig);
    if (!r->o->cmd.quiet && !words->failed && words->len)
        warn("%s", words->data);
    return sig == OUTPUT_FAILED ? EXIT_TROUBLE : sig ? EXIT_PREEMPTED : EXIT_DONE;
}
