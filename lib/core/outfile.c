/* SPDX-License-Identifier: MIT */
/* outfile: see outfile.h. */
#include "lib/core/outfile.h"

#include "lib/core/hash.h"
#include "lib/core/os.h"
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
#include <sys/xattr.h>
#include <unistd.h>

enum { FLUSH_EVERY = 64 << 20 };

#define TEMP_SUFFIX ".nibble-tmp"

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

char *
out_target(const char *path)
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

bool
out_has_name(const char *path)
{
    size_t n = strlen(path);
    while (n && path[n - 1] == '/')
        n--;
    size_t from = n;
    while (from && path[from - 1] != '/')
        from--;
    size_t len = n - from;
    bool dots = len <= 2 && strncmp(path + from, "..", len) == 0;
    return len > 0 && !dots;
}

static int
no_name(const char *name, struct err *err)
{
    return err_set(err, ERR_USAGE,
                   "\"%s\": ends in no name: expected the name of what is written",
                   name);
}

char *
out_beside(const char *path, const char *suffix)
{
    struct buf b = { 0 };
    const char *slash = strrchr(path, '/');
    const char *leaf = slash ? slash + 1 : path;
    size_t n = strlen(leaf);
    buf_add(&b, path, (size_t)(leaf - path));
    if (n <= 200)
        buf_printf(&b, ".%s%s", leaf, suffix);
    else
        buf_printf(&b, ".%.100s-%016llx%s", leaf, (unsigned long long)xxh3_64(leaf, n),
                   suffix);
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

/* Remove a directory and those of its files that the rule names: errno is ENOTEMPTY if
 * there are others, and tells why one of these cannot be removed. */
static int
remove_tree(const char *path, outdir_name *ours, const void *ctx)
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

/* ---- permissions ------------------------------------------------------------------- */

/* The access control lists of old for fd: false if one could not be set. */
static bool
copy_lists(int fd, const char *old)
{
    static const char *const lists[] = { "system.posix_acl_access",
                                         "system.posix_acl_default" };
    bool all = true;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char list[4096];
        ssize_t n = getxattr(old, lists[i], list, sizeof list);
        if (n > 0)
            all &= fsetxattr(fd, lists[i], list, (size_t)n, 0) == 0;
        else if (n < 0 && errno == ENODATA) // what fd has is from its directory
            all &= fremovexattr(fd, lists[i]) == 0 || errno == ENODATA;
        else if (n < 0 && errno == ERANGE)
            all = false;
    }
    return all;
}

/* Give fd the permissions and, as far as the system lets us, the owner of a file. */
static int
copy_rights(int fd, const struct stat *old, const char *old_path, const char *name,
            struct err *err)
{
    struct stat now;
    mode_t mode = old->st_mode & (S_ISDIR(old->st_mode) ? 03777 : 0777);
    if (fstat(fd, &now) < 0)
        return err_set(err, ERR_IO, "%s:", name);
    bool ours = now.st_uid == old->st_uid && now.st_gid == old->st_gid;
    bool group = ours || fchown(fd, old->st_uid, old->st_gid) == 0 ||
                 fchown(fd, (uid_t)-1, old->st_gid) == 0;
    // Another group than before must not get what only that one had, by a list neither;
    // nor must the group get what was meant for the names of a list.
    if (!group || (old_path && !copy_lists(fd, old_path)))
        mode &= ~(mode_t)02070 | (mode & 07) << 3;
    if (fstat(fd, &now) < 0 || ((now.st_mode & 07777) != mode && fchmod(fd, mode) < 0))
        return err_set(err, ERR_IO, "%s: cannot set its permissions:", name);
    return 0;
}

/* What all regular files of a directory allow their group and others. */
static mode_t
files_allow(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    struct stat st;
    mode_t mode = 0777;
    while (d && (e = readdir(d)))
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode))
            mode &= st.st_mode;
    if (d)
        closedir(d);
    return mode | 0700;
}

/* ---- the temporary name ------------------------------------------------------------- */

static int
in_the_way(const char *temp, const char *name, struct err *err)
{
    char q[TEXT_QUOTE];
    const char *slash = strrchr(temp, '/');
    const char *leaf = slash ? slash + 1 : temp;
    return err_set(err, ERR_IO,
                   "%s: %s beside it is in the way: expected no file of that name, or "
                   "one that a killed run has left; remove it",
                   name, text_quote(q, leaf, strlen(leaf)));
}

