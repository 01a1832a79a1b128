/* SPDX-License-Identifier: MIT */
/* safetensors: u64 N | N bytes of JSON | data, by the rules of the reference validator.
 *
 * The header is read in place with the pull reader: no tree.  It is read twice: first
 * to check all of it, which takes 30 to 40 bytes of memory a tensor, and only of a good
 * file again, to make the list.
 */
#include "lib/format/safetensors.h"
#include "lib/base/json.h"
#include "lib/base/num.h"
#include "lib/format/object.h"
#include "lib/format/pager.h"
#include "lib/format/spans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"

enum {
    MAX_HEADER = 100000000,
    MAX_KEYS = 1 << 20,    // of METADATA
    MAX_NIBBLE = 16 << 20, // bytes of our own object there
    PADDING_STEP = 1 << 20,
};

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

/* One reading of a header. */
struct scan {
    struct store *s;
    size_t file;
    struct map *map;
    struct json j;
    struct pager pages;
    struct arena scratch; // strings with escapes, of one record
    bool second;          // all of it was checked, now make the list
    uint64_t data_at;     // of the payloads, in the file
    struct safetensors *f;
    struct seen own, *seen;
    struct spans spans;
};

struct record {
    struct tensor t; // borrows its name and its shape
    uint64_t begin, end;
    uint64_t dims[MAX_RANK];
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
read_shape(struct json *j, struct record *r)
{
    unsigned rank = 0;
    int more;
    json_array(j);
    while ((more = json_item(j)) > 0) {
        if (rank == MAX_RANK)
            return json_fail(j, j->pos, "more than %d dimensions", MAX_RANK);
        if (json_u63(j, &r->dims[rank++]) < 0)
            return -1;
    }
    r->t.rank = (uint8_t)rank;
    r->t.shape = r->dims;
    return more;
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
        if (dtype_text[d] && *text.p == *dtype_text[d] && slice_is(text, dtype_text[d]))
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
    t->dtype = (uint8_t)(text.n ? dtype_of_text(text) : DT_NONE);
    if (t->dtype == DT_NONE)
        return json_fail(j, at, "dtype \"%s\" is unknown",
                         text_quote(q, text.p, text.n));
    return 0;
}

/* Whether the members of a record fit each other and the file. */
static int
check_record(struct scan *x, struct record *r, size_t start)
{
    struct json *j = &x->j;
    char q[TEXT_QUOTE];
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
    if (r->end > x->map->size - x->data_at)
        return json_fail(j, start,
                         "tensor \"%s\": payload ends at byte %llu, file has "
                         "%zu" ERR_FILE_CUT,
                         text_quote(q, r->t.name, r->t.name_len),
                         (unsigned long long)(x->data_at + r->end), x->map->size);
    return 0;
}

/* {"dtype":..., "shape":..., "data_offsets":...}, each once and nothing else. */
static int
read_record(struct scan *x, struct record *r)
{
    static const char *const keys[] = { "dtype", "shape", "data_offsets" };
    struct json *j = &x->j;
    unsigned seen = 0;
    struct slice key;
    int more;
    char q[TEXT_QUOTE];
    json_object(j);
    size_t start = j->pos - 1;
    for (size_t at = j->pos; (more = json_key(j, &key)) > 0; at = j->pos) {
        unsigned which = slice_is(key, "dtype")          ? 0
                         : slice_is(key, "shape")        ? 1
                         : slice_is(key, "data_offsets") ? 2
                                                         : 3;
        if (which == 3)
            return json_fail(j, at, "key \"%s\" is unknown",
                             text_quote(q, key.p, key.n));
        if (seen & 1U << which)
            return json_fail(j, at, "key \"%s\" appears twice", keys[which]);
        seen |= 1U << which;
        int rc = which == 0   ? read_dtype(j, &r->t)
                 : which == 1 ? read_shape(j, r)
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
    return check_record(x, r, start);
}

struct wanted {
    struct slice name;
    bool found;
};

static int
is_wanted(void *ctx, struct slice name)
{
    struct wanted *w = ctx;
    w->found |= slice_eq(name, w->name);
    return 0;
}

/* Whether the name itself was there, not just its hash: 1, 0 or -1. */
static int
is_there(struct scan *x, size_t start, size_t at, struct slice name)
{
    int found = pager_has_key(&x->pages, &x->j, start, name, at);
    for (size_t i = 0; found == 0 && start == 0 && i < x->file; i++) {
        struct wanted w = { name, false };
        struct safetensors f = { .each = is_wanted, .ctx = &w };
        found = safetensors_names(x->s, i, &f) < 0 ? -1 : w.found;
    }
    return found;
}

/* Refuse a second key of the object at start, which is 0 for names: 0, or -1. */
static int
note_key(struct scan *x, struct seen *seen, uint64_t hash, size_t start, size_t at,
         struct slice key, const char *what)
{
    char q[TEXT_QUOTE];
    int there = seen_put(seen, hash);
    if (there == NAME_NO_MEMORY)
        return err_set(x->s->err, ERR_MEMORY, "%s: out of memory for a name",
                       x->map->name);
    if (there > 0)
        there = is_there(x, start, at, key);
    if (there > 0)
        return json_fail(&x->j, at, "a second %s \"%s\"", what,
                         text_quote(q, key.p, key.n));
    return there;
}

/* The value of "nibble": our own object, as text in a string. */
static int
read_nibble(struct scan *x)
{
    struct store *s = x->s;
    struct json text = x->j;
    struct slice nibble = { 0 };
    struct nibble_object o;
    struct err why = { 0 };
    if (json_string(&x->j, NULL) < 0)
        return -1;
    if (!x->second || x->file > 0) // a shard does not describe the whole
        return 0;
    text.arena = &s->arena;
    text.longest = 0;
    if (x->j.pos - text.pos > MAX_NIBBLE)
        why.kind = ERR_FORMAT;
    else if (json_string(&text, &nibble) < 0)
        return -1;
    if (why.kind || object_read(&o, s->name, nibble, &s->arena, &why) < 0)
        return store_warn(
            s, "its metadata \"nibble\" was not written by nibble and is ignored");
    s->config = o.config;
    s->provenance = o.provenance;
    return 0;
}

/* METADATA: strings to strings. */
static int
read_metadata(struct scan *x)
{
    struct json *j = &x->j;
    struct slice key;
    struct seen seen = { 0 };
    int rc = 0;
    json_peek(j);
    size_t start = j->pos;
    json_object(j);
    for (size_t at = j->pos; rc == 0 && json_key(j, &key) > 0; at = j->pos) {
        if (key.n > MAX_NAME)
            rc = json_fail(j, at,
                           "a key of " METADATA " of %zu bytes, at most %d are read",
                           key.n, MAX_NAME);
        else if (seen.n == MAX_KEYS)
            rc = json_fail(j, at, "more than %d keys of " METADATA, MAX_KEYS);
        else if (!x->second)
            rc = note_key(x, &seen, seen_hash(&seen, key), start, at, key,
                          "key of " METADATA);
        if (rc == 0)
            rc = slice_is(key, "nibble") ? read_nibble(x) : json_string(j, NULL);
        arena_clear(&x->scratch);
    }
    seen_free(&seen);
    if (rc == 0 && !j->err->kind && x->file == 0)
        x->s->meta = x->s->metadata = (struct slice){ j->text + start, j->pos - start };
    return j->err->kind ? -1 : rc;
}

/* First time: only the hash of a record's name and its range are kept. */
static int
note(struct scan *x, const struct record *r, uint64_t hash, size_t at)
{
    struct slice name = { r->t.name, r->t.name_len };
    struct span range = { r->begin, r->end, (uint32_t)at };
    if (note_key(x, x->seen, hash, 0, at, name, "tensor of the name") < 0)
        return -1;
    if (spans_add(&x->spans, range) < 0)
        return err_set(x->s->err, ERR_MEMORY, "%s: out of memory", x->map->name);
    x->f->n++;
    x->f->nbytes += r->t.nbytes;
    return x->f->each ? x->f->each(x->f->ctx, name) : 0;
}

static int
list(struct scan *x, struct record *r, size_t at)
{
    r->t.file = (uint32_t)x->file;
    r->t.offset = x->data_at + r->begin;
    r->t.head = x->f->sorted ? r->t.offset : at;
    return store_append(x->s, &r->t);
}

static int
read_tensor(struct scan *x, struct slice name, size_t at)
{
    struct record r;
    char place[64];
    if (!name_fits(name)) {
        snprintf(place, sizeof place, "byte %llu",
                 (unsigned long long)(x->j.base + at));
        return check_name(x->s, name.p, name.n, place);
    }
    r.t = (struct tensor){ .name = name.p, .name_len = (uint32_t)name.n };
    uint64_t hash = x->second ? 0 : seen_hash(x->seen, name);
    if (read_record(x, &r) < 0)
        return -1;
    return x->second ? list(x, &r, at) : note(x, &r, hash, at);
}

/* Spaces up to the end of the header, which can be many. */
static int
read_padding(struct scan *x)
{
    struct json *j = &x->j;
    for (size_t end = j->pos; j->pos < j->len && j->text[j->pos] == ' '; j->pos++)
        if (j->pos == end) {
            pager_passed(&x->pages, j->pos);
            end += PADDING_STEP;
        }
    return j->pos == j->len ? 0
                            : json_fail(j, j->pos, "expected spaces behind the header");
}

static int
read_header(struct scan *x)
{
    struct json *j = &x->j;
    struct slice key;
    bool metadata = false;
    int more;
    json_object(j);
    for (size_t at = j->pos; (more = json_key(j, &key)) > 0; at = j->pos) {
        bool meta = slice_is(key, METADATA);
        if (meta && metadata)
            return json_fail(j, at, "\"" METADATA "\" appears twice");
        metadata |= meta;
        if ((meta ? read_metadata(x) : read_tensor(x, key, at)) < 0)
            return -1;
        arena_clear(&x->scratch);
    }
    return more < 0 ? -1 : read_padding(x);
}

/* No hole, no overlap, up to the end of the file. */
static int
check_places(struct scan *x)
{
    struct json *j = &x->j;
    uint64_t end, all = x->map->size - x->data_at;
    char q[TEXT_QUOTE];
    x->f->sorted = x->spans.sorted;
    const struct span *gap = spans_gap(&x->spans, &end);
    if (gap) {
        struct slice name = { 0 };
        j->pos = gap->at;
        while (j->pos < j->len && j->text[j->pos] != '"') // a comma, white space
            j->pos++;
        if (json_string(j, &name) < 0)
            return -1;
        return json_fail(j, gap->at,
                         "tensor \"%s\" begins at %llu, expected %llu (no hole, no "
                         "overlap)",
                         text_quote(q, name.p, name.n), (unsigned long long)gap->begin,
                         (unsigned long long)end);
    }
    if (end != all)
        return err_set(x->s->err, ERR_FORMAT,
                       "%s: byte %llu: %llu bytes after the last tensor", x->map->name,
                       (unsigned long long)(x->data_at + end),
                       (unsigned long long)(all - end));
    return 0;
}

/* Begin to read the JSON text. */
static int
scan_open(struct scan *x, struct store *s, size_t file, struct safetensors *f)
{
    struct map *m = &s->files[file];
    *x = (struct scan){ .s = s, .file = file, .map = m, .f = f };
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
    pager_open(&x->pages, &x->j, m, 8, (size_t)n, &x->scratch, s->err);
    x->j.longest = MAX_NAME; // no other string is unescaped
    x->data_at = 8 + n;
    x->seen = f->seen ? f->seen : &x->own;
    return 0;
}

static int
scan_close(struct scan *x, int rc)
{
    seen_free(&x->own);
    spans_free(&x->spans);
    arena_free(&x->scratch);
    return rc;
}

int
safetensors_check(struct store *s, size_t file, struct safetensors *f)
{
    struct scan x;
    int rc = scan_open(&x, s, file, f);
    if (rc == 0)
        rc = read_header(&x);
    seen_free(&x.own);
    if (rc == 0)
        rc = check_places(&x);
    return scan_close(&x, rc);
}

int
safetensors_names(struct store *s, size_t file, struct safetensors *f)
{
    struct scan x;
    struct slice key;
    int more = scan_open(&x, s, file, f);
    if (more == 0)
        json_object(&x.j);
    while (more >= 0 && (more = json_key(&x.j, &key)) > 0) {
        more = slice_is(key, METADATA) ? 0 : f->each(f->ctx, key);
        if (more == 0)
            more = json_skip(&x.j, NULL);
        arena_clear(&x.scratch);
    }
    return scan_close(&x, more);
}

static int
by_place(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->nbytes != y->nbytes)
        return x->nbytes < y->nbytes ? -1 : 1;
    return x->head < y->head ? -1 : x->head > y->head; // the place in the header
}

int
safetensors_list(struct store *s, size_t file, const struct safetensors *f)
{
    struct scan x;
    struct safetensors copy = *f;
    size_t first = s->n_tensors;
    if (store_reserve(s, f->n) < 0 || scan_open(&x, s, file, &copy) < 0)
        return -1;
    x.second = true;
    int rc = scan_close(&x, read_header(&x));
    if (rc == 0 && !f->sorted && s->n_tensors > first) {
        qsort(s->tensors + first, s->n_tensors - first, sizeof *s->tensors, by_place);
        for (size_t i = first; i < s->n_tensors; i++)
            s->tensors[i].head = s->tensors[i].offset;
    }
    return rc == 0 ? store_number(s, "changed meanwhile") : rc;
}

int
safetensors_read_file(struct store *s, size_t file)
{
    struct safetensors f = { 0 };
    return safetensors_check(s, file, &f) < 0 ? -1 : safetensors_list(s, file, &f);
}

static int
st_read(struct store *s)
{
    return safetensors_read_file(s, 0);
}

void
safetensors_segments(const struct store *s, segment_fn fn, void *ctx)
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

/* Wide elements first, so that each begins at a multiple of its size.  The reference
 * sorts by dtype; size alone leaves scales of one byte behind their codes, where both
 * are made in one pass. */
static int
by_width(const void *a, const void *b)
{
    const struct wtensor *x = a, *y = b;
    unsigned n = dtype_bits(x->dtype) / 8, m = dtype_bits(y->dtype) / 8;
    n = n ? n : 1; // half bytes have tensors of whole ones
    m = m ? m : 1;
    return n != m ? (n > m ? -1 : 1) : strcmp(x->name, y->name);
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
    buf_str(b, "{\"" METADATA "\":{");
    if (w->meta.metadata.p)
        buf_add(b, w->meta.metadata.p, w->meta.metadata.n);
    else
        buf_str(b, "\"format\":\"pt\"");
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

/* The end of the shard that begins at from: tensors until the size is reached, at
 * least one. */
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
check_types(const struct writer *w)
{
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < w->n; i++) {
        const struct wtensor *t = &w->t[i];
        if (!dtype_text[t->dtype] || (t->dtype == DT_F4_E2M1 && t->rank == 0))
            return err_set(w->err, ERR_USAGE,
                           "%s: \"%s\": safetensors cannot hold %s of rank %u", w->name,
                           text_quote(q, t->name, strlen(t->name)),
                           dtype_name(t->dtype), t->rank);
    }
    return 0;
}

/* A file for each shard, at least one. */
static int
alloc_files(struct writer *w)
{
    size_t shards = 0;
    for (size_t i = 0; i < w->n; i = shard_end(w, i))
        shards++;
    if (shards <= 1)
        return 0;
    struct wfile *files = calloc(shards, sizeof *files);
    if (!files)
        return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
    free(w->files);
    w->files = files;
    w->n_files = shards;
    return 0;
}

int
safetensors_plan(struct writer *w)
{
    if (w->n)
        qsort(w->t, w->n, sizeof *w->t, by_name);
    if (check_types(w) < 0 || alloc_files(w) < 0)
        return -1;
    for (size_t k = 0, from = 0; k < w->n_files; k++) {
        char leaf[64] = "model.safetensors";
        size_t to = w->n ? shard_end(w, from) : 0;
        if (to > from)
            qsort(w->t + from, to - from, sizeof *w->t, by_width);
        if (w->n_files > 1)
            snprintf(leaf, sizeof leaf, "model-%05zu-of-%05zu.safetensors", k + 1,
                     w->n_files);
        w->files[k].leaf = strdup(leaf);
        if (!w->files[k].leaf)
            return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
        if (plan_shard(w, k, from, to) < 0)
            return -1;
        from = to;
    }
    return 0;
}

/* One more file of a directory; frees its text. */
static int
put_file(struct writer *w, const char *leaf, struct buf *text)
{
    int rc = buf_ok(text, w->err);
    if (rc == 0)
        rc = writer_extra(w, leaf, text->data, text->len);
    buf_free(text);
    return rc;
}

/* model.safetensors.index.json of a sharded directory, by name as readers list it. */
static int
put_index(struct writer *w)
{
    struct buf b = { 0 };
    uint64_t total = 0;
    struct wtensor *t = malloc(w->n * sizeof *t);
    if (!t)
        return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
    memcpy(t, w->t, w->n * sizeof *t);
    qsort(t, w->n, sizeof *t, by_name);
    for (size_t i = 0; i < w->n; i++)
        total += w->t[i].nbytes;
    buf_printf(
        &b, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {",
        (unsigned long long)total);
    for (size_t i = 0; i < w->n; i++) {
        buf_str(&b, i ? ",\n    " : "\n    ");
        json_put(&b, slice_of(t[i].name));
        buf_printf(&b, ": \"%s\"", w->files[t[i].file].leaf);
    }
    free(t);
    buf_str(&b, "\n  }\n}\n");
    return put_file(w, "model.safetensors.index.json", &b);
}

static int
put_config(struct writer *w)
{
    struct buf b = { 0 };
    if (!w->meta.config.p)
        return 0;
    buf_add(&b, w->meta.config.p, w->meta.config.n);
    if (!slice_ends(w->meta.config, "\n"))
        buf_char(&b, '\n');
    return put_file(w, "config.json", &b);
}

/* A file: the header again, now with the final provenance.  A directory: what is beside
 * the shards. */
int
safetensors_finish(struct writer *w)
{
    struct buf b = { 0 };
    if (!w->is_dir) {
        put_header(&b, w, 0, w->n);
        int rc = buf_ok(&b, w->err);
        if (rc == 0)
            rc = out_pwrite(&w->out, b.data, b.len, 0, w->err);
        buf_free(&b);
        return rc;
    }
    if ((w->n_files > 1 && put_index(w) < 0) || put_config(w) < 0)
        return -1;
    if (w->meta.bare)
        return 0;
    writer_object(w, &b, false);
    buf_char(&b, '\n');
    return put_file(w, "nibble.json", &b);
}

const struct container container_safetensors = {
    .name = "safetensors",
    .suffix = ".safetensors",
    .reserved_name = METADATA,
    .traits = { .to_directory = true, .by_width = true, .keeps_metadata = true },
    .sniff = st_sniff,
    .read = st_read,
    .segments = safetensors_segments,
    .plan = safetensors_plan,
    .finish = safetensors_finish,
};
