/* SPDX-License-Identifier: MIT */
/* store: see store.h.  Here: the table of containers, the list of tensors, and what
 * lies beside a file. */
#include "lib/format/store.h"

#include "lib/core/feed.h"
#include "lib/core/json.h"
#include "lib/core/path.h"
#include "lib/core/par.h"
#include "lib/format/container.h"
#include "lib/format/modeldir.h"
#include "lib/format/tok.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* In the order in which help lists them.  No file begins like two of them. */
static const struct container *const containers[] = {
    &container_dat, &container_safetensors, &container_gguf,       &container_ckpt,
    &container_hf,  &container_modelopt,    &container_compressed,
};

/* What reads a pipe, a directory, and a file that none claims: .dat has no magic. */
static const struct container *const of_pipe = &container_dat;
static const struct container *const of_directory = &container_hf;
static const struct container *const of_unclaimed = &container_dat;

enum { N_CONTAINERS = sizeof containers / sizeof *containers, SNIFF_BYTES = 16 };

const struct container *
container_named(struct slice name)
{
    for (size_t i = 0; i < N_CONTAINERS; i++)
        if (slice_is(name, containers[i]->name))
            return containers[i];
    return NULL;
}

const char *
writer_kind(size_t i)
{
    for (size_t k = 0; k < N_CONTAINERS; k++)
        if (containers[k]->plan && i-- == 0)
            return containers[k]->name;
    return NULL;
}

const struct traits *
writer_traits(const char *kind)
{
    const struct container *c = container_named(slice_of(kind));
    return c && c->plan ? &c->traits : NULL;
}

const char *
writer_kind_of(const char *path)
{
    struct slice p = slice_of(path);
    if (slice_is(p, "-"))
        return of_pipe->name;
    for (size_t i = 0; i < N_CONTAINERS; i++) {
        const struct container *c = containers[i];
        if (c->plan && (slice_ends(p, "/") ? c->traits.to_directory
                                           : c->suffix && slice_ends(p, c->suffix)))
            return c->name;
    }
    return NULL;
}

/* The container that the first bytes tell, or NULL. */
static const struct container *
container_of_bytes(const struct map *m)
{
    uint8_t head[SNIFF_BYTES] = { 0 };
    size_t n = m->size < SNIFF_BYTES ? m->size : SNIFF_BYTES;
    if (n)
        memcpy(head, m->data, n);
    for (size_t i = 0; i < N_CONTAINERS; i++)
        if (containers[i]->sniff && containers[i]->sniff(head, n, m->size))
            return containers[i];
    return NULL;
}

static const struct container *
container_of_file(const struct map *m)
{
    struct slice path = slice_of(m->path);
    // The suffix decides between kinds without a magic number: a damaged file should
    // be measured by the rules of what it claims to be.
    for (size_t i = 0; i < N_CONTAINERS; i++)
        if (containers[i]->suffix && slice_ends(path, containers[i]->suffix))
            return containers[i];
    const struct container *c = container_of_bytes(m);
    return c ? c : of_unclaimed;
}

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
    if (s->warnings.len > 64 << 10) // enough was said
        return 0;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    buf_printf(&s->warnings, "%s: %s\n", s->name, words);
    return 0;
}

