/* SPDX-License-Identifier: MIT */
/* ckpt: the checkpoint container, doc/FORMAT.md section 4.
 *
 * The layout is a function of the header: arrays follow each other at 4096-byte
 * boundaries, so offsets in the header are checked, not trusted.
 */
#include "lib/base/json.h"
#include "lib/base/num.h"
#include "lib/base/par.h"
#include "lib/format/container.h"
#include "lib/format/mp.h"
#include "lib/format/state.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROLOGUE = 64,
    ALIGN = 4096,
    VERSION = 1,
    MAX_HEADER = 16 << 20, // of 6,000 layers
};

static const uint8_t magic[8] = { 0x89, 'N', 'I', 'B', 'C', 'K', '\r', '\n' };

static const char *const header_keys[] = { "arrays",     "config", "master", "moments",
                                           "provenance", "quant",  "state" };

static bool
ckpt_sniff(const uint8_t *head, size_t n, uint64_t file_bytes)
{
    (void)file_bytes;
    return n >= sizeof magic && memcmp(head, magic, sizeof magic) == 0;
}

static int
fail(struct store *s, uint64_t at, const char *what, uint64_t want, uint64_t found)
{
    return err_set(s->err, ERR_FORMAT, "%s: byte %llu: %s: expected %llu, found %llu",
                   s->name, (unsigned long long)at, what, (unsigned long long)want,
                   (unsigned long long)found);
}

/* The prologue; *bytes is the size of the header. */
static int
read_prologue(struct store *s, const uint8_t *p, uint64_t size, uint64_t *bytes)
{
    uint8_t digest[XXH3_BYTES];
    if (size < PROLOGUE)
        return err_set(s->err, ERR_FORMAT,
                       "%s: byte %llu: the file ends inside its prologue of 64 bytes",
                       s->name, (unsigned long long)size);
    if (memcmp(p, magic, sizeof magic) != 0)
        return err_set(s->err, ERR_FORMAT,
                       "%s: byte 0: not a checkpoint: expected a file that begins with "
                       "its magic number",
                       s->name);
    xxh3_128(digest, p, 48);
    if (memcmp(digest, p + 48, XXH3_BYTES) != 0)
        return err_set(
            s->err, ERR_FORMAT,
            "%s: byte 48: the first 64 bytes are damaged: they have another hash",
            s->name);
    if (load_le32(p + 8) != VERSION)
        return fail(s, 8, "version", VERSION, load_le32(p + 8));
    if (load_le32(p + 12) != 0)
        return fail(s, 12, "reserved bytes", 0, load_le32(p + 12));
    if (load_le64(p + 16) > size)
        return err_set(s->err, ERR_FORMAT,
                       "%s: byte 16: size of the file: expected %llu, found "
                       "%llu" ERR_FILE_CUT,
                       s->name, (unsigned long long)load_le64(p + 16),
                       (unsigned long long)size);
    if (load_le64(p + 16) != size)
        return fail(s, 16, "size of the file", load_le64(p + 16), size);
    uint64_t most = size - PROLOGUE < MAX_HEADER ? size - PROLOGUE : MAX_HEADER;
    *bytes = load_le64(p + 24);
    if (*bytes < 1 || *bytes > most)
        return fail(s, 24, "size of the header, at most", most, *bytes);
    return 0;
}

static int
read_shape(struct mp *m, struct tensor *t, uint64_t dims[MAX_RANK])
{
    struct mp_value v;
    size_t at = m->pos;
    if (mp_want(m, MP_ARRAY, &v, "shape") < 0)
        return -1;
    if (v.n > MAX_RANK)
        return mp_fail(m, at, "more than %d dimensions", MAX_RANK);
    t->rank = (uint8_t)v.n;
    for (unsigned i = 0; i < t->rank; i++) {
        struct mp_value d;
        if (mp_want(m, MP_UINT, &d, "shape") < 0)
            return -1;
        dims[i] = d.u;
    }
    return 0;
}

enum array_key { DTYPE, NAME, NBYTES, OFFSET, SHAPE, XXH3, ARRAY_KEYS };

