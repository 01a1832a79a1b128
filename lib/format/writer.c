/* SPDX-License-Identifier: MIT */
/* writer: see writer.h.  The engine that all containers share: a container plans where
 * literals (headers) and payloads are; here the bytes go out in that order. */
#include "lib/format/writer.h"

#include "lib/base/json.h"
#include "lib/base/par.h"
#include "lib/base/text.h"
#include "lib/format/container.h"
#include "lib/format/object.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

int
writer_literal(struct writer *w, uint32_t file, uint64_t offset,
               const struct buf *bytes)
{
    if (buf_ok(bytes, w->err) < 0)
        return -1;
    if (w->n_literals == w->cap_literals) {
        size_t cap = w->cap_literals ? w->cap_literals * 2 : 16;
        struct wliteral *v = realloc(w->literals, cap * sizeof *v);
        if (!v)
            return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
        w->literals = v;
        w->cap_literals = cap;
    }
    struct wliteral *l = &w->literals[w->n_literals];
    *l = (struct wliteral){ .offset = offset, .file = file, .n = bytes->len };
    l->bytes = malloc(bytes->len ? bytes->len : 1);
    if (!l->bytes)
        return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
    memcpy(l->bytes, bytes->data, bytes->len);
    w->n_literals++;
    return 0;
}

static int
by_bytes(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* The names of all files of a directory, sorted, as JSON. */
static void
put_files(const struct writer *w, struct buf *out)
{
    size_t n = 0;
    const char **leaf = calloc(w->n_files + w->n_extras + 1, sizeof *leaf);
    if (!leaf) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < w->n_files; i++)
        leaf[n++] = w->files[i].leaf;
    for (size_t i = 0; i < w->n_extras; i++)
        leaf[n++] = w->extras[i];
    leaf[n++] = "nibble.json";
    qsort(leaf, n, sizeof *leaf, by_bytes);
    for (size_t i = 0; i < n; i++) {
        buf_char(out, i ? ',' : '[');
        json_put(out, slice_of(leaf[i]));
    }
    buf_char(out, ']');
    free(leaf);
}

void
writer_object(const struct writer *w, struct buf *out, bool sidecar)
{
    char index[2 * XXH3_BYTES + 1], file[2 * XXH3_BYTES + 1];
    struct buf files = { 0 };
    hash_hex(index, w->index_xxh3, XXH3_BYTES);
    hash_hex(file, w->file_xxh3, XXH3_BYTES);
    if (w->is_dir)
        put_files(w, &files);
    out->failed |= files.failed;
    object_put(out, &(struct nibble_object){ .config = w->meta.config,
                                             .provenance = w->meta.provenance,
                                             .files = { files.data, files.len },
                                             .has_bytes = sidecar,
                                             .bytes = w->files[0].bytes,
                                             .xxh3 = slice_of(file),
                                             .index_xxh3 = slice_of(index) });
    buf_free(&files);
}

/* Whether readers of this kind look for FILE.json. */
static bool
may_have_sidecar(const struct writer *w)
{
    return w->kind->index_hash != NULL;
}

/* FILE.json, beside the name that the user gave. */
static char *
sidecar_path(const struct writer *w)
{
    struct buf b = { 0 };
    buf_printf(&b, "%s.json", w->path);
    if (b.failed)
        buf_free(&b);
    return b.data;
}

/* Refuse to replace a FILE.json that is not a sidecar of ours, or cannot be read. */
static int
check_sidecar(struct writer *w)
{
    struct arena arena = { 0 };
    struct map m = { .fd = -1 };
    struct nibble_object o;
    struct err why = { 0 };
    struct stat st;
    char *path = sidecar_path(w);
    if (!path)
        return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
    int rc = 0;
    bool regular = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    if (lstat(path, &st) < 0) {
        if (errno != ENOENT)
            rc = err_set(w->err, ERR_IO, "%s.json:", w->name);
    } else if (regular && map_open(&m, path, w->guard, &why) < 0) {
        rc = err_set(w->err, why.kind, "%s", why.msg);
    } else if (!regular ||
               object_read(&o, m.name, (struct slice){ (const char *)m.data, m.size },
                           &arena, &why) < 0) {
        bool unread = regular && why.kind != ERR_FORMAT;
        rc = unread
                 ? err_set(w->err, why.kind, "%s", why.msg)
                 : err_set(w->err, ERR_IO,
                           "%s.json: was not written by nibble and is in the way: move "
                           "it away",
                           w->name);
    }
    map_close(&m);
    arena_free(&arena);
    free(path);
    return rc;
}

