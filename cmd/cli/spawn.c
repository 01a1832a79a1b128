/* SPDX-License-Identifier: MIT */
/* spawn: see spawn.h. */
#include "cmd/cli/spawn.h"

#include "cmd/cli/cmd.h"
#include "lib/base/os.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Seconds that others have to end: when one has died they must find that out, and say it; when one
 * has said why it ends, no other one needs to; when one succeeds, the others are about to end, too,
 * unless a second signal has ended it and another one hangs. */
enum { TO_SPEAK = 10, TO_END = 2, TO_FOLLOW = 20 };

struct ranks {
    pid_t *id; // 0: it has ended
    unsigned n, left;
    int status;  // of the first that failed; EXIT_DONE
    int signal;  // that the last one died of, which did; 0
    int asked;   // how often they were asked to end
    double over; // when the ranks that are left are ended; 0: never
};

static void
signal_all(const struct ranks *r, int sig)
{
    for (unsigned q = 0; q < r->n; q++)
        if (r->id[q])
            kill(r->id[q], sig);
}

static void
note_end(struct ranks *r, pid_t id, int how)
{
    unsigned q = 0;
    while (q < r->n && r->id[q] != id)
        q++;
    if (q == r->n)
        return;
    r->id[q] = 0;
    r->left--;
    int status = WIFEXITED(how) ? WEXITSTATUS(how) : EXIT_DONE;
    if (status != EXIT_DONE && !cmd_fails_by(status)) {
        warn("rank %u has ended with exit status %d, which no rank uses: perhaps a "
             "library has ended it",
             q, status);
        status = EXIT_TROUBLE;
    }
    if (WIFSIGNALED(how))
        r->signal = WTERMSIG(how);
    // The second time they end at once, and one may find that another has ended.
    if (r->status == EXIT_DONE || (r->asked > 1 && status == EXIT_PREEMPTED))
        r->status = status;
    bool well = status == EXIT_DONE || status == EXIT_PREEMPTED;
    double over = os_seconds() + (WIFSIGNALED(how) ? TO_SPEAK
                                  : well           ? TO_FOLLOW
                                                   : TO_END);
    if (r->over <= 0 || over < r->over)
        r->over = over;
}

static void
note_ends(struct ranks *r)
{
    int how;
    pid_t id;
    while ((id = waitpid(-1, &how, WNOHANG)) > 0)
        note_end(r, id, how);
}

/* A terminal sends its signals to all processes. */
static void
pass_on(struct ranks *r, const siginfo_t *info)
{
    r->asked++;
    if (info->si_code != SI_KERNEL)
        signal_all(r, info->si_signo);
}

/* Until all have ended. */
static void
await(struct ranks *r, const sigset_t *signals)
{
    const struct timespec second = { .tv_sec = 1 };
    siginfo_t info;
    while (r->left) {
        int sig = sigtimedwait(signals, &info, &second);
        if (sig > 0 && sig != SIGCHLD)
            pass_on(r, &info);
        note_ends(r);
        if (r->over > 0 && os_seconds() > r->over)
            signal_all(r, SIGKILL);
    }
}

/* Who has started it ends: so does it. */
static void
begin_rank(const sigset_t *before, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        raise(SIGTERM);
    sigprocmask(SIG_SETMASK, before, NULL);
}

unsigned
spawn_ranks(unsigned n, int theirs)
{
    struct ranks r = { .id = cmd_alloc(n, sizeof *r.id), .n = n };
    sigset_t signals, before;
    pid_t parent = getpid();
    sigemptyset(&signals);
    const int wanted[] = { SIGINT, SIGTERM, SIGHUP, SIGCHLD };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        sigaddset(&signals, wanted[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    signal(SIGCHLD, SIG_DFL); // where it was ignored, nobody could be waited for
    for (unsigned q = 0; q < n; q++) {
        pid_t id = fork();
        if (id == 0) {
            free(r.id);
            begin_rank(&before, parent);
            return q;
        }
        if (id < 0) {
            int why = errno;
            signal_all(&r, SIGKILL);
            die(EXIT_TROUBLE, "a process for rank %u: %s", q, strerror(why));
        }
        r.id[q] = id;
        r.left++;
    }
    close(theirs);
    await(&r, &signals);
    free(r.id);
    if (r.status == EXIT_DONE && r.signal)
        cmd_die_by_signal(r.signal);
    exit(r.status);
}
