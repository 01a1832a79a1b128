/* SPDX-License-Identifier: MIT */
/* hf: Hugging Face model directories: one or several safetensors files, config.json.
 * Reading only; the safetensors writer makes them. */
#include "lib/core/json.h"
#include "lib/format/container.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX "model.safetensors.index.json"

struct listed { // one line of the weight_map
    struct slice name, file;
};

struct index {
    struct listed *v;
    size_t n, cap;
    uint64_t total;
    bool has_total;
};

static char *
inside(struct store *s, const char *leaf, size_t n)
{
    struct buf b = { 0 };
    buf_printf(&b, "%s/", s->path);
    buf_add(&b, leaf, n);
    char *p = b.failed ? NULL : arena_copy(&s->arena, b.data, b.len);
    buf_free(&b);
    if (!p)
        err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    return p;
}

static bool
exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

static int
add_listed(struct store *s, struct index *x, struct slice name, struct slice file)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        struct listed *v = realloc(x->v, cap * sizeof *v);
        if (!v)
            return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
        x->v = v;
        x->cap = cap;
    }
    x->v[x->n++] = (struct listed){ name, file };
    return 0;
}

/* A shard is a file of this directory and nothing else. */
static int
check_leaf(struct json *j, size_t at, struct slice leaf)
{
    char q[TEXT_QUOTE];
    bool dots = slice_is(leaf, ".") || slice_is(leaf, "..");
    for (size_t i = 0; i + 1 < leaf.n; i++)
        dots |= leaf.p[i] == '.' && leaf.p[i + 1] == '.';
    if (leaf.n == 0 || leaf.n > 255 || dots || memchr(leaf.p, '/', leaf.n) ||
        memchr(leaf.p, '\0', leaf.n))
        return json_fail(j, at, "shard \"%s\": expected the name of a file beside it",
                         text_quote(q, leaf.p, leaf.n));
    return 0;
}

static int
read_weight_map(struct json *j, struct store *s, struct index *x)
{
    struct slice name, file;
    int more;
    json_object(j);
    while ((more = json_key(j, &name)) > 0) {
        json_peek(j);
        size_t at = j->pos;
        if (json_string(j, &file) < 0 || check_leaf(j, at, file) < 0 ||
            add_listed(s, x, name, file) < 0)
            return -1;
    }
    return more;
}

static int
read_index(struct store *s, struct slice text, const char *file, struct index *x)
{
    struct json j;
    struct slice key;
    bool map = false;
    int more;
    json_open(&j, file, 0, text, &s->arena, s->err);
    json_object(&j);
    for (size_t at = j.pos; (more = json_key(&j, &key)) > 0; at = j.pos) {
        if (slice_is(key, "weight_map")) {
            if (map)
                return json_fail(&j, at, "\"weight_map\" stands here twice");
            map = true;
            if (read_weight_map(&j, s, x) < 0)
                return -1;
        } else if (slice_is(key, "metadata") && json_peek(&j) == '{') {
            json_object(&j);
            while ((more = json_key(&j, &key)) > 0) {
                bool total = slice_is(key, "total_size");
                if ((total ? json_u63(&j, &x->total) : json_skip(&j, NULL)) < 0)
                    return -1;
                x->has_total |= total;
            }
            if (more < 0)
                return -1;
        } else if (json_skip(&j, NULL) < 0) {
            return -1;
        }
    }
    if (more < 0 || json_end(&j) < 0)
        return -1;
    if (!map)
        return json_fail(&j, j.len, "no \"weight_map\"");
    return 0;
}

static int
slice_order(struct slice a, struct slice b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.p, b.p, n) : 0;
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static int
by_file(const void *a, const void *b)
{
    const struct listed *x = a, *y = b;
    int c = slice_order(x->file, y->file);
    return c ? c : slice_order(x->name, y->name);
}

static int
by_tensor_name(const void *a, const void *b)
{
    const struct listed *x = a, *y = b;
    return slice_order(x->name, y->name);
}

