/* SPDX-License-Identifier: MIT */
/* tree: see tree.h. */
#include "cmd/memguard/tree.h"

#include "lib/base/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STRANGERS_EVERY = 16, MAX_DEPTH = 4096 };

/* ---- pure parts ------------------------------------------------------------------ */

bool
tree_parse(struct tree_proc *p, const char *line, uint64_t page)
{
    // Fields behind the name, by their number in proc(5) less 3.
    enum { PARENT = 1, THREADS = 17, START = 19, RSS = 21, FIELDS };
    long long field[FIELDS] = { 0 };
    // A name may hold anything, also ") R 1": the last parenthesis ends it.
    const char *open = strchr(line, '('), *close = strrchr(line, ')');
    if (!open || !close || close < open || close[1] != ' ' || !close[2])
        return false;
    char state = close[2];
    const char *at = close + 3;
    for (int i = 1; i < FIELDS; i++) {
        char *end;
        field[i] = strtoll(at, &end, 10);
        if (end == at)
            return false;
        at = end;
    }
    *p = (struct tree_proc){
        .pid = (pid_t)strtol(line, NULL, 10),
        .parent = (pid_t)field[PARENT],
        .start = (uint64_t)field[START],
        .rss = field[RSS] > 0 ? (uint64_t)field[RSS] * page : 0,
        // A first thread that ended is a zombie while others go on.
        .alive = (state != 'Z' && state != 'X') || field[THREADS] > 1,
        .stopped = state == 'T',
    };
    snprintf(p->name, sizeof p->name, "%.*s", (int)(close - open - 1), open + 1);
    return true;
}

static int
by_number(const void *a, const void *b)
{
    pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;
    return (x > y) - (x < y);
}

static const struct tree_proc *
find_process(const struct tree_proc *procs, size_t n, pid_t pid)
{
    return n ? bsearch(&pid, procs, n, sizeof *procs, by_number) : NULL; // pid is first
}

static bool
is_stranger(const struct tree *t, pid_t pid)
{
    return t->n_strangers && bsearch(&pid, t->strangers, t->n_strangers,
                                     sizeof *t->strangers, by_number) != NULL;
}

static bool
is_command(const struct tree *t, const struct tree_proc *p)
{
    return p->pid == t->command.pid && p->start == t->command.start;
}

/* The kin of a process by itself; OPEN: that of its parent. */
static enum tree_kin
kin_alone(const struct tree *t, const struct tree_proc *p)
{
    if (p->pid == t->self || p->pid == t->witness)
        return TREE_STRANGER;
    if (is_command(t, p))
        return TREE_OURS;
    if (p->parent == t->self)
        return t->adopts ? TREE_OURS : TREE_STRANGER;
    if (p->parent <= 1)
        return TREE_STRANGER;
    return TREE_OPEN;
}

void
tree_kin(const struct tree *t, const struct tree_proc *procs, size_t n,
         enum tree_kin *kin)
{
    for (size_t i = 0; i < n; i++)
        kin[i] = kin_alone(t, &procs[i]);
    for (size_t i = 0; i < n; i++) {
        enum tree_kin is = kin[i];
        pid_t up = procs[i].parent;
        // Up to an ancestor whose kin is known, then assign it on the way down.
        for (size_t depth = 0; is == TREE_OPEN; depth++) {
            const struct tree_proc *p = find_process(procs, n, up);
            if (!p || depth > n)
                is = is_stranger(t, up) ? TREE_STRANGER : TREE_LOST;
            else
                is = kin[p - procs], up = p->parent;
        }
        const struct tree_proc *p = &procs[i];
        while (p && kin[p - procs] == TREE_OPEN) {
            kin[p - procs] = is;
            p = find_process(procs, n, p->parent);
        }
    }
}

static uint64_t
weight(const struct tree_proc *p, bool by_gpu)
{
    return by_gpu ? p->gpu : p->rss + p->files;
}

