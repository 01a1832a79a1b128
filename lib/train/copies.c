/* SPDX-License-Identifier: MIT */
/* copies: see copies.h. */
#include "lib/train/copies.h"

#include "lib/base/num.h"
#include "lib/base/text.h"
#include "lib/file/outfile.h"
#include "lib/file/path.h"
#include "lib/file/reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP_SUFFIX ".step"
#define LIST_SUFFIX ".keep-last"

static int
no_memory(const struct run_config *r)
{
    return err_set(r->err, ERR_MEMORY, "out of memory for names of copies");
}

char *
copies_name(const struct run_config *r, const char *suffix)
{
    struct buf b = { 0 };
    buf_printf(&b, "%s%s", r->target, suffix);
    if (!b.failed)
        return b.data;
    no_memory(r);
    buf_free(&b);
    return NULL;
}

int
copies_write_text(const struct run_config *r, const char *path, const struct buf *b,
                  struct err *err)
{
    struct outfile o;
    if (b->failed)
        return err_set(err, ERR_MEMORY, "out of memory for %s", path);
    int rc = out_open(&o, path, OUT_FORCE, r->host->guard, err);
    if (rc == 0)
        rc = out_write(&o, b->data, b->len);
    if (rc == 0)
        rc = out_commit(&o);
    else
        out_abandon(&o);
    return rc;
}

int64_t
copies_open(const struct run_config *r, struct store *file, const char *path,
            struct err *err)
{
    struct settings s;
    struct state st;
    *file = (struct store){ 0 };
    if (access(path, F_OK) != 0 ||
        checkpoint_open(file, path, r->host->guard, err) < 0 ||
        !file->training.master || state_read(&st, &s, file) < 0)
        return -1;
    return (int64_t)st.step;
}

/* The step of the checkpoint at path.  -1: the file is missing or cannot be read as one; *err. */
static int64_t
try_step_of(const struct run_config *r, const char *path, struct err *err)
{
    struct store file;
    int64_t step = copies_open(r, &file, path, err);
    store_close(&file);
    return step;
}

static int64_t
step_of(const struct run_config *r, const char *path)
{
    struct err err = { 0 };
    return try_step_of(r, path, &err);
}

/* ---- one copy ---------------------------------------------------------------------------- */

/* A file of its own that shares the bytes, where the file system can: what writes into the
 * checkpoint does not change it. */
static bool
clone_as(const char *from, const char *temp)
{
    struct stat st;
    bool done = false;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;
    if (in >= 0 && fstat(in, &st) == 0)
        out = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out >= 0)
        done = ioctl(out, FICLONE, in) == 0 && fchmod(out, st.st_mode & 0777) == 0 &&
               fsync(out) == 0;
    if (out >= 0)
        close(out);
    if (out >= 0 && !done)
        unlink(temp);
    if (in >= 0)
        close(in);
    return done;
}

/* Whole or not at all: by a second name that is renamed.  1: done; 0: this filesystem cannot. */
static int
link_as(const struct run_config *r, const char *from, const char *to)
{
    char *temp = path_beside(to, PATH_TEMP);
    sigset_t before;
    if (!temp)
        return no_memory(r);
    guard_hold(r->host->guard, &before);
    unlink(temp); // of a run that was killed
    // A checkpoint's name may be a symbolic link; the copy is one of the file.
    bool done = (clone_as(from, temp) ||
                 linkat(AT_FDCWD, from, AT_FDCWD, temp, AT_SYMLINK_FOLLOW) == 0) &&
                rename(temp, to) == 0;
    unlink(temp); // it stays where both were one file already
    guard_release(r->host->guard, &before);
    free(temp);
    return done;
}

/* All bytes of fd. */
static int
write_from(struct outfile *o, int fd, const char *from)
{
    enum { CHUNK = 1 << 20 };
    ssize_t n = 0;
    int rc = 0;
    char *bytes = malloc(CHUNK);
    if (!bytes)
        return err_set(o->err, ERR_MEMORY, "out of memory to copy %s", from);
    while (rc == 0 && (n = read(fd, bytes, CHUNK)) > 0)
        rc = out_write(o, bytes, (size_t)n);
    if (n < 0)
        rc = err_set(o->err, ERR_IO, "%s:", from);
    free(bytes);
    return rc;
}

