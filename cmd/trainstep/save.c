/* SPDX-License-Identifier: MIT */
/* save: checkpoints, whole or not at all; the lock that keeps a second run away; and how
 * a result came to be. */
#include "cmd/trainstep/trainstep.h"

#include "lib/base/json.h"
#include "lib/base/num.h"
#include "lib/base/os.h"
#include "lib/file/path.h"
#include "lib/format/history.h"
#include "lib/format/provenance.h"
#include "lib/format/writer.h"
#include "lib/load/saving.h"

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

static struct lock *held;

/* Where the program ends by die(); for a signal's handler the guard knows it. */
static void
release_held(void)
{
    if (held)
        lock_release(held);
    held = NULL;
}

/* A hard link is another name of the same file and has a lock of its own.  So the file is locked,
 * too, until the first save puts another one in its place. */
static void
lock_file(struct run *r)
{
    int fd = open(r->target, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        die(EXIT_TROUBLE,
            "%s: another process trains the same file under another name, a hard link: "
            "wait until it has ended, or train a copy (cp)",
            r->target);
    r->locked_file = fd;
}

static void
unlock_file(struct run *r)
{
    if (r->locked_file >= 0)
        close(r->locked_file);
    r->locked_file = -1;
}

void
save_lock(struct run *r)
{
    if (lock_acquire(&r->lock, r->target, &cmd_guard, &r->err) < 0)
        die_err(&r->err);
    held = &r->lock;
    if (atexit(release_held) != 0)
        die(EXIT_MEMORY, "out of memory for a lock");
    if (!r->o->out)
        lock_file(r);
}

void
save_unlock(void)
{
    release_held();
}

/* All ranks write to the file that rank 0 begins beside its lock, so they must see the same one. */
void
save_check_place(struct run *r)
{
    struct stat st = { 0 };
    uint64_t inode = 0;
    if (ranks_count() == 1)
        return;
    ranks_meet(0);
    if (ranks_number() == 0 && fstat(r->lock.fd, &st) == 0)
        inode = st.st_ino;
    if (comm_broadcast(ranks_comm(), &inode, sizeof inode) < 0)
        die(EXIT_TROUBLE, "%s", ranks_comm()->err->msg);
    char *target = path_target(r->target);
    char *lock = target ? path_beside(target, PATH_LOCK) : NULL;
    if (!lock)
        die(EXIT_MEMORY, "out of memory for a file name");
    if (stat(lock, &st) < 0 || st.st_ino != inode)
        die(EXIT_TROUBLE,
            "%s: is not the file that rank 0 writes: ranks write one checkpoint "
            "together: expected the same name, on a file system that all hosts have",
            r->target);
    free(lock);
    free(target);
    ranks_meet(0);
}

/* ---- space ------------------------------------------------------------------------------- */

uint64_t
save_bytes(const struct run *r, const struct train *t)
{
    uint64_t bytes = (uint64_t)r->in.header_bytes + 64 + 2 * 4096;
    for (size_t i = 0; i < t->arrays.n; i++)
        bytes += (t->arrays.v[i].bytes + 4095) / 4096 * 4096;
    return bytes;
}

/* ---- provenance ----------------------------------------------------------------------------- */

/* The checkpoint that a training begins with. */
static int
put_origin(struct store *in, struct buf *b, struct err *err)
{
    uint8_t xxh3[XXH3_BYTES];
    if (store_content_hash(in, xxh3, 1, err) < 0)
        return -1;
    provenance_input(b, slice_of("ckpt"), in->provenance, 1, xxh3);
    return 0;
}

int
save_origin(struct store *in, struct buf *b, struct err *err)
{
    struct history h;
    int rc = history_read(&h, in->provenance, err);
    if (rc == 0)
        rc = put_origin(in, b, err);
    else if (rc > 0)
        buf_add(b, h.inputs.p, h.inputs.n);
    history_free(&h);
    return rc < 0 ? -1 : 0;
}

static void
put_provenance(struct run *r, struct buf *b, uint64_t step)
{
    struct history h;
    struct buf data = { 0 }, route = { 0 }, settings = { 0 }, origin = { 0 };
    int rc = history_read(&h, r->in.provenance, &r->err);
    tok_put_provenance(&data, &r->data.tok);
    json_put(&route, slice_of(r->st.route));
    const struct settings_hash hashes[] = {
        { "teacher", r->st.has_teacher ? r->st.teacher : NULL },
        { "teacher_data", r->st.has_teacher_data ? r->st.teacher_data : NULL },
    };
    settings_json(&settings, &r->s, hashes, sizeof hashes / sizeof *hashes);
    if (rc == 0) {
        rc = put_origin(&r->in, &origin, &r->err);
        h.inputs = (struct slice){ origin.data, origin.len };
    }
    const struct history_span span = { r->in_step + 1,
                                       step,
                                       { data.data, data.len },
                                       { route.data, route.len },
                                       { settings.data, settings.len } };
    if (rc < 0 || history_add(&h, &span, &r->err) < 0)
        die_err(&r->err);
    history_put(b, &h, cmd_version());
    if (b->failed || data.failed || route.failed || settings.failed || origin.failed)
        die(EXIT_MEMORY, "out of memory for the provenance");
    buf_free(&origin);
    history_free(&h);
    buf_free(&data);
    buf_free(&route);
    buf_free(&settings);
}

/* ---- writing ----------------------------------------------------------------------------------- */

static struct wtensor *
list_arrays(const struct run *r)
{
    struct wtensor *w = training_list(&r->t);
    if (!w)
        die(EXIT_MEMORY, "out of memory for the arrays");
    return w;
}

static void
fill_meta(struct run *r, struct wmeta *m, struct buf *provenance, struct buf *state,
          const struct state *st)
{
    put_provenance(r, provenance, st->step);
    state_put(state, st, &r->s);
    if (state->failed)
        die(EXIT_MEMORY, "out of memory for the state");
    *m = (struct wmeta){ .config = r->in.config,
                         .provenance = { provenance->data, provenance->len },
                         .version = cmd_version(),
                         .master = r->in.training.master,
                         .moments = r->in.training.moments,
                         .quant = r->in.quant.name,
                         .variant = r->in.quant.variant,
                         .criterion = r->in.quant.criterion,
                         .share = r->in.quant.share,
                         .state = { state->data, state->len } };
}

static void
check_space(const struct run *r)
{
    struct statvfs fs;
    char *copy = cmd_copy(r->target), *dir = dirname(copy);
    if (statvfs(dir, &fs) != 0)
        die(EXIT_TROUBLE, "%s:", dir);
    uint64_t space = (uint64_t)fs.f_bavail * fs.f_frsize, need = r->file_bytes;
    if (space < need)
        die(EXIT_TROUBLE,
            "%s: a checkpoint needs %llu bytes beside the present one, the disk has "
            "%llu",
            r->target, (unsigned long long)need, (unsigned long long)space);
    free(copy);
}

/* The magnitudes of delayed scales, or zeros of as many bytes. */
static struct slice
note_scales(struct run *r, bool zeros)
{
    const struct net_delayed *d = r->t.net.delayed;
    size_t n = d ? train_n_magnitudes(&r->t) : 0;
    bool some = zeros;
    if (n && !r->fp8_amax)
        r->fp8_amax = cmd_alloc(n, sizeof(float));
    for (size_t i = 0; i < n; i++) {
        some |= d->magnitude[i] > 0;
        store_le32(r->fp8_amax + i * sizeof(float),
                   zeros ? 0 : num_bits_f32(d->magnitude[i]));
    }
    return (struct slice){ r->fp8_amax, some ? n * sizeof(float) : 0 };
}

static void
note_state(struct run *r)
{
    r->st.fp8_amax = note_scales(r, false);
    r->st.step = r->t.step;
    r->st.t = r->t.t;
    r->st.grad_norm = r->t.last_norm;
    r->st.epoch = r->data.epoch;
    r->st.index = r->data.index;
}

/* A state at the end of the run, of as many bytes as there may be. */
static struct state
largest_state(struct run *r)
{
    struct state st = r->st;
    st.fp8_amax = note_scales(r, true);
    st.step = st.t = st.skips = r->end;
    st.epoch = st.index = UINT64_MAX;
    st.grad_norm = 0;
    st.has_spike = r->s.spike > 0;
    st.spike = (struct spike){ .n = SPIKE_WINDOW };
    return st;
}

/* Everything that a save writes is known but for values, so that what does not fit is
 * heard now and not after hours of steps. */
void
save_check(struct run *r)
{
    struct writer w;
    struct wmeta meta;
    struct buf provenance = { 0 }, state = { 0 };
    struct writer_options opt = { .guard = &cmd_guard };
    struct state st = largest_state(r);
    fill_meta(r, &meta, &provenance, &state, &st);
    struct wtensor *t = list_arrays(r);
    if (writer_plan(&w, "ckpt", r->target, t, r->t.arrays.n, &meta, &opt, &r->err) < 0)
        die_err(&r->err);
    r->file_bytes = w.files[0].bytes;
    writer_close(&w);
    free(t);
    buf_free(&provenance);
    buf_free(&state);
    check_space(r);
}

/* All ranks are at it; 1: another one has failed.  A rank that has no memory for it, or can no longer
 * hear of others, cannot meet them: it ends all. */
static int
write_arrays(struct run *r, struct writer *w)
{
    const struct comm *c = ranks_comm();
    ranks_meet(0);
    ranks_begin_work();
    int rc = saving_write(&r->t, &r->in, w, r->target, r->o->where.threads);
    if (rc >= 0 || (r->err.kind != ERR_MEMORY && !(c && c->err->kind)))
        ranks_end_work();
    return rc;
}

/* Its error, or that of another rank, which all hear of when they meet. */
static void
check_written(struct run *r, int rc)
{
    if (rc < 0)
        die_err(&r->err);
    if (rc == 0)
        return;
    ranks_meet(0);
    die(EXIT_TROUBLE, "%s: not saved: a rank reports that it has failed, but not why",
        r->target);
}

static void
write_file(struct run *r)
{
    struct writer w;
    struct wmeta meta;
    struct buf provenance = { 0 }, state = { 0 };
    struct writer_options opt = { .guard = &cmd_guard };
    double start = os_seconds();
    // What a run has made is its own.
    opt.flags = r->saved || !r->o->out || r->o->force ? OUT_FORCE : 0;
    fill_meta(r, &meta, &provenance, &state, &r->st);
    struct wtensor *t = list_arrays(r);
    int rc = writer_open(&w, "ckpt", r->target, t, r->t.arrays.n, &meta, &opt, &r->err);
    if (rc == 0)
        rc = write_arrays(r, &w);
    if (rc == 0)
        rc = writer_commit(&w, meta.provenance);
    writer_close(&w);
    check_written(r, rc);
    free(t);
    buf_free(&provenance);
    buf_free(&state);
    if (r->o->cmd.verbose)
        warn("%s: saved %.1f GB in %.2f s", r->target,
             (double)r->file_bytes / (1 << 30), os_seconds() - start);
}

void
save_describe(struct run *r, struct buf *provenance, struct buf *state)
{
    note_state(r);
    put_provenance(r, provenance, r->st.step);
    state_put(state, &r->st, &r->s);
    if (state->failed)
        die(EXIT_MEMORY, "out of memory for the state");
}

void
save_write(struct run *r)
{
    note_state(r);
    keep_saving(r);
    if (ranks_number() == 0) {
        watch_before_save(r);
        write_file(r); // the others hear whether it was when they meet next
    } else
        check_written(r, write_arrays(r, NULL));
    r->saved = true;
    r->saved_step = r->t.step;
    unlock_file(r);
    r->watch_saved = r->watch;
    stop_saved();
    if (ranks_number() == 0)
        keep_saved(r);
    log_saved(r);
}
