/* SPDX-License-Identifier: MIT */
/* memguard: run a command and end it before it exhausts memory. */
#include "cmd/cli/cmd.h"
#include "cmd/memguard/gpu.h"
#include "cmd/memguard/memfiles.h"
#include "cmd/memguard/report.h"
#include "cmd/memguard/start.h"
#include "cmd/memguard/tree.h"
#include "lib/base/machine.h"
#include "lib/base/num.h"
#include "lib/base/os.h"
#include "lib/base/text.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { EXIT_ENDED = 124, EXIT_NO_EXEC = 126, EXIT_NOT_FOUND = 127, BY_SIGNAL = 128 };

/* Seconds between looks while the tree is being ended, and after which SIGKILL is given up: a
 * process that waits for a device cannot die. */
static const double END_POLL = 0.05, KILL_POLL = 0.01, KILL_WAIT = 10;
static const double GRACE = 1; // seconds to end by itself after another process did

struct signaled {
    pid_t pid;
    uint64_t start;
};

struct run {
    struct cmd cmd;
    struct report_facts facts; // limits and times
    const char *report_file;
    bool force;
    struct inherited inherited;
    sigset_t waited;
    struct tree tree;
    struct witness witness;
    struct gpu *gpu;
    struct memfiles files;
    uint64_t in_files; // bytes of the last look's host memory
    double files_again, mapped_again;
    struct report report;
    bool ended; // the command
    int status; // then, as an exit code
    // shared pages, see host_memory
    uint64_t pss, pss_rss;
    int64_t pss_available;
    double pss_again;
    struct signaled *signaled;
    size_t n_signaled, signaled_capacity;
};

static double
gb(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

/* ---- options -------------------------------------------------------------------------- */

static struct run self = {
    .cmd = { .name = "memguard",
             .synopsis = "memguard [OPTION]... -- COMMAND [ARGUMENT]...",
             .about =
                 "Run a command, and end it and all that it started before memory is "
                 "exhausted.",
             .operands_end = true },
    .facts = { .poll = 0.5, .term_first = 20 },
};

static void
take_limit(const struct cmd_option *o, const char *arg)
{
    *o->to.u64 = cmd_gb(o->name, arg);
}

static void
take_duration(const struct cmd_option *o, const char *arg)
{
    *o->to.number = fmin(cmd_number(o->name, arg, o->low), 1e9);
}

static const struct cmd_option options[] = {
    { 'l', "limit", "GB", "max host memory of the command and all that it starts",
      CMD_CALL(&self.facts.host, take_limit) },
    { 'g', "gpu-limit", "GB", "max GPU memory of these processes",
      CMD_CALL(&self.facts.gpu, take_limit) },
    { 'a', "available", "GB", "memory that the machine must keep free",
      CMD_CALL(&self.facts.available, take_limit) },
    { 0, "over", "SECS", "act when a limit is exceeded for this long (0)",
      CMD_CALL_WITH(&self.facts.over, take_duration, 0) },
    { 0, "poll", "SECS", "time between two looks (0.5)",
      CMD_CALL_WITH(&self.facts.poll, take_duration, 0.01) },
    { 0, "term-first", "SECS", "time from SIGTERM to SIGKILL; 0: SIGKILL at once (20)",
      CMD_CALL_WITH(&self.facts.term_first, take_duration, 0) },
    { 0, "report", "FILE", "samples and peaks, as JSON", CMD_FILE(&self.report_file) },
    { 'f', "force", NULL, "replace the report if it exists", CMD_FLAG(&self.force) },
    CMD_COMMON(self.cmd),
};

/* The limit may have been given as the command. */
static _Noreturn void
refuse_without_limit(const char *command)
{
    char q[TEXT_QUOTE];
    uint64_t bytes;
    text_quote(q, command, strlen(command));
    if (num_gb(&bytes, command))
        misuse("nothing to watch: expected --limit %s -- COMMAND, if %s are GB of host "
               "memory",
               q, q);
    misuse("nothing to watch: expected --limit, --gpu-limit or --available above 0, as "
           "in memguard --limit 8 -- %s",
           q);
}

static void
parse_command(int argc, char **argv)
{
    struct report_facts *f = &self.facts;
    int first =
        cmd_parse(&self.cmd, options, sizeof options / sizeof *options, argc, argv);
    f->command = argv + first;
    if (first == argc)
        cmd_refuse_without("COMMAND", &self.cmd);
    if (!f->host && !f->gpu && !f->available)
        refuse_without_limit(argv[first]);
    f->watches_gpu = f->gpu > 0;
}

/* ---- what happens while it runs ---------------------------------------------------------- */

static int
exit_code(int status)
{
    return WIFSIGNALED(status) ? BY_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

/* The command's status, and the orphans that have become our children. */
static void
reap(struct run *r)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid == r->tree.command.pid && !r->ended) {
            r->ended = true;
            r->status = exit_code(status);
        }
        if (pid == r->witness.pid)
            r->witness.pid = r->tree.witness = -1;
    }
}