static int
copy_as(const struct run_config *r, const char *from, const char *to)
{
    struct outfile o;
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(r->err, ERR_IO, "%s:", from);
    int rc = out_open(&o, to, OUT_FORCE, r->host->guard, r->err);
    if (rc == 0)
        rc = write_from(&o, fd, from);
    if (rc == 0)
        rc = out_commit(&o);
    else
        out_abandon(&o);
    close(fd);
    return rc;
}

/* A file that a copy would replace must be a checkpoint. */
static int
check_place(const struct run_config *r, const char *to)
{
    struct err err = { 0 };
    if (access(to, F_OK) != 0 || try_step_of(r, to, &err) >= 0)
        return 0;
    if (err.kind == ERR_MEMORY)
        return err_set(r->err, err.kind, "%s", err.msg);
    return err_set(
        r->err, ERR_USAGE,
        "%s: exists and is not a checkpoint: expected no file of that name, or a "
        "copy of an earlier save; remove it",
        to);
}

/* By a link where that is possible. */
static int
make_at(const struct run_config *r, const char *from, const char *to)
{
    if (check_place(r, to) < 0)
        return -1;
    int linked = link_as(r, from, to);
    if (linked <= 0)
        return linked < 0 ? -1 : copy_as(r, from, to);
    return path_sync_parent(to, to, r->err);
}

int
copies_make(const struct run_config *r, const char *from, const char *suffix,
            uint64_t step)
{
    char *to = copies_name(r, suffix);
    if (!to)
        return -1;
    int rc = make_at(r, from, to);
    if (rc == 0 && r->host->verbose)
        host_warn(r->host, "%s: a copy of step %llu", to, (unsigned long long)step);
    free(to);
    return rc;
}

/* ---- NAME.stepN -------------------------------------------------------------------------- */

enum { COPY_SUFFIX = sizeof STEP_SUFFIX + 20 };

static const char *
copy_suffix(char suffix[COPY_SUFFIX], uint64_t step)
{
    snprintf(suffix, COPY_SUFFIX, STEP_SUFFIX "%llu", (unsigned long long)step);
    return suffix;
}

/* The name of the copy of that step; to be freed. */
static char *
name_copy(const struct run_config *r, uint64_t step)
{
    char suffix[COPY_SUFFIX];
    return copies_name(r, copy_suffix(suffix, step));
}

/* 1: it is there; -1: no memory for its name. */
static int
has_copy(const struct run_config *r, uint64_t step)
{
    char *path = name_copy(r, step);
    if (!path)
        return -1;
    bool has = step_of(r, path) == (int64_t)step;
    free(path);
    return has;
}

/* The step in the name of a copy; 0: it is none. */
static uint64_t
copy_step(const char *name, const char *leaf)
{
    size_t n = strlen(leaf), suffix = strlen(STEP_SUFFIX);
    uint64_t step;
    if (strncmp(name, leaf, n) != 0 || strncmp(name + n, STEP_SUFFIX, suffix) != 0 ||
        name[n + suffix] == '0' || !num_u64(&step, name + n + suffix))
        return 0;
    return step;
}

static int
later_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* A list of steps. */
struct steps {
    struct buf b;
};

static size_t
steps_n(const struct steps *s)
{
    return s->b.len / sizeof(uint64_t);
}

static uint64_t
steps_at(const struct steps *s, size_t i)
{
    uint64_t step;
    memcpy(&step, (const char *)s->b.data + i * sizeof step, sizeof step);
    return step;
}

static void
steps_add(struct steps *s, uint64_t step)
{
    buf_add(&s->b, &step, sizeof step);
}

static bool
steps_have(const struct steps *s, uint64_t step)
{
    for (size_t i = 0; i < steps_n(s); i++)
        if (steps_at(s, i) == step)
            return true;
    return false;
}

/* Steps up to this one of which there are copies, the last one first. */
static int
list_copies(const struct run_config *r, uint64_t upto, struct steps *found)
{
    char *copy = strdup(r->target), *name = strdup(r->target);
    const char *leaf = name ? basename(name) : NULL;
    DIR *dir = copy ? opendir(dirname(copy)) : NULL;
    for (struct dirent *e; dir && leaf && (e = readdir(dir));) {
        uint64_t step = copy_step(e->d_name, leaf);
        if (step && step <= upto)
            steps_add(found, step);
    }
    if (dir)
        closedir(dir);
    bool failed = !copy || !leaf || found->b.failed;
    if (!failed && steps_n(found))
        qsort(found->b.data, steps_n(found), sizeof(uint64_t), later_first);
    free(copy);
    free(name);
    return failed ? no_memory(r) : 0;
}