/* The value of a key of one of "arrays", but SHAPE. */
static int
read_member(struct mp *m, struct store *s, enum array_key key, const char *what,
            struct tensor *t)
{
    static const enum mp_type types[ARRAY_KEYS] = { MP_STR,  MP_STR,   MP_UINT,
                                                    MP_UINT, MP_ARRAY, MP_BIN };
    struct mp_value v;
    size_t at = m->pos;
    char place[64];
    if (mp_want(m, types[key], &v, what) < 0)
        return -1;
    switch (key) {
    case DTYPE:
        t->dtype = (uint8_t)dtype_from_name(v.s);
        if (dtype_bits(t->dtype) == 0 || dtype_bits(t->dtype) % 8)
            return mp_fail(m, at, "a dtype that a checkpoint cannot hold");
        return 0;
    case NAME:
        snprintf(place, sizeof place, "byte %llu", (unsigned long long)(m->base + at));
        t->name = v.s.p;
        t->name_len = (uint32_t)v.s.n;
        return check_name(s, v.s.p, v.s.n, place);
    case NBYTES:
        t->nbytes = v.u;
        return 0;
    case OFFSET:
        t->offset = t->head = v.u;
        return 0;
    default: // XXH3
        t->xxh3 = (const uint8_t *)v.s.p;
        return v.s.n == XXH3_BYTES
                   ? 0
                   : mp_fail(m, at, "\"xxh3\": expected 16 bytes, found %zu", v.s.n);
    }
}

/* One map of "arrays"; t borrows its name from the header and its shape from dims. */
static int
read_array(struct mp *m, struct store *s, struct tensor *t, uint64_t dims[MAX_RANK])
{
    static const char *const keys[ARRAY_KEYS] = { "dtype",  "name",  "nbytes",
                                                  "offset", "shape", "xxh3" };
    struct mp_value v;
    struct slice key, last = { 0 };
    size_t at = m->pos;
    t->shape = dims;
    if (mp_want(m, MP_MAP, &v, "arrays") < 0)
        return -1;
    if (v.n != ARRAY_KEYS)
        return mp_fail(m, at, "an array with %u keys, expected %d", v.n, ARRAY_KEYS);
    for (unsigned i = 0; i < ARRAY_KEYS; i++) {
        size_t key_at = m->pos;
        if (mp_key(m, &key, &last) < 0)
            return -1;
        if (!slice_is(key, keys[i]))
            return mp_fail(m, key_at, "expected the key \"%s\"", keys[i]);
        if ((i == SHAPE ? read_shape(m, t, dims) : read_member(m, s, i, keys[i], t)) <
            0)
            return -1;
    }
    uint64_t nbytes = t->nbytes;
    if (!dtype_size(&t->numel, &t->nbytes, t->dtype, t->shape, t->rank) ||
        t->nbytes != nbytes)
        return mp_fail(m, at, "\"nbytes\" does not fit dtype and shape");
    return 0;
}

static bool
is_state(const char *name, size_t n)
{
    struct slice s = { name, n };
    return slice_starts(s, "adam.") || slice_starts(s, "master.");
}

static int
read_arrays(struct mp *m, struct store *s, uint64_t header_end)
{
    struct mp_value v;
    uint64_t at = round_up(header_end, ALIGN);
    char place[64];
    if (mp_want(m, MP_ARRAY, &v, "arrays") < 0)
        return -1;
    for (uint32_t i = 0; i < v.n; i++) {
        struct tensor t = { 0 };
        uint64_t dims[MAX_RANK];
        size_t pos = m->pos;
        if (read_array(m, s, &t, dims) < 0)
            return -1;
        if (t.offset != at)
            return mp_fail(m, pos, "array %u: offset %llu, expected %llu", i + 1,
                           (unsigned long long)t.offset, (unsigned long long)at);
        if (t.nbytes > s->bytes || at > s->bytes - t.nbytes)
            return mp_fail(m, pos,
                           "array %u: payload ends at byte %llu, file has "
                           "%llu" ERR_FILE_CUT,
                           i + 1, (unsigned long long)(at + t.nbytes),
                           (unsigned long long)s->bytes);
        at = round_up(at + t.nbytes, ALIGN);
        t.state = is_state(t.name, t.name_len);
        if (!t.state && s->n_tensors && s->tensors[s->n_tensors - 1].state)
            return mp_fail(m, pos, "array %u: a weight after optimizer states", i + 1);
        snprintf(place, sizeof place, "byte %llu: array %u",
                 (unsigned long long)(m->base + pos), i + 1);
        if (store_add(s, &t, place) < 0)
            return -1;
    }
    if (at != s->bytes)
        return err_set(
            s->err, ERR_FORMAT,
            "%s: the last array ends at byte %llu: expected the end of the file, which "
            "is at %llu",
            s->name, (unsigned long long)at, (unsigned long long)s->bytes);
    return 0;
}