/* Wait until then or for a signal: its number, or 0. */
static int
wait_signal(struct run *r, double until)
{
    double left = until - os_seconds();
    struct timespec t = { 0 };
    if (left > 0) {
        t.tv_sec = (time_t)left;
        t.tv_nsec = (long)((left - (double)t.tv_sec) * 1e9);
    }
    int sig = sigtimedwait(&r->waited, NULL, &t);
    return sig > 0 ? sig : 0;
}

/* Reap children that end; pass other signals on to the command, unless it got them as a member
 * of our process group. */
static void
wait_until(struct run *r, double until)
{
    do {
        int sig = wait_signal(r, until);
        if (sig > 0 && sig != SIGCHLD && !witness_saw(&r->witness, sig))
            tree_signal(&r->tree, &r->tree.command, sig);
        reap(r);
    } while (!r->ended && os_seconds() < until);
}

/* The time of the next measurement, so that measurements such as the one that began at that time of
 * clock() use at most a tenth of a processor. */
static double
again_after(clock_t before)
{
    return os_seconds() + 10 * (double)(clock() - before) / (double)CLOCKS_PER_SEC;
}

/* Resident memory.  Shared pages count in each process, so when the sum is over the limit the
 * kernel is asked for proportional shares (PSS).  That takes tens of milliseconds a GB, so it
 * uses at most a tenth of a processor, unless memory may run out meanwhile: then the sum has
 * grown, or (pages are shared no longer) the machine's free memory has shrunk. */
static uint64_t
resident_memory(struct run *r, uint64_t rss, uint64_t limit, int64_t available)
{
    if (!limit || rss <= limit || tree_alive(&r->tree) < 2)
        return rss;
    uint64_t grown = rss > r->pss_rss ? rss - r->pss_rss : 0;
    uint64_t taken =
        r->pss_available > available ? (uint64_t)(r->pss_available - available) : 0;
    if (os_seconds() < r->pss_again && r->pss + grown <= limit &&
        r->pss + taken <= limit)
        return r->pss + grown;
    clock_t before = clock();
    r->pss = tree_pss(&r->tree);
    if (r->pss > rss)
        r->pss = rss;
    r->pss_rss = rss;
    r->pss_available = available;
    r->pss_again = again_after(before);
    return r->pss;
}

static void
look_at_files(struct run *r)
{
    clock_t before = clock();
    if (os_seconds() < r->files_again)
        return;
    memfiles_look(&r->files, &r->tree);
    r->files_again = again_after(before);
}

static uint64_t
less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t
larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Resident memory and the memory of files that is not resident.  It takes time to find out which
 * files are mapped, as with PSS, so that is done only where the sum may be over the limit. */