bool
name_fits(struct slice name)
{
    return name.n >= 1 && name.n <= MAX_NAME && utf8_check(name.p, name.n) == name.n &&
           !memchr(name.p, '\0', name.n);
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
        return err_set(s->err, ERR_FORMAT, "%s: a name changed while it was read",
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

int
store_slurp(struct store *s, const char *path, struct slice *text)
{
    enum { LIMIT = 16 << 20 }; // of a model they have some KiB
    *text = (struct slice){ 0 };
    int there = path_exists(path, s->err);
    if (there <= 0)
        return there;
    struct map m;
    int rc = map_open(&m, path, s->opt.guard, s->err);
    if (rc == 0 && m.size > LIMIT)
        rc = err_set(s->err, ERR_FORMAT, "%s: %zu bytes, expected at most %d", m.name,
                     m.size, LIMIT);
    if (rc == 0) {
        char *p = arena_alloc(&s->arena, m.size + 1);
        if (!p)
            rc = err_set(s->err, ERR_MEMORY, "%s: out of memory", m.name);
        else if (store_note(s, &m) < 0 || map_read(&m, p, m.size, 0, s->err) < 0)
            rc = -1;
        else
            p[m.size] = '\0';
        *text = (struct slice){ p, m.size };
    }
    map_close(&m);
    return rc;
}

/* ---- mapped JSON texts ----------------------------------------------------------- */

/* BEHIND: what the reader's caller may look at once more, a key above all; a fault there
 * could bring 2 MB back. */
enum { AHEAD = 4 << 20, BEHIND = 256 << 10 };

void
pager_passed(void *ctx, size_t pos)
{
    struct pager *p = ctx;
    uint64_t at = p->base + pos, ahead = at + AHEAD;
    map_expect(p->map, at, ahead < p->end ? ahead : p->end);
    if (at < p->from + BEHIND)
        return;
    map_forget(p->map, p->from, at - BEHIND);
    p->from = at - BEHIND;
}

void
pager_open(struct pager *p, struct json *j, struct map *m, uint64_t base, size_t n,
           struct arena *arena, struct err *err)
{
    struct slice text = { n ? (const char *)m->data + base : "", n };
    *p = (struct pager){ .map = m, .base = base, .end = base + n, .from = base };
    json_open(j, m->name, base, text, arena, err);
    json_watch(j, pager_passed, p);
}

int
pager_has_key(const struct pager *p, const struct json *j, size_t start,
              struct slice key, size_t before)
{
    struct pager pages;
    struct json again;
    struct arena scratch = { 0 };
    struct slice k;
    int found = 0;
    pager_open(&pages, &again, p->map, p->base, j->len, &scratch, j->err);
    again.pos = start;
    json_object(&again);
    for (size_t at = again.pos; !found && at < before && json_key(&again, &k) > 0;
         at = again.pos) {
        found = at < before && slice_eq(k, key);
        json_skip(&again, NULL);
        arena_clear(&scratch);
    }
    arena_free(&scratch);
    return j->err->kind ? -1 : found;
}

static char *
without_slashes(const char *path)
{
    char *p = strdup(path);
    for (size_t n = p ? strlen(p) : 0; n > 1 && p[n - 1] == '/';)
        p[--n] = '\0';
    return p;
}

/* Parse.  A file that shrinks meanwhile shows zeros, at which a parser would stumble:
 * what happened to the file is the better answer. */
static int
read_and_check(struct store *s)
{
    struct err *mine = s->err;
    struct err parse = { 0 };
    s->err = &parse;
    int rc = s->kind->read(s);
    s->err = mine;
    if (store_check(s) < 0)
        return -1;
    return rc < 0 ? err_set(mine, parse.kind, "%s", parse.msg) : 0;
}

/* What is no .dat may be a container that standard input cannot be: what is wrong then is
 * not the first byte that a .dat would not have. */
static int
stdin_refused(struct store *s)
{
    const struct container *c = container_of_bytes(&s->files[0]);
    if (s->err->kind != ERR_FORMAT || !c || c == s->kind)
        return -1;
    *s->err = (struct err){ 0 };
    return err_set(s->err, ERR_FORMAT,
                   "%s: begins like a %s, and standard input is read as a %s; name the "
                   "file instead",
                   s->name, c->name, s->kind->name);
}

/* "-": what standard input is decides how it is read. */
static int
open_stdin(struct store *s)
{
    struct stat st;
    s->kind = of_pipe;
    if (fstat(STDIN_FILENO, &st) == 0 && S_ISREG(st.st_mode) &&
        lseek(STDIN_FILENO, 0, SEEK_CUR) == 0) {
        s->files = calloc(1, sizeof *s->files);
        if (!s->files)
            return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
        s->n_files = 1;
        int fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
            return err_set(s->err, ERR_IO, "%s:", s->name);
        if (map_fd(&s->files[0], fd, "-", s->opt.guard, s->err) < 0)
            return -1;
        s->bytes = s->files[0].size;
        if (s->bytes == 0)
            return err_set(s->err, ERR_FORMAT, "%s: byte 0: the file is empty",
                           s->name);
        return read_and_check(s) < 0 ? stdin_refused(s) : 0;
    }
    return s->kind->read_stream(s, STDIN_FILENO);
}

static int
open_file(struct store *s)
{
    s->files = calloc(1, sizeof *s->files);
    if (!s->files)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    if (store_add_file(s, s->path) < 0)
        return -1;
    s->kind = container_of_file(&s->files[0]);
    if (tok_sniff(s->files[0].data, s->files[0].size))
        return err_set(s->err, ERR_FORMAT,
                       "%s: is a .tok: it has samples, no tensors; datcat shows it",
                       s->name);
    if (s->bytes == 0)
        return err_set(s->err, ERR_FORMAT, "%s: byte 0: the file is empty", s->name);
    return read_and_check(s);
}

int
store_open(struct store *s, const char *path, const struct store_options *opt,
           struct err *err)
{
    struct buf name = { 0 };
    struct stat st;
    *s = (struct store){ .opt = *opt, .err = err };
    s->path = without_slashes(path);
    text_escape(&name, path, strlen(path));
    s->name = name.data;
    if (!s->path || !s->name)
        return err_set(err, ERR_MEMORY, "out of memory for a file name");
    if (strcmp(path, "-") == 0) {
        free(s->name);
        s->name = strdup("<stdin>");
        if (!s->name)
            return err_set(err, ERR_MEMORY, "out of memory");
        return open_stdin(s);
    }
    if (stat(s->path, &st) == 0 && S_ISDIR(st.st_mode)) {
        s->kind = of_directory;
        s->is_directory = true;
        return read_and_check(s);
    }
    return open_file(s);
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

/* Whether a file (dev, ino) serves the model of s without being read here: tokenizers,
 * cards, the other kind of list.  Beside a file many things lie that have nothing to do
 * with it. */
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

int
read_nibble_object(struct nibble_object *o, const char *file, struct slice text,
                   struct arena *arena, struct err *err)
{
    struct json j;
    struct slice key;
    bool known = false;
    int more;
    *o = (struct nibble_object){ 0 };
    json_open(&j, file, 0, text, arena, err);
    json_object(&j);
    while ((more = json_key(&j, &key)) > 0) {
        if (slice_is(key, "format")) {
            struct slice f;
            if (json_string(&j, &f) == 0)
                known = slice_is(f, "nibble-1");
        } else if (slice_is(key, "bytes")) {
            o->has_bytes = json_u63(&j, &o->bytes) == 0;
        } else if (slice_is(key, "index_xxh3")) {
            json_string(&j, &o->index_xxh3);
        } else if (slice_is(key, "xxh3")) {
            json_string(&j, &o->xxh3);
        } else if (slice_is(key, "config") && json_peek(&j) == '{') {
            json_skip(&j, &o->config);
        } else if (slice_is(key, "provenance") && json_peek(&j) == '{') {
            json_skip(&j, &o->provenance);
        } else if (slice_is(key, "files")) {
            json_skip(&j, &o->files);
        } else {
            json_skip(&j, NULL);
        }
    }
    if (more < 0 || json_end(&j) < 0)
        return -1;
    if (!known)
        return err_set(err, ERR_FORMAT, "%s: expected \"format\":\"nibble-1\"", file);
    return 0;
}

/* PATH with another leaf, or with a suffix; in s->arena. */
static char *
beside(struct store *s, const char *leaf)
{
    struct buf b = { 0 };
    const char *slash = strrchr(s->path, '/');
    if (slash)
        buf_add(&b, s->path, (size_t)(slash - s->path) + 1);
    buf_str(&b, leaf);
    char *p = b.failed ? NULL : arena_copy(&s->arena, b.data, b.len);
    buf_free(&b);
    return p;
}

/* Whether it is a directory, a pipe or a device: nothing that we wrote. */
static bool
is_no_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

/* Whether a text that cannot be understood was a sidecar of ours. */
static bool
was_ours(struct slice text)
{
    return text.p && (text.n == 0 || slice_starts(text, "{\"format\":\"nibble-1\""));
}

/* What FILE.json tells, if it fits.  One of another program is no reason to refuse the
 * file.  One that cannot be read or is damaged is, since it may hold the file's checksum;
 * and one that fits by its size alone is kept, for the checksum of the whole decides. */
static int
load_sidecar(struct store *s)
{
    struct slice text;
    struct nibble_object o;
    struct err why = { 0 };
    struct err *mine = s->err;
    char hex[2 * XXH3_BYTES + 1];
    uint8_t digest[XXH3_BYTES];
    struct buf path = { 0 };
    buf_printf(&path, "%s.json", s->path);
    if (buf_ok(&path, s->err) < 0)
        return -1;
    s->err = &why;
    int rc = store_slurp(s, path.data, &text);
    if (rc == 0 && text.p)
        rc = read_nibble_object(&o, path.data, text, &s->arena, &why);
    s->err = mine;
    bool damaged = rc < 0 && why.kind == ERR_FORMAT && was_ours(text);
    bool foreign = rc < 0 && (why.kind == ERR_FORMAT || is_no_file(path.data));
    buf_free(&path);
    if (damaged)
        return err_set(
            s->err, ERR_FORMAT,
            "%s.json: the sidecar is damaged: without it the file is taken as "
            "it is: %s",
            s->name, why.msg);
    if (foreign)
        return store_warn(s, "its sidecar is no sidecar of nibble and is ignored");
    if (rc < 0)
        return err_set(s->err, why.kind, "%s", why.msg);
    if (!text.p)
        return 0;
    if (s->kind->index_hash(s, digest) < 0)
        return -1;
    hash_hex(hex, digest, XXH3_BYTES);
    if (!o.has_bytes || o.bytes != s->bytes)
        return store_warn(s, "its sidecar is stale and is ignored");
    if (!slice_is(o.index_xxh3, hex))
        store_warn(s, "its entry headers differ from those in its sidecar");
    s->side_xxh3 = o.xxh3;
    s->config = o.config;
    s->provenance = o.provenance;
    return 0;
}

int
store_load_beside(struct store *s)
{
    if (strcmp(s->path, "-") == 0)
        return 0;
    if (s->kind->index_hash && load_sidecar(s) < 0)
        return -1;
    if (s->config.p || s->is_directory)
        return 0;
    char *path = beside(s, "config.json");
    if (!path)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    struct err *mine = s->err;
    struct err why = { 0 };
    s->err = &why; // what merely lies beside a file is no reason to refuse the file
    if (store_load_config(s, path) < 0) {
        s->config = (struct slice){ 0 };
        store_warn(s, "config.json beside it is ignored: %s", why.msg);
    }
    s->config_beside = s->config.p != NULL;
    s->err = mine;
    return 0;
}

int
store_load_config(struct store *s, const char *path)
{
    struct slice text;
    struct json j;
    char q[TEXT_QUOTE];
    if (store_slurp(s, path, &text) < 0)
        return -1;
    if (!text.p)
        return 0;
    json_open(&j, text_quote(q, path, strlen(path)), 0, text, &s->arena, s->err);
    if (json_peek(&j) != '{')
        return json_expected(&j, "an object");
    if (json_skip(&j, NULL) < 0 || json_end(&j) < 0)
        return -1;
    s->config = text; // verbatim, white space at its ends too
    return 0;
}

/* ---- checksums -------------------------------------------------------------------- */

static int
hash_files(struct store *s, uint8_t digest[XXH3_BYTES], unsigned threads,
           struct err *err)
{
    struct hash *h = hash_begin(HASH_XXH3);
    if (!h)
        return err_set(err, ERR_MEMORY, "%s: out of memory", s->name);
    int rc = 0;
    for (size_t i = 0; i < s->n_files && rc == 0; i++) {
        struct feed *f = feed_open(&s->files[i], 0, s->files[i].size, threads, err);
        const uint8_t *p;
        size_t n;
        rc = f ? 1 : -1;
        while (rc > 0 && (rc = feed_next(f, &p, &n)) > 0)
            hash_add(h, p, n);
        feed_close(f);
    }
    hash_end(h, rc < 0 ? NULL : digest);
    return rc;
}

int
store_content_hash(struct store *s, uint8_t digest[XXH3_BYTES], unsigned threads,
                   struct err *err)
{
    char hex[2 * XXH3_BYTES + 1];
    if (s->kind->carried_hash && s->kind->carried_hash(s, digest))
        return 0;
    if (hash_files(s, digest, threads, err) < 0)
        return -1;
    hash_hex(hex, digest, XXH3_BYTES);
    if (!s->side_xxh3.p || slice_is(s->side_xxh3, hex))
        return 0;
    return err_set(err, ERR_FORMAT,
                   "%s: XXH3 of the file is %s, its sidecar expects %.*s: it is "
                   "damaged, or another program changed it; without %s.json it is "
                   "taken as it is",
                   s->name, hex, (int)s->side_xxh3.n, s->side_xxh3.p, s->name);
}

int
store_check_digest(const struct store *s, const struct tensor *t,
                   const uint8_t digest[XXH3_BYTES], struct err *err)
{
    char q[TEXT_QUOTE], want[2 * XXH3_BYTES + 1], found[2 * XXH3_BYTES + 1];
    if (!t->xxh3 || memcmp(digest, t->xxh3, XXH3_BYTES) == 0)
        return 0;
    hash_hex(want, t->xxh3, XXH3_BYTES);
    hash_hex(found, digest, XXH3_BYTES);
    return err_set(err, ERR_FORMAT,
                   "%s: byte %llu: array \"%s\" is damaged: XXH3 is %s, the header "
                   "expects %s",
                   s->name, (unsigned long long)t->offset,
                   text_quote(q, t->name, t->name_len), found, want);
}

/* Hashed by the thread that calls; chunks are as large as a core's cache likes them. */
static int
hash_payload(struct store *s, const struct tensor *t, uint8_t digest[XXH3_BYTES],
             struct err *err)
{
    enum { CHUNK = 256 << 10 };
    uint8_t *chunk = malloc(CHUNK);
    struct hash *h = hash_begin(HASH_XXH3);
    int rc = chunk && h ? 0 : err_set(err, ERR_MEMORY, "%s: out of memory", s->name);
    for (uint64_t at = 0; at < t->nbytes && rc == 0; at += CHUNK) {
        uint64_t left = t->nbytes - at;
        size_t n = left < CHUNK ? (size_t)left : CHUNK;
        rc = store_read(s, t, at, chunk, n, err);
        if (rc == 0)
            hash_add(h, chunk, n);
    }
    hash_end(h, rc == 0 ? digest : NULL);
    free(chunk);
    return rc;
}

int
store_check_payload(struct store *s, const struct tensor *t, struct err *err)
{
    uint8_t digest[XXH3_BYTES];
    if (!t->xxh3)
        return 0;
    bool *passed = &s->passed[t - s->tensors];
    if (*passed)
        return 0;
    if (hash_payload(s, t, digest, err) < 0 ||
        store_check_digest(s, t, digest, err) < 0)
        return -1;
    *passed = true;
    return 0;
}

int
store_check_gaps(struct store *s, struct err *err)
{
    return s->kind->check_gaps ? s->kind->check_gaps(s, err) : 0;
}

struct payloads {
    struct store *s;
    const struct tensor *const *t;
};

static int
check_one(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct payloads *p = ctx;
    (void)worker;
    return store_check_payload(p->s, p->t[i], err);
}

int
store_check_payloads(struct store *s, const struct tensor *const *t, size_t n,
                     unsigned threads, struct err *err)
{
    uint8_t digest[XXH3_BYTES];
    struct payloads p = { s, t };
    if (s->side_xxh3.p)
        return store_content_hash(s, digest, threads, err);
    if (store_check_gaps(s, err) < 0)
        return -1;
    return par_for(threads, n, check_one, &p, err);
}

int
store_verify(struct store *s, bool full, unsigned threads, const char **what)
{
    uint8_t digest[XXH3_BYTES];
    bool sums = s->kind->verify || s->side_xxh3.p;
    *what = sums ? "structure; payloads were not read"
                 : "structure; the container has no checksums";
    if (!full || !sums)
        return store_check(s);
    *what = "structure and checksums";
    if (s->kind->verify ? s->kind->verify(s, threads, what) < 0
                        : store_content_hash(s, digest, threads, s->err) < 0)
        return -1;
    return store_check(s);
}
