/* SPDX-License-Identifier: MIT */
/* safetensors: u64 N | N bytes of JSON | data, by the rules of the reference validator.
 *
 * The header is read in place with the pull reader: no tree, one record a tensor.
 */
#include "lib/core/json.h"
#include "lib/core/num.h"
#include "lib/format/container.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"

enum { MAX_HEADER = 100000000 };

static const char *const dtype_text[DT_COUNT] = {
    [DT_BOOL] = "BOOL",
    [DT_F4_E2M1] = "F4",
    [DT_F6_E2M3] = "F6_E2M3",
    [DT_F6_E3M2] = "F6_E3M2",
    [DT_U8] = "U8",
    [DT_I8] = "I8",
    [DT_F8_E5M2] = "F8_E5M2",
    [DT_F8_E4M3] = "F8_E4M3",
    [DT_F8_E8M0] = "F8_E8M0",
    [DT_F8_E4M3FNUZ] = "F8_E4M3FNUZ",
    [DT_F8_E5M2FNUZ] = "F8_E5M2FNUZ",
    [DT_I16] = "I16",
    [DT_U16] = "U16",
    [DT_F16] = "F16",
    [DT_BF16] = "BF16",
    [DT_I32] = "I32",
    [DT_U32] = "U32",
    [DT_F32] = "F32",
    [DT_C64] = "C64",
    [DT_F64] = "F64",
    [DT_I64] = "I64",
    [DT_U64] = "U64",
};

struct record {
    struct tensor t;
    uint64_t begin, end;
    size_t at; // of the name in the JSON text
};

struct records {
    struct record *v;
    size_t n, cap;
};

static bool
st_sniff(const uint8_t *head, size_t n, uint64_t file_bytes)
{
    if (n < 9 || head[8] != '{')
        return false;
    uint64_t len = load_le64(head);
    return len <= MAX_HEADER && len <= file_bytes - 8;
}

static int
read_shape(struct json *j, struct store *s, struct tensor *t)
{
    uint64_t dims[MAX_RANK];
    unsigned rank = 0;
    int more;
    json_array(j);
    while ((more = json_item(j)) > 0) {
        if (rank == MAX_RANK)
            return json_fail(j, j->pos, "more than %d dimensions", MAX_RANK);
        if (json_u63(j, &dims[rank++]) < 0)
            return -1;
    }
    if (more < 0)
        return -1;
    uint64_t *copy = arena_alloc(&s->arena, rank * sizeof *copy);
    if (!copy)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    if (rank)
        memcpy(copy, dims, rank * sizeof *copy);
    t->rank = (uint8_t)rank;
    t->shape = copy;
    return 0;
}

static int
read_offsets(struct json *j, struct record *r)
{
    json_array(j);
    if (json_item(j) == 0)
        return json_fail(j, j->pos, "expected [begin,end], found an empty array");
    json_u63(j, &r->begin);
    if (json_item(j) == 0)
        return json_fail(j, j->pos, "expected [begin,end], found one number");
    json_u63(j, &r->end);
    if (json_item(j) == 1)
        return json_fail(j, j->pos, "expected [begin,end], found a third number");
    return j->err->kind ? -1 : 0;
}

static enum dtype
dtype_of_text(struct slice text)
{
    for (enum dtype d = DT_NONE + 1; d < DT_COUNT; d++)
        if (dtype_text[d] && slice_is(text, dtype_text[d]))
            return d;
    return DT_NONE;
}

static int
read_dtype(struct json *j, struct tensor *t)
{
    struct slice text;
    char q[TEXT_QUOTE];
    if (json_peek(j) != '"')
        return json_expected(j, "a dtype");
    size_t at = j->pos;
    if (json_string(j, &text) < 0)
        return -1;
    t->dtype = (uint8_t)dtype_of_text(text);
    if (t->dtype == DT_NONE)
        return json_fail(j, at, "dtype \"%s\" is unknown",
                         text_quote(q, text.p, text.n));
    return 0;
}

