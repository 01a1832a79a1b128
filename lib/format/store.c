/* SPDX-License-Identifier: MIT */
/* store: see store.h.  Here: the list of tensors, and what an output must not
 * replace. */
#include "lib/format/store.h"

#include "lib/file/path.h"
#include "lib/format/container.h"
#include "lib/format/modeldir.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *
store_kind(const struct store *s)
{
    return s->kind->name;
}

const struct traits *
store_traits(const struct store *s)
{
    return &s->kind->traits;
}

int
store_warn(struct store *s, const char *fmt, ...)
{
    char words[600];
    va_list ap;
    if (s->warnings.len > 64 << 10) // the rest is dropped
        return 0;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    buf_printf(&s->warnings, "%s: %s\n", s->name, words);
    return 0;
}

int
check_name(struct store *s, const char *p, uint64_t n, const char *place)
{
    char q[TEXT_QUOTE];
    if (n < 1 || n > MAX_NAME)
        return err_set(s->err, ERR_FORMAT,
                       "%s: %s: a name of %llu bytes, expected 1..%d", s->name, place,
                       (unsigned long long)n, MAX_NAME);
    if (utf8_check(p, (size_t)n) < n || memchr(p, '\0', (size_t)n))
        return err_set(s->err, ERR_FORMAT,
                       "%s: %s: name \"%s\" is not UTF-8 without NUL", s->name, place,
                       text_quote(q, p, (size_t)n));
    return 0;
}

int
store_reserve(struct store *s, size_t n)
{
    size_t cap = s->n_tensors + n;
    if (cap <= s->cap_tensors)
        return 0;
    struct tensor *tensors = realloc(s->tensors, cap * sizeof *tensors);
    if (!tensors)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory for %zu tensors", s->name,
                       cap);
    s->tensors = tensors;
    s->cap_tensors = cap;
    if (names_reserve(&s->names, cap) < 0)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory for %zu names", s->name,
                       cap);
    return 0;
}

/* A copy of the shape, or the one of the tensor before: neighbours are often alike. */
static const uint64_t *
keep_shape(struct store *s, const struct tensor *t)
{
    const struct tensor *last = s->n_tensors ? &s->tensors[s->n_tensors - 1] : NULL;
    size_t bytes = t->rank * sizeof *t->shape;
    if (last && last->rank == t->rank &&
        (bytes == 0 || memcmp(last->shape, t->shape, bytes) == 0))
        return last->shape;
    uint64_t *shape = arena_alloc(&s->arena, bytes);
    if (shape && bytes)
        memcpy(shape, t->shape, bytes);
    return shape;
}

int
store_append(struct store *s, const struct tensor *t)
{
    if (s->n_tensors == s->cap_tensors &&
        store_reserve(s, s->cap_tensors ? s->cap_tensors : 64) < 0)
        return -1;
    const char *name = arena_copy(&s->arena, t->name, t->name_len);
    const uint64_t *shape = keep_shape(s, t);
    if (!name || !shape)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory for a name", s->name);
    // It was checked in the mapped file, which others can write to.
    if (strlen(name) != t->name_len || utf8_check(name, t->name_len) != t->name_len)
        return err_set(
            s->err, ERR_FORMAT,
            "%s: a tensor's name changed while it was read: another process writes it",
            s->name);
    struct tensor *mine = &s->tensors[s->n_tensors++];
    *mine = *t;
    mine->name = name;
    mine->shape = shape;
    return 0;
}

int
store_number(struct store *s, const char *where)
{
    for (size_t i = s->names.n; i < s->n_tensors; i++) {
        const struct tensor *t = &s->tensors[i];
        int there = names_add(&s->names, (struct slice){ t->name, t->name_len }, i);
        if (there < 0)
            return err_set(s->err, ERR_MEMORY, "%s: out of memory for a name", s->name);
        if (there > 0) {
            char q[TEXT_QUOTE];
            const char *file = s->n_files ? s->files[t->file].name : s->name;
            return err_set(s->err, ERR_FORMAT,
                           "%s: %s: a second tensor of the name \"%s\"", file, where,
                           text_quote(q, t->name, t->name_len));
        }
    }
    return 0;
}

int
store_add(struct store *s, const struct tensor *t, const char *where)
{
    return store_append(s, t) < 0 ? -1 : store_number(s, where);
}

int
store_keep(struct store *s, struct slice *text, struct buf *b)
{
    text->n = b->len;
    text->p = b->failed ? NULL : arena_copy(&s->arena, b->data ? b->data : "", b->len);
    buf_free(b);
    return text->p ? 0 : err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
}

