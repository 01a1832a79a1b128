/* SPDX-License-Identifier: MIT */
/* start: see start.h. */
#include "cmd/memguard/start.h"

#include "lib/base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Signals that memguard passes on. */
static const int passed[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2 };

void
start_note(struct inherited *in)
{
    for (int sig = 1; sig < NSIG; sig++)
        if (sigaction(sig, NULL, &in->actions[sig]) != 0)
            in->actions[sig].sa_handler = SIG_DFL;
    sigprocmask(SIG_SETMASK, NULL, &in->mask);
    for (int fd = 0; fd < 3; fd++)
        in->closed[fd] = fcntl(fd, F_GETFD) < 0 && errno == EBADF;
}

static void
passed_set(sigset_t *set)
{
    sigemptyset(set);
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        sigaddset(set, passed[i]);
}

void
start_block(sigset_t *waited)
{
    passed_set(waited);
    sigaddset(waited, SIGCHLD);
    sigprocmask(SIG_BLOCK, waited, NULL);
    // With SIGCHLD ignored children leave no status.  A closed report pipe must not end us.
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
}

static _Noreturn void
become(const struct inherited *in, char *const *command, pid_t parent, int fd)
{
    // If memguard is killed, the command gets SIGTERM, since nothing watches it any more.
    // (A set-user-ID program loses this.)
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    if (getppid() != parent)
        _exit(128 + SIGTERM);
    for (int sig = 1; sig < NSIG; sig++)
        if (in->actions[sig].sa_handler == SIG_IGN ||
            in->actions[sig].sa_handler == SIG_DFL)
            sigaction(sig, &in->actions[sig], NULL);
    for (int i = 0; i < 3; i++)
        if (in->closed[i])
            close(i);
    sigprocmask(SIG_SETMASK, &in->mask, NULL);
    execvp(command[0], command);
    int error = errno;
    (void)!write(fd, &error, sizeof error);
    _exit(127);
}

pid_t
start_command(const struct inherited *in, char *const *command, struct tree *t,
              bool *execs, int *error)
{
    int fds[2];
    pid_t self = getpid();
    *execs = false;
    if (pipe2(fds, O_CLOEXEC) != 0) {
        *error = errno;
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0)
        become(in, command, self, fds[1]);
    *error = errno;
    close(fds[1]);
    if (pid > 0) {
        int why;
        ssize_t n;
        tree_command(t, pid);
        do
            n = read(fds[0], &why, sizeof why);
        while (n < 0 && errno == EINTR);
        if (n == (ssize_t)sizeof why) {
            *execs = true;
            *error = why;
            pid = -1; // it ends by itself
        }
    }
    close(fds[0]);
    return pid;
}

/* ---- the witness -------------------------------------------------------------------- */

struct sighting {
    int sig;
    double when;
};

static _Noreturn void
watch(int fd, pid_t parent)
{
    sigset_t set;
    struct sighting s;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        _exit(0);
    prctl(PR_SET_NAME, "memguard-group", 0, 0, 0);
    // Close all other descriptors: another process may wait for the end of a pipe.
    dup2(fd, 0);
    if (syscall(SYS_close_range, 1U, ~0U, 0) != 0)
        for (int i = (int)sysconf(_SC_OPEN_MAX) - 1; i > 0; i--)
            close(i);
    sigfillset(&set); // also SIGTSTP and the like
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (;;) {
        s.sig = sigwaitinfo(&set, NULL);
        s.when = os_seconds();
        if (s.sig > 0)
            (void)!write(0, &s, sizeof s);
    }
}

void
witness_start(struct witness *w)
{
    int fds[2];
    pid_t self = getpid();
    *w = (struct witness){ .pid = -1, .fd = -1 };
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
        return;
    w->pid = fork();
    if (w->pid == 0)
        watch(fds[1], self);
    close(fds[1]);
    w->fd = fds[0];
}

bool
witness_saw(struct witness *w, int sig)
{
    // Long enough to signal both and for the witness to run, on a busy machine, too.
    enum { WAIT_MS = 300 };
    const double now = os_seconds();
    struct pollfd p = { .fd = w->fd, .events = POLLIN };
    for (;;) {
        struct sighting s;
        ssize_t n = 0;
        while (w->fd >= 0 && (n = read(w->fd, &s, sizeof s)) == (ssize_t)sizeof s)
            w->saw[s.sig] = s.when;
        // timeout(1) signals us and then the group: one sighting is for both.
        if (w->saw[sig] > now - 1e-3 * WAIT_MS)
            return true;
        int left = WAIT_MS - (int)((os_seconds() - now) * 1000);
        if (n == 0 || left <= 0 || poll(&p, 1, left) != 1)
            return false;
    }
}