static uint64_t
host_memory(struct run *r, int64_t available)
{
    uint64_t rss = tree_rss(&r->tree), limit = r->facts.host;
    uint64_t all = memfiles_bytes(&r->files);
    uint64_t max_mapped = all ? memfiles_max_mapped(&r->tree) : 0;
    uint64_t least = less(all, max_mapped);
    bool matters = limit && max_mapped && rss + all > limit, asked = !matters;
    for (;;) {
        r->in_files = matters ? larger(least, memfiles_unmapped(&r->files)) : least;
        // If files alone are over the limit, resident memory does not matter.
        uint64_t sum =
            resident_memory(r, rss, less(limit, r->in_files), available) + r->in_files;
        if (asked || (os_seconds() < r->mapped_again && sum <= limit))
            return sum;
        clock_t before = clock();
        memfiles_find_mapped(&r->files, &r->tree);
        r->mapped_again = again_after(before);
        asked = true;
    }
}

/* Memory that was mapped when resident memory was read, and no longer when files were looked at, as
 * that of a process that ends, counts twice.  So where files count, a new peak and what is over the
 * limit are measured again at once, and the smallest result is believed. */
static uint64_t
believed_host_memory(struct run *r, int64_t available)
{
    enum { TIMES = 3 };
    uint64_t limit = r->facts.host, host = host_memory(r, available), in_files;
    for (int i = 1; i < TIMES && r->in_files; i++) {
        if (host <= r->report.peak.host && (!limit || host <= limit))
            break;
        in_files = r->in_files;
        tree_walk(&r->tree, false);
        memfiles_look(&r->files, &r->tree);
        uint64_t now = host_memory(r, available);
        if (now >= host)
            r->in_files = in_files;
        else
            host = now;
    }
    return host;
}

static void
take_sample(struct run *r, struct sample *s, double began)
{
    const char *words = "";
    tree_walk(&r->tree, false); // if it fails the last one counts
    look_at_files(r);
    int64_t available = machine_available("");
    *s = (struct sample){ .elapsed = os_seconds() - began,
                          .host = believed_host_memory(r, available),
                          .available = available,
                          .processes = tree_alive(&r->tree) };
    if (r->gpu)
        s->gpu = gpu_used(r->gpu, &r->tree, &words);
    if (*words && !r->cmd.quiet)
        warn("%s", words);
}

static void
warn_once(struct err *err)
{
    if (err->kind)
        warn("%s", err->msg);
    *err = (struct err){ 0 };
}

/* The limit that is broken, in words: true. */
static bool
is_over(const struct run *r, const struct sample *s, struct buf *why)
{
    const struct report_facts *f = &r->facts;
    why->len = 0;
    if (f->host && s->host > f->host) {
        buf_printf(why, "host memory of %.2f GB", gb(s->host));
        if (r->in_files > s->host / 8)
            buf_printf(why, ", %.2f GB of it in files in memory,", gb(r->in_files));
        buf_printf(why, " is over the limit of %.2f GB", gb(f->host));
    } else if (f->gpu && s->gpu > f->gpu) {
        buf_printf(why, "GPU memory of %.2f GB is over the limit of %.2f GB",
                   gb(s->gpu), gb(f->gpu));
    } else if (f->available && s->available >= 0 &&
               (uint64_t)s->available < f->available) {
        buf_printf(why,
                   "free memory of the machine, %.2f GB, is under the limit of %.2f GB",
                   gb((uint64_t)s->available), gb(f->available));
    }
    return why->len > 0;
}

/* ---- the end ------------------------------------------------------------------------------ */

static bool
was_signaled(const struct run *r, const struct tree_proc *p)
{
    for (size_t i = 0; i < r->n_signaled; i++)
        if (r->signaled[i].pid == p->pid && r->signaled[i].start == p->start)
            return true;
    return false;
}

/* SIGTERM, once for each process.  false: no memory to remember that. */
static bool
send_term(struct run *r, const struct tree_proc *p, bool *sent)
{
    if (r->n_signaled == r->signaled_capacity) {
        size_t capacity = 2 * r->signaled_capacity + 64;
        struct signaled *more = realloc(r->signaled, capacity * sizeof *more);
        if (!more)
            return false;
        r->signaled = more;
        r->signaled_capacity = capacity;
    }
    r->signaled[r->n_signaled++] = (struct signaled){ p->pid, p->start };
    if (tree_signal(&r->tree, p, SIGTERM) == 0)
        *sent = true;
    if (p->stopped)
        tree_signal(&r->tree, p, SIGCONT); // or it would not hear
    return true;
}