bool
copies_due(const struct run_config *r, uint64_t step)
{
    return r->o->keep_every && step % r->o->keep_every == 0;
}

int
copies_keep_sound(const struct run_config *r, uint64_t step)
{
    char from[TEXT_QUOTE], to[TEXT_QUOTE], *path = name_copy(r, step);
    if (!path)
        return -1;
    text_quote(from, r->target, strlen(r->target));
    text_quote(to, path, strlen(path));
    bool there = access(path, F_OK) == 0;
    int kept = there ? step_of(r, path) == (int64_t)step : link_as(r, r->target, path);
    if (kept > 0)
        host_warn(r->host,
                  "%s: step %llu, from before the training diverged, is kept as %s",
                  from, (unsigned long long)step, to);
    else if (kept == 0)
        host_warn(r->host,
                  "%s: step %llu, from before the training diverged, is not kept: %s "
                  "%s",
                  from, (unsigned long long)step, to,
                  there ? "is another file" : "cannot be made as a link");
    free(path);
    return kept < 0 ? -1 : 0;
}

/* ---- the list of --keep-last ------------------------------------------------------------- */

/* Read its lines, each the step of a copy. */
static int
read_list(const struct run_config *r, const char *path, struct steps *list)
{
    enum { LINE = 20 };
    struct reader f = { .name = path, .limit = LINE };
    struct slice line;
    uint64_t step;
    int more = 0;
    f.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f.fd < 0 && errno == ENOENT)
        return 0;
    if (f.fd < 0)
        return err_set(r->err, ERR_IO, "%s:", path);
    while ((more = reader_line(&f, &line, r->err)) > 0 && num_u64(&step, line.p))
        steps_add(list, step);
    if (more > 0)
        err_set(
            r->err, ERR_FORMAT,
            "%s: line %llu: expected a step; it is the list of copies that --keep-last "
            "may remove: remove it to begin a new one",
            path, (unsigned long long)f.number);
    reader_free(&f);
    close(f.fd);
    if (more == 0 && list->b.failed)
        return no_memory(r);
    return more ? -1 : 0;
}

/* List the copies that exist, and that of `coming`, which is about to be made. */
static int
write_list(const struct run_config *r, const char *path, const struct steps *list,
           uint64_t coming)
{
    struct buf lines = { 0 };
    int has = 0;
    for (size_t i = 0; i < steps_n(list) && has >= 0; i++) {
        uint64_t step = steps_at(list, i);
        if (copies_due(r, step))
            continue;
        has = step == coming ? 1 : has_copy(r, step);
        if (has > 0)
            buf_printf(&lines, "%llu\n", (unsigned long long)step);
    }
    int rc = has < 0 ? -1 : copies_write_text(r, path, &lines, r->err);
    buf_free(&lines);
    return rc;
}

static bool
remove_copy(const struct run_config *r, const char *path)
{
    char q[TEXT_QUOTE];
    if (unlink(path) == 0)
        return true;
    host_warn(r->host, "%s: an older copy cannot be removed: %s",
              text_quote(q, path, strlen(path)), strerror(errno));
    return false;
}

/* Whether --keep-last has made more copies than it keeps, up to that step: 1 or 0.  With `remove` the
 * function removes the older ones. */
static int
has_older(const struct run_config *r, const struct steps *list, uint64_t upto,
          bool remove)
{
    struct steps found = { 0 };
    int rc = list_copies(r, upto, &found);
    for (size_t i = (size_t)r->o->keep_last; rc >= 0 && i < steps_n(&found); i++) {
        uint64_t step = steps_at(&found, i);
        char *path = name_copy(r, step);
        bool is_older = path && steps_have(list, step) && !copies_due(r, step) &&
                        step_of(r, path) == (int64_t)step;
        if (is_older && (!remove || remove_copy(r, path)))
            rc = 1;
        if (!path)
            rc = -1;
        free(path);
    }
    buf_free(&found.b);
    return rc;
}

/* 1: the list names a copy that does not exist. */
static int
names_missing(const struct run_config *r, const struct steps *list)
{
    int has = 1;
    for (size_t i = 0; i < steps_n(list) && has > 0; i++)
        has = has_copy(r, steps_at(list, i));
    return has < 0 ? -1 : !has;
}

