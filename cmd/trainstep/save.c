/* SPDX-License-Identifier: MIT */
/* save: checkpoints, whole or not at all; the lock that keeps a second run away; and how
 * a result came to be. */
#include "cmd/trainstep/trainstep.h"

#include "cmd/bulk.h"
#include "lib/core/json.h"
#include "lib/core/os.h"
#include "lib/format/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    CHUNK = 4 << 20,
    LOCK_TRIES = 100, // of 20 ms
    LOCK_NAP = 20000000,
};

/* ---- the lock -------------------------------------------------------------------------- */

static char *
beside(const char *path, const char *before, const char *behind)
{
    struct buf b = { 0 };
    char *copy = cmd_copy(path), *copy2 = cmd_copy(path);
    buf_printf(&b, "%s/%s%s%s", dirname(copy), before, basename(copy2), behind);
    if (b.failed)
        die(EXIT_MEMORY, "out of memory");
    free(copy);
    free(copy2);
    return b.data;
}

/* Whether fd is still the file of that path: its owner before us may have removed it. */
static bool
is_there(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

/* A program that ends otherwise than by a signal removes it here. */
static const char *lock_to_remove;

static void
remove_lock(void)
{
    if (lock_to_remove)
        unlink(lock_to_remove);
}

/* A run that was killed holds its lock until the kernel has taken its memory back, and who
 * starts the next one at once has done nothing wrong: it is waited for. */
static int
lock_file(int fd, const sigset_t *signals)
{
    const struct timespec nap = { .tv_nsec = LOCK_NAP };
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK || i == LOCK_TRIES)
            return -1;
        pselect(0, NULL, NULL, NULL, &nap, signals);
    }
    return 0;
}

/* Locked by us and by nobody else for as long as this process lives; a file that a killed
 * run has left is no lock. */