/* A str that is a JSON object, or empty. */
static int
read_json(struct mp *m, struct store *s, struct slice *text, const char *what)
{
    struct mp_value v;
    struct json j;
    size_t at = m->pos;
    if (mp_want(m, MP_STR, &v, what) < 0)
        return -1;
    if (v.s.n == 0)
        return 0;
    *text = v.s;
    json_open(&j, s->name, m->base + (uint64_t)(v.s.p - (const char *)m->data), v.s,
              &s->arena, m->err);
    if (json_peek(&j) != '{')
        return mp_fail(m, at, "\"%s\": expected a JSON object", what);
    return json_skip(&j, NULL) < 0 ? -1 : json_end(&j);
}

/* One of the words; *word, if it is not NULL, is set to the constant. */
static int
check_word(struct mp *m, const char *what, const char *const *words, const char **word)
{
    struct mp_value v;
    size_t at = m->pos;
    char q[TEXT_QUOTE];
    if (mp_want(m, MP_STR, &v, what) < 0)
        return -1;
    for (; *words; words++)
        if (slice_is(v.s, *words)) {
            if (word)
                *word = *words;
            return 0;
        }
    return mp_fail(m, at, "\"%s\": \"%s\" is unknown", what,
                   text_quote(q, v.s.p, v.s.n));
}

static int
check_quant(struct mp *m, struct quant_words *q)
{
    static const char *const keys[] = { "criterion", "name", "share", "variant" };
    static const char *const criteria[] = { "mse", "mae", NULL };
    static const char *const names[] = { "none",   "torchao",  "native",
                                         "sweep1", "max",      "4over6",
                                         "sweep",  "sweepfp8", NULL };
    static const char *const shares[] = { "none", "qkv,gate_up", NULL };
    static const char *const variants[] = { "", "modelopt", NULL };
    static const char *const *const words[] = { criteria, names, shares, variants };
    const char **const to[] = { &q->criterion, &q->name, &q->share, &q->variant };
    struct mp_value v;
    struct slice key, last = { 0 };
    size_t at = m->pos;
    if (mp_want(m, MP_MAP, &v, "quant") < 0)
        return -1;
    if (v.n != 4)
        return mp_fail(m, at, "\"quant\": %u keys, expected 4", v.n);
    for (unsigned i = 0; i < 4; i++) {
        at = m->pos;
        if (mp_key(m, &key, &last) < 0)
            return -1;
        if (!slice_is(key, keys[i]))
            return mp_fail(m, at, "\"quant\": expected the key \"%s\"", keys[i]);
        if (check_word(m, keys[i], words[i], to[i]) < 0)
            return -1;
    }
    return 0;
}

/* The value of header_keys[i], one of those that go into the meta text. */
static int
check_meta(struct mp *m, struct store *s, unsigned i)
{
    static const char *const masters[] = { "f32", "bf16", "nvfp4", NULL };
    static const char *const moments[] = { "f32", "bf16", "int8", "nvfp4", NULL };
    if (i == 2)
        return check_word(m, "master", masters, &s->training.master);
    if (i == 3)
        return check_word(m, "moments", moments, &s->training.moments);
    if (i == 5)
        return check_quant(m, &s->quant);
    size_t at = m->pos;
    struct state st;
    struct slice settings;
    int rc = state_parse(&st, &settings, m);
    s->training.state = (struct slice){ (const char *)m->data + at, m->pos - at };
    return rc;
}

