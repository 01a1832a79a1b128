/* SPDX-License-Identifier: MIT */
/* outfile: see outfile.h. */
#include "lib/core/outfile.h"

#include "lib/core/hash.h"
#include "lib/core/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FLUSH_EVERY = 64 << 20 };

static char *
escaped(const char *path)
{
    struct buf b = { 0 };
    text_escape(&b, path, strlen(path));
    return b.data;
}

static char *
joined(const char *dir, const char *leaf)
{
    struct buf b = { 0 };
    buf_printf(&b, "%s/%s", dir, leaf);
    if (b.failed)
        buf_free(&b);
    return b.data;
}

/* Where a write to path lands: links followed, also a dangling last one, one trailing
 * run of slashes removed.  NULL with errno. */
static char *
resolve(const char *path)
{
    char link[PATH_MAX];
    char *at = strdup(path);
    for (int hops = 0; at; hops++) {
        size_t len = strlen(at);
        while (len > 1 && at[len - 1] == '/')
            at[--len] = '\0';
        ssize_t n = readlink(at, link, sizeof link - 1);
        if (n < 0)
            break; // no link (EINVAL), or not there yet
        if (hops == 40) {
            free(at);
            errno = ELOOP;
            return NULL;
        }
        link[n] = '\0';
        char *slash = strrchr(at, '/');
        char *next;
        if (link[0] == '/' || !slash) {
            next = strdup(link);
        } else {
            *slash = '\0';
            next = joined(at, link);
        }
        free(at);
        at = next;
    }
    return at;
}

/* dir/.NAME.nibble-tmp; a long name is cut and a hash of it put in its place. */
static char *
temp_name(const char *path)
{
    struct buf b = { 0 };
    const char *slash = strrchr(path, '/');
    const char *leaf = slash ? slash + 1 : path;
    size_t n = strlen(leaf);
    buf_add(&b, path, (size_t)(leaf - path));
    if (n <= 200)
        buf_printf(&b, ".%s.nibble-tmp", leaf);
    else
        buf_printf(&b, ".%.100s-%016llx.nibble-tmp", leaf,
                   (unsigned long long)xxh3_64(leaf, n));
    if (b.failed)
        buf_free(&b);
    return b.data;
}

static int
sync_parent(const char *path, const char *name, struct err *err)
{
    char *dir = strdup(path);
    if (!dir)
        return err_set(err, ERR_MEMORY, "%s: out of memory", name);
    char *slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0'; // "/x" has the parent "/"
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    int rc = 0;
    if (fd < 0)
        return err_set(err, ERR_IO, "%s: cannot open its directory:", name);
    // Some file systems cannot sync a directory; they say EINVAL and keep order.
    if (fsync(fd) < 0 && errno != EINVAL)
        rc = err_set(err, ERR_IO, "%s: cannot sync its directory:", name);
    close(fd);
    return rc;
}