/* A full disk is an error now, not after an hour.  The files of a directory are
 * reserved one by one, so ask for the sum. */
static int
check_space(struct writer *w)
{
    struct statvfs fs;
    uint64_t total = 0;
    for (size_t i = 0; i < w->n_files; i++)
        total += w->files[i].bytes;
    if (statvfs(w->dir.temp, &fs) == 0 && total / fs.f_frsize >= fs.f_bavail)
        return err_set(w->err, ERR_IO, "%s: needs %llu bytes, %llu are free", w->name,
                       (unsigned long long)total,
                       (unsigned long long)fs.f_bavail * fs.f_frsize);
    return 0;
}

static int
begin_file(struct writer *w)
{
    const struct wfile *f = &w->files[w->at_file];
    if (w->is_dir && outdir_file(&w->out, &w->dir, f->leaf) < 0)
        return -1;
    return out_reserve(&w->out, f->bytes);
}

int
writer_begin(struct writer *w)
{
    if (w->is_dir) {
        const struct outdir_rule rule = { modeldir_writes, modeldir_replaces, &w->old };
        // Without -f nothing is replaced.
        bool asks = w->flags & OUT_FORCE;
        if ((asks && modeldir_open(&w->old, w->path, w->guard, w->err) < 0) ||
            outdir_open(&w->dir, w->path, w->flags, &rule, w->guard, w->err) < 0 ||
            check_space(w) < 0)
            return -1;
        return begin_file(w);
    }
    if (out_open(&w->out, w->path, w->flags, w->guard, w->err) < 0)
        return -1;
    if (w->out.direct) {
        if (w->needs_seek)
            return err_set(w->err, ERR_USAGE,
                           "%s: a %s file cannot go to a pipe or to standard output",
                           w->name, w->kind->name);
        w->wants_sidecar = false;
    }
    if (!w->out.direct && may_have_sidecar(w) && check_sidecar(w) < 0)
        return -1;
    if (w->wants_sidecar) {
        w->file_hash = hash_begin(HASH_XXH3);
        w->index_hash = hash_begin(HASH_XXH3);
        if (!w->file_hash || !w->index_hash)
            return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
    }
    return begin_file(w);
}

bool
writer_is_stream(const struct writer *w)
{
    return !w->is_dir && w->out.direct;
}

static int
emit(struct writer *w, const void *bytes, size_t n)
{
    if (w->file_hash)
        hash_add(w->file_hash, bytes, n);
    return out_write(&w->out, bytes, n);
}

/* Zeros up to offset; only a checkpoint's layout has gaps, and it has no file hash. */
static int
pad_to(struct writer *w, uint64_t offset)
{
    return offset > w->out.offset ? out_skip(&w->out, offset - w->out.offset) : 0;
}

/* All literals before `offset` of the current file. */
static int
emit_literals(struct writer *w, uint64_t offset)
{
    while (w->at_literal < w->n_literals) {
        const struct wliteral *l = &w->literals[w->at_literal];
        if (l->file != w->at_file || l->offset >= offset)
            break;
        if (w->index_hash)
            hash_add(w->index_hash, l->bytes, l->n);
        if (emit(w, l->bytes, l->n) < 0)
            return -1;
        w->at_literal++;
    }
    return 0;
}

static int
end_file(struct writer *w)
{
    if (emit_literals(w, UINT64_MAX) < 0 || pad_to(w, w->files[w->at_file].bytes) < 0)
        return -1;
    return w->is_dir ? out_commit(&w->out) : 0;
}