/* Copies that others made, the user or an earlier --keep-every, are not listed. */
static int
copy_listed(const struct run_config *r, const char *path, struct steps *list,
            uint64_t step)
{
    char suffix[COPY_SUFFIX];
    int had = has_copy(r, step);
    if (had < 0 || read_list(r, path, list) < 0)
        return -1;
    if (!had && !copies_due(r, step) && !steps_have(list, step))
        steps_add(list, step);
    if (list->b.failed)
        return no_memory(r);
    // The list comes first: a copy that is in no list could be the user's and would stay.
    if (write_list(r, path, list, step) < 0 ||
        copies_make(r, r->target, copy_suffix(suffix, step), step) < 0)
        return -1;
    int older = has_older(r, list, step, true);
    return older > 0 ? write_list(r, path, list, step) : older;
}

int
copies_saved(const struct run_config *r, uint64_t step)
{
    char suffix[COPY_SUFFIX];
    struct steps list = { 0 };
    if (!r->o->keep_last)
        return copies_due(r, step)
                   ? copies_make(r, r->target, copy_suffix(suffix, step), step)
                   : 0;
    char *path = copies_name(r, LIST_SUFFIX);
    int rc = path ? copy_listed(r, path, &list, step) : -1;
    buf_free(&list.b);
    free(path);
    return rc;
}

/* ---- what an earlier run owes ------------------------------------------------------------ */

/* 1: an earlier run ended between the save of this step and its copy. */
static int
owes_copy(const struct run_config *r)
{
    if (!(r->o->keep_last || copies_due(r, r->in_step)) || !r->in_step || r->o->out)
        return 0;
    int has = has_copy(r, r->in_step);
    return has < 0 ? -1 : !has;
}

static int
compare_list(const struct run_config *r, const char *path, bool tidy)
{
    struct steps list = { 0 };
    int older = 0, missing = 0, rc = 0;
    if (r->o->keep_last && read_list(r, path, &list) < 0)
        rc = -1;
    if (rc == 0 && r->o->keep_last)
        older = has_older(r, &list, r->in_step, tidy);
    if (rc == 0 && older >= 0)
        missing = names_missing(r, &list);
    if (older < 0 || missing < 0)
        rc = -1;
    if (rc == 0 && (older || missing))
        rc = tidy ? write_list(r, path, &list, r->in_step) : 1;
    buf_free(&list.b);
    return rc;
}

/* 1: a killed run left an older copy, or a list that is not of the copies; with `tidy` both are
 * mended.  Refuses a file that is no list. */
static int
is_untidy(const struct run_config *r, bool tidy)
{
    char *path = copies_name(r, LIST_SUFFIX);
    int rc = path ? compare_list(r, path, tidy) : -1;
    free(path);
    return rc;
}

/* 1: a killed run left its temporary file beside that copy or list; with `remove` it is
 * removed. */
static int
has_leftover(const struct run_config *r, const char *suffix, bool remove)
{
    char *path = copies_name(r, suffix);
    char *temp = path ? path_beside(path, PATH_TEMP) : NULL;
    int has = temp ? access(temp, F_OK) == 0 : no_memory(r);
    if (has > 0 && remove)
        unlink(temp);
    free(temp);
    free(path);
    return has;
}

static int
has_leftovers(const struct run_config *r, bool remove)
{
    static const char *const suffixes[] = { COPY_BEST, COPY_EVALS, LIST_SUFFIX };
    char copy[COPY_SUFFIX];
    int has = has_leftover(r, copy_suffix(copy, r->in_step), remove);
    for (size_t i = 0; has >= 0 && i < sizeof suffixes / sizeof *suffixes; i++) {
        int one = has_leftover(r, suffixes[i], remove);
        has = one < 0 ? -1 : has | one;
    }
    return has;
}

int
copies_owed(const struct run_config *r)
{
    int owed = owes_copy(r);
    if (owed == 0)
        owed = is_untidy(r, false);
    return owed ? owed : has_leftovers(r, false);
}

int
copies_pay(const struct run_config *r)
{
    if (has_leftovers(r, true) < 0 || is_untidy(r, true) < 0)
        return -1;
    int owed = owes_copy(r);
    return owed > 0 ? copies_saved(r, r->in_step) : owed;
}