/* Whether fd is still what temp names: a racing process may have removed it. */
static bool
still_named(int fd, const char *temp)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(temp, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* Remove a directory and those of its files for which ours is true (NULL: all). */
static int
remove_tree(const char *path, outdir_ours *ours)
{
    DIR *d = opendir(path);
    struct dirent *e;
    while (d && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            (!ours || ours(e->d_name)))
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    return rmdir(path);
}

/* Make the temporary file or directory and lock it; a leftover without a lock goes. */
static int
make_locked(int *fd, const char *temp, bool dir, const char *name, struct err *err)
{
    for (int tries = 0; tries < 16; tries++) {
        bool made;
        if (dir) {
            made = mkdir(temp, 0777) == 0;
            *fd = made || errno == EEXIST
                      ? open(temp, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
                      : -1;
        } else {
            *fd = open(temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            made = *fd >= 0;
            if (!made && errno == EEXIST)
                *fd = open(temp, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        }
        if (*fd < 0 && errno == ENOENT && tries < 15 && !made)
            continue; // it went away between the two calls, or its parent is missing
        if (*fd < 0)
            return err_set(err, ERR_IO,
                           "%s: cannot create a temporary one beside it:", name);
        bool locked = flock(*fd, LOCK_EX | LOCK_NB) == 0;
        if (!locked && errno == EWOULDBLOCK) {
            close(*fd);
            *fd = -1;
            return err_set(err, ERR_IO, "%s: another program is writing it", name);
        }
        // A file system without locks: the O_EXCL name alone must do.
        if (made && still_named(*fd, temp))
            return 0;
        if (!made && locked && still_named(*fd, temp)) {
            if (dir)
                remove_tree(temp, NULL);
            else
                unlink(temp);
        } else if (!made && !locked) {
            close(*fd);
            *fd = -1;
            return err_set(err, ERR_IO, "%s: a file .nibble-tmp is in the way", name);
        }
        close(*fd);
        *fd = -1;
    }
    return err_set(err, ERR_IO, "%s: cannot create a temporary one beside it", name);
}

bool
out_is_stream(const char *path)
{
    // A descriptor is written to even if a regular file stands behind it: the shell
    // opened that for us.
    static const char *const names[] = { "/dev/stdout", "/dev/stderr", "/dev/fd/",
                                         "/proc/self/fd/" };
    struct stat st;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(path, names[i], strlen(names[i])) == 0)
            return true;
    return strcmp(path, "-") == 0 ||
           (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode));
}

int
out_open(struct outfile *o, const char *path, unsigned flags, struct guard *g,
         struct err *err)
{
    struct stat st;
    *o = (struct outfile){
        .fd = -1, .lock = -1, .force = flags & OUT_FORCE, .guard = g, .err = err
    };
    o->passing = flags & OUT_PASSING;
    o->name = escaped(strcmp(path, "-") == 0 ? "<stdout>" : path);
    if (!o->name)
        return err_set(err, ERR_MEMORY, "out of memory for a file name");
    if (out_is_stream(path)) {
        o->direct = true;
        o->fd = strcmp(path, "-") == 0 ? dup(STDOUT_FILENO)
                                       : open(path, O_WRONLY | O_CLOEXEC);
        return o->fd < 0 ? err_set(err, ERR_IO, "%s:", o->name) : 0;
    }
    o->path = resolve(path);
    if (!o->path)
        return err_set(err, ERR_IO, "%s:", o->name);
    if (stat(o->path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return err_set(err, ERR_IO, "%s: is a directory, wanted a file", o->name);
        if (!o->force)
            return err_set(err, ERR_IO, "%s: exists; -f replaces it", o->name);
    } else if (errno != ENOENT) {
        return err_set(err, ERR_IO, "%s:", o->name);
    }
    o->temp = temp_name(o->path);
    if (!o->temp)
        return err_set(err, ERR_MEMORY, "%s: out of memory", o->name);
    // Registered only when it is ours: a handler must not remove another's file.
    if (make_locked(&o->fd, o->temp, false, o->name, err) < 0)
        return -1;
    o->owned = true;
    return guard_temp(g, o->temp, err);
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
        rc =
            ftruncate(o->fd, (off_t)bytes); // no promise of space there, zeros at least
    if (rc < 0)
        return err_set(o->err, ERR_IO, "%s: cannot reserve %llu bytes:", o->name,
                       (unsigned long long)bytes);
    return 0;
}

static int
write_fully(struct outfile *o, const void *bytes, size_t n, uint64_t offset)
{
    const char *from = bytes;
    while (n) {
        ssize_t put =
            o->direct ? write(o->fd, from, n) : pwrite(o->fd, from, n, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_set(o->err, ERR_IO, "%s: byte %llu: write:", o->name,
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
    if (o->err->kind || write_fully(o, bytes, n, o->offset) < 0)
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
out_pwrite(struct outfile *o, const void *bytes, size_t n, uint64_t offset)
{
    return o->err->kind ? -1 : write_fully(o, bytes, n, offset);
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
    if (o->owned)
        unlink(o->temp);
    if (o->fd >= 0)
        close(o->fd);
    out_free(o);
    errno = saved;
}

/* The temporary file becomes the target. */
static int
rename_into_place(struct outfile *o)
{
    int rc = o->force
                 ? rename(o->temp, o->path)
                 : renameat2(AT_FDCWD, o->temp, AT_FDCWD, o->path, RENAME_NOREPLACE);
    if (rc < 0 && !o->force && (errno == EINVAL || errno == ENOSYS))
        rc = link(o->temp, o->path) < 0 ? -1 : unlink(o->temp);
    if (rc < 0)
        return err_set(o->err, ERR_IO,
                       "%s: cannot rename the temporary file to it:", o->name);
    o->owned = false;
    return o->passing ? 0 : sync_parent(o->path, o->name, o->err);
}

int
out_seal(struct outfile *o)
{
    if (o->err->kind)
        return -1;
    if (o->sealed)
        return 0;
    if (!o->direct && !o->passing && fsync(o->fd) < 0)
        return err_set(o->err, ERR_IO, "%s: fsync:", o->name);
    // A close that fails must be heard before the rename, but the lock must outlive
    // it, or another writer could put its own file under our temporary name.
    o->lock = o->owned ? dup(o->fd) : -1;
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

/* An existing target directory may be replaced if it holds nothing but files. */
static int
check_replaceable(struct outdir *d, outdir_ours *ours)
{
    DIR *dir = opendir(d->path);
    if (!dir)
        return errno == ENOENT ? 0 : err_set(d->err, ERR_IO, "%s:", d->name);
    struct dirent *e;
    int rc = 0;
    while (rc == 0 && (e = readdir(dir))) {
        struct stat st;
        char q[TEXT_QUOTE];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (!d->force)
            rc = err_set(d->err, ERR_IO, "%s: exists; -f replaces it", d->name);
        else if (!ours(e->d_name) ||
                 (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                  S_ISDIR(st.st_mode)))
            rc = err_set(d->err, ERR_IO,
                         "%s: holds \"%s\", which is no part of a model: not replaced",
                         d->name, text_quote(q, e->d_name, strlen(e->d_name)));
    }
    closedir(dir);
    return rc;
}

int
outdir_open(struct outdir *d, const char *path, unsigned flags, outdir_ours *ours,
            struct guard *g, struct err *err)
{
    *d = (struct outdir){
        .lock = -1, .force = flags & OUT_FORCE, .ours = ours, .guard = g, .err = err
    };
    d->name = escaped(path);
    d->path = resolve(path);
    if (!d->name || !d->path)
        return err_set(err, ERR_IO, "%s:", d->name ? d->name : "output");
    if (check_replaceable(d, ours) < 0)
        return -1;
    d->temp = temp_name(d->path);
    if (!d->temp)
        return err_set(err, ERR_MEMORY, "%s: out of memory", d->name);
    if (make_locked(&d->lock, d->temp, true, d->name, err) < 0)
        return -1;
    d->owned = true;
    return guard_temp(g, d->temp, err);
}

int
outdir_file(struct outfile *o, struct outdir *d, const char *leaf)
{
    *o = (struct outfile){ .fd = -1, .lock = -1, .guard = d->guard, .err = d->err };
    o->path = joined(d->temp, leaf);
    char *shown = joined(d->name, leaf);
    o->name = shown ? escaped(shown) : NULL;
    free(shown);
    if (!o->path || !o->name)
        return err_set(d->err, ERR_MEMORY, "%s: out of memory", d->name);
    // Inside a directory of our own the file has its final name at once.
    o->fd = open(o->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return o->fd < 0 ? err_set(d->err, ERR_IO, "%s:", o->name) : 0;
}

static void
outdir_free(struct outdir *d)
{
    if (d->temp)
        guard_forget_temp(d->guard, d->temp);
    if (d->lock >= 0)
        close(d->lock);
    free(d->name);
    free(d->path);
    free(d->temp);
    *d = (struct outdir){ .lock = -1 };
}

void
outdir_abandon(struct outdir *d)
{
    int saved = errno;
    if (d->owned)
        remove_tree(d->temp, NULL);
    outdir_free(d);
    errno = saved;
}

int
outdir_commit(struct outdir *d)
{
    struct err *err = d->err;
    if (err->kind == ERR_NONE && fsync(d->lock) < 0 && errno != EINVAL)
        err_set(err, ERR_IO, "%s: fsync:", d->name);
    bool exchanged = false;
    if (err->kind == ERR_NONE && rename(d->temp, d->path) < 0) {
        // A directory with files stands there: look once more what they are, swap the
        // two, then remove the old one.
        exchanged =
            d->force && check_replaceable(d, d->ours) == 0 &&
            renameat2(AT_FDCWD, d->temp, AT_FDCWD, d->path, RENAME_EXCHANGE) == 0;
        if (!exchanged)
            err_set(err, ERR_IO, "%s: cannot rename the temporary one to it:", d->name);
    }
    if (err->kind) {
        outdir_abandon(d);
        return -1;
    }
    d->owned = false;
    sync_parent(d->path, d->name, err);
    if (exchanged && remove_tree(d->temp, d->ours) < 0)
        err_set(err, ERR_IO,
                "%s: the new one is there; the old one, now %s, cannot be "
                "removed: something else came into it",
                d->name, d->temp);
    outdir_free(d);
    return err->kind ? -1 : 0;
}

bool
out_holds(const char *path, const char *file)
{
    struct stat dir, st;
    struct buf parent = { 0 };
    const char *slash = strrchr(file, '/');
    buf_add(&parent, slash ? file : ".", slash ? (size_t)(slash - file) + 1 : 1);
    bool inside = !parent.failed && stat(path, &dir) == 0 && S_ISDIR(dir.st_mode) &&
                  stat(parent.data, &st) == 0 && st.st_dev == dir.st_dev &&
                  st.st_ino == dir.st_ino;
    buf_free(&parent);
    return inside;
}

bool
out_is_file(const char *path, dev_t dev, ino_t ino)
{
    struct stat st;
    return stat(path, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}