void
save_lock(struct run *r)
{
    // A signal must not come between making the file and knowing that it is ours.
    sigset_t stops, before;
    sigemptyset(&stops);
    sigaddset(&stops, SIGINT);
    sigaddset(&stops, SIGTERM);
    sigprocmask(SIG_BLOCK, &stops, &before);
    r->lock_path = beside(r->target, ".", ".nibble-lock");
    for (;;) {
        r->lock = open(r->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (r->lock < 0)
            die(EXIT_TROUBLE, "%s:", r->lock_path);
        if (lock_file(r->lock, &before) < 0) {
            if (errno == EWOULDBLOCK)
                die(EXIT_TROUBLE, "%s: another trainstep is advancing it", r->target);
            die(EXIT_TROUBLE, "%s: cannot be locked:", r->lock_path);
        }
        if (is_there(r->lock, r->lock_path))
            break;
        close(r->lock);
    }
    lock_to_remove = r->lock_path;
    if (atexit(remove_lock) != 0 || guard_temp(&cmd_guard, r->lock_path, &r->err) < 0)
        die(EXIT_MEMORY, "out of memory for a lock");
    sigprocmask(SIG_SETMASK, &before, NULL);
}

void
save_unlock(struct run *r)
{
    if (r->lock < 0)
        return;
    remove_lock();
    lock_to_remove = NULL;
    guard_forget_temp(&cmd_guard, r->lock_path);
    close(r->lock);
    r->lock = -1;
}

/* ---- space ------------------------------------------------------------------------------- */

uint64_t
save_bytes(const struct run *r, const struct train *t)
{
    uint64_t bytes = (uint64_t)r->in.header_bytes + 64 + 2 * 4096;
    for (size_t i = 0; i < t->n_arrays; i++)
        bytes += (t->array[i].bytes + 4095) / 4096 * 4096;
    return bytes;
}

void
save_check_space(const struct run *r)
{
    struct statvfs fs;
    char *copy = cmd_copy(r->target), *dir = dirname(copy);
    if (statvfs(dir, &fs) != 0)
        die(EXIT_TROUBLE, "%s:", dir);
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize, need = r->file_bytes;
    if (room < need)
        die(EXIT_TROUBLE,
            "%s: a checkpoint needs %llu bytes beside the present one, the disk has "
            "%llu",
            r->target, (unsigned long long)need, (unsigned long long)room);
    free(copy);
}

/* ---- reading ------------------------------------------------------------------------------ */

static int
find_array(struct run *r, struct store *from, const struct train_array *a,
           const struct tensor **found)
{
    const struct tensor *t = *found = store_find(from, slice_of(a->name));
    if (!t || t->dtype != a->dtype || t->nbytes != a->bytes || t->rank != a->rank ||
        (a->rank && t->shape[0] != a->shape[0]) ||
        (a->rank > 1 && t->shape[1] != a->shape[1]))
        return err_set(&r->err, ERR_FORMAT, "%s: \"%s\" %s", from->name, a->name,
                       t ? "is not what the configuration says" : "is missing");
    return 0;
}

int
save_load(struct run *r, struct store *from)
{
    struct bulk *b = cmd_alloc(r->t.n_arrays, sizeof *b);
    size_t n = 0;
    int rc = 0;
    if (from->n_tensors != r->t.n_arrays)
        rc = err_set(&r->err, ERR_FORMAT,
                     "%s: %zu arrays, the configuration asks for %zu", from->name,
                     from->n_tensors, r->t.n_arrays);
    for (size_t i = 0; i < r->t.n_arrays && rc == 0; i++) {
        b[n].to = r->t.array[i].device;
        rc = find_array(r, from, &r->t.array[i], &b[n].t);
        n += b[n].to != NULL;
    }
    if (rc == 0)
        rc = bulk_load(r->k, from, b, n, true, r->o->where.threads, &r->err);
    free(b);
    return rc;
}

/* ---- provenance ----------------------------------------------------------------------------- */

/* What the provenance of a checkpoint that a training wrote says: where its weights are
 * from, and the spans of steps so far. */
struct history {
    struct slice inputs; // text of the array
    struct slice spans;  // text of the array, without its brackets and the last span
    uint64_t first, last;
    struct slice data, settings; // of the last span
    struct slice route;
};

static int
read_span(struct json *j, struct history *h)
{
    struct slice key;
    int more;
    if (json_object(j) < 0)
        return -1;
    while ((more = json_key(j, &key)) > 0) {
        int rc = slice_is(key, "first")      ? json_u63(j, &h->first)
                 : slice_is(key, "last")     ? json_u63(j, &h->last)
                 : slice_is(key, "data")     ? json_skip(j, &h->data)
                 : slice_is(key, "route")    ? json_skip(j, &h->route)
                 : slice_is(key, "settings") ? json_skip(j, &h->settings)
                                             : json_skip(j, NULL);
        if (rc < 0)
            return -1;
    }
    return more;
}

/* {"spans":[...]} */
static int
read_spans(struct json *j, struct history *h)
{
    struct slice key;
    int more, item = 0;
    if (json_object(j) < 0)
        return -1;
    while ((more = json_key(j, &key)) > 0) {
        if (!slice_is(key, "spans")) {
            if (json_skip(j, NULL) < 0)
                return -1;
            continue;
        }
        if (json_array(j) < 0)
            return -1;
        size_t from = j->pos;
        while ((item = json_item(j)) > 0) {
            h->spans = (struct slice){ j->text + from, j->pos - from };
            if (read_span(j, h) < 0)
                return -1;
        }
        if (item < 0)
            return -1;
    }
    return more;
}

/* False: there is none, the checkpoint is an origin itself. */
static bool
read_history(struct run *r, struct history *h, struct arena *arena)
{
    struct json j;
    struct err err = { 0 };
    struct slice key, tool = { 0 };
    int more = -1;
    *h = (struct history){ 0 };
    if (!r->in.provenance.p)
        return false;
    json_open(&j, r->in.name, 0, r->in.provenance, arena, &err);
    if (json_object(&j) == 0)
        while ((more = json_key(&j, &key)) > 0) {
            int rc = slice_is(key, "inputs")    ? json_skip(&j, &h->inputs)
                     : slice_is(key, "options") ? read_spans(&j, h)
                     : slice_is(key, "tool")    ? json_string(&j, &tool)
                                                : json_skip(&j, NULL);
            if (rc < 0)
                break;
        }
    return more == 0 && slice_is(tool, "trainstep") && h->inputs.p && h->settings.p;
}

static bool
same(struct slice a, const struct buf *b, size_t from, size_t to)
{
    return a.n == to - from && memcmp(a.p, b->data + from, a.n) == 0;
}

static void
put_inputs(struct run *r, struct buf *b, const struct history *h, bool old)
{
    uint8_t xxh3[XXH3_BYTES];
    char hex[2 * XXH3_BYTES + 1];
    buf_str(b, "{\"inputs\":");
    if (old) {
        buf_add(b, h->inputs.p, h->inputs.n);
        return;
    }
    if (store_content_hash(&r->in, xxh3, 1, &r->err) < 0)
        die_err(&r->err);
    hash_hex(hex, xxh3, XXH3_BYTES);
    buf_str(b, "[{\"kind\":\"ckpt\",\"provenance\":");
    if (r->in.provenance.p)
        buf_add(b, r->in.provenance.p, r->in.provenance.n);
    else
        buf_str(b, "null");
    buf_printf(b, ",\"xxh3\":\"%s\"}]", hex);
}

static void
put_span(struct buf *b, struct slice data, uint64_t first, uint64_t last,
         struct slice route, struct slice settings, const char *behind)
{
    buf_str(b, "{\"data\":");
    buf_add(b, data.p, data.n);
    buf_printf(b, ",\"first\":%llu,\"last\":%llu,\"route\":", (unsigned long long)first,
               (unsigned long long)last);
    buf_add(b, route.p, route.n);
    buf_str(b, ",\"settings\":");
    buf_add(b, settings.p, settings.n);
    buf_printf(b, "}%s", behind);
}

/* Where the run was cut does not show: a span goes on if nothing has changed. */
static void
put_spans(struct run *r, struct buf *b, const struct history *h, bool old)
{
    struct buf now = { 0 };
    uint64_t first = r->in_step + 1;
    tok_put_provenance(&now, &r->data.tok);
    size_t data = now.len;
    json_put(&now, slice_of(r->st.route));
    size_t route = now.len;
    settings_json(&now, &r->s);
    buf_str(b, ",\"options\":{\"spans\":[");
    if (old) {
        buf_add(b, h->spans.p, h->spans.n);
        if (h->last + 1 == first && same(h->data, &now, 0, data) &&
            same(h->route, &now, data, route) &&
            same(h->settings, &now, route, now.len))
            first = h->first;
        else
            put_span(b, h->data, h->first, h->last, h->route, h->settings, ",");
    }
    if (now.failed)
        die(EXIT_MEMORY, "out of memory for the provenance");
    put_span(b, (struct slice){ now.data, data }, first, r->t.step,
             (struct slice){ now.data + data, route - data },
             (struct slice){ now.data + route, now.len - route }, "]}");
    buf_free(&now);
}

static void
put_provenance(struct run *r, struct buf *b)
{
    struct history h;
    struct arena arena = { 0 };
    bool old = read_history(r, &h, &arena);
    put_inputs(r, b, &h, old);
    put_spans(r, b, &h, old);
    buf_printf(b, ",\"tool\":\"trainstep\",\"version\":\"%s\"}", cmd_version());
    arena_free(&arena);
    if (b->failed)
        die(EXIT_MEMORY, "out of memory for the provenance");
}

/* ---- writing ----------------------------------------------------------------------------------- */

static struct wtensor *
list_arrays(const struct run *r)
{
    struct wtensor *w = cmd_alloc(r->t.n_arrays, sizeof *w);
    for (size_t i = 0; i < r->t.n_arrays; i++) {
        const struct train_array *a = &r->t.array[i];
        w[i] = (struct wtensor){ .name = a->name,
                                 .dtype = a->dtype,
                                 .rank = a->rank,
                                 .shape = a->shape,
                                 .tag = i };
    }
    return w;
}

/* From the device; what is not there is as it was in the file that we began with. */
static int
write_array(struct run *r, struct writer *w, const struct train_array *a,
            uint8_t *chunk)
{
    const struct tensor *t = a->device ? NULL : store_find(&r->in, slice_of(a->name));
    for (uint64_t at = 0; at < a->bytes; at += CHUNK) {
        size_t n = a->bytes - at < CHUNK ? (size_t)(a->bytes - at) : CHUNK;
        int rc = t ? store_read(&r->in, t, at, chunk, n, &r->err)
                   : r->k->download(r->k, chunk, (uint8_t *)a->device + at, n);
        if (rc < 0 || writer_write(w, chunk, n) < 0)
            return -1;
    }
    return 0;
}

static void
fill_meta(struct run *r, struct wmeta *m, struct buf *provenance, struct buf *state)
{
    r->st.step = r->t.step;
    r->st.t = r->t.t;
    r->st.grad_norm = r->t.last_norm;
    r->st.epoch = r->data.epoch;
    r->st.index = r->data.index;
    put_provenance(r, provenance);
    state_put(state, &r->st, &r->s);
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

void
save_write(struct run *r)
{
    struct writer w;
    struct wmeta meta;
    struct buf provenance = { 0 }, state = { 0 };
    struct writer_options opt = { .guard = &cmd_guard };
    uint8_t *chunk = cmd_alloc(1, CHUNK);
    double start = os_seconds();
    // What a run has made is its own.
    opt.flags = r->saved || !r->o->out || r->o->force ? OUT_FORCE : 0;
    fill_meta(r, &meta, &provenance, &state);
    struct wtensor *t = list_arrays(r);
    int rc = writer_open(&w, "ckpt", r->target, t, r->t.n_arrays, &meta, &opt, &r->err);
    for (size_t i = 0; i < w.n && rc == 0; i++)
        rc = write_array(r, &w, &r->t.array[w.t[i].tag], chunk);
    if (rc == 0)
        rc = writer_commit(&w, meta.provenance);
    writer_close(&w);
    if (rc < 0)
        die_err(&r->err);
    free(t);
    free(chunk);
    buf_free(&provenance);
    buf_free(&state);
    if (r->o->cmd.verbose)
        warn("%s: saved %.1f GB in %.2f s", r->target,
             (double)r->file_bytes / (1 << 30), os_seconds() - start);
    r->saved = true;
    r->saved_step = r->t.step;
}