/* Every tensor of the map stands in its shard, and no other does. */
static int
match_index(struct store *s, const struct index *x, const char *file)
{
    char q[TEXT_QUOTE], f[TEXT_QUOTE];
    uint64_t total = 0;
    for (size_t i = 0; i < x->n; i++) {
        const struct listed *l = &x->v[i];
        const struct tensor *t = store_find(s, l->name);
        const char *path = t ? s->files[t->file].path : "";
        const char *leaf = strrchr(path, '/');
        if (!t || !slice_is(l->file, leaf + 1))
            return err_set(s->err, ERR_FORMAT, "%s: tensor \"%s\" is not in \"%s\"",
                           file, text_quote(q, l->name.p, l->name.n),
                           text_quote(f, l->file.p, l->file.n));
    }
    for (size_t i = 0; i < s->n_tensors; i++)
        total += s->tensors[i].nbytes;
    if (s->n_tensors > x->n) { // names are unique on both sides: find one that is extra
        if (x->n)
            qsort(x->v, x->n, sizeof *x->v, by_tensor_name);
        for (size_t i = 0; i < s->n_tensors; i++) {
            const struct tensor *t = &s->tensors[i];
            struct listed key = { { t->name, t->name_len }, { 0 } };
            if (x->n == 0 || !bsearch(&key, x->v, x->n, sizeof *x->v, by_tensor_name))
                return err_set(
                    s->err, ERR_FORMAT, "%s: tensor \"%s\" is not listed in %s",
                    s->files[t->file].name, text_quote(q, t->name, t->name_len), INDEX);
        }
    }
    if (x->has_total && x->total != total) {
        if (s->opt.strict)
            return err_set(s->err, ERR_FORMAT,
                           "%s: total_size is %llu, the tensors have %llu bytes", file,
                           (unsigned long long)x->total, (unsigned long long)total);
        return store_warn(s, "total_size is %llu, the tensors have %llu bytes",
                          (unsigned long long)x->total, (unsigned long long)total);
    }
    return 0;
}

static int
read_shards(struct store *s, struct index *x, const char *file)
{
    char q[TEXT_QUOTE];
    size_t shards = 0;
    if (x->n)
        qsort(x->v, x->n, sizeof *x->v, by_file);
    for (size_t i = 0; i < x->n; i++) {
        bool same = i > 0 && slice_eq(x->v[i].file, x->v[i - 1].file);
        if (same && slice_eq(x->v[i].name, x->v[i - 1].name))
            return err_set(s->err, ERR_FORMAT, "%s: tensor \"%s\" is listed twice",
                           file, text_quote(q, x->v[i].name.p, x->v[i].name.n));
        shards += !same;
    }
    s->files = calloc(shards ? shards : 1, sizeof *s->files);
    if (!s->files)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    for (size_t i = 0; i < x->n; i++) {
        if (i > 0 && slice_eq(x->v[i].file, x->v[i - 1].file))
            continue;
        char *path = inside(s, x->v[i].file.p, x->v[i].file.n);
        if (!path)
            return -1;
        if (!exists(path))
            return err_set(s->err, ERR_FORMAT, "%s: shard \"%s\" does not exist", file,
                           text_quote(q, x->v[i].file.p, x->v[i].file.n));
        if (store_add_file(s, path) < 0 || safetensors_read_file(s, s->n_files - 1) < 0)
            return -1;
    }
    return match_index(s, x, file);
}

static int
read_sharded(struct store *s, const char *path)
{
    struct index x = { 0 };
    struct slice text;
    struct buf name = { 0 };
    if (store_slurp(s, path, &text) < 0)
        return -1;
    text_escape(&name, path, strlen(path));
    int rc = buf_ok(&name, s->err);
    if (rc == 0)
        rc = read_index(s, text, name.data, &x);
    if (rc == 0)
        rc = read_shards(s, &x, name.data);
    free(x.v);
    buf_free(&name);
    return rc;
}

static int
hf_read(struct store *s)
{
    char *single = inside(s, "model.safetensors", 17);
    char *index = inside(s, INDEX, strlen(INDEX));
    char *config = inside(s, "config.json", 11);
    char *nibble = inside(s, "nibble.json", 11);
    int rc;
    if (!single || !index || !config || !nibble)
        return -1;
    if (exists(single)) {
        if (exists(index)) {
            if (s->opt.strict)
                return err_set(s->err, ERR_FORMAT,
                               "%s: both model.safetensors and an index", s->name);
            store_warn(s, "model.safetensors is read, the index beside it is not");
        }
        s->files = calloc(1, sizeof *s->files);
        if (!s->files)
            return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
        rc = store_add_file(s, single);
        if (rc == 0)
            rc = safetensors_read_file(s, 0);
    } else if (exists(index)) {
        rc = read_sharded(s, index);
    } else {
        rc = err_set(s->err, ERR_IO,
                     "%s: a directory without model.safetensors or " INDEX, s->name);
    }
    if (rc < 0)
        return -1;
    struct slice text;
    if (store_slurp(s, nibble, &text) < 0)
        return -1;
    if (text.p) {
        struct nibble_object o;
        struct err why = { 0 };
        if (read_nibble_object(&o, s->name, text, &s->arena, &why) < 0)
            store_warn(s, "its nibble.json is not ours and is ignored");
        else
            s->provenance = o.provenance;
    }
    return store_load_config(s, config);
}

static void
hf_segments(const struct store *s, segment_fn fn, void *ctx)
{
    container_safetensors.segments(s, fn, ctx);
}

const struct container container_hf = {
    .name = "hf",
    .read = hf_read,
    .segments = hf_segments,
};