static int
read_header(struct mp *m, struct store *s)
{
    struct mp_value v;
    struct slice key, last = { 0 };
    enum { KEYS = sizeof header_keys / sizeof *header_keys };
    if (mp_want(m, MP_MAP, &v, "the header") < 0)
        return -1;
    if (v.n != KEYS)
        return mp_fail(m, 0, "a header with %u keys, expected %d", v.n, KEYS);
    int rc = 0;
    for (unsigned i = 0; i < KEYS && rc == 0; i++) {
        size_t at = m->pos;
        rc = mp_key(m, &key, &last);
        if (rc == 0 && !slice_is(key, header_keys[i]))
            rc = mp_fail(m, at, "expected the key \"%s\"", header_keys[i]);
        if (rc < 0)
            break;
        if (i == 0) {
            rc = read_arrays(m, s, PROLOGUE + m->len);
        } else if (i == 1) {
            rc = read_json(m, s, &s->config, "config");
        } else if (i == 4) {
            rc = read_json(m, s, &s->provenance, "provenance");
        } else {
            rc = check_meta(m, s, i);
        }
    }
    if (rc == 0 && m->pos != m->len)
        rc = mp_fail(m, m->pos, "bytes after the header's map");
    return rc;
}

static struct mp
header_of(const struct store *s)
{
    return (struct mp){ .data = s->header,
                        .len = (size_t)s->header_bytes,
                        .base = PROLOGUE,
                        .file = s->name,
                        .depth = 1, // the header's own map
                        .err = s->err };
}

/* The header without its arrays and JSON texts, as JSON.  It was checked before. */
static int
ckpt_meta(struct store *s)
{
    struct mp m = header_of(s);
    struct mp_value v;
    struct slice key, last = { 0 };
    struct buf meta = { 0 };
    int rc = mp_want(&m, MP_MAP, &v, "the header");
    buf_char(&meta, '{');
    for (uint32_t i = 0; rc == 0 && i < v.n; i++) {
        rc = mp_key(&m, &key, &last);
        bool shown = i != 0 && i != 1 && i != 4; // see header_keys
        if (rc == 0 && shown)
            buf_printf(&meta, "%s\"%s\":", meta.len > 1 ? "," : "", header_keys[i]);
        if (rc == 0)
            rc = mp_skip(&m, shown ? &meta : NULL);
    }
    buf_char(&meta, '}');
    if (rc == 0)
        return store_keep(s, &s->meta, &meta);
    buf_free(&meta);
    return rc;
}

static int
ckpt_read(struct store *s)
{
    uint8_t p[PROLOGUE], digest[XXH3_BYTES];
    uint64_t bytes = 0;
    // Copied before it is checked, so that it cannot change afterwards.
    memcpy(p, s->files[0].data, s->bytes < PROLOGUE ? (size_t)s->bytes : PROLOGUE);
    if (read_prologue(s, p, s->bytes, &bytes) < 0)
        return -1;
    // Read, not copied from the mapping, whose pages would count as our memory.
    char *header = arena_alloc(&s->arena, (size_t)bytes + 1);
    if (!header)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    if (map_read(&s->files[0], header, (size_t)bytes, PROLOGUE, s->err) < 0)
        return -1;
    header[bytes] = '\0';
    xxh3_128(digest, header, (size_t)bytes);
    if (memcmp(digest, p + 32, XXH3_BYTES) != 0)
        return err_set(s->err, ERR_FORMAT,
                       "%s: byte 64: the header is damaged: it has another hash",
                       s->name);
    s->header = (const uint8_t *)header;
    s->header_bytes = bytes;
    struct mp m = header_of(s);
    if (read_header(&m, s) < 0)
        return -1;
    s->passed = calloc(s->n_tensors + 1, sizeof *s->passed);
    return s->passed ? 0 : err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
}

