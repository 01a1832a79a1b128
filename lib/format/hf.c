/* SPDX-License-Identifier: MIT */
/* hf: Hugging Face model directories: one or several safetensors files, config.json.
 * Reading only; the safetensors writer makes them.
 *
 * An index of shards can list a million tensors.  Of it only the names of the shards
 * are kept, and a sum over hashes of all its pairs of tensor and shard.  The shards are
 * checked one by one and their pairs summed up, too: equal sums are equal pairs, but
 * for one case in 2^64.  Only if they differ, the wrong pair is looked for.
 */
#include "lib/base/hash.h"
#include "lib/base/json.h"
#include "lib/file/path.h"
#include "lib/format/object.h"
#include "lib/format/pager.h"
#include "lib/format/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX "model.safetensors.index.json"

enum {
    MAX_INDEX = 100000000, // bytes, as of a header of safetensors
    MAX_LISTED = 1 << 20,  // ten times what the largest models have
    MAX_SHARDS = 4000,     // open at once: a struct guard has some more
};

/* Pairs of a tensor and its shard. */
struct pairs {
    uint64_t n, sum;
    struct seen seen; // the hash seed, and if keep is set the hashes of the pairs
    bool keep;
};

struct index {
    struct store *s;
    struct map map;
    uint64_t total;
    bool has_total;
    struct names shards;
    struct pairs pairs;
    struct arena scratch;
    // called with each pair when the index is read again: -1 stops
    int (*each)(struct index *x, struct slice name, struct slice file);
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

/* A number that is as good as random for each pair of texts. */
static uint64_t
pair_hash(struct pairs *p, struct slice name, struct slice file)
{
    uint64_t both[2] = { seen_hash(&p->seen, name), seen_hash(&p->seen, file) };
    return seen_hash(&p->seen, (struct slice){ (const char *)both, sizeof both });
}

/* 0, 1 if its hash was there, or NAME_NO_MEMORY. */
static int
add_pair(struct pairs *p, struct slice name, struct slice file)
{
    uint64_t hash = pair_hash(p, name, file);
    p->sum += hash;
    p->n++;
    return p->keep ? seen_put(&p->seen, hash) : 0;
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
add_shard(struct index *x, struct json *j, struct slice file)
{
    if (names_find(&x->shards, file) != NAME_NONE)
        return 0;
    if (x->shards.n == MAX_SHARDS)
        return json_fail(j, j->pos, "more than %d shards", MAX_SHARDS);
    const char *name = arena_copy(&x->s->arena, file.p, file.n);
    if (!name ||
        names_add(&x->shards, (struct slice){ name, file.n }, x->shards.n) != 0)
        return err_set(x->s->err, ERR_MEMORY, "%s: out of memory", x->s->name);
    return 0;
}

static int
read_weight_map(struct index *x, struct json *j)
{
    struct slice name, file;
    int more;
    json_object(j);
    while ((more = json_key(j, &name)) > 0) {
        json_peek(j);
        size_t at = j->pos;
        if (json_string(j, &file) < 0 || check_leaf(j, at, file) < 0)
            return -1;
        if (x->each) {
            if (x->each(x, name, file) < 0)
                return -1;
        } else {
            if (x->pairs.n == MAX_LISTED)
                return json_fail(j, at, "more than %d tensors are listed", MAX_LISTED);
            add_pair(&x->pairs, name, file);
            if (add_shard(x, j, file) < 0)
                return -1;
        }
        arena_clear(&x->scratch);
    }
    return more;
}

static int
read_index(struct index *x)
{
    struct json j;
    struct pager pages;
    struct slice key;
    bool map = false;
    int more;
    pager_open(&pages, &j, &x->map, 0, x->map.size, &x->scratch, x->s->err);
    j.longest = MAX_NAME;
    json_object(&j);
    for (size_t at = j.pos; (more = json_key(&j, &key)) > 0; at = j.pos) {
        if (slice_is(key, "weight_map")) {
            if (map)
                return json_fail(&j, at, "\"weight_map\" appears twice");
            map = true;
            if (read_weight_map(x, &j) < 0)
                return -1;
        } else if (slice_is(key, "metadata") && json_peek(&j) == '{') {
            json_object(&j);
            while ((more = json_key(&j, &key)) > 0) {
                bool total = slice_is(key, "total_size");
                if ((total ? json_u63(&j, &x->total) : json_skip(&j, NULL)) < 0)
                    return -1;
                x->has_total |= total;
                arena_clear(&x->scratch);
            }
            if (more < 0)
                return -1;
        } else if (json_skip(&j, NULL) < 0) {
            return -1;
        }
        arena_clear(&x->scratch);
    }
    if (more < 0 || json_end(&j) < 0)
        return -1;
    if (!map)
        return json_fail(&j, j.len, "no \"weight_map\"");
    return 0;
}

static const char *
leaf_of(const struct map *m)
{
    return strrchr(m->path, '/') + 1;
}

/* ---- shards -------------------------------------------------------------------- */

/* The shard whose names are being read. */
struct shard {
    struct index *x;
    struct pairs *pairs;
    struct map *map;
};

static int
out_of_memory(struct index *x)
{
    return err_set(x->s->err, ERR_MEMORY, "%s: out of memory", x->map.name);
}

static int
each_name(struct index *x, int (*each)(void *ctx, struct slice name))
{
    for (size_t i = 0; i < x->s->n_files; i++) {
        struct shard shard = { x, &x->pairs, &x->s->files[i] };
        struct safetensors f = { .each = each, .ctx = &shard };
        if (safetensors_names(x->s, i, &f) < 0)
            return -1;
    }
    return 0;
}

/* No pairs, but the same hash seed. */
static void
empty(struct pairs *p)
{
    uint64_t seed = p->seen.seed;
    seen_free(&p->seen);
    *p = (struct pairs){ .seen.seed = seed, .keep = true };
}

static int
keep_name(void *ctx, struct slice name)
{
    struct shard *a = ctx;
    int there = add_pair(a->pairs, name, slice_of(leaf_of(a->map)));
    return there == NAME_NO_MEMORY ? out_of_memory(a->x) : 0;
}

static int
keep_pair(struct index *x, struct slice name, struct slice file)
{
    char q[TEXT_QUOTE];
    int there = add_pair(&x->pairs, name, file);
    if (there > 0)
        return err_set(x->s->err, ERR_FORMAT, "%s: tensor \"%s\" is listed twice",
                       x->map.name, text_quote(q, name.p, name.n));
    return there < 0 ? out_of_memory(x) : 0;
}

static int
must_be_in_shard(struct index *x, struct slice name, struct slice file)
{
    char q[TEXT_QUOTE], f[TEXT_QUOTE];
    if (seen_has(&x->pairs.seen, pair_hash(&x->pairs, name, file)))
        return 0;
    return err_set(x->s->err, ERR_FORMAT, "%s: tensor \"%s\" is not in \"%s\"",
                   x->map.name, text_quote(q, name.p, name.n),
                   text_quote(f, file.p, file.n));
}

static int
must_be_listed(void *ctx, struct slice name)
{
    struct shard *a = ctx;
    struct pairs *p = a->pairs;
    char q[TEXT_QUOTE];
    if (seen_has(&p->seen, pair_hash(p, name, slice_of(leaf_of(a->map)))))
        return 0;
    return err_set(a->x->s->err, ERR_FORMAT, "%s: tensor \"%s\" is not listed in %s",
                   a->map->name, text_quote(q, name.p, name.n), INDEX);
}

/* Whether each pair of the index is one of the shards, in memory proportional to the
 * shards. */
static int
check_listed(struct index *x)
{
    empty(&x->pairs);
    x->each = must_be_in_shard;
    return each_name(x, keep_name) < 0 ? -1 : read_index(x);
}

/* The other way, in memory proportional to the index. */
static int
check_unlisted(struct index *x)
{
    empty(&x->pairs);
    x->each = keep_pair;
    return read_index(x) < 0 ? -1 : each_name(x, must_be_listed);
}

/* Index and shards have different pairs: report which.  The larger of them can be much
 * larger, so the smaller one is kept. */
static int
explain(struct index *x, bool more_in_shards)
{
    if ((more_in_shards || check_listed(x) == 0) && check_unlisted(x) == 0 &&
        (!more_in_shards || check_listed(x) == 0))
        err_set(x->s->err, ERR_FORMAT, "%s: lists other tensors than its shards have",
                x->map.name);
    return -1;
}

static int
by_leaf(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* In the order of their names. */
static int
open_shards(struct index *x)
{
    struct store *s = x->s;
    char q[TEXT_QUOTE];
    size_t n = x->shards.n;
    const char **leaf = x->shards.name; // sorted, it is no longer a table of names
    s->files = calloc(n ? n : 1, sizeof *s->files);
    if (!s->files)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    if (n)
        qsort(leaf, n, sizeof *leaf, by_leaf);
    for (size_t i = 0; i < n; i++) {
        char *path = inside(s, leaf[i], strlen(leaf[i]));
        if (!path)
            return -1;
        int there = path_exists(path, s->err);
        if (there == 0)
            return err_set(s->err, ERR_FORMAT, "%s: shard \"%s\" does not exist",
                           x->map.name, text_quote(q, leaf[i], strlen(leaf[i])));
        if (there < 0 || store_add_file(s, path) < 0)
            return -1;
    }
    return 0;
}

/* Add a pair of a shard, unless there are more than the index has. */
static int
add_name(void *ctx, struct slice name)
{
    struct shard *a = ctx;
    add_pair(a->pairs, name, slice_of(leaf_of(a->map)));
    return a->pairs->n > a->x->pairs.n ? -1 : 0;
}

/* Every tensor of the map is in its shard, and no other is. */
static int
check_shards(struct index *x, struct safetensors *file, struct seen *seen)
{
    struct store *s = x->s;
    struct pairs pairs = { .seen.seed = x->pairs.seen.seed };
    uint64_t total = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        struct shard shard = { x, &pairs, &s->files[i] };
        file[i] = (struct safetensors){ .seen = seen, .each = add_name, .ctx = &shard };
        int rc = safetensors_check(s, i, &file[i]);
        if (rc < 0 && pairs.n <= x->pairs.n)
            return -1;
        if (rc < 0)
            break;
        total += file[i].nbytes;
    }
    seen_free(seen);
    if (pairs.n != x->pairs.n || pairs.sum != x->pairs.sum)
        return explain(x, pairs.n > x->pairs.n);
    if (!x->has_total || x->total == total)
        return 0;
    if (s->opt.strict)
        return err_set(
            s->err, ERR_FORMAT, "%s: total_size is %llu, the tensors have %llu bytes",
            x->map.name, (unsigned long long)x->total, (unsigned long long)total);
    return store_warn(s, "total_size is %llu, the tensors have %llu bytes",
                      (unsigned long long)x->total, (unsigned long long)total);
}

static int
read_shards(struct index *x)
{
    struct store *s = x->s;
    struct seen seen = { 0 };
    if (read_index(x) < 0 || open_shards(x) < 0)
        return -1;
    struct safetensors *file = calloc(s->n_files ? s->n_files : 1, sizeof *file);
    if (!file)
        return out_of_memory(x);
    int rc = check_shards(x, file, &seen);
    seen_free(&seen);
    for (size_t i = 0; i < s->n_files && rc == 0; i++)
        rc = safetensors_list(s, i, &file[i]);
    free(file);
    return rc;
}

static int
read_sharded(struct store *s, const char *path)
{
    struct index x = { .s = s };
    struct err *mine = s->err;
    struct err parse = { 0 };
    int rc = map_open(&x.map, path, s->opt.guard, s->err);
    if (rc == 0 && x.map.size > MAX_INDEX)
        rc = err_set(s->err, ERR_FORMAT, "%s: has %zu bytes, expected at most %d",
                     x.map.name, x.map.size, MAX_INDEX);
    if (rc == 0)
        rc = store_note(s, &x.map);
    if (rc == 0) {
        s->err = &parse;
        rc = read_shards(&x);
        s->err = mine;
        if (map_check(&x.map, mine) == 0 && rc < 0)
            err_set(mine, parse.kind, "%s", parse.msg);
        rc = mine->kind ? -1 : 0;
    }
    map_close(&x.map);
    names_free(&x.shards);
    seen_free(&x.pairs.seen);
    arena_free(&x.scratch);
    return rc;
}

static int
read_single(struct store *s, const char *path, bool has_index)
{
    if (has_index && s->opt.strict)
        return err_set(
            s->err, ERR_FORMAT,
            "%s: has model.safetensors and an index of shards: expected one of them",
            s->name);
    if (has_index)
        store_warn(
            s, "model.safetensors is read, the index of shards beside it is ignored");
    s->files = calloc(1, sizeof *s->files);
    if (!s->files)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    return store_add_file(s, path) < 0 ? -1 : safetensors_read_file(s, 0);
}

/* The provenance in nibble.json. */
static int
read_nibble(struct store *s)
{
    struct slice text;
    struct nibble_object o;
    struct err why = { 0 };
    const char *path = inside(s, "nibble.json", 11);
    if (!path || store_slurp(s, path, &text) < 0)
        return -1;
    if (text.p && object_read(&o, s->name, text, &s->arena, &why) < 0)
        return store_warn(s,
                          "its nibble.json was not written by nibble and is ignored");
    if (text.p)
        s->provenance = o.provenance;
    return 0;
}

static int
hf_read(struct store *s)
{
    const char *single = inside(s, "model.safetensors", 17);
    const char *index = inside(s, INDEX, strlen(INDEX));
    if (!single || !index)
        return -1;
    int has_single = path_exists(single, s->err);
    int has_index = has_single < 0 ? -1 : path_exists(index, s->err);
    int rc = has_index < 0 ? -1
             : has_single  ? read_single(s, single, has_index)
             : has_index
                 ? read_sharded(s, index)
                 : err_set(s->err, ERR_IO,
                           "%s: is a directory without model.safetensors or " INDEX
                           ": expected a model directory",
                           s->name);
    return rc < 0 || read_nibble(s) < 0 ? -1 : store_find_config(s);
}

const struct container container_hf = {
    .name = "hf",
    .traits = { .by_width = true },
    .read = hf_read,
    .segments = safetensors_segments,
};
