/* SPDX-License-Identifier: MIT */
/* save: see save.h. */
#include "lib/train/save.h"

#include "lib/base/os.h"
#include "lib/file/path.h"
#include "lib/format/writer.h"
#include "lib/load/saving.h"
#include "lib/train/record.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- the lock -------------------------------------------------------------------------- */

/* A hard link is another name of the same file and has a lock of its own.  So the file is locked,
 * too, until the first save puts another one in its place. */
static int
lock_file(struct trainer *t)
{
    const char *target = t->run->target;
    t->locked_file = open(target, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (t->locked_file >= 0 && flock(t->locked_file, LOCK_EX | LOCK_NB) != 0 &&
        errno == EWOULDBLOCK)
        return err_set(
            t->err, ERR_USAGE,
            "%s: another process trains the same file under another name, a hard link: "
            "wait until it has ended, or train a copy (cp)",
            target);
    return 0;
}

void
save_unlock_file(struct trainer *t)
{
    if (t->locked_file >= 0)
        close(t->locked_file);
    t->locked_file = -1;
}

int
save_lock(struct trainer *t)
{
    const struct run_config *r = t->run;
    if (lock_acquire(&t->lock, r->target, r->host->guard, t->err) < 0)
        return -1;
    return r->o->out ? 0 : lock_file(t);
}

void
save_unlock(struct trainer *t)
{
    save_unlock_file(t);
    lock_release(&t->lock);
}

/* Compare the file of the lock, which rank 0 has, with what this rank sees there. */
static int
compare_place(const struct trainer *t, uint64_t inode)
{
    struct stat st;
    const char *name = t->run->target;
    char *target = path_target(name);
    char *lock = target ? path_beside(target, PATH_LOCK) : NULL;
    int rc = 0;
    if (!lock)
        rc = err_set(t->err, ERR_MEMORY, "out of memory for a file name");
    else if (stat(lock, &st) < 0 || st.st_ino != inode)
        rc = err_set(
            t->err, ERR_USAGE,
            "%s: is not the file that rank 0 writes: ranks write one checkpoint "
            "together: expected the same name, on a file system that all hosts have",
            name);
    free(lock);
    free(target);
    return rc;
}

/* All ranks write to the file that rank 0 begins beside its lock, so they must see the same one. */
int
save_check_place(struct trainer *t)
{
    struct stat st = { 0 };
    uint64_t inode = 0;
    struct comm *c = ranks_comm(t->ranks);
    if (t->ranks->size == 1)
        return 0;
    if (ranks_wait(t->ranks, t->err) < 0)
        return -1;
    if (t->ranks->rank == 0 && fstat(t->lock.fd, &st) == 0)
        inode = st.st_ino;
    if (comm_broadcast(c, &inode, sizeof inode) < 0)
        return err_set(t->err, ERR_IO, "%s", c->err->msg);
    return compare_place(t, inode) < 0 ? -1 : ranks_wait(t->ranks, t->err);
}

/* ---- writing ----------------------------------------------------------------------------------- */

/* A checkpoint to write: its texts, and its arrays for a writer. */
struct draft {
    struct writer w;
    struct wmeta meta;
    struct buf provenance, state;
    struct wtensor *arrays;
};

static int
draft_begin(struct draft *d, const struct trainer *t, const struct state *st)
{
    *d = (struct draft){ 0 };
    if (record_meta(t, st, &d->meta, &d->provenance, &d->state) < 0)
        return -1;
    d->arrays = training_list(&t->train);
    return d->arrays ? 0 : err_set(t->err, ERR_MEMORY, "out of memory for the arrays");
}

static void
draft_free(struct draft *d)
{
    free(d->arrays);
    buf_free(&d->provenance);
    buf_free(&d->state);
}

static int
check_space(const struct trainer *t)
{
    struct statvfs fs;
    const char *target = t->run->target;
    char *copy = strdup(target);
    if (!copy)
        return err_set(t->err, ERR_MEMORY, "out of memory");
    const char *dir = dirname(copy);
    int rc = 0;
    if (statvfs(dir, &fs) != 0)
        rc = err_set(t->err, ERR_IO, "%s:", dir);
    uint64_t space = rc < 0 ? 0 : (uint64_t)fs.f_bavail * fs.f_frsize;
    if (rc == 0 && space < t->file_bytes)
        rc = err_set(
            t->err, ERR_IO,
            "%s: a checkpoint needs %llu bytes beside the present one, the disk has "
            "%llu",
            target, (unsigned long long)t->file_bytes, (unsigned long long)space);
    free(copy);
    return rc;
}

/* Everything that a save writes is known but for values, so that what does not fit is
 * heard now and not after hours of steps. */
int
save_check(struct trainer *t)
{
    struct draft d;
    struct state st;
    struct writer_options opt = { .guard = t->run->host->guard };
    if (record_largest(t, &st) < 0)
        return -1;
    int rc = draft_begin(&d, t, &st);
    if (rc == 0) {
        rc = writer_plan(&d.w, "ckpt", t->run->target, d.arrays, t->train.arrays.n,
                         &d.meta, &opt, t->err);
        if (rc == 0)
            t->file_bytes = d.w.files[0].bytes;
        writer_close(&d.w);
    }
    draft_free(&d);
    return rc < 0 ? -1 : check_space(t);
}

/* All ranks are at it; 1: another one has failed.  A rank that has no memory for it, or can no longer
 * hear of others, cannot meet them: it ends all. */
static int
write_arrays(struct trainer *t, struct writer *w)
{
    struct comm *c = ranks_comm(t->ranks);
    if (ranks_wait(t->ranks, t->err) < 0)
        return -1;
    ranks_begin_work(t->ranks);
    int rc =
        saving_write(&t->train, &t->in->file, w, t->run->target, t->run->where.threads);
    if (rc >= 0 || (t->err->kind != ERR_MEMORY && !(c && c->err->kind)))
        ranks_end_work(t->ranks);
    return rc;
}

/* Its error, or that of another rank, which all hear of when they meet. */
static int
check_written(struct trainer *t, int rc)
{
    if (rc <= 0)
        return rc;
    if (ranks_wait(t->ranks, t->err) < 0)
        return -1;
    return err_set(t->err, ERR_IO,
                   "%s: not saved: a rank reports that it has failed, but not why",
                   t->run->target);
}

static int
write_draft(struct trainer *t, struct draft *d)
{
    const struct train_options *o = t->run->o;
    struct writer_options opt = { .guard = t->run->host->guard };
    // What a run has made is its own.
    opt.flags = t->saved || !o->out || o->force ? OUT_FORCE : 0;
    int rc = writer_open(&d->w, "ckpt", t->run->target, d->arrays, t->train.arrays.n,
                         &d->meta, &opt, t->err);
    if (rc == 0)
        rc = write_arrays(t, &d->w);
    if (rc == 0)
        rc = writer_commit(&d->w, d->meta.provenance);
    writer_close(&d->w);
    return rc;
}

static int
write_file(struct trainer *t)
{
    struct draft d;
    double start = os_seconds();
    int rc = draft_begin(&d, t, &t->st);
    if (rc == 0)
        rc = check_written(t, write_draft(t, &d));
    draft_free(&d);
    if (rc == 0 && t->run->host->verbose)
        host_warn(t->run->host, "%s: saved %.1f GB in %.2f s", t->run->target,
                  (double)t->file_bytes / (1 << 30), os_seconds() - start);
    return rc;
}

int
save_write(struct trainer *t)
{
    if (t->ranks->rank == 0)
        return write_file(t); // the others hear whether it was when they meet next
    return check_written(t, write_arrays(t, NULL));
}