/* A directory that a killed run has left: what it wrote is removed. */
static int
remove_leftover(const char *temp, const struct outdir_rule *dir, const char *name,
                struct err *err)
{
    char q[TEXT_QUOTE];
    if (remove_tree(temp, dir->writes, dir->ctx) == 0 || errno == ENOENT)
        return 0;
    text_quote(q, temp, strlen(temp));
    if (errno == ENOTEMPTY)
        return err_set(err, ERR_IO,
                       "%s: %s holds files that nibble did not write: move them away",
                       name, q);
    return err_set(err, ERR_IO,
                   "%s: %s, which an earlier run has left, cannot be removed:", name,
                   q);
}

/* Make the temporary file or directory and lock it; a leftover without a lock goes.
 * dir: the rule of a directory, NULL: a file.  Without share only its owner can use it. */
static int
make_locked(int *fd, const char *temp, const struct outdir_rule *dir, bool share,
            const char *name, struct err *err)
{
    struct stat st;
    for (int tries = 0; tries < 16; tries++) {
        bool made;
        if (dir) {
            made = mkdir(temp, share ? 0777 : 0700) == 0;
            *fd = made || errno == EEXIST
                      ? open(temp, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
                      : -1;
        } else {
            *fd = open(temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                       share ? 0666 : 0600);
            made = *fd >= 0;
            bool there = !made && errno == EEXIST;
            if (there)
                *fd = open(temp, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
            if (there && *fd < 0 && errno == EACCES) // its permissions are final ones
                *fd = open(temp, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        }
        if (*fd < 0 && errno == ENOENT && tries < 15 && !made)
            continue; // it went away between the two calls, or its parent is missing
        if (*fd < 0 &&
            (errno == ELOOP || errno == ENOTDIR || errno == EISDIR || errno == ENXIO))
            return in_the_way(temp, name, err);
        if (*fd < 0)
            return err_set(err, ERR_IO,
                           "%s: cannot create a temporary one beside it:", name);
        bool locked = flock(*fd, LOCK_EX | LOCK_NB) == 0;
        if (!locked && errno == EWOULDBLOCK) {
            close(*fd);
            *fd = -1;
            return err_set(err, ERR_IO,
                           "%s: another process is writing it: wait until it has ended",
                           name);
        }
        if (!made && !dir && (fstat(*fd, &st) < 0 || !S_ISREG(st.st_mode))) {
            close(*fd);
            *fd = -1;
            return in_the_way(temp, name, err);
        }
        // A file system without locks: the O_EXCL name alone must do.
        if (made && os_is_named(*fd, temp))
            return 0;
        if (!made && locked && os_is_named(*fd, temp)) {
            if (!dir) {
                unlink(temp);
            } else if (remove_leftover(temp, dir, name, err) < 0) {
                close(*fd);
                *fd = -1;
                return -1;
            }
        } else if (!made && !locked) {
            close(*fd);
            *fd = -1;
            return in_the_way(temp, name, err);
        }
        close(*fd);
        *fd = -1;
    }
    return in_the_way(temp, name, err);
}

/* The same, and remembered: no signal ends the program in between.  It is registered only
 * when it is ours, since a handler must not remove another's file. */
static int
make_ours(int *fd, bool *owned, const char *temp, const struct outdir_rule *dir,
          bool share, const char *name, struct guard *g, struct err *err)
{
    sigset_t before;
    guard_hold(g, &before);
    int rc = make_locked(fd, temp, dir, share, name, err);
    *owned = rc == 0;
    if (rc == 0)
        rc = guard_temp(g, temp, err);
    guard_release(g, &before);
    return rc;
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

const char out_reserved[] =
    "is a name of temporary files and locks, which a run removes: "
    "expected another; choose one";

static bool
is_reserved_leaf(const char *path)
{
    static const char *const suffixes[] = { TEMP_SUFFIX, ".nibble-lock",
                                            ".nibble-old" };
    const char *slash = strrchr(path, '/'), *leaf = slash ? slash + 1 : path;
    size_t n = strlen(leaf);
    for (size_t i = 0; *leaf == '.' && i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t tail = strlen(suffixes[i]);
        if (n > tail && strcmp(leaf + n - tail, suffixes[i]) == 0)
            return true;
    }
    return false;
}

bool
out_is_reserved(const char *path)
{
    char *target = out_target(path);
    bool reserved = target && is_reserved_leaf(target);
    free(target);
    return reserved;
}

int
out_open(struct outfile *o, const char *path, unsigned flags, struct guard *g,
         struct err *err)
{
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
    o->path = out_target(path);
    if (!o->path)
        return err_set(err, ERR_IO, "%s:", o->name);
    if (is_reserved_leaf(o->path))
        return err_set(err, ERR_USAGE, "%s: %s", o->name, out_reserved);
    o->replaces = stat(o->path, &o->old) == 0;
    if (!o->replaces && !out_has_name(o->path))
        return no_name(o->name, err);
    if (o->replaces) {
        if (S_ISDIR(o->old.st_mode))
            return err_set(err, ERR_IO, "%s: is a directory, wanted a file", o->name);
        if (!o->force)
            return err_set(err, ERR_IO, "%s: exists; -f replaces it", o->name);
    } else if (errno != ENOENT) {
        return err_set(err, ERR_IO, "%s:", o->name);
    }
    o->temp = out_beside(o->path, TEMP_SUFFIX);
    if (!o->temp)
        return err_set(err, ERR_MEMORY, "%s: out of memory", o->name);
    return make_ours(&o->fd, &o->owned, o->temp, NULL,
                     !o->replaces && !(flags & OUT_PRIVATE), o->name, g, err);
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

/* What stands under the temporary name is not what was written. */
static int
disturbed(const char *name, const char *what, struct err *err)
{
    return err_set(err, ERR_IO,
                   "%s: another process removed or replaced %s: the output is not "
                   "complete and was not put in place; run again",
                   name, what);
}

static int
check_temp(struct outfile *o)
{
    return os_is_named(o->lock, o->temp)
               ? 0
               : disturbed(o->name, "its temporary file", o->err);
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
    return rc < 0 || o->passing ? rc : sync_parent(o->path, o->name, o->err);
}

/* The older file at path must not stand beside the newer o for a moment: it is renamed
 * first, and comes back if o cannot be placed. */
static int
place_both(struct outfile *o, const char *path, struct outfile *beside)
{
    sigset_t before;
    if (check_temp(o) < 0 || (beside && check_temp(beside) < 0))
        return -1;
    char *old = out_beside(path, ".nibble-old");
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
    return o->err->kind ? -1 : sync_parent(o->path, o->name, o->err);
}

int
out_share(struct outfile *o, const struct outfile *with)
{
    struct stat st;
    o->replaces = false; // what stands there does not count
    if (stat(with->temp, &st) < 0)
        return err_set(o->err, ERR_IO, "%s:", with->name);
    return copy_rights(o->fd, &st, with->temp, o->name, o->err);
}

/* The permissions may have been changed since the work began. */
static int
keep_rights(struct outfile *o)
{
    struct stat st;
    if (!o->replaces)
        return 0;
    if (o->owned && stat(o->path, &st) == 0 && S_ISREG(st.st_mode))
        o->old = st;
    return copy_rights(o->fd, &o->old, o->owned ? o->path : NULL, o->name, o->err);
}

/* Remember a complete file of a directory, by which outdir_commit finds it again. */
static int
note_made(const struct outfile *o)
{
    struct outdir *d = o->dir;
    struct stat st;
    if (fstat(o->fd, &st) < 0)
        return err_set(o->err, ERR_IO, "%s:", o->name);
    struct outdir_made *made = realloc(d->made, (d->n_made + 1) * sizeof *made);
    if (!made)
        return err_set(o->err, ERR_MEMORY, "%s: out of memory", o->name);
    d->made = made;
    made += d->n_made;
    *made = (struct outdir_made){ .ino = st.st_ino, .size = st.st_size };
    made->leaf = strdup(strrchr(o->path, '/') + 1);
    if (!made->leaf)
        return err_set(o->err, ERR_MEMORY, "%s: out of memory", o->name);
    d->n_made++;
    return 0;
}

int
out_seal(struct outfile *o)
{
    if (o->err->kind)
        return -1;
    if (o->sealed)
        return 0;
    if (keep_rights(o) < 0)
        return -1;
    if (!o->direct && !o->passing && fsync(o->fd) < 0)
        return err_set(o->err, ERR_IO, "%s: fsync:", o->name);
    // A close that fails must be heard before the rename, but the lock must outlive
    // it, or another writer could put its own file under our temporary name.
    o->lock = o->owned ? fcntl(o->fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (o->owned && o->lock < 0)
        return err_set(o->err, ERR_IO, "%s:", o->name);
    if (o->dir && note_made(o) < 0)
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
    char *target = out_target(path);
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

/* A directory may be replaced if it holds nothing but files that the rule names, and if
 * these can be removed: once the two are swapped it is too late to find out. */
static int
check_replaceable(struct outdir *d, const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT ? 0 : err_set(d->err, ERR_IO, "%s:", d->name);
    struct dirent *e;
    bool empty = true;
    int rc = 0;
    while (rc == 0 && (e = readdir(dir))) {
        struct stat st;
        char q[TEXT_QUOTE];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        empty = false;
        if (!d->force)
            rc = err_set(d->err, ERR_IO, "%s: exists; -f replaces it", d->name);
        else if (!d->rule.replaces(d->rule.ctx, e->d_name) ||
                 (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                  S_ISDIR(st.st_mode)))
            rc = err_set(d->err, ERR_IO,
                         "%s: holds \"%s\", which no earlier run wrote there: not "
                         "replaced; move it away, or write to another directory",
                         d->name, text_quote(q, e->d_name, strlen(e->d_name)));
    }
    closedir(dir);
    if (rc == 0 && !empty && faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) < 0)
        rc = err_set(
            d->err, ERR_IO,
            "%s: the files in it cannot be removed, so it is not replaced:", d->name);
    return rc;
}

int
outdir_open(struct outdir *d, const char *path, unsigned flags,
            const struct outdir_rule *rule, struct guard *g, struct err *err)
{
    *d = (struct outdir){
        .lock = -1, .force = flags & OUT_FORCE, .rule = *rule, .guard = g, .err = err
    };
    d->name = escaped(path);
    d->path = out_target(path);
    if (!d->name || !d->path)
        return err_set(err, ERR_IO, "%s:", d->name ? d->name : "output");
    if (is_reserved_leaf(d->path))
        return err_set(err, ERR_USAGE, "%s: %s", d->name, out_reserved);
    if (!out_has_name(d->path))
        return no_name(d->name, err);
    if (check_replaceable(d, d->path) < 0)
        return -1;
    d->temp = out_beside(d->path, TEMP_SUFFIX);
    if (!d->temp)
        return err_set(err, ERR_MEMORY, "%s: out of memory", d->name);
    d->replaces = stat(d->path, &d->old) == 0;
    if (d->replaces)
        d->files = files_allow(d->path);
    return make_ours(&d->lock, &d->owned, d->temp, rule, !d->replaces, d->name, g, err);
}

/* The file of that name in the directory that is replaced; a new name among its files
 * has their owner, and allows nobody what not all of them do. */
static int
note_old_file(struct outfile *o, const struct outdir *d, const char *leaf)
{
    struct stat now;
    char *path = joined(d->path, leaf);
    bool there = path && lstat(path, &o->old) == 0 && S_ISREG(o->old.st_mode);
    free(path);
    if (!path)
        return err_set(o->err, ERR_MEMORY, "%s: out of memory", o->name);
    if (fstat(o->fd, &now) < 0)
        return err_set(o->err, ERR_IO, "%s:", o->name);
    o->replaces = true;
    if (!there) {
        o->old = d->old;
        o->old.st_mode = now.st_mode & (S_IFMT | d->files);
    }
    return 0;
}

int
outdir_file(struct outfile *o, struct outdir *d, const char *leaf)
{
    *o = (struct outfile){
        .fd = -1, .lock = -1, .dir = d, .guard = d->guard, .err = d->err
    };
    o->path = joined(d->temp, leaf);
    char *shown = joined(d->name, leaf);
    o->name = shown ? escaped(shown) : NULL;
    free(shown);
    if (!o->path || !o->name)
        return err_set(d->err, ERR_MEMORY, "%s: out of memory", d->name);
    // Inside a directory of our own the file has its final name at once.  A handler that
    // removes the directory must not be at it meanwhile.
    sigset_t before;
    guard_hold(o->guard, &before);
    o->fd =
        openat(d->lock, leaf, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    guard_release(o->guard, &before);
    if (o->fd < 0)
        return err_set(d->err, ERR_IO, "%s:", o->name);
    return d->replaces ? note_old_file(o, d, leaf) : 0;
}

static void
outdir_free(struct outdir *d)
{
    if (d->temp)
        guard_forget_temp(d->guard, d->temp);
    if (d->lock >= 0)
        close(d->lock);
    for (size_t i = 0; i < d->n_made; i++)
        free(d->made[i].leaf);
    free(d->made);
    free(d->name);
    free(d->path);
    free(d->temp);
    *d = (struct outdir){ .lock = -1 };
}

void
outdir_abandon(struct outdir *d)
{
    int saved = errno;
    if (d->owned) {
        sigset_t before;
        guard_hold(d->guard, &before);
        if (os_is_named(d->lock, d->temp))
            remove_tree(d->temp, d->rule.writes, d->rule.ctx);
        guard_forget_temp(d->guard, d->temp);
        guard_release(d->guard, &before);
    }
    outdir_free(d);
    errno = saved;
}

static int
exchange(const struct outdir *d)
{
    return renameat2(AT_FDCWD, d->temp, AT_FDCWD, d->path, RENAME_EXCHANGE);
}

/* A directory with files stands in the place: swap the two.  What came into the old one
 * after it was looked at is seen once it is out of everybody's way; then it goes back. */
static int
swap(struct outdir *d)
{
    if (!d->force || check_replaceable(d, d->path) < 0)
        return -1;
    if (exchange(d) < 0)
        return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP
                   ? err_set(
                         d->err, ERR_IO,
                         "%s: this file system cannot swap two directories: write to "
                         "another name, remove the old one, and rename with mv",
                         d->name)
                   : -1;
    if (check_replaceable(d, d->temp) == 0)
        return 0;
    if (exchange(d) < 0) {
        // The new one is in place, and the old one is not ours to remove.
        d->owned = false;
        guard_forget_temp(d->guard, d->temp);
    }
    return -1;
}

/* Whether the temporary directory is still ours, with all that was written into it. */
static int
check_made(struct outdir *d)
{
    struct stat st;
    if (!os_is_named(d->lock, d->temp))
        return disturbed(d->name, "its temporary directory", d->err);
    for (size_t i = 0; i < d->n_made; i++) {
        const struct outdir_made *m = &d->made[i];
        char q[TEXT_QUOTE];
        if (fstatat(d->lock, m->leaf, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            st.st_ino != m->ino || st.st_size != m->size)
            return disturbed(d->name, text_quote(q, m->leaf, strlen(m->leaf)), d->err);
    }
    return 0;
}

/* The temporary directory becomes the target. */
static int
place_directory(struct outdir *d)
{
    struct err *err = d->err;
    bool replaced = false;
    if (check_made(d) < 0)
        return -1;
    if (rename(d->temp, d->path) < 0) {
        replaced = swap(d) == 0;
        if (!replaced)
            return err_set(err, ERR_IO,
                           "%s: cannot rename the temporary one to it:", d->name);
    }
    d->owned = false;
    sync_parent(d->path, d->name, err);
    if (replaced && remove_tree(d->temp, d->rule.replaces, d->rule.ctx) < 0) {
        char q[TEXT_QUOTE];
        text_quote(q, d->temp, strlen(d->temp));
        if (errno == ENOTEMPTY)
            err_set(err, ERR_IO,
                    "%s: the new one is there; the old one, now %s, cannot be removed: "
                    "something else came into it",
                    d->name, q);
        else
            err_set(err, ERR_IO,
                    "%s: the new one is there; the old one, now %s, cannot be removed:",
                    d->name, q);
    }
    guard_forget_temp(d->guard, d->temp);
    return err->kind ? -1 : 0;
}

int
outdir_commit(struct outdir *d)
{
    struct err *err = d->err;
    if (err->kind == ERR_NONE && d->replaces) {
        stat(d->path, &d->old);
        copy_rights(d->lock, &d->old, d->path, d->name, err);
    }
    if (err->kind == ERR_NONE && fsync(d->lock) < 0 && errno != EINVAL)
        err_set(err, ERR_IO, "%s: fsync:", d->name);
    if (err->kind == ERR_NONE) {
        // After the exchange the old one has our name: it goes, or a part of it stays.
        sigset_t before;
        guard_hold(d->guard, &before);
        place_directory(d);
        guard_release(d->guard, &before);
    }
    int rc = err->kind ? -1 : 0;
    outdir_abandon(d); // when it is in place, nothing is left to remove
    return rc;
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
