/* SPDX-License-Identifier: MIT */
/* lock: see lock.h. */
#include "lib/file/lock.h"

#include "lib/base/os.h"
#include "lib/base/text.h"
#include "lib/file/path.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    TRIES = 100,
    NAP = 20000000, // ns
};

static int
in_the_way(const struct lock *l, const char *name, struct err *err)
{
    char q[TEXT_QUOTE];
    return err_set(
        err, ERR_IO,
        "%s: %s is in the way of its lock: expected no file of that name, or "
        "one that a killed run has left; remove it",
        name, text_quote(q, l->path, strlen(l->path)));
}

/* *made: there was no file of that name. */
static int
open_lock(struct lock *l, bool *made, const char *name, struct err *err)
{
    enum { HOW = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK };
    struct stat st;
    l->fd = open(l->path, HOW | O_EXCL, 0666);
    *made = l->fd >= 0;
    if (l->fd < 0 && errno == EEXIST)
        l->fd = open(l->path, HOW, 0666);
    if (l->fd < 0 && errno != ELOOP && errno != EISDIR)
        return path_cannot_make(l->path, name, "no lock can be made beside it", err);
    return l->fd < 0 || fstat(l->fd, &st) < 0 || !S_ISREG(st.st_mode)
               ? in_the_way(l, name, err)
               : 0;
}

/* 1: held, 0: another process has it.  No signal ends the program between making the
 * file and registering it. */
static int
try_lock(struct lock *l, const char *name, struct err *err)
{
    sigset_t before;
    bool made;
    guard_hold(l->guard, &before);
    int rc = open_lock(l, &made, name, err);
    if (rc == 0 && flock(l->fd, LOCK_EX | LOCK_NB) == 0)
        rc = os_is_named(l->fd, l->path); // or its last holder has removed it
    else if (rc == 0 && errno != EWOULDBLOCK)
        rc = err_set(
            err, ERR_IO,
            "%s: this file system has no locks, which two runs need (flock):", name);
    if (rc == 1 && guard_temp(l->guard, l->path, err) < 0)
        rc = -1;
    if (rc < 0 && made)
        unlink(l->path);
    if (rc != 1 && l->fd >= 0) {
        close(l->fd);
        l->fd = -1;
    }
    guard_release(l->guard, &before);
    return rc;
}

int
lock_acquire(struct lock *l, const char *target, struct guard *g, struct err *err)
{
    const struct timespec nap = { .tv_nsec = NAP };
    char name[TEXT_QUOTE];
    char *at = path_target(target);
    text_quote(name, target, strlen(target));
    *l = (struct lock){ .fd = -1, .guard = g };
    l->path = at ? path_beside(at, PATH_LOCK) : NULL;
    free(at);
    int rc = l->path ? 0 : err_set(err, ERR_IO, "%s:", name);
    for (int i = 0; rc == 0 && (rc = try_lock(l, name, err)) == 0; i++) {
        if (i == TRIES)
            rc = err_set(err, ERR_IO,
                         "%s: another process is writing it: wait until it has ended",
                         name);
        else
            nanosleep(&nap, NULL);
    }
    if (rc == 1)
        return 0;
    free(l->path);
    l->path = NULL;
    return -1;
}

void
lock_release(struct lock *l)
{
    sigset_t before;
    if (l->fd < 0)
        return;
    guard_hold(l->guard, &before);
    unlink(l->path);
    guard_forget_temp(l->guard, l->path); // from here on the name may be another's
    guard_release(l->guard, &before);
    close(l->fd);
    free(l->path);
    *l = (struct lock){ .fd = -1 };
}