/* Tell those whose turn it is, or everybody.  false as above. */
static bool
send_terms(struct run *r, bool by_gpu, bool everybody, bool *sent)
{
    const struct tree *t = &r->tree;
    bool *signaled = calloc(2 * t->n + 1, sizeof *signaled), fine = true;
    if (!signaled)
        return false;
    bool *pick = signaled + t->n;
    for (size_t i = 0; i < t->n; i++)
        signaled[i] = was_signaled(r, &t->procs[i]);
    tree_pick(t->procs, signaled, t->n, by_gpu, pick);
    for (size_t i = 0; fine && i < t->n; i++)
        if (t->procs[i].alive && !signaled[i] && (pick[i] || everybody))
            fine = send_term(r, &t->procs[i], sent);
    free(signaled);
    return fine;
}

/* Whether a process that got SIGTERM is still alive. */
static bool
one_is_ending(const struct run *r)
{
    for (size_t i = 0; i < r->tree.n; i++)
        if (r->tree.procs[i].alive && was_signaled(r, &r->tree.procs[i]))
            return true;
    return false;
}

/* End all that is below us.  false: there was nothing left to signal; how: words. */
static bool
end_tree(struct run *r, bool by_gpu, struct buf *how)
{
    double began = os_seconds(), first = r->facts.term_first, seen = -GRACE;
    bool sent = false, killing = false, stuck = false;
    for (;;) {
        reap(r);
        tree_walk(&r->tree, true);
        if (tree_alive(&r->tree) == 0)
            break;
        memfiles_look(&r->files, &r->tree); // who holds most is asked first
        double t = os_seconds() - began;
        if (t >= first)
            killing = true;
        if (one_is_ending(r))
            seen = t;
        // In the second half of the time all get SIGTERM.  Before that a shell has a moment to
        // report a command that has ended.
        bool left = t - seen < fmin(GRACE, first / 4);
        if (!killing && (!left || t >= first / 2) &&
            !send_terms(r, by_gpu, t >= first / 2, &sent))
            first = t;
        for (size_t i = 0; killing && i < r->tree.n; i++)
            if (r->tree.procs[i].alive &&
                tree_signal(&r->tree, &r->tree.procs[i], SIGKILL) == 0)
                sent = true;
        stuck = t > first + KILL_WAIT;
        if (stuck)
            break;
        wait_signal(r, os_seconds() + (killing ? KILL_POLL : END_POLL));
    }
    double took = os_seconds() - began;
    reap(r); // one that died between the two looks
    if (stuck)
        buf_printf(how, "%zu processes do not die, %.0f s after SIGKILL",
                   tree_alive(&r->tree), KILL_WAIT);
    else if (killing && first > 0)
        buf_printf(how, "ended by SIGKILL, %.1f s after SIGTERM", took);
    else
        buf_printf(how, "ended by %s in %.1f s", killing ? "SIGKILL" : "SIGTERM", took);
    if (r->ended)
        buf_printf(how, ", its status was %d", r->status);
    return sent || stuck;
}

static struct tree_proc
largest(const struct run *r, bool *by_gpu)
{
    struct tree_proc max = { .pid = 0 };
    uint64_t gpu = 0;
    for (size_t i = 0; i < r->tree.n; i++)
        gpu += r->tree.procs[i].gpu;
    *by_gpu = *by_gpu && gpu > 0;
    for (size_t i = 0; i < r->tree.n; i++) {
        const struct tree_proc *p = &r->tree.procs[i];
        if (max.pid == 0 ||
            (*by_gpu ? p->gpu > max.gpu : p->rss + p->files > max.rss + max.files))
            max = *p;
    }
    return max;
}