const uint8_t *
store_data(const struct store *s, const struct tensor *t)
{
    if (!s->files || !s->files[t->file].data || t->nbytes == 0)
        return NULL;
    return s->files[t->file].data + t->offset;
}

int
store_meta(struct store *s)
{
    return s->kind->meta && !s->meta.p ? s->kind->meta(s) : 0;
}

const struct tensor *
store_find(const struct store *s, struct slice name)
{
    int64_t i = names_find(&s->names, name);
    return i < 0 ? NULL : &s->tensors[i];
}

int
store_add_file(struct store *s, const char *path)
{
    // Registered mappings must not move: the directory reader sizes the array first.
    struct map *m = &s->files[s->n_files];
    if (map_open(m, path, s->opt.guard, s->err) < 0) {
        map_close(m); // it cannot have changed: it is none of the files
        return -1;
    }
    s->n_files++;
    s->bytes += m->size;
    return 0;
}

void
store_close(struct store *s)
{
    for (size_t i = 0; i < s->n_files; i++)
        map_close(&s->files[i]);
    free(s->files);
    free(s->tensors);
    free(s->passed);
    names_free(&s->names);
    free(s->path);
    free(s->name);
    buf_free(&s->warnings);
    arena_free(&s->arena);
    *s = (struct store){ 0 };
}

int
store_read(struct store *s, const struct tensor *t, uint64_t offset, void *dst,
           size_t n, struct err *err)
{
    if (offset > t->nbytes || n > t->nbytes - offset)
        return err_set(err, ERR_USAGE, "%s: read beyond a payload", s->name);
    return n ? map_read(&s->files[t->file], dst, n, t->offset + offset, err) : 0;
}

int
store_check(struct store *s)
{
    for (size_t i = 0; i < s->n_files; i++)
        if (map_check(&s->files[i], s->err) < 0)
            return -1;
    return 0;
}

/* ---- what an output must not replace ----------------------------------------------- */

int
store_note(struct store *s, const struct map *m)
{
    struct text_file *t = arena_alloc(&s->arena, sizeof *t);
    if (!t)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    *t = (struct text_file){ m->dev, m->ino, s->texts };
    s->texts = t;
    return 0;
}

static bool
has_file(const struct store *s, dev_t dev, ino_t ino)
{
    for (size_t i = 0; i < s->n_files; i++)
        if (s->files[i].dev == dev && s->files[i].ino == ino)
            return true;
    for (const struct text_file *t = s->texts; t; t = t->next)
        if (t->dev == dev && t->ino == ino)
            return true;
    return false;
}

/* Whether a directory that is replaced has a name of a file of s: also by another name
 * than the one by which s reads it. */
static bool
holds_input(const struct store *s, const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    struct stat st;
    bool found = false;
    while (d && !found && (e = readdir(d)))
        found = fstatat(dirfd(d), e->d_name, &st, 0) == 0 &&
                has_file(s, st.st_dev, st.st_ino);
    if (d)
        closedir(d);
    for (size_t i = 0; i < s->n_files && !found; i++)
        found = path_holds(path, s->files[i].path);
    return found;
}

/* Whether a file (dev, ino) belongs to the model of s without being read here:
 * tokenizers, cards, an index.  Of what is beside a single file only tokenizers and
 * their kin do. */
static bool
serves_model(const struct store *s, dev_t dev, ino_t ino)
{
    const char *slash = strrchr(s->path, '/');
    struct buf dir = { 0 };
    struct dirent *e;
    struct stat st;
    bool found = false;
    if (s->is_directory)
        buf_str(&dir, s->path);
    else
        buf_printf(&dir, "%.*s.", slash ? (int)(slash - s->path) + 1 : 0, s->path);
    DIR *d = dir.failed ? NULL : opendir(dir.data);
    while (d && !found && (e = readdir(d)))
        found = (s->is_directory ? modeldir_writes(NULL, e->d_name)
                                 : modeldir_is_companion(e->d_name)) &&
                fstatat(dirfd(d), e->d_name, &st, 0) == 0 && st.st_dev == dev &&
                st.st_ino == ino;
    if (d)
        closedir(d);
    buf_free(&dir);
    return found;
}

bool
store_reads(const struct store *s, const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return false;
    if (S_ISDIR(st.st_mode))
        return holds_input(s, path);
    return S_ISREG(st.st_mode) &&
           (has_file(s, st.st_dev, st.st_ino) ||
            (strcmp(s->path, "-") != 0 && serves_model(s, st.st_dev, st.st_ino)));
}

void
store_segments(const struct store *s, segment_fn fn, void *ctx)
{
    s->kind->segments(s, fn, ctx);
}
