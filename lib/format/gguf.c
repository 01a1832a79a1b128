/* SPDX-License-Identifier: MIT */
/* gguf: version 3, doc/FORMAT.md section 7.
 *
 *   "GGUF" | u32 3 | u64 tensors | u64 pairs | pairs | infos | zeros | data
 *
 * Pairs and infos are walked once, in place.  The arrays of a tokenizer, most of what
 * is before the data, are measured and skipped.
 */
#include "lib/format/gguf.h"

#include "lib/base/grow.h"
#include "lib/base/json.h"
#include "lib/base/num.h"
#include "lib/format/container.h"
#include "lib/format/object.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    VERSION = 3,
    HEAD_BYTES = 24,
    PAIR_BYTES = 13,     // of the shortest pair: an empty key, one byte of value
    INFO_BYTES = 24,     // of the shortest info: an empty name, rank 0
    MAX_KEY = 65535,     // of the format
    MAX_NESTED = 4,      // arrays in arrays; in practice none are
    MAX_TEXT = 64 << 10, // a longer string is not shown
    ALIGNMENT = 32,      // the default
    // bounds of this reader, doc/FORMAT.md
    MAX_PAIRS = 1 << 16,
    MAX_INFOS = 1 << 16,
    MAX_INFO_BYTES = 8 << 20,
    MAX_META = 8 << 20, // bytes of the pairs as JSON, without long values
    FORGET = 2 << 20,   // bytes read, until their pages are released
};

/* By the number of the type. */
static const uint8_t dtype_of_type[] = {
    [0] = DT_F32,         [1] = DT_F16,     [2] = DT_Q4_0,     [3] = DT_Q4_1,
    [6] = DT_Q5_0,        [7] = DT_Q5_1,    [8] = DT_Q8_0,     [9] = DT_Q8_1,
    [10] = DT_Q2_K,       [11] = DT_Q3_K,   [12] = DT_Q4_K,    [13] = DT_Q5_K,
    [14] = DT_Q6_K,       [15] = DT_Q8_K,   [16] = DT_IQ2_XXS, [17] = DT_IQ2_XS,
    [18] = DT_IQ3_XXS,    [19] = DT_IQ1_S,  [20] = DT_IQ4_NL,  [21] = DT_IQ3_S,
    [22] = DT_IQ2_S,      [23] = DT_IQ4_XS, [24] = DT_I8,      [25] = DT_I16,
    [26] = DT_I32,        [27] = DT_I64,    [28] = DT_F64,     [29] = DT_IQ1_M,
    [30] = DT_BF16,       [34] = DT_TQ1_0,  [35] = DT_TQ2_0,   [39] = DT_MXFP4,
    [40] = DT_NVFP4_GGUF, [41] = DT_Q1_0,
};

enum { N_TYPES = sizeof dtype_of_type };