static void
ckpt_segments(const struct store *s, segment_fn fn, void *ctx)
{
    uint64_t header = s->header_bytes;
    uint64_t at = PROLOGUE + header;
    fn(ctx, 0, 0, PROLOGUE, "prologue", NULL);
    fn(ctx, 0, PROLOGUE, header, "msgpack header", NULL);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct tensor *t = &s->tensors[i];
        if (t->nbytes == 0)
            continue;
        if (t->offset > at)
            fn(ctx, 0, at, t->offset - at, "zeros", NULL);
        fn(ctx, 0, t->offset, t->nbytes, "payload", t);
        at = t->offset + t->nbytes;
    }
    if (s->bytes > at)
        fn(ctx, 0, at, s->bytes - at, "zeros", NULL);
}

static bool
ckpt_hash(const struct store *s, uint8_t digest[XXH3_BYTES])
{
    xxh3_128(digest, s->header, (size_t)s->header_bytes);
    return true;
}

static int
check_zeros(struct store *s, uint64_t from, uint64_t to, struct err *err)
{
    uint8_t buf[ALIGN];
    while (from < to) {
        size_t n = to - from < ALIGN ? (size_t)(to - from) : ALIGN;
        if (map_read(&s->files[0], buf, n, from, err) < 0)
            return -1;
        for (size_t i = 0; i < n; i++)
            if (buf[i])
                return err_set(
                    err, ERR_FORMAT,
                    "%s: byte %llu: expected a zero of padding, found 0x%02x", s->name,
                    (unsigned long long)(from + i), buf[i]);
        from += n;
    }
    return 0;
}

/* The padding before array i, for n_tensors that at the end. */
static int
check_gap(struct store *s, size_t i, struct err *err)
{
    assert(s->tensors || s->n_tensors == 0);
    const struct tensor *prev = i ? &s->tensors[i - 1] : NULL;
    uint64_t from = prev ? prev->offset + prev->nbytes : PROLOGUE + s->header_bytes;
    uint64_t to = i < s->n_tensors ? s->tensors[i].offset : s->bytes;
    return check_zeros(s, from, to, err);
}

static int
ckpt_check_gaps(struct store *s, struct err *err)
{
    for (size_t i = 0; i <= s->n_tensors; i++)
        if (check_gap(s, i, err) < 0)
            return -1;
    return 0;
}

static int
verify_array(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct store *s = ctx;
    (void)worker;
    if (check_gap(s, i, err) < 0)
        return -1;
    return i < s->n_tensors ? store_check_payload(s, &s->tensors[i], err) : 0;
}

static int
ckpt_verify(struct store *s, unsigned threads, const char **what)
{
    *what = "structure, checksums and padding";
    return par_for(threads, s->n_tensors + 1, verify_array, s, s->err);
}

/* ---- writing ---------------------------------------------------------------- */

static void
put_text(msgpack_packer *pk, const char *key, const char *value)
{
    mp_put_str(pk, slice_of(key));
    mp_put_str(pk, slice_of(value));
}

static void
put_array(msgpack_packer *pk, const struct wtensor *t)
{
    msgpack_pack_map(pk, 6);
    put_text(pk, "dtype", dtype_name(t->dtype));
    put_text(pk, "name", t->name);
    mp_put_str(pk, slice_of("nbytes"));
    msgpack_pack_uint64(pk, t->nbytes);
    mp_put_str(pk, slice_of("offset"));
    msgpack_pack_uint64(pk, t->offset);
    mp_put_str(pk, slice_of("shape"));
    msgpack_pack_array(pk, t->rank);
    for (unsigned d = 0; d < t->rank; d++)
        msgpack_pack_uint64(pk, t->shape[d]);
    mp_put_str(pk, slice_of("xxh3"));
    mp_put_bin(pk, t->xxh3, XXH3_BYTES);
}

static void
put_header(msgpack_packer *pk, const struct writer *w)
{
    const struct wmeta *meta = &w->meta;
    struct slice none = { "", 0 };
    msgpack_pack_map(pk, sizeof header_keys / sizeof *header_keys);
    mp_put_str(pk, slice_of("arrays"));
    msgpack_pack_array(pk, w->n);
    for (size_t i = 0; i < w->n; i++)
        put_array(pk, &w->t[i]);
    mp_put_str(pk, slice_of("config"));
    mp_put_str(pk, meta->config.p ? meta->config : none);
    put_text(pk, "master", meta->master);
    put_text(pk, "moments", meta->moments);
    mp_put_str(pk, slice_of("provenance"));
    mp_put_str(pk, meta->provenance.p ? meta->provenance : none);
    mp_put_str(pk, slice_of("quant"));
    msgpack_pack_map(pk, 4);
    put_text(pk, "criterion", meta->criterion);
    put_text(pk, "name", meta->quant);
    put_text(pk, "share", meta->share);
    put_text(pk, "variant", meta->variant);
    mp_put_str(pk, slice_of("state"));
    if (meta->state.p)
        pk->callback(pk->data, meta->state.p, meta->state.n);
    else
        state_pack(pk, &(struct state){ .grad_norm = -1 }, slice_of("\x80"));
}