/* Write what is before the payload of the current tensor. */
static int
begin_tensor(struct writer *w)
{
    const struct wtensor *t = &w->t[w->at_tensor];
    while (w->at_file < t->file) {
        if (end_file(w) < 0)
            return -1;
        w->at_file++;
        if (begin_file(w) < 0)
            return -1;
    }
    // An empty payload may share its offset with the literal behind it.
    if (t->nbytes && (emit_literals(w, t->offset) < 0 || pad_to(w, t->offset) < 0))
        return -1;
    if (w->hash_tensors) {
        w->tensor_hash = hash_begin(HASH_XXH3);
        if (!w->tensor_hash)
            return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
    }
    return 0;
}

static void
end_tensor(struct writer *w)
{
    if (w->tensor_hash)
        hash_end(w->tensor_hash, w->t[w->at_tensor].xxh3);
    w->tensor_hash = NULL;
    w->at_tensor++;
    w->at_byte = 0;
}

/* Skip tensors without payload, then begin the current one if it is new. */
static int
ready(struct writer *w)
{
    while (w->at_tensor < w->n && w->at_byte == 0 && !w->tensor_hash) {
        if (begin_tensor(w) < 0)
            return -1;
        if (w->t[w->at_tensor].nbytes)
            break;
        end_tensor(w);
    }
    return 0;
}

static int
check_planned(struct writer *w, uint64_t n)
{
    if (w->err->kind || ready(w) < 0)
        return -1;
    if (w->at_tensor >= w->n || n > w->t[w->at_tensor].nbytes - w->at_byte)
        return err_set(w->err, ERR_USAGE, "%s: more payload than planned", w->name);
    return 0;
}

static void
advance(struct writer *w, uint64_t n)
{
    w->at_byte += n;
    if (w->at_byte == w->t[w->at_tensor].nbytes)
        end_tensor(w);
}

int
writer_write(struct writer *w, const void *bytes, size_t n)
{
    if (n == 0)
        return w->err->kind ? -1 : 0;
    if (check_planned(w, n) < 0 || emit(w, bytes, n) < 0)
        return -1;
    if (w->tensor_hash)
        hash_add(w->tensor_hash, bytes, n);
    advance(w, n);
    return 0;
}

int
writer_zero(struct writer *w, uint64_t n)
{
    static const uint8_t zeros[64 << 10];
    if (n == 0)
        return w->err->kind ? -1 : 0;
    if (check_planned(w, n) < 0 || out_skip(&w->out, n) < 0)
        return -1;
    for (uint64_t left = n; left;) {
        size_t part = left < sizeof zeros ? (size_t)left : sizeof zeros;
        if (w->tensor_hash)
            hash_add(w->tensor_hash, zeros, part);
        if (w->file_hash)
            hash_add(w->file_hash, zeros, part);
        left -= part;
    }
    advance(w, n);
    return 0;
}

/* ---- several threads ----------------------------------------------------------------------- */

enum { PIECE_BYTES = 1 << 20 };

int
writer_by_pieces(struct writer *w)
{
    assert(!w->is_dir && !w->out.direct && !w->file_hash && w->at_tensor == 0);
    w->at_tensor = w->n;
    return emit_literals(w, UINT64_MAX) < 0 ? -1 : pad_to(w, w->files[0].bytes);
}

struct pieces {
    const struct outfile *out;
    const struct writer_piece *p;
    writer_read_fn *read;
    void *ctx;
    uint8_t *buffers; // PIECE_BYTES a worker
};

static int
write_piece(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct pieces *all = ctx;
    const struct writer_piece *p = &all->p[i];
    uint8_t *buffer = all->buffers + (size_t)worker * PIECE_BYTES;
    int rc = 0;
    for (uint64_t at = p->at, end = at + p->n; at < end && rc == 0; at += PIECE_BYTES) {
        size_t n = end - at < PIECE_BYTES ? (size_t)(end - at) : PIECE_BYTES;
        const void *bytes = all->read(all->ctx, p->tag, at, buffer, n, err);
        rc = bytes ? out_pwrite(all->out, bytes, n, p->offset + at, err) : -1;
        if (rc == 0)
            hash_add(p->hash, bytes, n);
    }
    return rc;
}