static const uint8_t value_bytes[GGUF_TYPES] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
    [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
    [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

static const char *const type_names[GGUF_TYPES] = {
    [GGUF_U8] = "u8",       [GGUF_I8] = "i8",     [GGUF_U16] = "u16",
    [GGUF_I16] = "i16",     [GGUF_U32] = "u32",   [GGUF_I32] = "i32",
    [GGUF_F32] = "f32",     [GGUF_BOOL] = "bool", [GGUF_STRING] = "string",
    [GGUF_ARRAY] = "array", [GGUF_U64] = "u64",   [GGUF_I64] = "i64",
    [GGUF_F64] = "f64",
};

struct cursor {
    struct store *s;
    const uint8_t *p; // the whole file
    uint64_t size, pos;
    uint64_t kept; // the first byte whose page may still be in memory
};

/* "m.gguf: byte 17: ..." */
static void report(const struct cursor *c, uint64_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define fail(...) (report(__VA_ARGS__), err_minus_one())

static void
report(const struct cursor *c, uint64_t at, const char *fmt, ...)
{
    char words[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    err_fill(c->s->err, ERR_FORMAT, "%s: byte %llu: %s", c->s->name,
             (unsigned long long)at, words);
}

static uint64_t
left(const struct cursor *c)
{
    return c->size - c->pos;
}

/* The next n bytes, or NULL. */
static const uint8_t *
next_bytes(struct cursor *c, uint64_t n, const char *what)
{
    if (n > left(c)) {
        report(c, c->pos, "%s of %llu bytes, the file ends at byte %llu", what,
               (unsigned long long)n, (unsigned long long)c->size);
        return NULL;
    }
    const uint8_t *p = c->p + c->pos;
    if (c->pos - c->kept >= FORGET) {
        map_forget(&c->s->files[0], c->kept, c->pos);
        c->kept = c->pos;
    }
    c->pos += n;
    return p;
}

static int
read_u32(struct cursor *c, uint32_t *v, const char *what)
{
    const uint8_t *p = next_bytes(c, 4, what);
    *v = p ? load_le32(p) : 0;
    return p ? 0 : -1;
}

static int
read_u64(struct cursor *c, uint64_t *v, const char *what)
{
    const uint8_t *p = next_bytes(c, 8, what);
    *v = p ? load_le64(p) : 0;
    return p ? 0 : -1;
}

static int
read_string(struct cursor *c, struct slice *s, const char *what)
{
    uint64_t n;
    if (read_u64(c, &n, what) < 0)
        return -1;
    s->p = (const char *)next_bytes(c, n, what);
    s->n = (size_t)n;
    return s->p ? 0 : -1;
}

/* ---- key-value pairs ---------------------------------------------------------------- */

/* Type and number of the items of an array, part of which at least is there. */
static int
open_array(struct cursor *c, uint32_t *type, uint64_t *n)
{
    uint64_t at = c->pos;
    if (read_u32(c, type, "the type of an array") < 0 ||
        read_u64(c, n, "the length of an array") < 0)
        return -1;
    if (*type >= GGUF_TYPES)
        return fail(c, at, "value type %u is unknown", *type);
    unsigned item_bytes = *type == GGUF_STRING  ? 8
                          : *type == GGUF_ARRAY ? 12
                                                : value_bytes[*type];
    if (*n > left(c) / item_bytes)
        return fail(c, at, "an array of %llu items announced, %llu bytes follow",
                    (unsigned long long)*n, (unsigned long long)left(c));
    return 0;
}

/* Skip an array; its items are not kept. */
static int
skip_array(struct cursor *c, struct gguf_value *v)
{
    struct {
        uint32_t type;
        uint64_t n;
    } open[MAX_NESTED]; // what is left of each
    unsigned depth = 0;
    struct slice text;
    do {
        if (depth == MAX_NESTED)
            return fail(c, c->pos, "arrays nested deeper than %d", MAX_NESTED);
        if (open_array(c, &open[depth].type, &open[depth].n) < 0)
            return -1;
        if (depth == 0) {
            v->item = open[0].type;
            v->count = open[0].n;
        }
        if (open[depth].type == GGUF_STRING)
            for (; open[depth].n; open[depth].n--)
                if (read_string(c, &text, "a string") < 0)
                    return -1;
        if (open[depth].type != GGUF_ARRAY) {
            c->pos += open[depth].n * value_bytes[open[depth].type];
            open[depth].n = 0;
        }
        while (open[depth].n == 0 && depth > 0)
            depth--;
        if (open[depth].n) { // an array of arrays: its next one
            open[depth].n--;
            depth++;
        }
    } while (depth);
    return 0;
}

static void
decode_number(struct gguf_value *v, const uint8_t *p)
{
    uint32_t bits = value_bytes[v->type] == 4 ? load_le32(p) : 0;
    uint64_t bits64 = value_bytes[v->type] == 8 ? load_le64(p) : 0;
    float f;
    switch (v->type) {
    case GGUF_U16:
        v->u = load_le16(p);
        break;
    case GGUF_U32:
        v->u = bits;
        break;
    case GGUF_U64:
        v->u = bits64;
        break;
    case GGUF_I8:
        v->i = *p < 0x80 ? *p : *p - 0x100;
        break;
    case GGUF_I16:
        v->i = (int16_t)load_le16(p);
        break;
    case GGUF_I32:
        v->i = (int32_t)bits;
        break;
    case GGUF_I64:
        v->i = (int64_t)bits64;
        break;
    case GGUF_F32:
        memcpy(&f, &bits, sizeof f);
        v->f = (double)f;
        break;
    case GGUF_F64:
        memcpy(&v->f, &bits64, sizeof v->f);
        break;
    default: // GGUF_U8, GGUF_BOOL
        v->u = *p;
    }
    v->negative = v->i < 0;
    if (v->i > 0)
        v->u = (uint64_t)v->i;
}

static int
read_value(struct cursor *c, struct gguf_value *v)
{
    uint32_t type;
    uint64_t at = c->pos;
    *v = (struct gguf_value){ 0 };
    if (read_u32(c, &type, "the type of a value") < 0)
        return -1;
    if (type >= GGUF_TYPES)
        return fail(c, at, "value type %u is unknown", type);
    v->type = type;
    if (type == GGUF_STRING)
        return read_string(c, &v->text, "a string");
    if (type == GGUF_ARRAY)
        return skip_array(c, v);
    const uint8_t *p = next_bytes(c, value_bytes[type], "a value");
    if (!p)
        return -1;
    if (type == GGUF_BOOL && *p > 1)
        return fail(c, c->pos - 1, "a boolean of 0x%02x, expected 0 or 1", *p);
    decode_number(v, p);
    return 0;
}

static int
read_key(struct cursor *c, struct slice *key, struct seen *seen)
{
    char q[TEXT_QUOTE];
    uint64_t at = c->pos;
    if (read_string(c, key, "a key") < 0)
        return -1;
    if (key->n < 1 || key->n > MAX_KEY)
        return fail(c, at, "a key of %zu bytes, expected 1..%d", key->n, MAX_KEY);
    text_quote(q, key->p, key->n);
    if (utf8_check(key->p, key->n) < key->n || memchr(key->p, '\0', key->n))
        return fail(c, at, "key \"%s\" is not UTF-8 without NUL", q);
    int there = seen_add(seen, *key); // 65,536 keys: equal hashes are equal keys
    if (there > 0)
        return fail(c, at, "key \"%s\" appears twice", q);
    if (there < 0)
        return err_set(c->s->err, ERR_MEMORY, "%s: out of memory for a key",
                       c->s->name);
    return 0;
}

/* A pair as a member of a JSON object: of a long value its size. */
static void
put_meta(struct buf *b, struct slice key, const struct gguf_value *v)
{
    buf_char(b, b->len ? ',' : '{');
    json_put(b, key);
    buf_char(b, ':');
    bool text = v->type == GGUF_STRING;
    if (text && v->text.n <= MAX_TEXT)
        json_put(b, v->text);
    else if (text || v->type == GGUF_ARRAY)
        buf_printf(b, "{\"%s\":%llu,\"of\":\"%s\"}", text ? "bytes" : "items",
                   text ? (unsigned long long)v->text.n : (unsigned long long)v->count,
                   text ? "string" : type_names[v->item]);
    else if (v->type == GGUF_BOOL)
        buf_str(b, v->u ? "true" : "false");
    else if (v->type == GGUF_F32 && isfinite(v->f))
        gguf_put_shortest(b, (float)v->f);
    else if (v->type == GGUF_F32 || v->type == GGUF_F64)
        json_put_number(b, v->f, 17);
    else if (v->negative)
        buf_printf(b, "%lld", (long long)v->i);
    else
        buf_printf(b, "%llu", (unsigned long long)v->u);
}

/* general.alignment: of the payloads, from the beginning of the data. */
static int
check_alignment(const struct cursor *c, const struct gguf_value *v, uint64_t at,
                uint64_t *alignment)
{
    if (v->type != GGUF_U32)
        return fail(c, at,
                    "general.alignment: expected a u32, found a value of type %s",
                    type_names[v->type]);
    if (v->u < 8 || v->u & (v->u - 1))
        return fail(c, at,
                    "general.alignment: expected a power of two above 7, found "
                    "%llu",
                    (unsigned long long)v->u);
    *alignment = v->u;
    return 0;
}

static int
read_pairs(struct cursor *c, uint64_t n, struct gguf_model *m, uint64_t *alignment)
{
    struct seen seen = { 0 };
    struct buf meta = { 0 };
    int rc = 0;
    if (n > left(c) / PAIR_BYTES)
        return fail(c, 16, "%llu key-value pairs announced, %llu bytes follow",
                    (unsigned long long)n, (unsigned long long)left(c));
    if (n > MAX_PAIRS)
        return fail(c, 16, "%llu key-value pairs, at most %d are read",
                    (unsigned long long)n, MAX_PAIRS);
    for (uint64_t i = 0; i < n && rc == 0; i++) {
        struct slice key;
        struct gguf_value v;
        rc = read_key(c, &key, &seen);
        uint64_t at = c->pos;
        if (rc == 0)
            rc = read_value(c, &v);
        if (rc < 0)
            break;
        if (slice_is(key, "general.alignment"))
            rc = check_alignment(c, &v, at, alignment);
        gguf_model_set(m, key, &v);
        if (!slice_is(key, "nibble.provenance"))
            put_meta(&meta, key, &v);
        if (meta.len > MAX_META)
            rc = fail(c, at, "key-value pairs of more than %d bytes of text", MAX_META);
    }
    if (rc == 0 && meta.len) {
        buf_char(&meta, '}');
        rc = store_keep(c->s, &c->s->meta, &meta);
    }
    seen_free(&seen);
    buf_free(&meta);
    return rc;
}

/* ---- infos of tensors ---------------------------------------------------------------- */

struct record {
    struct tensor t;
    uint64_t begin; // from the beginning of the data
};

struct records {
    struct record *v;
    size_t n, cap;
};

static struct record *
new_record(struct store *s, struct records *all)
{
    if (!GROW(all->v, all->n, all->cap, 64)) {
        err_set(s->err, ERR_MEMORY, "%s: out of memory for %zu tensors", s->name,
                all->n + 1);
        return NULL;
    }
    all->v[all->n] = (struct record){ 0 };
    return &all->v[all->n++];
}

/* The fastest dimension is first there, last here. */
static int
read_shape(struct cursor *c, struct tensor *t)
{
    uint32_t rank;
    uint64_t at = c->pos;
    if (read_u32(c, &rank, "a rank") < 0)
        return -1;
    if (rank > MAX_RANK)
        return fail(c, at, "rank %u, expected 0..%d", rank, MAX_RANK);
    const uint8_t *p = next_bytes(c, 8 * (uint64_t)rank, "dimensions");
    uint64_t *dims = p ? arena_alloc(&c->s->arena, rank * sizeof *dims) : NULL;
    if (!p)
        return -1;
    if (!dims)
        return err_set(c->s->err, ERR_MEMORY, "%s: out of memory", c->s->name);
    for (uint32_t i = 0; i < rank; i++)
        dims[rank - 1 - i] = load_le64(p + 8 * (size_t)i);
    t->rank = (uint8_t)rank;
    t->shape = dims;
    return 0;
}

static int
read_type(struct cursor *c, struct tensor *t)
{
    char q[TEXT_QUOTE];
    uint32_t type;
    uint64_t at = c->pos;
    if (read_u32(c, &type, "a tensor type") < 0)
        return -1;
    t->dtype = type < N_TYPES ? dtype_of_type[type] : DT_NONE;
    text_quote(q, t->name, t->name_len);
    if (t->dtype == DT_NONE)
        return fail(c, at, "tensor \"%s\": type %u is unknown", q, type);
    if (dtype_size(&t->numel, &t->nbytes, t->dtype, t->shape, t->rank))
        return 0;
    if (dtype_block(t->dtype) &&
        (t->rank == 0 || t->shape[t->rank - 1] % dtype_block(t->dtype)))
        return fail(c, at, "tensor \"%s\": rows of %s are multiples of %u", q,
                    dtype_name(t->dtype), dtype_block(t->dtype));
    return fail(c, at, "tensor \"%s\": its size does not fit 63 bits", q);
}

static int
read_info(struct cursor *c, struct records *all, uint64_t alignment)
{
    char q[TEXT_QUOTE], place[64];
    struct slice name;
    struct record *r = new_record(c->s, all);
    if (!r)
        return -1;
    struct tensor *t = &r->t;
    t->head = c->pos;
    snprintf(place, sizeof place, "byte %llu", (unsigned long long)t->head);
    if (read_string(c, &name, "a name") < 0 ||
        check_name(c->s, name.p, name.n, place) < 0)
        return -1;
    t->name = arena_copy(&c->s->arena, name.p, name.n);
    t->name_len = (uint32_t)name.n;
    if (!t->name)
        return err_set(c->s->err, ERR_MEMORY, "%s: out of memory", c->s->name);
    if (read_shape(c, t) < 0 || read_type(c, t) < 0)
        return -1;
    uint64_t at = c->pos;
    if (read_u64(c, &r->begin, "an offset") < 0)
        return -1;
    if (r->begin % alignment)
        return fail(c, at, "tensor \"%s\": offset %llu is no multiple of %llu",
                    text_quote(q, name.p, name.n), (unsigned long long)r->begin,
                    (unsigned long long)alignment);
    return 0;
}

static int
by_begin(const void *a, const void *b)
{
    const struct record *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->t.nbytes != y->t.nbytes)
        return x->t.nbytes < y->t.nbytes ? -1 : 1;
    return x->t.head < y->t.head ? -1 : x->t.head > y->t.head;
}

/* The padding between payloads should be zeros. */
static int
check_padding(const struct cursor *c, uint64_t from, uint64_t to)
{
    if (!c->s->opt.strict) // or a listing would touch a page a payload
        return 0;
    for (; from < to; from++)
        if (c->p[from])
            return fail(c, from, "padding of 0x%02x, expected 0", c->p[from]);
    return 0;
}

/* No hole and no overlap, up to the end of the file.  Writers fill the last payload up
 * to the alignment, too, but some do not: both ends are right. */
static int
place_records(struct cursor *c, struct records *all, uint64_t alignment)
{
    uint64_t infos_end = c->pos;
    uint64_t data = round_up(infos_end, alignment);
    uint64_t data_bytes = c->size > data ? c->size - data : 0, end = 0;
    char q[TEXT_QUOTE], place[64];
    if (all->n)
        qsort(all->v, all->n, sizeof *all->v, by_begin);
    for (size_t i = 0; i < all->n; i++) {
        struct tensor *t = &all->v[i].t;
        uint64_t want = round_up(end, alignment), begin = all->v[i].begin;
        text_quote(q, t->name, t->name_len);
        if (begin != want)
            return fail(c, t->head,
                        "tensor \"%s\" begins at %llu of the data, expected %llu (no "
                        "hole, no overlap)",
                        q, (unsigned long long)begin, (unsigned long long)want);
        if (begin > data_bytes ? t->nbytes > 0 : t->nbytes > data_bytes - begin)
            return fail(c, t->head,
                        "tensor \"%s\": payload of %llu bytes at %llu, file has "
                        "%llu" ERR_FILE_CUT,
                        q, (unsigned long long)t->nbytes,
                        (unsigned long long)(data + begin),
                        (unsigned long long)c->size);
        if (t->nbytes &&
            check_padding(c, end ? data + end : infos_end, data + begin) < 0)
            return -1;
        t->offset = data + begin < c->size ? data + begin : c->size;
        snprintf(place, sizeof place, "byte %llu", (unsigned long long)t->head);
        if (store_add(c->s, t, place) < 0)
            return -1;
        end = t->nbytes ? begin + t->nbytes : end;
    }
    uint64_t last = end ? data + end : infos_end; // byte behind what holds something
    uint64_t full = data + round_up(end, alignment);
    if (c->size != last && c->size != full)
        return fail(c, last, "%llu bytes after the last tensor, expected none or %llu",
                    (unsigned long long)(c->size - last),
                    (unsigned long long)(full - last));
    return check_padding(c, last, c->size);
}

/* ---- a file --------------------------------------------------------------------------- */

static bool
gguf_sniff(const uint8_t *head, size_t n, uint64_t file_bytes)
{
    (void)file_bytes;
    return n >= 4 && memcmp(head, "GGUF", 4) == 0;
}

static int
read_head(struct cursor *c, uint64_t *tensors, uint64_t *pairs)
{
    char q[TEXT_QUOTE];
    uint32_t version;
    const uint8_t *magic = next_bytes(c, 4, "a magic number");
    if (!magic)
        return -1;
    if (memcmp(magic, "GGUF", 4) != 0)
        return fail(c, 0, "expected \"GGUF\", found \"%s\"",
                    text_quote(q, (const char *)magic, 4));
    if (read_u32(c, &version, "a version") < 0)
        return -1;
    if (version != VERSION)
        return fail(c, 4, "version %u, expected %d%s", version, VERSION,
                    version == (uint32_t)VERSION << 24 ? " (it is big-endian)" : "");
    return read_u64(c, tensors, "the number of tensors") < 0 ||
                   read_u64(c, pairs, "the number of pairs") < 0
               ? -1
               : 0;
}

/* The object of files that we wrote, if it is one. */
static int
read_nibble(struct store *s, const struct gguf_model *m)
{
    struct nibble_object o;
    struct err why = { 0 };
    const char *differs = NULL;
    if (!m->nibble.p)
        return 0;
    if (object_read(&o, s->name, m->nibble, &s->arena, &why) < 0)
        return store_warn(
            s, "its \"nibble.provenance\" was not written by nibble and is ignored");
    s->provenance = o.provenance;
    if (!o.config.p || gguf_model_agrees(m, s, o.config, &differs))
        s->config = o.config;
    else
        store_warn(
            s,
            "%s of the configuration that it holds differs from its keys, which are "
            "used",
            differs);
    return 0;
}

static int
read_config(struct store *s, const struct gguf_model *m)
{
    struct buf b = { 0 };
    const char *missing;
    read_nibble(s, m);
    if (s->config.p)
        return 0;
    gguf_model_config(m, s, &b, &missing);
    if (missing && m->sizes) // some keys of a model, but not all
        store_warn(s, "its keys are no complete configuration: %s is missing", missing);
    return b.len || b.failed ? store_keep(s, &s->config, &b) : 0;
}

static int
gguf_read(struct store *s)
{
    const struct map *file = &s->files[0];
    struct cursor c = { .s = s, .p = file->data, .size = file->size };
    struct records all = { 0 };
    struct gguf_model m;
    uint64_t tensors, pairs, alignment = ALIGNMENT;
    gguf_model_init(&m);
    if (read_head(&c, &tensors, &pairs) < 0 ||
        read_pairs(&c, pairs, &m, &alignment) < 0)
        return -1;
    s->infos = c.pos;
    if (tensors > left(&c) / INFO_BYTES)
        return fail(&c, 8, "%llu tensors announced, %llu bytes follow",
                    (unsigned long long)tensors, (unsigned long long)left(&c));
    if (tensors > MAX_INFOS)
        return fail(&c, 8, "%llu tensors, at most %d are read",
                    (unsigned long long)tensors, MAX_INFOS);
    int rc = 0;
    for (uint64_t i = 0; i < tensors && rc == 0; i++) {
        rc = read_info(&c, &all, alignment);
        if (rc == 0 && c.pos - s->infos > MAX_INFO_BYTES)
            rc = fail(&c, c.pos, "infos of tensors of more than %d bytes",
                      MAX_INFO_BYTES);
    }
    s->header_bytes = c.pos;
    if (rc == 0)
        rc = place_records(&c, &all, alignment);
    free(all.v);
    // Another architecture may have the same names for rows in another order.
    s->known_names = !m.architecture.p || arch_of_gguf(m.architecture);
    return rc == 0 ? read_config(s, &m) : -1;
}

static void
gguf_segments(const struct store *s, segment_fn fn, void *ctx)
{
    uint64_t at = s->header_bytes;
    fn(ctx, 0, 0, HEAD_BYTES, "header", NULL);
    if (s->infos > HEAD_BYTES)
        fn(ctx, 0, HEAD_BYTES, s->infos - HEAD_BYTES, "key-value pairs", NULL);
    if (at > s->infos)
        fn(ctx, 0, s->infos, at - s->infos, "tensor infos", NULL);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct tensor *t = &s->tensors[i];
        if (!t->nbytes)
            continue;
        if (t->offset > at)
            fn(ctx, 0, at, t->offset - at, "padding", NULL);
        fn(ctx, 0, t->offset, t->nbytes, "payload", t);
        at = t->offset + t->nbytes;
    }
    if (s->bytes > at)
        fn(ctx, 0, at, s->bytes - at, "padding", NULL);
}

/* ---- writing -------------------------------------------------------------------------- */

static uint32_t
type_of_dtype(enum dtype d)
{
    uint32_t type = 0;
    while (type < N_TYPES && dtype_of_type[type] != d)
        type++;
    return type;
}

/* llama.cpp's number for the type of the majority of the weights. */
static uint32_t
file_type(const struct writer *w)
{
    enum { ALL_F32 = 0, MOSTLY_F16 = 1, NVFP4 = 39, MOSTLY_BF16 = 32 };
    uint32_t type = ALL_F32;
    for (size_t i = 0; i < w->n; i++) {
        enum dtype d = w->t[i].dtype;
        if (d == DT_NVFP4_GGUF)
            return NVFP4;
        if (w->t[i].rank == 2 && (d == DT_F16 || d == DT_BF16))
            type = d == DT_F16 ? MOSTLY_F16 : MOSTLY_BF16;
    }
    return type;
}

static void
put_name(struct buf *b, const struct wtensor *t)
{
    struct buf name = { 0 };
    gguf_name_of(&name, slice_of(t->name));
    gguf_put_string(b, (struct slice){ name.data, name.len });
    b->failed |= name.failed;
    buf_free(&name);
}

/* Which products must not use 4-bit activations.  llama.cpp multiplies NVFP4 as W4A4
 * where the GPU can, unless the file says that the weights alone were quantized. */
static void
put_precision(struct gguf_kv *kv, const struct writer *w)
{
    uint64_t n = 0;
    for (size_t i = 0; i < w->n; i++) {
        if (slice_ends(slice_of(w->t[i].name), ".input_scale"))
            return; // a W4A4 model
        n += w->t[i].dtype == DT_NVFP4_GGUF;
    }
    if (n == 0)
        return;
    gguf_kv_array(kv, "general.tensor_extra.name", GGUF_STRING, n);
    for (size_t i = 0; i < w->n; i++)
        if (w->t[i].dtype == DT_NVFP4_GGUF)
            put_name(&kv->bytes, &w->t[i]);
    gguf_kv_array(kv, "general.tensor_extra.prec_a4", GGUF_BOOL, n);
    buf_fill(&kv->bytes, 0, n);
}

static void
put_info(struct buf *b, const struct wtensor *t, uint64_t begin)
{
    put_name(b, t);
    gguf_put_u32(b, t->rank);
    for (unsigned d = t->rank; d-- > 0;)
        gguf_put_u64(b, t->shape[d]);
    gguf_put_u32(b, type_of_dtype(t->dtype));
    gguf_put_u64(b, begin);
}

/* Everything before the data; its size does not depend on the provenance's bytes, only
 * on their number. */
static void
put_head(struct buf *b, const struct writer *w)
{
    struct gguf_kv general = { 0 }, nibble = { 0 };
    struct buf object = { 0 };
    uint64_t begin = 0;
    const char *arch = w->meta.gguf->architecture;
    gguf_kv_string(&general, "general.architecture",
                   slice_of(arch ? arch : arch_all[0]->gguf));
    gguf_kv_u32(&general, "general.file_type", file_type(w));
    gguf_kv_u32(&general, "general.quantization_version", 2);
    put_precision(&general, w);
    if (!w->meta.bare) {
        writer_object(w, &object, false);
        gguf_kv_string(&nibble, "nibble.provenance",
                       (struct slice){ object.data, object.len });
    }
    buf_str(b, "GGUF");
    gguf_put_u32(b, VERSION);
    gguf_put_u64(b, w->n);
    gguf_put_u64(b, general.n + w->meta.gguf->n + nibble.n);
    buf_add(b, general.bytes.data, general.bytes.len);
    buf_add(b, w->meta.gguf->bytes.data, w->meta.gguf->bytes.len);
    buf_add(b, nibble.bytes.data, nibble.bytes.len);
    for (size_t i = 0; i < w->n; i++) {
        put_info(b, &w->t[i], begin);
        begin = round_up(begin + w->t[i].nbytes, ALIGNMENT);
    }
    b->failed |= general.bytes.failed || object.failed || nibble.bytes.failed;
    buf_fill(b, 0, round_up(b->len, ALIGNMENT) - b->len);
    gguf_kv_free(&general);
    gguf_kv_free(&nibble);
    buf_free(&object);
}

/* Why readers cannot use t under its name, or NULL. */
static const char *
misfit(const struct wtensor *t)
{
    struct slice name = slice_of(t->name);
    if (gguf_place(name) == UINT64_MAX)
        return "has no name in a GGUF";
    if (!slice_ends(name, ".weight"))
        return t->dtype == DT_F32 && t->rank == 1 && *t->shape == 1
                   ? NULL
                   : "is a scale: in a GGUF that is one f32";
    if (gguf_is_norm(name))
        return t->dtype == DT_F32 ? NULL : "is a norm: in a GGUF those are f32";
    if (t->dtype != DT_F32 && t->dtype != DT_F16 && t->dtype != DT_BF16 &&
        t->dtype != DT_NVFP4_GGUF)
        return "has a type that readers of a GGUF do not take";
    return NULL;
}

static int
by_place(const void *a, const void *b)
{
    const struct wtensor *x = a, *y = b;
    uint64_t p = gguf_place(slice_of(x->name)), q = gguf_place(slice_of(y->name));
    return p < q ? -1 : p > q;
}

static int
gguf_plan(struct writer *w)
{
    struct buf head = { 0 };
    char q[TEXT_QUOTE];
    if (!w->meta.gguf)
        return err_set(w->err, ERR_USAGE, "%s: a GGUF needs the tokenizer's pairs",
                       w->name);
    for (size_t i = 0; i < w->n; i++) {
        const char *why = misfit(&w->t[i]);
        if (why)
            return err_set(w->err, ERR_USAGE, "%s: \"%s\" (%s) %s", w->name,
                           text_quote(q, w->t[i].name, strlen(w->t[i].name)),
                           dtype_name(w->t[i].dtype), why);
    }
    if (w->n)
        qsort(w->t, w->n, sizeof *w->t, by_place);
    put_head(&head, w);
    uint64_t at = head.len;
    int rc = writer_literal(w, 0, 0, &head);
    buf_free(&head);
    for (size_t i = 0; i < w->n && rc == 0; i++) {
        w->t[i].offset = at;
        if (!add_fits(&at, at, w->t[i].nbytes, INT64_MAX - ALIGNMENT))
            rc = err_set(w->err, ERR_USAGE, "%s: is too large for a file", w->name);
        at = round_up(at, ALIGNMENT);
    }
    w->files[0].bytes = at;
    return rc;
}

/* The head again, now with the final provenance. */
static int
gguf_finish(struct writer *w)
{
    struct buf head = { 0 };
    put_head(&head, w);
    int rc = buf_ok(&head, w->err);
    if (rc == 0)
        rc = out_pwrite(&w->out, head.data, head.len, 0, w->err);
    buf_free(&head);
    return rc;
}

const struct container container_gguf = {
    .name = "gguf",
    .suffix = ".gguf",
    .traits = { .embeds_tokenizer = true,
                .needs_model = true,
                .dialect = "gguf",
                .f32_norms = true,
                .nvfp4_columns = 64 },
    .sniff = gguf_sniff,
    .read = gguf_read,
    .segments = gguf_segments,
    .plan = gguf_plan,
    .finish = gguf_finish,
};