static uint64_t
place_arrays(struct writer *w, uint64_t header_bytes)
{
    uint64_t at = round_up(PROLOGUE + header_bytes, ALIGN);
    for (size_t i = 0; i < w->n; i++) {
        w->t[i].offset = at;
        at = round_up(at + w->t[i].nbytes, ALIGN);
    }
    return at;
}

/* Pack the header with the offsets that follow from its own size.  The size of an
 * integer grows with its value, so repeat until nothing changes: sizes only grow. */
static int
pack_header(struct writer *w, struct buf *head)
{
    uint64_t bytes;
    do {
        bytes = head->len;
        w->files[0].bytes = place_arrays(w, bytes);
        msgpack_packer pk;
        head->len = 0;
        mp_pack_into(&pk, head);
        put_header(&pk, w);
        if (head->failed)
            return err_set(w->err, ERR_MEMORY, "%s: out of memory", w->name);
    } while (head->len != bytes);
    if (head->len > MAX_HEADER)
        return err_set(w->err, ERR_USAGE,
                       "%s: the header of arrays, configuration and provenance would "
                       "have %zu bytes: expected at most %d",
                       w->name, head->len, MAX_HEADER);
    return 0;
}

static int
put_head(struct writer *w, struct buf *out)
{
    struct buf head = { 0 };
    uint8_t p[PROLOGUE] = { 0 };
    int rc = pack_header(w, &head);
    if (rc == 0) {
        memcpy(p, magic, sizeof magic);
        store_le32(p + 8, VERSION);
        store_le64(p + 16, w->files[0].bytes);
        store_le64(p + 24, head.len);
        xxh3_128(p + 32, head.data, head.len);
        xxh3_128(p + 48, p, 48);
        buf_add(out, p, sizeof p);
        buf_add(out, head.data, head.len);
        rc = buf_ok(out, w->err);
    }
    buf_free(&head);
    return rc;
}

static int
ckpt_plan(struct writer *w)
{
    struct buf head = { 0 };
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < w->n; i++)
        if (dtype_bits(w->t[i].dtype) == 0 || dtype_bits(w->t[i].dtype) % 8)
            return err_set(w->err, ERR_USAGE, "%s: \"%s\": a checkpoint cannot hold %s",
                           w->name, text_quote(q, w->t[i].name, strlen(w->t[i].name)),
                           dtype_name(w->t[i].dtype));
    int rc = put_head(w, &head);
    if (rc == 0)
        rc = writer_literal(w, 0, 0, &head);
    buf_free(&head);
    w->hash_tensors = true;
    w->needs_seek = true;
    return rc;
}

/* The same header again, now with hashes and the final provenance. */
static int
ckpt_finish(struct writer *w)
{
    struct buf head = { 0 };
    int rc = put_head(w, &head);
    if (rc == 0)
        rc = out_pwrite(&w->out, head.data, head.len, 0, w->err);
    buf_free(&head);
    return rc;
}

const struct container container_ckpt = {
    .name = "ckpt",
    .suffix = ".ckpt",
    .traits = { .torchsharp_reads = true,
                .needs_model = true,
                .packed_vectors = true,
                .training = true },
    .sniff = ckpt_sniff,
    .read = ckpt_read,
    .segments = ckpt_segments,
    .meta = ckpt_meta,
    .verify = ckpt_verify,
    .check_gaps = ckpt_check_gaps,
    .carried_hash = ckpt_hash,
    .plan = ckpt_plan,
    .finish = ckpt_finish,
};