size_t
tree_pick(const struct tree_proc *procs, const bool *signaled, size_t n, bool by_gpu,
          bool *pick)
{
    uint64_t max = 0;
    size_t picked = 0;
    memset(pick, 0, n * sizeof *pick);
    for (size_t i = 0; i < n; i++) {
        if (procs[i].alive && signaled[i])
            return 0; // one is ending already
        if (procs[i].alive && weight(&procs[i], by_gpu) > max)
            max = weight(&procs[i], by_gpu);
    }
    for (size_t i = 0; i < n; i++)
        pick[i] = procs[i].alive && weight(&procs[i], by_gpu) >= max / 2;
    for (size_t i = 0; i < n; i++) {
        if (!procs[i].alive || weight(&procs[i], by_gpu) < max / 2)
            continue;
        const struct tree_proc *up = find_process(procs, n, procs[i].parent);
        for (size_t depth = 0; up && depth < n; depth++) {
            pick[up - procs] = false;
            up = find_process(procs, n, up->parent);
        }
    }
    for (size_t i = 0; i < n; i++)
        picked += pick[i];
    return picked;
}

/* ---- the system ------------------------------------------------------------------- */

static bool
read_proc(const struct tree *t, pid_t pid, struct tree_proc *p)
{
    char path[32], line[1024];
    snprintf(path, sizeof path, "%d/stat", (int)pid);
    int fd = openat(t->proc, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0)
        return false;
    line[n] = '\0';
    return tree_parse(p, line, (uint64_t)sysconf(_SC_PAGESIZE)) && p->pid == pid;
}

/* Whether there are children already: "sleep 9 & exec memguard" leaves us the shell's. */
static bool
has_children(const struct tree *t)
{
    DIR *dir = opendir("/proc");
    struct dirent *e;
    struct tree_proc p;
    bool found = false;
    while (dir && !found && (e = readdir(dir))) {
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        found = pid > 0 && read_proc(t, pid, &p) && p.parent == t->self;
    }
    if (dir)
        closedir(dir);
    return found;
}

/* strerror if the system is out of resources, else the given reason. */
static const char *
reason(const char *otherwise)
{
    return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? strerror(errno)
                                                                 : otherwise;
}

int
tree_open(struct tree *t, const char **why)
{
    struct tree_proc self;
    errno = 0;
    *t = (struct tree){ .self = getpid() };
    t->proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->proc < 0 || !read_proc(t, t->self, &self) || self.parent != getppid()) {
        *why = reason("/proc does not show this process; is it mounted, and of the "
                      "same process namespace?");
        return -1;
    }
    int fd = (int)syscall(SYS_pidfd_open, t->self, 0);
    if (fd < 0) {
        *why = reason("the kernel has no pidfd_open: Linux 5.3 or later is needed to "
                      "signal a process without hitting another one");
        return -1;
    }
    close(fd);
    t->adopts = t->self != 1 && !has_children(t) &&
                prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0;
    return 0;
}

int
tree_command(struct tree *t, pid_t pid)
{
    t->command.pid = pid; // its end is noticed all the same
    return read_proc(t, pid, &t->command) ? 0 : -1;
}

/* Grow an array to n items; NULL: no memory. */
static void *
grow(void *array, size_t *capacity, size_t n, size_t size)
{
    if (n <= *capacity)
        return array;
    void *more = realloc(array, 2 * n * size);
    if (more)
        *capacity = 2 * n;
    return more;
}

/* List all pids into t->listed; how many, or -1. */
static ssize_t
list(struct tree *t)
{
    struct dirent *e;
    size_t n = 0;
    DIR *dir = opendir("/proc");
    if (!dir)
        return -1;
    while ((e = readdir(dir))) {
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        if (pid <= 0)
            continue;
        pid_t *listed = grow(t->listed, &t->listed_capacity, n + 1, sizeof *listed);
        if (!listed) {
            closedir(dir);
            return -1;
        }
        t->listed = listed;
        t->listed[n++] = pid;
    }
    closedir(dir);
    qsort(t->listed, n, sizeof *t->listed, by_number);
    return (ssize_t)n;
}