/* why: which limit; becomes the whole line.  false: it had ended by itself. */
static bool
act(struct run *r, const struct sample *s, struct buf *why)
{
    bool by_gpu = r->facts.gpu && s->gpu > r->facts.gpu &&
                  !(r->facts.host && s->host > r->facts.host);
    memfiles_look(&r->files, &r->tree); // for the largest
    struct tree_proc max = largest(r, &by_gpu);
    char name[TEXT_QUOTE];
    if (max.pid)
        buf_printf(why, "; largest is process %d \"%s\" with %.2f GB", (int)max.pid,
                   text_quote(name, max.name, strlen(max.name)),
                   gb(by_gpu ? max.gpu : max.rss + max.files));
    buf_str(why, "; ");
    bool sent = end_tree(r, by_gpu, why);
    if (sent)
        warn("%s", why->data ? why->data : "out of memory for words");
    return sent;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Until the command ends or is ended: true. */
static bool
guard(struct run *r, struct buf *why)
{
    double began = os_seconds(), last = began, over_for = 0;
    bool was_over = false;
    struct err err = { 0 };
    while (!r->ended) {
        struct sample s;
        take_sample(r, &s, began);
        report_add(&r->report, &s, &err);
        warn_once(&err);
        double now = os_seconds(), since = now - last;
        // We may have been stopped together with the command: that is not over time.
        if (since > 2 * r->facts.poll)
            since = 2 * r->facts.poll;
        last = now;
        if (is_over(r, &s, why)) {
            over_for = was_over ? over_for + since : 0;
            was_over = true;
            if (over_for >= r->facts.over && act(r, &s, why))
                return true;
        } else {
            was_over = false;
        }
        wait_until(r, now + r->facts.poll);
    }
    return false;
}

static void
start_run(struct run *r)
{
    bool execs;
    int error;
    char q[TEXT_QUOTE];
    const char *name = r->facts.command[0];
    witness_start(&r->witness);
    r->tree.witness = r->witness.pid;
    pid_t pid =
        start_command(&r->inherited, r->facts.command, &r->tree, &execs, &error);
    if (pid > 0)
        return;
    int status = error == ENOENT ? EXIT_NOT_FOUND : EXIT_NO_EXEC;
    struct err err = { 0 };
    report_close(&r->report, status, NULL, &err);
    warn_once(&err);
    errno = error;
    if (!execs)
        die(status, "cannot start another process:");
    die(status, "%s:", text_quote(q, name, strlen(name)));
}

int
main(int argc, char **argv)
{
    struct run *r = &self;
    struct err err = { 0 };
    struct buf why = { 0 };
    const char *words;
    start_note(&r->inherited);
    cmd_begin(&r->cmd);
    parse_command(argc, argv);
    if (tree_open(&r->tree, &words) < 0)
        die(EXIT_TROUBLE, "%s", words);
    if (!r->tree.adopts && !r->cmd.quiet)
        warn("has other children than the command, or is the first process: orphans of "
             "the command are not watched");
    if (r->facts.available && machine_available("") < 0)
        die(EXIT_TROUBLE, "--available: /proc/meminfo does not tell MemAvailable");
    if (r->facts.gpu && !(r->gpu = gpu_open(&err)))
        die_err(&err);
    if (report_open(&r->report, r->report_file, r->force, &r->facts, &cmd_guard, &err) <
        0)
        die_err(&err);
    start_block(&r->waited);
    memfiles_begin(&r->files);
    start_run(r);
    bool ended = guard(r, &why);
    int status = ended ? EXIT_ENDED : r->status;
    if (report_close(&r->report, status, ended ? why.data : NULL, &err) < 0)
        warn("%s", err.msg);
    if (r->cmd.verbose)
        warn("at most %.2f GB of host memory, %.2f GB of GPU memory, %zu processes; at "
             "least %.2f GB free",
             gb(r->report.peak.host), gb(r->report.peak.gpu), r->report.peak.processes,
             gb((uint64_t)(r->report.peak.available < 0 ? 0
                                                        : r->report.peak.available)));
    gpu_close(r->gpu);
    return status;
}
