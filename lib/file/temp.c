/* SPDX-License-Identifier: MIT */
/* temp: see temp.h. */
#include "lib/file/temp.h"

#include "lib/base/os.h"
#include "lib/base/text.h"
#include "lib/file/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 16, AGAIN = -2 };

int
temp_remove_dir(const char *path, temp_leaf *ours, const void *ctx)
{
    // A link that another process put there is not followed.
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;
    int why = 0;
    if (fd >= 0 && !d)
        close(fd);
    while (d && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            ours(ctx, e->d_name) && unlinkat(dirfd(d), e->d_name, 0) < 0 &&
            errno != ENOENT && !why)
            why = errno;
    if (d)
        closedir(d);
    int rc = rmdir(path);
    // A file that cannot be removed is the reason why the directory is not empty.
    if (rc < 0 && errno == ENOTEMPTY && why)
        errno = why;
    return rc;
}

int
temp_disturbed(const char *name, const char *what, struct err *err)
{
    return err_set(err, ERR_IO,
                   "%s: another process removed or replaced %s: the output is not "
                   "complete and was not put in place; run again",
                   name, what);
}

static int
in_the_way(const struct temp *t, struct err *err)
{
    char q[TEXT_QUOTE];
    const char *slash = strrchr(t->path, '/');
    const char *leaf = slash ? slash + 1 : t->path;
    return err_set(err, ERR_IO,
                   "%s: %s beside it is in the way: expected no file of that name, or "
                   "one that a killed run has left; remove it",
                   t->name, text_quote(q, leaf, strlen(leaf)));
}

/* A directory that a killed run has left: what it wrote is removed. */
static int
remove_leftover(const struct temp *t, struct err *err)
{
    char q[TEXT_QUOTE];
    if (temp_remove_dir(t->path, t->ours, t->ctx) == 0 || errno == ENOENT)
        return 0;
    text_quote(q, t->path, strlen(t->path));
    if (errno == ENOTEMPTY)
        return err_set(err, ERR_IO,
                       "%s: %s holds files that nibble did not write: move them away",
                       t->name, q);
    return err_set(err, ERR_IO,
                   "%s: %s, which an earlier run has left, cannot be removed:", t->name,
                   q);
}

static int
open_file(const struct temp *t, bool *made)
{
    enum { HOW = O_CLOEXEC | O_NOFOLLOW };
    // Not for reading: see out_join.
    int fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | HOW, t->shared ? 0666 : 0600);
    *made = fd >= 0;
    if (*made || errno != EEXIST)
        return fd;
    fd = open(t->path, O_RDWR | HOW | O_NONBLOCK);
    if (fd < 0 && errno == EACCES) // its permissions are final ones
        fd = open(t->path, O_RDONLY | HOW | O_NONBLOCK);
    return fd;
}

static int
open_dir(const struct temp *t, bool *made)
{
    *made = mkdir(t->path, t->shared ? 0777 : 0700) == 0;
    return *made || errno == EEXIST
               ? open(t->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
               : -1;
}

/* fd was there before: AGAIN once it is gone, if it is a leftover; else -1. */
static int
remove_old(const struct temp *t, int fd, bool locked, struct err *err)
{
    struct stat st;
    bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (!locked || (!t->ours && !regular))
        return in_the_way(t, err);
    if (!os_is_named(fd, t->path)) // its run has just ended
        return AGAIN;
    if (t->ours)
        return remove_leftover(t, err) < 0 ? -1 : AGAIN;
    unlink(t->path);
    return AGAIN;
}

static int
cannot_open(const struct temp *t, struct err *err)
{
    if (errno == ELOOP || errno == ENOTDIR || errno == EISDIR || errno == ENXIO)
        return in_the_way(t, err);
    return path_cannot_make(t->path, t->name, "cannot create a temporary one beside it",
                            err);
}

/* The descriptor, -1, or AGAIN: another process was at the same name. */
static int
try_make(const struct temp *t, bool last, struct err *err)
{
    bool made;
    int fd = t->ours ? open_dir(t, &made) : open_file(t, &made);
    if (fd < 0 && errno == ENOENT && !made && !last)
        return AGAIN; // it went away meanwhile, or its parent is missing
    if (fd < 0)
        return cannot_open(t, err);
    bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    int rc;
    if (!locked && errno == EWOULDBLOCK)
        rc = err_set(err, ERR_IO,
                     "%s: another process is writing it: wait until it has ended",
                     t->name);
    else if (!made)
        rc = remove_old(t, fd, locked, err);
    else // in a file system without locks the O_EXCL name alone must do
        rc = os_is_named(fd, t->path) ? fd : AGAIN;
    if (rc != fd)
        close(fd);
    return rc;
}

/* No signal ends the program between making and registering.  It is registered only
 * when it is ours, since a handler must not remove another's file. */
int
temp_make(const struct temp *t, struct guard *g, struct err *err)
{
    sigset_t before;
    int fd = AGAIN;
    guard_hold(g, &before);
    for (int i = 1; fd == AGAIN && i <= TRIES; i++)
        fd = try_make(t, i == TRIES, err);
    if (fd == AGAIN)
        fd = in_the_way(t, err);
    if (fd >= 0 && guard_temp(g, t->path, err) < 0) {
        t->ours ? rmdir(t->path) : unlink(t->path);
        close(fd);
        fd = -1;
    }
    guard_release(g, &before);
    return fd;
}