/* Strangers are those that are listed and neither ours nor lost; n were read. */
static void
keep_strangers(struct tree *t, size_t listed, size_t n, const enum tree_kin *kin)
{
    size_t strangers = 0;
    pid_t *keep = t->listed; // in place: never more than were listed
    for (size_t i = 0; i < listed; i++) {
        const struct tree_proc *p = find_process(t->procs, n, t->listed[i]);
        if (p ? kin[p - t->procs] == TREE_STRANGER : is_stranger(t, t->listed[i]))
            keep[strangers++] = t->listed[i];
    }
    memcpy(t->strangers, keep, strangers * sizeof *keep);
    t->n_strangers = strangers;
}

int
tree_walk(struct tree *t, bool all)
{
    ssize_t listed = list(t);
    size_t n = 0;
    if (listed < 0)
        return -1;
    struct tree_proc *procs =
        grow(t->procs, &t->capacity, (size_t)listed + 1, sizeof *procs);
    if (procs)
        t->procs = procs;
    pid_t *known =
        grow(t->strangers, &t->strangers_capacity, (size_t)listed + 1, sizeof *known);
    if (known)
        t->strangers = known;
    if (!procs || !known)
        return -1;
    enum tree_kin *kin = calloc((size_t)listed + 1, sizeof *kin);
    if (!kin)
        return -1;
    if (all || t->walks++ % STRANGERS_EVERY == 0)
        t->n_strangers = 0;
    for (ssize_t i = 0; i < listed; i++)
        if (!is_stranger(t, t->listed[i]) && read_proc(t, t->listed[i], &t->procs[n]))
            n++;
    tree_kin(t, t->procs, n, kin);
    keep_strangers(t, (size_t)listed, n, kin);
    t->n = 0;
    for (size_t i = 0; i < n; i++)
        if (kin[i] == TREE_OURS)
            t->procs[t->n++] = t->procs[i];
    free(kin);
    return 0;
}

uint64_t
tree_rss(const struct tree *t)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < t->n; i++)
        sum += t->procs[i].rss;
    return sum;
}

uint64_t
tree_pss(const struct tree *t)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < t->n; i++) {
        char path[48];
        snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)t->procs[i].pid);
        int64_t pss = os_bytes(path, "Pss");
        struct tree_proc now;
        // Not permitted: use the RSS, which is larger.  Ended meanwhile: nothing.
        if (pss >= 0)
            sum += (uint64_t)pss;
        else if (read_proc(t, t->procs[i].pid, &now) && now.alive &&
                 now.start == t->procs[i].start)
            sum += now.rss;
    }
    return sum;
}

size_t
tree_alive(const struct tree *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        n += t->procs[i].alive;
    return n;
}

const struct tree_proc *
tree_find(const struct tree *t, pid_t pid)
{
    return find_process(t->procs, t->n, pid);
}

/* Whether that process is below us.  A parent is read between two equal reads of its child, so
 * each link was true at one moment; a process below us stays there. */
static bool
is_below(const struct tree *t, const struct tree_proc *what)
{
    struct tree_proc p = *what, now, up, again;
    for (int depth = 0; depth < MAX_DEPTH; depth++) {
        if (!read_proc(t, p.pid, &now) || now.start != p.start)
            return false;
        enum tree_kin kin = kin_alone(t, &now);
        if (kin != TREE_OPEN)
            return kin == TREE_OURS;
        if (!read_proc(t, now.parent, &up) || !read_proc(t, now.pid, &again) ||
            again.start != now.start || again.parent != now.parent)
            continue; // it became an orphan: read its new parent
        p = up;
    }
    return false;
}

int
tree_signal(const struct tree *t, const struct tree_proc *p, int sig)
{
    // None of them is below the command; said once more, since this is what kills.
    if (p->pid <= 1 || p->pid == t->self || p->pid == t->witness)
        return -1;
    int fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (fd < 0)
        return -1;
    // /proc is read after the open: if the signal can be sent, the pid was not reused.
    int rc =
        is_below(t, p) ? (int)syscall(SYS_pidfd_send_signal, fd, sig, NULL, 0) : -1;
    close(fd);
    return rc;
}
