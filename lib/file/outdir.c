/* SPDX-License-Identifier: MIT */
/* outdir: see outdir.h. */
#include "lib/file/outdir.h"

#include "lib/base/os.h"
#include "lib/base/text.h"
#include "lib/file/path.h"
#include "lib/file/perms.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    d->name = path_escape(path);
    d->path = path_target(path);
    if (!d->name || !d->path)
        return err_set(err, ERR_IO, "%s:", d->name ? d->name : "output");
    if (path_is_reserved(d->path))
        return err_set(err, ERR_USAGE, "%s: %s", d->name, path_reserved);
    if (path_check_name(d->path, d->name, err) < 0 || check_replaceable(d, d->path) < 0)
        return -1;
    d->temp = path_beside(d->path, PATH_TEMP);
    if (!d->temp)
        return err_set(err, ERR_MEMORY, "%s: out of memory", d->name);
    d->replaces = stat(d->path, &d->old) == 0;
    if (d->replaces)
        d->files = perms_common(d->path);
    const struct temp t = { d->temp, d->name, !d->replaces, rule->writes, rule->ctx };
    d->lock = temp_make(&t, g, err);
    d->owned = d->lock >= 0;
    return d->owned ? 0 : -1;
}

/* The file of that name in the directory that is replaced; a new name among its files
 * has their owner, and only the permissions that all of them have. */
static int
note_old_file(struct outfile *o, const struct outdir *d, const char *leaf)
{
    struct stat now;
    char *path = path_join(d->path, leaf);
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
        .fd = -1, .lock = -1, .list = &d->made, .guard = d->guard, .err = d->err
    };
    o->path = path_join(d->temp, leaf);
    char *shown = path_join(d->name, leaf);
    o->name = shown ? path_escape(shown) : NULL;
    free(shown);
    if (!o->path || !o->name)
        return err_set(d->err, ERR_MEMORY, "%s: out of memory", d->name);
    // In the temporary directory the file has its final name at once.  A handler that
    // removes the directory must not run meanwhile.
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
    for (size_t i = 0; i < d->made.n; i++)
        free(d->made.v[i].leaf);
    free(d->made.v);
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
            temp_remove_dir(d->temp, d->rule.writes, d->rule.ctx);
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

/* A directory with files has the name: swap the two.  What came into the old one after
 * it was checked is found once it has the temporary name; then they are swapped
 * back. */
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
        return temp_disturbed(d->name, "its temporary directory", d->err);
    for (size_t i = 0; i < d->made.n; i++) {
        const struct out_made *m = &d->made.v[i];
        char q[TEXT_QUOTE];
        if (fstatat(d->lock, m->leaf, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            st.st_ino != m->ino || st.st_size != m->size)
            return temp_disturbed(d->name, text_quote(q, m->leaf, strlen(m->leaf)),
                                  d->err);
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
    path_sync_parent(d->path, d->name, err);
    if (replaced && temp_remove_dir(d->temp, d->rule.replaces, d->rule.ctx) < 0) {
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
        perms_copy(d->lock, &d->old, d->path, d->name, err);
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
