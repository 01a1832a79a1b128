/* SPDX-License-Identifier: MIT */
/* outfile: see outfile.h. */
#include "lib/file/outfile.h"

#include "lib/base/os.h"
#include "lib/base/text.h"
#include "lib/file/path.h"
#include "lib/file/perms.h"
#include "lib/file/temp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FLUSH_EVERY = 64 << 20 };

static int
open_stream(struct outfile *o, const char *path)
{
    o->direct = true;
    o->fd =
        strcmp(path, "-") == 0 ? dup(STDOUT_FILENO) : open(path, O_WRONLY | O_CLOEXEC);
    return o->fd < 0 ? err_set(o->err, ERR_IO, "%s:", o->name) : 0;
}

/* Whether o->path may be written; what it replaces. */
static int
check_target(struct outfile *o)
{
    if (path_is_reserved(o->path))
        return err_set(o->err, ERR_USAGE, "%s: %s", o->name, path_reserved);
    o->replaces = stat(o->path, &o->old) == 0;
    if (!o->replaces && path_check_name(o->path, o->name, o->err) < 0)
        return -1;
    if (!o->replaces)
        return errno == ENOENT ? 0 : err_set(o->err, ERR_IO, "%s:", o->name);
    if (S_ISDIR(o->old.st_mode))
        return err_set(o->err, ERR_IO,
                       "%s: is a directory: expected the name of a file", o->name);
    if (!o->force)
        return err_set(o->err, ERR_IO, "%s: exists; -f replaces it", o->name);
    return 0;
}

int
out_open(struct outfile *o, const char *path, unsigned flags, struct guard *g,
         struct err *err)
{
    *o = (struct outfile){ .fd = -1,
                           .lock = -1,
                           .force = flags & OUT_FORCE,
                           .passing = flags & OUT_PASSING,
                           .guard = g,
                           .err = err };
    o->name = path_escape(strcmp(path, "-") == 0 ? "<stdout>" : path);
    if (!o->name)
        return err_set(err, ERR_MEMORY, "out of memory for a file name");
    if (path_is_stream(path))
        return open_stream(o, path);
    o->path = path_target(path);
    if (!o->path)
        return err_set(err, ERR_IO, "%s:", o->name);
    if (check_target(o) < 0)
        return -1;
    o->temp = path_beside(o->path, PATH_TEMP);
    if (!o->temp)
        return err_set(err, ERR_MEMORY, "%s: out of memory", o->name);
    const struct temp t = { .path = o->temp,
                            .name = o->name,
                            .shared = !o->replaces && !(flags & OUT_PRIVATE) };
    o->fd = temp_make(&t, g, err);
    o->owned = o->fd >= 0;
    return o->owned ? 0 : -1;
}

static int
open_theirs(const char *temp, uint64_t inode)
{
    struct stat st;
    // Not for reading: then a client of NFS never writes back what others write beside it.
    int fd = open(temp, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || (fstat(fd, &st) == 0 && st.st_ino == inode))
        return fd;
    close(fd);
    errno = ESTALE;
    return -1;
}

int
out_join(struct outfile *o, const char *path, uint64_t inode, struct err *err)
{
    enum { TRIES = 30 };
    const struct timespec nap = { .tv_nsec = 100 * 1000 * 1000 };
    *o = (struct outfile){ .fd = -1, .lock = -1, .err = err };
    o->name = path_escape(path);
    o->path = path_target(path);
    char *temp = o->path ? path_beside(o->path, PATH_TEMP) : NULL;
    if (!o->name || !temp) {
        free(temp);
        return err_set(err, ERR_MEMORY, "out of memory for a file name");
    }
    // Another host may see it a little later.
    for (int i = 0; i < TRIES && (o->fd = open_theirs(temp, inode)) < 0; i++)
        nanosleep(&nap, NULL);
    free(temp);
    return o->fd < 0 ? err_set(err, ERR_IO,
                               "%s: cannot open the temporary file beside it that "
                               "rank 0 has made:",
                               o->name)
                     : 0;
}