/* {"dtype":..., "shape":..., "data_offsets":...}, each once and nothing else. */
static int
read_record(struct json *j, struct store *s, struct record *r)
{
    static const char *const keys[] = { "dtype", "shape", "data_offsets" };
    unsigned seen = 0;
    struct slice key;
    int more;
    char q[TEXT_QUOTE];
    json_object(j);
    size_t start = j->pos - 1;
    for (size_t at = j->pos; (more = json_key(j, &key)) > 0; at = j->pos) {
        unsigned which = 0;
        while (which < 3 && !slice_is(key, keys[which]))
            which++;
        if (which == 3)
            return json_fail(j, at, "key \"%s\" is unknown",
                             text_quote(q, key.p, key.n));
        if (seen & 1U << which)
            return json_fail(j, at, "key \"%s\" stands here twice", keys[which]);
        seen |= 1U << which;
        int rc = which == 0   ? read_dtype(j, &r->t)
                 : which == 1 ? read_shape(j, s, &r->t)
                              : read_offsets(j, r);
        if (rc < 0)
            return -1;
    }
    if (more < 0)
        return -1;
    for (unsigned i = 0; i < 3; i++)
        if (!(seen & 1U << i))
            return json_fail(j, start, "tensor \"%s\" without \"%s\"",
                             text_quote(q, r->t.name, r->t.name_len), keys[i]);
    if (!dtype_size(&r->t.numel, &r->t.nbytes, r->t.dtype, r->t.shape, r->t.rank))
        return json_fail(
            j, start, "tensor \"%s\": its size does not fit 63 bits or no whole bytes",
            text_quote(q, r->t.name, r->t.name_len));
    if (r->begin > r->end || r->end - r->begin != r->t.nbytes)
        return json_fail(j, start,
                         "tensor \"%s\": shape and dtype make %llu bytes, data_offsets "
                         "[%llu,%llu]",
                         text_quote(q, r->t.name, r->t.name_len),
                         (unsigned long long)r->t.nbytes, (unsigned long long)r->begin,
                         (unsigned long long)r->end);
    return 0;
}