int
writer_pieces(const struct outfile *out, const struct writer_piece *p, size_t n,
              unsigned threads, writer_read_fn *read, void *ctx, struct err *err)
{
    struct pieces all = { out, p, read, ctx, malloc((size_t)threads * PIECE_BYTES) };
    if (!all.buffers)
        return err_set(err, ERR_MEMORY, "%s: out of memory", out->name);
    int rc = par_for(threads, n, write_piece, &all, err);
    free(all.buffers);
    return rc;
}

static int
list_extra(struct writer *w, const char *leaf)
{
    char **v = realloc(w->extras, (w->n_extras + 1) * sizeof(char *));
    if (v)
        w->extras = v;
    if (!v || !(v[w->n_extras] = strdup(leaf)))
        return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
    w->n_extras++;
    return 0;
}

int
writer_extra(struct writer *w, const char *leaf, const void *bytes, size_t n)
{
    struct outfile o;
    if (w->err->kind)
        return -1;
    if (outdir_file(&o, &w->dir, leaf) < 0 || out_write(&o, bytes, n) < 0) {
        out_abandon(&o);
        return -1;
    }
    return out_commit(&o) < 0 ? -1 : list_extra(w, leaf);
}

/* The sidecar, complete under its temporary name. */
static int
prepare_sidecar(struct writer *w)
{
    struct buf b = { 0 };
    char *path = sidecar_path(w);
    hash_end(w->file_hash, w->file_xxh3);
    hash_end(w->index_hash, w->index_xxh3);
    w->file_hash = w->index_hash = NULL;
    writer_object(w, &b, true);
    buf_char(&b, '\n');
    int rc = path ? buf_ok(&b, w->err)
                  : err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
    if (rc == 0)
        rc = out_open(&w->sidecar, path, OUT_FORCE | OUT_PRIVATE, w->guard, w->err);
    if (rc == 0)
        rc = out_share(&w->sidecar, &w->out);
    if (rc == 0)
        rc = out_write(&w->sidecar, b.data, b.len);
    if (rc == 0)
        rc = out_seal(&w->sidecar);
    free(path);
    buf_free(&b);
    return rc;
}

/* The file, and the sidecar where there is to be one; that of the file that
 * it replaces goes. */
static int
commit_file(struct writer *w)
{
    if (w->wants_sidecar && (out_seal(&w->out) < 0 || prepare_sidecar(w) < 0))
        return -1;
    if (w->out.direct || !may_have_sidecar(w))
        return out_commit(&w->out);
    char *path = sidecar_path(w);
    if (!path)
        return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
    int rc = out_commit_both(&w->out, path, w->wants_sidecar ? &w->sidecar : NULL);
    free(path);
    return rc;
}

int
writer_commit(struct writer *w, struct slice provenance)
{
    if (w->err->kind || ready(w) < 0)
        return -1;
    if (w->at_tensor < w->n)
        return err_set(w->err, ERR_USAGE, "%s: less payload than planned", w->name);
    if (provenance.p)
        w->meta.provenance = provenance;
    if (end_file(w) < 0)
        return -1;
    if (w->kind->finish && !writer_is_stream(w) && w->kind->finish(w) < 0)
        return -1;
    return w->is_dir ? outdir_commit(&w->dir) : commit_file(w);
}

void
writer_close(struct writer *w)
{
    hash_end(w->tensor_hash, NULL);
    hash_end(w->file_hash, NULL);
    hash_end(w->index_hash, NULL);
    out_abandon(&w->sidecar);
    out_abandon(&w->out);
    outdir_abandon(&w->dir);
    modeldir_close(&w->old);
    for (size_t i = 0; i < w->n_extras; i++)
        free(w->extras[i]);
    free(w->extras);
    for (size_t i = 0; i < w->n_literals; i++)
        free(w->literals[i].bytes);
    free(w->literals);
    for (size_t i = 0; w->files && i < w->n_files; i++)
        free(w->files[i].leaf);
    free(w->files);
    free(w->name);
    free(w->path);
    *w = (struct writer){ 0 };
}