int
out_reserve(struct outfile *o, uint64_t bytes)
{
    if (o->err->kind)
        return -1;
    if (o->direct || bytes == 0)
        return 0;
    if (bytes > INT64_MAX)
        return err_set(o->err, ERR_IO, "%s: %llu bytes is too much for a file", o->name,
                       (unsigned long long)bytes);
    int rc;
    do
        rc = fallocate(o->fd, 0, 0, (off_t)bytes);
    while (rc < 0 && errno == EINTR);
    if (rc < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL))
        rc = ftruncate(o->fd, (off_t)bytes); // without a reservation, but zeros
    if (rc < 0)
        return err_set(o->err, ERR_IO, "%s: cannot reserve %llu bytes:", o->name,
                       (unsigned long long)bytes);
    return 0;
}

static int
write_fully(const struct outfile *o, const void *bytes, size_t n, uint64_t offset,
            struct err *err)
{
    const char *from = bytes;
    while (n) {
        ssize_t put =
            o->direct ? write(o->fd, from, n) : pwrite(o->fd, from, n, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_set(err, ERR_IO, "%s: byte %llu: write:", o->name,
                           (unsigned long long)offset);
        from += put;
        n -= (size_t)put;
        offset += (uint64_t)put;
    }
    return 0;
}

int
out_write(struct outfile *o, const void *bytes, size_t n)
{
    if (o->err->kind || write_fully(o, bytes, n, o->offset, o->err) < 0)
        return -1;
    o->offset += n;
    // Start writing back early, so that the fsync at the end finds little to do.
    if (!o->direct && o->offset - o->flushed >= FLUSH_EVERY) {
        sync_file_range(o->fd, (off_t)o->flushed, (off_t)(o->offset - o->flushed),
                        SYNC_FILE_RANGE_WRITE);
        o->flushed = o->offset;
    }
    return 0;
}

int
out_skip(struct outfile *o, uint64_t n)
{
    static const char zeros[4096];
    if (o->err->kind)
        return -1;
    if (!o->direct) {
        o->offset += n;
        return 0;
    }
    for (; n; n -= n < sizeof zeros ? n : sizeof zeros)
        if (out_write(o, zeros, n < sizeof zeros ? n : sizeof zeros) < 0)
            return -1;
    return 0;
}

int
out_pwrite(const struct outfile *o, const void *bytes, size_t n, uint64_t offset,
           struct err *err)
{
    enum { LARGE = 1 << 20 };
    if (write_fully(o, bytes, n, offset, err) < 0)
        return -1;
    if (n >= LARGE)
        sync_file_range(o->fd, (off_t)offset, (off_t)n, SYNC_FILE_RANGE_WRITE);
    return 0;
}

static void
out_free(struct outfile *o)
{
    if (o->temp)
        guard_forget_temp(o->guard, o->temp);
    free(o->name);
    free(o->path);
    if (o->temp && o->lock >= 0)
        close(o->lock);
    free(o->temp);
    *o = (struct outfile){ .fd = -1, .lock = -1 };
}

void
out_abandon(struct outfile *o)
{
    int saved = errno;
    if (o->owned) {
        sigset_t before;
        guard_hold(o->guard, &before);
        if (os_is_named(o->fd >= 0 ? o->fd : o->lock, o->temp)) // not another's
            unlink(o->temp);
        guard_forget_temp(o->guard, o->temp); // the name may be another's from now on
        guard_release(o->guard, &before);
    }
    if (o->fd >= 0)
        close(o->fd);
    out_free(o);
    errno = saved;
}

static int
check_temp(struct outfile *o)
{
    return os_is_named(o->lock, o->temp)
               ? 0
               : temp_disturbed(o->name, "its temporary file", o->err);
}

/* The temporary file becomes the target. */
static int
place(struct outfile *o)
{
    if (check_temp(o) < 0)
        return -1;
    int rc = o->force
                 ? rename(o->temp, o->path)
                 : renameat2(AT_FDCWD, o->temp, AT_FDCWD, o->path, RENAME_NOREPLACE);
    if (rc < 0 && !o->force && (errno == EINVAL || errno == ENOSYS))
        rc = link(o->temp, o->path) < 0 ? -1 : unlink(o->temp);
    if (rc < 0)
        return err_set(o->err, ERR_IO,
                       "%s: cannot rename the temporary file to it:", o->name);
    guard_forget_temp(o->guard, o->temp);
    o->owned = false;
    return 0;
}

static int
rename_into_place(struct outfile *o)
{
    sigset_t before;
    guard_hold(o->guard, &before);
    int rc = place(o);
    guard_release(o->guard, &before);
    return rc < 0 || o->passing ? rc : path_sync_parent(o->path, o->name, o->err);
}

/* The older file at path must not be beside the newer o for a moment: it is renamed
 * first, and comes back if o cannot be placed. */
static int
place_both(struct outfile *o, const char *path, struct outfile *beside)
{
    sigset_t before;
    if (check_temp(o) < 0 || (beside && check_temp(beside) < 0))
        return -1;
    char *old = path_beside(path, PATH_OLD);
    if (!old)
        return err_set(o->err, ERR_MEMORY, "%s: out of memory", o->name);
    guard_hold(o->guard, &before);
    bool had = rename(path, old) == 0;
    if (place(o) < 0) {
        if (had)
            rename(old, path);
    } else {
        if (beside)
            place(beside);
        unlink(old); // also what a killed run has left
    }
    guard_release(o->guard, &before);
    free(old);
    return o->err->kind ? -1 : path_sync_parent(o->path, o->name, o->err);
}

int
out_share(struct outfile *o, const struct outfile *with)
{
    struct stat st;
    o->replaces = false; // its permissions do not count
    if (stat(with->temp, &st) < 0)
        return err_set(o->err, ERR_IO, "%s:", with->name);
    return perms_copy(o->fd, &st, with->temp, o->name, o->err);
}

/* The permissions may have been changed since the work began. */
static int
keep_perms(struct outfile *o)
{
    struct stat st;
    if (!o->replaces)
        return 0;
    if (o->owned && stat(o->path, &st) == 0 && S_ISREG(st.st_mode))
        o->old = st;
    return perms_copy(o->fd, &o->old, o->owned ? o->path : NULL, o->name, o->err);
}

/* Remember a complete file of a directory, by which outdir_commit finds it again. */
static int
note_made(const struct outfile *o)
{
    struct stat st;
    if (fstat(o->fd, &st) < 0)
        return err_set(o->err, ERR_IO, "%s:", o->name);
    struct out_made *v = realloc(o->list->v, (o->list->n + 1) * sizeof *v);
    if (v)
        o->list->v = v;
    char *leaf = v ? strdup(strrchr(o->path, '/') + 1) : NULL;
    if (!leaf)
        return err_set(o->err, ERR_MEMORY, "%s: out of memory", o->name);
    v[o->list->n++] = (struct out_made){ leaf, st.st_ino, st.st_size };
    return 0;
}

int
out_seal(struct outfile *o)
{
    if (o->err->kind)
        return -1;
    if (o->sealed)
        return 0;
    if (keep_perms(o) < 0)
        return -1;
    if (!o->direct && !o->passing && fsync(o->fd) < 0)
        return err_set(o->err, ERR_IO, "%s: fsync:", o->name);
    // A close that fails must be noticed before the rename, but the lock must outlive
    // it, or another writer could put its own file under our temporary name.
    o->lock = o->owned ? fcntl(o->fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (o->owned && o->lock < 0)
        return err_set(o->err, ERR_IO, "%s:", o->name);
    if (o->list && note_made(o) < 0)
        return -1;
    int fd = o->fd;
    o->fd = -1;
    if (close(fd) < 0)
        return err_set(o->err, ERR_IO, "%s: close:", o->name);
    o->sealed = true;
    return 0;
}

int
out_commit(struct outfile *o)
{
    struct err *err = o->err;
    if (out_seal(o) == 0 && o->owned)
        rename_into_place(o);
    out_abandon(o); // after a rename nothing is left to remove
    return err->kind ? -1 : 0;
}

int
out_commit_both(struct outfile *o, const char *path, struct outfile *beside)
{
    struct err *err = o->err;
    char *target = path_target(path);
    if (!target)
        err_set(err, ERR_IO, "%s:", o->name);
    if (target && out_seal(o) == 0 && (!beside || out_seal(beside) == 0))
        place_both(o, target, beside);
    free(target);
    if (beside)
        out_abandon(beside);
    out_abandon(o);
    return err->kind ? -1 : 0;
}