static int
by_text(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int c = n ? memcmp(x->p, y->p, n) : 0;
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* Whether two of the keys are equal; sorts them. */
static bool
any_twice(struct slice *keys, size_t n)
{
    if (n)
        qsort(keys, n, sizeof *keys, by_text);
    for (size_t i = 1; i < n; i++)
        if (slice_eq(keys[i], keys[i - 1]))
            return true;
    return false;
}

/* "__metadata__": strings to strings. */
static int
read_metadata(struct json *j, struct store *s, size_t file)
{
    struct slice key, value, nibble = { 0 };
    struct buf keys = { 0 }; // of struct slice
    json_peek(j);
    size_t start = j->pos;
    json_object(j);
    while (json_key(j, &key) > 0 && json_string(j, &value) == 0) {
        buf_add(&keys, &key, sizeof key);
        if (slice_is(key, "nibble"))
            nibble = value;
    }
    bool twice = !keys.failed && any_twice((struct slice *)(void *)keys.data,
                                           keys.len / sizeof(struct slice));
    int ok = buf_ok(&keys, s->err);
    buf_free(&keys);
    if (j->err->kind || ok < 0)
        return -1;
    if (twice)
        return json_fail(j, start, "a key of \"__metadata__\" stands there twice");
    if (file > 0) // shards say nothing of the whole
        return 0;
    s->meta = (struct slice){ j->text + start, j->pos - start };
    if (nibble.p) {
        struct nibble_object o;
        struct err why = { 0 };
        if (read_nibble_object(&o, s->name, nibble, &s->arena, &why) < 0)
            return store_warn(s, "its metadata \"nibble\" is not ours and is ignored");
        s->config = o.config;
        s->provenance = o.provenance;
    }
    return 0;
}

static struct record *
new_record(struct store *s, struct records *all)
{
    if (all->n == all->cap) {
        size_t cap = all->cap ? all->cap * 2 : 64;
        struct record *v = realloc(all->v, cap * sizeof *v);
        if (!v) {
            err_set(s->err, ERR_MEMORY, "%s: out of memory for the header", s->name);
            return NULL;
        }
        all->v = v;
        all->cap = cap;
    }
    all->v[all->n] = (struct record){ 0 };
    return &all->v[all->n++];
}

static int
read_header(struct json *j, struct store *s, size_t file, struct records *all)
{
    struct slice key;
    bool metadata = false;
    char place[64];
    int more;
    json_object(j);
    for (size_t at = j->pos; (more = json_key(j, &key)) > 0; at = j->pos) {
        if (slice_is(key, METADATA)) {
            if (metadata)
                return json_fail(j, at, "\"__metadata__\" stands here twice");
            metadata = true;
            if (read_metadata(j, s, file) < 0)
                return -1;
            continue;
        }
        snprintf(place, sizeof place, "byte %llu", (unsigned long long)(j->base + at));
        if (check_name(s, key.p, key.n, place) < 0)
            return -1;
        struct record *r = new_record(s, all);
        if (!r)
            return -1;
        char *name = arena_copy(&s->arena, key.p, key.n);
        if (!name)
            return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
        r->at = at;
        r->t.name = name;
        r->t.name_len = (uint32_t)key.n;
        r->t.file = (uint32_t)file;
        if (read_record(j, s, r) < 0)
            return -1;
    }
    if (more < 0)
        return -1;
    while (j->pos < j->len && j->text[j->pos] == ' ')
        j->pos++;
    return j->pos == j->len ? 0
                            : json_fail(j, j->pos, "expected spaces behind the header");
}

static int
by_begin(const void *a, const void *b)
{
    const struct record *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* No hole, no overlap, up to the end of the file. */
static int
place_records(struct store *s, size_t file, struct records *all, uint64_t data_at)
{
    const struct map *m = &s->files[file];
    uint64_t at = 0;
    char q[TEXT_QUOTE];
    char place[64];
    if (all->n)
        qsort(all->v, all->n, sizeof *all->v, by_begin);
    for (size_t i = 0; i < all->n; i++) {
        struct record *r = &all->v[i];
        if (r->begin != at)
            return err_set(s->err, ERR_FORMAT,
                           "%s: byte %llu: tensor \"%s\" begins at %llu, expected %llu "
                           "(no hole, no overlap)",
                           m->name, (unsigned long long)(8 + r->at),
                           text_quote(q, r->t.name, r->t.name_len),
                           (unsigned long long)r->begin, (unsigned long long)at);
        at = r->end;
        r->t.offset = r->t.head = data_at + r->begin;
        if (r->end > m->size - data_at)
            return err_set(s->err, ERR_FORMAT,
                           "%s: tensor \"%s\": payload ends at byte %llu, file has %zu",
                           m->name, text_quote(q, r->t.name, r->t.name_len),
                           (unsigned long long)(data_at + r->end), m->size);
        snprintf(place, sizeof place, "byte %llu", (unsigned long long)(8 + r->at));
        if (store_add(s, &r->t, place) < 0)
            return -1;
    }
    if (at != m->size - data_at)
        return err_set(s->err, ERR_FORMAT,
                       "%s: byte %llu: %llu bytes after the last tensor", m->name,
                       (unsigned long long)(data_at + at),
                       (unsigned long long)(m->size - data_at - at));
    return 0;
}

int
safetensors_read_file(struct store *s, size_t file)
{
    struct map *m = &s->files[file];
    struct records all = { 0 };
    struct json j;
    if (m->size < 10)
        return err_set(s->err, ERR_FORMAT,
                       "%s: byte %zu: the file ends inside its header", m->name,
                       m->size);
    uint64_t n = load_le64(m->data);
    if (n > MAX_HEADER || n > m->size - 8)
        return err_set(s->err, ERR_FORMAT,
                       "%s: byte 0: a header of %llu bytes, expected at most %zu",
                       m->name, (unsigned long long)n,
                       m->size - 8 < MAX_HEADER ? m->size - 8 : (size_t)MAX_HEADER);
    if (m->data[8] != '{')
        return err_set(s->err, ERR_FORMAT, "%s: byte 8: expected '{', found 0x%02x",
                       m->name, m->data[8]);
    json_open(&j, m->name, 8, (struct slice){ (const char *)m->data + 8, (size_t)n },
              &s->arena, s->err);
    int rc = read_header(&j, s, file, &all);
    if (rc == 0)
        rc = place_records(s, file, &all, 8 + n);
    free(all.v);
    return rc;
}

static int
st_read(struct store *s)
{
    return safetensors_read_file(s, 0);
}

static void
st_segments(const struct store *s, segment_fn fn, void *ctx)
{
    size_t i = 0;
    for (size_t file = 0; file < s->n_files; file++) {
        const struct map *m = &s->files[file];
        uint64_t n = load_le64(m->data);
        uint64_t json = n;
        while (json && m->data[8 + json - 1] == ' ')
            json--;
        fn(ctx, file, 0, 8, "header length", NULL);
        fn(ctx, file, 8, json, "JSON header", NULL);
        if (json < n)
            fn(ctx, file, 8 + json, n - json, "padding", NULL);
        for (; i < s->n_tensors && s->tensors[i].file == file; i++)
            if (s->tensors[i].nbytes)
                fn(ctx, file, s->tensors[i].offset, s->tensors[i].nbytes, "payload",
                   &s->tensors[i]);
    }
}

/* ---- writing ---------------------------------------------------------------- */

static int
by_name(const void *a, const void *b)
{
    const struct wtensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static void
put_record(struct buf *b, const struct wtensor *t, uint64_t begin)
{
    json_put(b, slice_of(t->name));
    buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_text[t->dtype]);
    for (unsigned d = 0; d < t->rank; d++)
        buf_printf(b, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
    buf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
               (unsigned long long)(begin + t->nbytes));
}

/* The header of tensors [from, to); its size does not depend on the provenance's
 * bytes, only on their number. */
static void
put_header(struct buf *b, const struct writer *w, size_t from, size_t to)
{
    struct buf object = { 0 };
    uint64_t begin = 0;
    buf_fill(b, 0, 8);
    buf_str(b, "{\"__metadata__\":{\"format\":\"pt\"");
    if (!w->is_dir && !w->meta.bare) {
        writer_object(w, &object, false);
        buf_str(b, ",\"nibble\":");
        json_put(b, (struct slice){ object.data, object.len });
        b->failed |= object.failed;
        buf_free(&object);
    }
    buf_char(b, '}');
    for (size_t i = from; i < to; i++) {
        buf_char(b, ',');
        put_record(b, &w->t[i], begin);
        begin += w->t[i].nbytes;
    }
    buf_char(b, '}');
    while (b->len % 8 && !b->failed)
        buf_char(b, ' ');
    if (!b->failed)
        store_le64(b->data, b->len - 8);
}

static int
plan_shard(struct writer *w, size_t file, size_t from, size_t to)
{
    struct buf head = { 0 };
    put_header(&head, w, from, to);
    if (head.len > MAX_HEADER + 8) {
        buf_free(&head);
        return err_set(w->err, ERR_USAGE,
                       "%s: a header above %d bytes is refused by readers", w->name,
                       MAX_HEADER);
    }
    int rc = writer_literal(w, (uint32_t)file, 0, &head);
    uint64_t at = head.len;
    buf_free(&head);
    for (size_t i = from; i < to; i++) {
        w->t[i].file = (uint32_t)file;
        w->t[i].offset = at;
        at += w->t[i].nbytes;
    }
    w->files[file].bytes = at;
    return rc;
}

/* The end of the shard that begins at from: tensors until the size is reached, one at
 * least. */
static size_t
shard_end(const struct writer *w, size_t from)
{
    uint64_t bytes = w->t[from].nbytes;
    size_t to = from + 1;
    while (to < w->n && (!w->is_dir || (bytes <= w->shard_bytes &&
                                        w->t[to].nbytes <= w->shard_bytes - bytes)))
        bytes += w->t[to++].nbytes;
    return to;
}

static int
st_plan(struct writer *w)
{
    char q[TEXT_QUOTE];
    size_t shards = 0;
    if (w->n)
        qsort(w->t, w->n, sizeof *w->t, by_name);
    for (size_t i = 0; i < w->n; i++)
        if (!dtype_text[w->t[i].dtype] ||
            (w->t[i].dtype == DT_F4_E2M1 && w->t[i].rank == 0))
            return err_set(w->err, ERR_USAGE,
                           "%s: \"%s\": safetensors cannot hold %s of rank %u", w->name,
                           text_quote(q, w->t[i].name, strlen(w->t[i].name)),
                           dtype_name(w->t[i].dtype), w->t[i].rank);
    for (size_t i = 0; i < w->n; i = shard_end(w, i))
        shards++;
    if (shards == 0)
        shards = 1;
    if (shards > 1) {
        struct wfile *files = calloc(shards, sizeof *files);
        if (!files)
            return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
        free(w->files);
        w->files = files;
        w->n_files = shards;
    }
    for (size_t k = 0, from = 0; k < shards; k++) {
        char leaf[64] = "model.safetensors";
        size_t to = w->n ? shard_end(w, from) : 0;
        if (shards > 1)
            snprintf(leaf, sizeof leaf, "model-%05zu-of-%05zu.safetensors", k + 1,
                     shards);
        w->files[k].leaf = strdup(leaf);
        if (!w->files[k].leaf)
            return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
        if (plan_shard(w, k, from, to) < 0)
            return -1;
        from = to;
    }
    return 0;
}

/* model.safetensors.index.json of a sharded directory. */
static int
put_index(struct writer *w)
{
    struct buf b = { 0 };
    uint64_t total = 0;
    for (size_t i = 0; i < w->n; i++)
        total += w->t[i].nbytes;
    buf_printf(
        &b, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {",
        (unsigned long long)total);
    for (size_t i = 0; i < w->n; i++) {
        buf_str(&b, i ? ",\n    " : "\n    ");
        json_put(&b, slice_of(w->t[i].name));
        buf_printf(&b, ": \"%s\"", w->files[w->t[i].file].leaf);
    }
    buf_str(&b, "\n  }\n}\n");
    int rc = buf_ok(&b, w->err);
    if (rc == 0)
        rc = writer_extra(w, "model.safetensors.index.json", b.data, b.len);
    buf_free(&b);
    return rc;
}

/* A file: the header again, now with the final provenance.  A directory: what stands
 * beside the shards. */
static int
st_finish(struct writer *w)
{
    struct buf b = { 0 };
    int rc;
    if (!w->is_dir) {
        put_header(&b, w, 0, w->n);
        rc = buf_ok(&b, w->err);
        if (rc == 0)
            rc = out_pwrite(&w->out, b.data, b.len, 0);
        buf_free(&b);
        return rc;
    }
    if (w->n_files > 1 && put_index(w) < 0)
        return -1;
    if (w->meta.config.p) {
        buf_add(&b, w->meta.config.p, w->meta.config.n);
        if (!slice_ends(w->meta.config, "\n"))
            buf_char(&b, '\n');
        rc = buf_ok(&b, w->err);
        if (rc == 0)
            rc = writer_extra(w, "config.json", b.data, b.len);
        buf_free(&b);
        if (rc < 0)
            return -1;
    }
    if (w->meta.bare)
        return 0;
    writer_object(w, &b, false);
    buf_char(&b, '\n');
    rc = buf_ok(&b, w->err);
    if (rc == 0)
        rc = writer_extra(w, "nibble.json", b.data, b.len);
    buf_free(&b);
    return rc;
}

const struct container container_safetensors = {
    .name = "safetensors",
    .suffix = ".safetensors",
    .reserved_name = METADATA,
    .traits = { .to_directory = true },
    .sniff = st_sniff,
    .read = st_read,
    .segments = st_segments,
    .plan = st_plan,
    .finish = st_finish,
};
