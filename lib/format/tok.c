/* SPDX-License-Identifier: MIT */
/* tok: see tok.h. */
#include "lib/format/tok.h"

#include "lib/base/grow.h"
#include "lib/base/json.h"
#include "lib/base/num.h"
#include "lib/file/foreign.h"
#include "lib/format/mp.h"
#include "lib/format/provenance.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    VERSION = 1,
    KIND_SAMPLE = 1,
    KIND_END = 2,
    WRITE_AT = 256 << 10,
    READ_BYTES = 256 << 10,
    RECORD_HEAD = 5, // kind and the number that follows it, of both kinds
};

static const uint8_t magic[TOK_MAGIC] = { 0x89, 'N', 'I', 'B', 'T', 'K', '\r', '\n' };

static const char *const header_keys[] = { "packed",   "seq_len",   "settings",
                                           "template", "tokenizer", "version",
                                           "vocab" };
static const char *const end_keys[] = { "inputs",  "longest", "samples",  "skipped",
                                        "targets", "tokens",  "truncated" };

enum { HEADER_KEYS = 7, END_KEYS = 7 };

bool
tok_sniff(const void *head, size_t n)
{
    return n >= sizeof magic && memcmp(head, magic, sizeof magic) == 0;
}

void
tok_add_counts(struct tok_counts *sum, const struct tok_counts *part)
{
    sum->samples += part->samples;
    sum->tokens += part->tokens;
    sum->targets += part->targets;
    if (part->longest > sum->longest)
        sum->longest = part->longest;
}

bool
tok_is_file(const char *path)
{
    struct stat st;
    uint8_t head[TOK_MAGIC];
    struct slice name = slice_of(path);
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode))
        return false;
    if (slice_ends(name, ".tok")) // damaged perhaps, but that is what it should be
        return true;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    // These bytes and no read-ahead: a listing touches no page without a header.
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    ssize_t n = fd < 0 ? -1 : pread(fd, head, sizeof head, 0);
    if (fd >= 0)
        close(fd);
    return n == (ssize_t)sizeof head && tok_sniff(head, sizeof head);
}

/* ---- writing ------------------------------------------------------------------ */

bool
tok_fits(const uint8_t *mask, uint64_t n)
{
    return n >= 2 && memchr(mask + 1, 1, n - 1);
}

static void
put_le32(struct buf *out, uint32_t v)
{
    uint8_t b[4];
    store_le32(b, v);
    buf_add(out, b, sizeof b);
}

static void
put_words(struct buf *out, const uint32_t *v, uint32_t n)
{
    uint8_t part[1024];
    for (uint32_t i = 0; i < n;) {
        uint32_t k = 0;
        for (; k < sizeof part / 4 && i + k < n; k++)
            store_le32(part + (size_t)4 * k, v[i + k]);
        buf_add(out, part, (size_t)4 * k);
        i += k;
    }
}

static void
put_mask(struct buf *out, const uint8_t *mask, uint32_t n)
{
    uint8_t part[256];
    for (uint32_t i = 0; i < n;) {
        uint32_t k = 0;
        memset(part, 0, sizeof part);
        for (; k < 8 * sizeof part && i + k < n; k++)
            part[k / 8] |= (uint8_t)(mask[i + k] << k % 8);
        buf_add(out, part, (k + 7) / 8);
        i += k;
    }
}

static uint64_t
sum_mask(const uint8_t *mask, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += mask[i];
    return sum;
}

void
tok_encode(struct buf *out, struct tok_counts *counts, const uint32_t *ids,
           const uint8_t *mask, uint32_t n, const uint32_t *starts, uint32_t n_starts)
{
    assert(n >= 2);
    uint64_t targets = sum_mask(mask, n) - mask[0];
    buf_char(out, KIND_SAMPLE);
    put_le32(out, n);
    put_words(out, ids, n);
    put_mask(out, mask, n);
    if (starts) {
        put_le32(out, n_starts);
        put_words(out, starts, n_starts);
        for (uint32_t i = 1; i < n_starts; i++)
            targets -= mask[starts[i]];
    }
    tok_add_counts(counts, &(struct tok_counts){ 1, n, targets, n });
}

static void
put_key(msgpack_packer *pk, const char *key)
{
    mp_put_str(pk, slice_of(key));
}

static void
put_bool(msgpack_packer *pk, const char *key, bool v)
{
    put_key(pk, key);
    v ? msgpack_pack_true(pk) : msgpack_pack_false(pk);
}

static void
put_maybe(msgpack_packer *pk, const char *key, bool has, uint64_t v)
{
    put_key(pk, key);
    has ? msgpack_pack_uint64(pk, v) : msgpack_pack_nil(pk);
}

static void
put_settings(msgpack_packer *pk, const struct tok_settings *s)
{
    // Keys of what is not asked for are left out, so that files are as they always were.
    msgpack_pack_map(pk, 6U + s->all_targets + (s->chunk != 0) + (s->side ? 2 : 0) +
                             (s->prompt_key ? 2 : 0));
    if (s->prompt_key) {
        put_key(pk, "answer_key");
        put_key(pk, s->answer_key);
    }
    if (s->chunk)
        put_maybe(pk, "chunk", true, s->chunk);
    put_bool(pk, "end", s->end);
    put_key(pk, "input");
    put_key(pk, s->input);
    put_key(pk, "invalid");
    put_key(pk, s->invalid);
    put_bool(pk, "joint", s->joint);
    put_bool(pk, "parse_special", s->parse_special);
    if (s->prompt_key) {
        put_key(pk, "prompt_key");
        put_key(pk, s->prompt_key);
    }
    put_maybe(pk, "shuffle", s->shuffled, s->shuffle);
    if (s->side) {
        put_maybe(pk, "side", true, s->side);
        put_key(pk, "split");
        put_key(pk, s->split);
    }
    if (s->all_targets) {
        put_key(pk, "targets");
        put_key(pk, "all");
    }
}

static void
put_header(msgpack_packer *pk, const struct tok_header *h, const struct tok_settings *s)
{
    msgpack_pack_map(pk, HEADER_KEYS);
    put_bool(pk, "packed", h->packed);
    put_maybe(pk, "seq_len", h->has_seq_len, h->seq_len);
    put_key(pk, "settings");
    put_settings(pk, s);
    put_key(pk, "template");
    mp_put_str(pk, h->template);
    put_key(pk, "tokenizer");
    if (h->has_tokenizer)
        mp_put_bin(pk, h->tokenizer, SHA256_BYTES);
    else
        msgpack_pack_nil(pk);
    put_key(pk, "version");
    mp_put_str(pk, h->version);
    put_maybe(pk, "vocab", h->has_vocab, h->vocab);
}

static void
put_end(msgpack_packer *pk, const struct tok_end *e, const struct tok_counts *c)
{
    msgpack_pack_map(pk, END_KEYS);
    put_key(pk, "inputs");
    msgpack_pack_array(pk, e->n_inputs);
    for (size_t i = 0; i < e->n_inputs; i++)
        mp_put_bin(pk, e->inputs + i * XXH3_BYTES, XXH3_BYTES);
    put_maybe(pk, "longest", true, c->longest);
    put_maybe(pk, "samples", true, c->samples);
    put_maybe(pk, "skipped", true, e->skipped);
    put_maybe(pk, "targets", true, c->targets);
    put_maybe(pk, "tokens", true, c->tokens);
    put_maybe(pk, "truncated", true, e->truncated);
}

static int
flush(struct tok_writer *w)
{
    if (buf_ok(&w->held, w->err) < 0)
        return -1;
    hash_add(w->hash, w->held.data, w->held.len);
    int rc = out_write(w->out, w->held.data, w->held.len);
    w->held.len = 0;
    return rc;
}

int
tok_begin(struct tok_writer *w, struct outfile *out, const struct tok_header *h,
          const struct tok_settings *s, struct err *err)
{
    struct buf head = { 0 };
    msgpack_packer pk;
    uint8_t p[TOK_PROLOGUE] = { 0 };
    *w = (struct tok_writer){ .out = out, .err = err, .hash = hash_begin(HASH_XXH3) };
    mp_pack_into(&pk, &head);
    put_header(&pk, h, s);
    memcpy(p, magic, sizeof magic);
    store_le32(p + 8, VERSION);
    store_le32(p + 12, (uint32_t)head.len);
    buf_add(&w->held, p, sizeof p);
    buf_add(&w->held, head.data, head.len);
    bool ok = w->hash && !head.failed;
    buf_free(&head);
    return ok ? flush(w) : err_set(err, ERR_MEMORY, "%s: out of memory", out->name);
}

int
tok_write(struct tok_writer *w, const void *records, size_t n,
          const struct tok_counts *counts)
{
    if (w->err->kind)
        return -1;
    tok_add_counts(&w->counts, counts);
    if (n < WRITE_AT) {
        buf_add(&w->held, records, n);
        return w->held.failed || w->held.len >= WRITE_AT ? flush(w) : 0;
    }
    if (flush(w) < 0)
        return -1;
    hash_add(w->hash, records, n);
    return out_write(w->out, records, n);
}

int
tok_end(struct tok_writer *w, const struct tok_end *end)
{
    struct buf record = { 0 };
    msgpack_packer pk;
    uint8_t head[RECORD_HEAD] = { KIND_END }, digest[XXH3_BYTES];
    if (w->err->kind)
        return -1;
    mp_pack_into(&pk, &record);
    put_end(&pk, end, &w->counts);
    bool ok = !record.failed && record.len <= TOK_END_MAX;
    store_le32(head + 1, (uint32_t)record.len);
    buf_add(&w->held, head, sizeof head);
    buf_add(&w->held, record.data, record.len);
    buf_free(&record);
    if (!ok)
        return err_set(w->err, ERR_MEMORY, "%s: out of memory for the end record",
                       w->out->name);
    if (flush(w) < 0)
        return -1;
    hash_end(w->hash, digest);
    w->hash = NULL;
    return out_write(w->out, digest, sizeof digest);
}

void
tok_close_writer(struct tok_writer *w)
{
    hash_end(w->hash, NULL);
    buf_free(&w->held);
    w->hash = NULL;
}

/* ---- the window ---------------------------------------------------------------- */

static unsigned long long
place(const struct tok_reader *r, size_t at)
{
    return (unsigned long long)(r->base + at);
}

/* Hash data up to a place in it. */
static void
hash_to(struct tok_reader *r, size_t at)
{
    if (at > r->hashed)
        hash_add(r->hash, r->data + r->hashed, at - r->hashed);
    r->hashed = at;
}

/* Make space behind what is there: drop what was read, then grow. */
static int
make_space(struct tok_reader *r)
{
    if ((r->again || !r->keep) && r->pos) {
        hash_to(r, r->pos);
        memmove(r->data, r->data + r->pos, r->have - r->pos);
        r->base += r->pos;
        r->have -= r->pos;
        r->hashed = r->pos = 0;
    }
    if (r->cap - r->have >= READ_BYTES / 2)
        return 0;
    assert(r->cap);
    size_t cap = 2 * r->cap;
    uint8_t *data = realloc(r->data, cap);
    if (!data)
        return err_set(r->err, ERR_MEMORY, "%s: out of memory for %zu bytes", r->name,
                       cap);
    r->data = data;
    r->cap = cap;
    return 0;
}

/* Read on. */
static int
fill(struct tok_reader *r)
{
    ssize_t got;
    if (r->have == r->cap && make_space(r) < 0)
        return -1;
    do
        got = read(r->fd, r->data + r->have, r->cap - r->have);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return err_set(r->err, ERR_IO, "%s: byte %llu: read:", r->name,
                       place(r, r->have));
    r->eof = got == 0;
    r->have += (size_t)got;
    return 0;
}

/* n contiguous bytes from pos; what names them in the message. */
static int
need(struct tok_reader *r, uint64_t n, const char *what)
{
    while (r->have - r->pos < n && !r->eof)
        if (fill(r) < 0)
            return -1;
    if (r->have - r->pos >= n)
        return 0;
    return err_set(r->err, ERR_FORMAT,
                   "%s: byte %llu: %s of at least %llu bytes, %zu are left: the stream "
                   "was cut",
                   r->name, place(r, r->pos), what, (unsigned long long)n,
                   r->have - r->pos);
}

/* ---- header and end -------------------------------------------------------------- */

static int
check_keys(struct mp *m, struct slice *last, const char *want)
{
    struct slice key;
    char q[TEXT_QUOTE];
    size_t at = m->pos;
    if (mp_key(m, &key, last) < 0)
        return -1;
    if (!slice_is(key, want))
        return mp_fail(m, at, "expected the key \"%s\", found \"%s\"", want,
                       text_quote(q, key.p, key.n));
    return 0;
}

static int
open_map(struct mp *m, uint32_t keys, const char *what)
{
    struct mp_value v;
    if (mp_want(m, MP_MAP, &v, what) < 0)
        return -1;
    return v.n == keys
               ? 0
               : mp_fail(m, 0, "%s: expected %u keys, found %u", what, keys, v.n);
}

/* An integer of low .. high, or nil. */
static int
read_maybe(struct mp *m, const char *key, bool *has, uint64_t *v, uint64_t low,
           uint64_t high)
{
    struct mp_value x;
    size_t at = m->pos;
    if (mp_next(m, &x) < 0)
        return -1;
    *has = x.type == MP_UINT;
    *v = x.u;
    if (x.type == MP_NIL || (*has && x.u >= low && x.u <= high))
        return 0;
    return mp_fail(m, at, "\"%s\": expected nil or an integer of %llu..%llu", key,
                   (unsigned long long)low, (unsigned long long)high);
}

static int
read_tokenizer(struct mp *m, struct tok_header *h)
{
    struct mp_value v;
    size_t at = m->pos;
    if (mp_next(m, &v) < 0)
        return -1;
    h->has_tokenizer = v.type == MP_BIN;
    if (v.type != MP_NIL && (v.type != MP_BIN || v.s.n != SHA256_BYTES))
        return mp_fail(m, at, "\"tokenizer\": expected nil or a bin of %d bytes",
                       SHA256_BYTES);
    if (h->has_tokenizer)
        memcpy(h->tokenizer, v.s.p, SHA256_BYTES);
    return 0;
}

static int
read_template(struct mp *m, struct tok_header *h)
{
    struct mp_value v;
    char q[TEXT_QUOTE];
    size_t at = m->pos;
    if (mp_want(m, MP_STR, &v, "template") < 0)
        return -1;
    h->template = v.s;
    if (slice_is(v.s, "qwen3") || slice_is(v.s, "seed") || slice_is(v.s, "none"))
        return 0;
    return mp_fail(m, at, "\"template\": expected qwen3, seed or none, found \"%s\"",
                   text_quote(q, v.s.p, v.s.n));
}

/* A flat map, kept as JSON. */
static int
read_settings(struct tok_reader *r, struct mp *m)
{
    struct mp_value map, v;
    struct slice key, last = { NULL, 0 };
    if (mp_want(m, MP_MAP, &map, "settings") < 0)
        return -1;
    for (uint32_t i = 0; i < map.n; i++) {
        if (mp_key(m, &key, &last) < 0)
            return -1;
        size_t at = m->pos;
        buf_str(&r->words, i ? "," : "{");
        json_put(&r->words, key);
        buf_char(&r->words, ':');
        struct mp ahead = *m;
        if (mp_next(&ahead, &v) < 0)
            return -1;
        if (v.type != MP_NIL && v.type != MP_BOOL && v.type != MP_UINT &&
            v.type != MP_INT && v.type != MP_STR)
            return mp_fail(m, at, "\"settings\": expected bool, int, str or nil");
        if (v.type == MP_STR && slice_is(key, "input"))
            r->header.input = v.s;
        if (mp_skip(m, &r->words) < 0)
            return -1;
    }
    buf_str(&r->words, map.n ? "}" : "{}");
    return buf_ok(&r->words, r->err);
}

static int
read_header_key(struct tok_reader *r, struct mp *m, int key)
{
    struct tok_header *h = &r->header;
    struct mp_value v;
    uint64_t n = 0;
    int rc = 0;
    switch (key) {
    case 0:
        rc = mp_want(m, MP_BOOL, &v, "packed");
        h->packed = rc == 0 && v.u;
        break;
    case 1:
        rc = read_maybe(m, "seq_len", &h->has_seq_len, &n, 2, UINT32_MAX - 1);
        h->seq_len = (uint32_t)n;
        break;
    case 2:
        rc = read_settings(r, m);
        break;
    case 3:
        rc = read_template(m, h);
        break;
    case 4:
        rc = read_tokenizer(m, h);
        break;
    case 5:
        rc = mp_want(m, MP_STR, &v, "version");
        h->version = v.s;
        break;
    default:
        rc = read_maybe(m, "vocab", &h->has_vocab, &h->vocab, 1, (uint64_t)1 << 32);
    }
    return rc;
}

static int
parse_header(struct tok_reader *r, size_t n)
{
    struct slice last = { NULL, 0 };
    struct mp m = {
        .data = r->head, .len = n, .base = TOK_PROLOGUE, .file = r->name, .err = r->err
    };
    if (open_map(&m, HEADER_KEYS, "header") < 0)
        return -1;
    for (int i = 0; i < HEADER_KEYS; i++)
        if (check_keys(&m, &last, header_keys[i]) < 0 || read_header_key(r, &m, i) < 0)
            return -1;
    r->header.settings = (struct slice){ r->words.data, r->words.len };
    if (m.pos < n)
        return mp_fail(&m, m.pos, "%zu bytes behind the header", n - m.pos);
    return 0;
}

/* What is given in place of a .tok most often: its text, or nothing at all. */
static int
check_kind(struct tok_reader *r)
{
    while (r->have - r->pos < TOK_PROLOGUE && !r->eof)
        if (fill(r) < 0)
            return -1;
    size_t n = r->have - r->pos;
    if (n == 0)
        return err_set(r->err, ERR_FORMAT,
                       "%s: byte 0: is empty: expected a .tok of samples, which "
                       "tokenize makes",
                       r->name);
    if (*r->data != *magic &&
        foreign_file(r->name, r->data, n, FOREIGN_FOR_SAMPLES, r->err) < 0)
        return -1;
    if (*r->data != *magic &&
        text_is_plain((const char *)r->data, n < TOK_PROLOGUE ? n : TOK_PROLOGUE))
        return err_set(r->err, ERR_FORMAT,
                       "%s: byte 0: is a text: expected a .tok of samples, as tokenize "
                       "-o FILE.tok makes of a text",
                       r->name);
    return 0;
}

static int
read_header(struct tok_reader *r)
{
    if (check_kind(r) < 0 || need(r, TOK_PROLOGUE, "a prologue") < 0)
        return -1;
    if (!tok_sniff(r->data, TOK_MAGIC))
        return err_set(
            r->err, ERR_FORMAT,
            "%s: byte 0: expected the magic number of a .tok of samples, which "
            "tokenize makes of text; found other bytes",
            r->name);
    uint32_t version = load_le32(r->data + 8), n = load_le32(r->data + 12);
    if (version != VERSION)
        return err_set(r->err, ERR_FORMAT, "%s: byte 8: expected version %d, found %u",
                       r->name, VERSION, version);
    if (n < 1 || n > TOK_HEADER_MAX)
        return err_set(r->err, ERR_FORMAT,
                       "%s: byte 12: expected a header of 1..%d bytes, found %u",
                       r->name, TOK_HEADER_MAX, n);
    if (need(r, (uint64_t)TOK_PROLOGUE + n, "prologue and header") < 0)
        return -1;
    r->head = malloc(n); // the window moves on
    if (!r->head)
        return err_set(r->err, ERR_MEMORY, "%s: out of memory", r->name);
    memcpy(r->head, r->data + TOK_PROLOGUE, n);
    r->pos = TOK_PROLOGUE + n;
    r->start = r->pos;
    return parse_header(r, n);
}

static int
read_inputs(struct tok_reader *r, struct mp *m)
{
    struct mp_value v;
    if (mp_want(m, MP_ARRAY, &v, "inputs") < 0)
        return -1;
    uint32_t n = v.n; // the reader has checked that so many bytes are there
    r->inputs = malloc((size_t)n * XXH3_BYTES + 1);
    if (!r->inputs)
        return err_set(r->err, ERR_MEMORY, "%s: out of memory", r->name);
    for (uint32_t i = 0; i < n; i++) {
        size_t at = m->pos;
        if (mp_want(m, MP_BIN, &v, "inputs") < 0)
            return -1;
        if (v.s.n != XXH3_BYTES)
            return mp_fail(m, at, "\"inputs\": expected %d bytes, found %zu",
                           XXH3_BYTES, v.s.n);
        memcpy(r->inputs + (size_t)i * XXH3_BYTES, v.s.p, XXH3_BYTES);
    }
    r->end.inputs = r->inputs;
    r->end.n_inputs = n;
    return 0;
}

static int
parse_end(struct tok_reader *r, const uint8_t *p, size_t n)
{
    struct slice last = { NULL, 0 };
    struct tok_end *e = &r->end;
    uint64_t *const counts[END_KEYS] = {
        NULL,         &e->counts.longest, &e->counts.samples,
        &e->skipped,  &e->counts.targets, &e->counts.tokens,
        &e->truncated
    };
    struct mp m = { .data = p,
                    .len = n,
                    .base = r->end_offset + RECORD_HEAD,
                    .file = r->name,
                    .err = r->err };
    if (open_map(&m, END_KEYS, "end record") < 0)
        return -1;
    for (int i = 0; i < END_KEYS; i++) {
        struct mp_value v;
        if (check_keys(&m, &last, end_keys[i]) < 0)
            return -1;
        if (!counts[i]) {
            if (read_inputs(r, &m) < 0)
                return -1;
            continue;
        }
        if (mp_want(&m, MP_UINT, &v, end_keys[i]) < 0)
            return -1;
        *counts[i] = v.u;
    }
    if (m.pos < n)
        return mp_fail(&m, m.pos, "%zu bytes behind the map of the end record",
                       n - m.pos);
    return 0;
}

static int
check_count(struct tok_reader *r, const char *what, uint64_t want, uint64_t found)
{
    if (want == found)
        return 0;
    return err_set(r->err, ERR_FORMAT,
                   "%s: byte %llu: the end record has %s %llu, the samples %llu",
                   r->name, (unsigned long long)r->end_offset, what,
                   (unsigned long long)want, (unsigned long long)found);
}

static int
check_counts(struct tok_reader *r)
{
    const struct tok_counts *want = &r->end.counts, *found = &r->counts;
    if (check_count(r, "samples", want->samples, found->samples) < 0 ||
        check_count(r, "tokens", want->tokens, found->tokens) < 0 ||
        check_count(r, "targets", want->targets, found->targets) < 0)
        return -1;
    return check_count(r, "longest", want->longest, found->longest);
}

/* The hash covers everything before itself; the digest is at pos + n. */
static int
check_hash(struct tok_reader *r, size_t n)
{
    char want[2 * XXH3_BYTES + 1], found[2 * XXH3_BYTES + 1];
    uint8_t digest[XXH3_BYTES];
    hash_to(r, r->pos + n);
    hash_end(r->hash, digest);
    r->hash = NULL;
    memcpy(r->end.xxh3, r->data + r->pos + n, XXH3_BYTES);
    if (memcmp(digest, r->end.xxh3, XXH3_BYTES) == 0)
        return 0;
    hash_hex(want, r->end.xxh3, XXH3_BYTES);
    hash_hex(found, digest, XXH3_BYTES);
    return err_set(r->err, ERR_FORMAT,
                   "%s: byte %llu: expected XXH3 %s, found %s: the stream is damaged",
                   r->name, place(r, r->pos + n), want, found);
}

static int
check_last(struct tok_reader *r)
{
    if (!r->eof && r->pos == r->have && fill(r) < 0)
        return -1;
    if (r->pos == r->have)
        return 0;
    return err_set(r->err, ERR_FORMAT,
                   "%s: byte %llu: expected the end, found bytes behind the end record",
                   r->name, place(r, r->pos));
}

static int
read_end(struct tok_reader *r)
{
    r->end_offset = r->base + r->pos;
    if (need(r, RECORD_HEAD, "an end record") < 0)
        return -1;
    uint32_t n = load_le32(r->data + r->pos + 1);
    if (n < 1 || n > TOK_END_MAX)
        return err_set(r->err, ERR_FORMAT,
                       "%s: byte %llu: expected an end record of 1..%d bytes, found %u",
                       r->name, place(r, r->pos + 1), TOK_END_MAX, n);
    if (need(r, (uint64_t)RECORD_HEAD + n + XXH3_BYTES, "an end record") < 0 ||
        parse_end(r, r->data + r->pos + RECORD_HEAD, n) < 0 ||
        check_hash(r, RECORD_HEAD + n) < 0 || check_counts(r) < 0)
        return -1;
    r->pos += RECORD_HEAD + n + XXH3_BYTES;
    r->bytes = r->base + r->pos;
    return check_last(r);
}

/* ---- samples ---------------------------------------------------------------------- */

static int
bad_sample(struct tok_reader *r, uint64_t index, const char *what, uint64_t want,
           uint64_t found)
{
    return err_set(r->err, ERR_FORMAT,
                   "%s: byte %llu: sample %llu: %s: expected %llu, found %llu", r->name,
                   place(r, r->pos), (unsigned long long)index, what,
                   (unsigned long long)want, (unsigned long long)found);
}

static int
grow(struct tok_reader *r, uint32_t **v, size_t *cap, size_t n, uint8_t **also)
{
    if (n <= *cap)
        return 0;
    size_t want = n + n / 2 + 64;
    uint32_t *words = realloc(*v, want * sizeof *words);
    if (words)
        *v = words;
    uint8_t *bytes = also ? realloc(*also, want) : NULL;
    if (bytes)
        *also = bytes;
    if (!words || (also && !bytes))
        return err_set(r->err, ERR_MEMORY, "%s: out of memory for %zu ids", r->name, n);
    *cap = want;
    return 0;
}

static int
parse_ids(struct tok_reader *r, const uint8_t *p, uint32_t n, uint64_t index)
{
    const struct tok_header *h = &r->header;
    uint32_t max = 0;
    for (uint32_t i = 0; i < n; i++) {
        r->ids[i] = load_le32(p + (size_t)4 * i);
        max = r->ids[i] > max ? r->ids[i] : max;
    }
    if (!h->has_vocab || max < h->vocab)
        return 0;
    uint32_t i = 0;
    while (r->ids[i] < h->vocab)
        i++;
    return err_set(
        r->err, ERR_FORMAT,
        "%s: byte %llu: sample %llu: id %u at position %u, expected less than "
        "%llu",
        r->name, place(r, r->pos), (unsigned long long)index, r->ids[i], i,
        (unsigned long long)h->vocab);
}

static int
parse_mask(struct tok_reader *r, const uint8_t *p, uint32_t n, uint64_t index)
{
    for (uint32_t i = 0; i < n; i++)
        r->flags[i] = (p[i / 8] >> i % 8 & 1) * (TOK_MASK | TOK_TARGET);
    if (n % 8 && p[n / 8] >> n % 8)
        return bad_sample(r, index, "unused bits of the mask", 0,
                          (uint64_t)p[n / 8] >> n % 8);
    return 0;
}

static int
parse_starts(struct tok_reader *r, const uint8_t *p, uint32_t d, uint32_t n,
             uint64_t index)
{
    for (uint32_t i = 0; i < d; i++) {
        uint32_t at = load_le32(p + (size_t)4 * i);
        if (i == 0 && at != 0)
            return bad_sample(r, index, "start of the first document", 0, at);
        if (i > 0 && (at <= r->starts[i - 1] || at >= n))
            return err_set(r->err, ERR_FORMAT,
                           "%s: byte %llu: sample %llu: document %u starts at %u, "
                           "expected %u..%u",
                           r->name, place(r, r->pos), (unsigned long long)index, i, at,
                           r->starts[i - 1] + 1, n - 1);
        r->starts[i] = at;
    }
    return 0;
}

/* The size of the record at pos, by its counts; all of its bytes are there then. */
static int
measure_sample(struct tok_reader *r, uint64_t index, uint32_t *n, uint32_t *d,
               uint64_t *bytes)
{
    const struct tok_header *h = &r->header;
    if (need(r, RECORD_HEAD, "a sample") < 0)
        return -1;
    *n = load_le32(r->data + r->pos + 1);
    if (*n < 2)
        return bad_sample(r, index, "number of ids, at least", 2, *n);
    if (h->has_seq_len && *n > (uint64_t)h->seq_len + 1)
        return bad_sample(r, index, "number of ids, at most", (uint64_t)h->seq_len + 1,
                          *n);
    *bytes = RECORD_HEAD + (uint64_t)4 * *n + ((uint64_t)*n + 7) / 8;
    *d = 1;
    if (h->packed) {
        if (need(r, *bytes + 4, "a sample") < 0)
            return -1;
        *d = load_le32(r->data + r->pos + *bytes);
        if (*d < 1 || *d > *n)
            return bad_sample(r, index, "documents, at most so many as ids", *n, *d);
        *bytes += 4 + (uint64_t)4 * *d;
    }
    return need(r, *bytes, "a sample");
}

/* Parse the sample at pos, which does not move. */
static int
parse_sample(struct tok_reader *r, uint64_t index, struct tok_sample *s)
{
    uint32_t n, d, targets = 0;
    uint64_t bytes;
    if (measure_sample(r, index, &n, &d, &bytes) < 0 ||
        grow(r, &r->ids, &r->cap_ids, n, &r->flags) < 0 ||
        grow(r, &r->starts, &r->cap_starts, d, NULL) < 0)
        return -1;
    const uint8_t *ids = r->data + r->pos + RECORD_HEAD;
    const uint8_t *mask = ids + (size_t)4 * n;
    const uint8_t *starts = mask + ((size_t)n + 7) / 8 + 4;
    r->starts[0] = 0;
    if (parse_ids(r, ids, n, index) < 0 || parse_mask(r, mask, n, index) < 0 ||
        (r->header.packed && parse_starts(r, starts, d, n, index) < 0))
        return -1;
    for (uint32_t i = 0; i < d; i++)
        r->flags[r->starts[i]] =
            (uint8_t)((r->flags[r->starts[i]] & TOK_MASK) | TOK_START);
    for (uint32_t i = 0; i < n; i++)
        targets += (r->flags[i] & TOK_TARGET) != 0;
    if (targets == 0)
        return bad_sample(r, index, "targets, at least", 1, 0);
    *s = (struct tok_sample){ .ids = r->ids,
                              .flags = r->flags,
                              .starts = r->starts,
                              .n = n,
                              .n_starts = d,
                              .targets = targets,
                              .index = index,
                              .offset = r->base + r->pos,
                              .bytes = bytes };
    return 0;
}

/* Keep what tok_at needs of the sample at pos. */
static int
keep_record(struct tok_reader *r, const struct tok_sample *s)
{
    if (!GROW(r->record, s->index, r->cap_records, 1024))
        return err_set(r->err, ERR_MEMORY, "%s: out of memory for %zu samples", r->name,
                       r->cap_records + 1);
    r->record[s->index] =
        (struct tok_record){ s->offset, xxh3_64(r->data + r->pos, (size_t)s->bytes) };
    return 0;
}

static int
next_record(struct tok_reader *r, struct tok_sample *s)
{
    if (need(r, 1, "an end record") < 0)
        return -1;
    uint8_t kind = r->data[r->pos];
    if (kind == KIND_END)
        return read_end(r);
    if (kind != KIND_SAMPLE)
        return err_set(r->err, ERR_FORMAT,
                       "%s: byte %llu: expected a record of kind %d or %d, found %u",
                       r->name, place(r, r->pos), KIND_SAMPLE, KIND_END, kind);
    if (parse_sample(r, r->counts.samples, s) < 0 || (r->keep && keep_record(r, s) < 0))
        return -1;
    r->pos += (size_t)s->bytes;
    tok_add_counts(&r->counts, &(struct tok_counts){ 1, s->n, s->targets, s->n });
    return 1;
}

int
tok_next(struct tok_reader *r, struct tok_sample *s)
{
    if (r->err->kind)
        return -1;
    if (r->bytes) // the end was there
        return 0;
    return next_record(r, s);
}

static int
has_changed(struct tok_reader *r, uint64_t index, const char *how)
{
    return err_set(r->err, ERR_IO,
                   "%s: byte %llu: sample %llu: was %s after the file was opened: "
                   "expected the bytes of then; replace a file in use by renaming "
                   "(mv), not by writing into it",
                   r->name, (unsigned long long)r->record[index].offset,
                   (unsigned long long)index, how);
}

/* n bytes of the file into the window, which has held the longest record before. */
static int
read_again(struct tok_reader *r, uint64_t index, size_t n)
{
    uint64_t offset = r->record[index].offset;
    assert(n <= r->cap);
    r->base = offset;
    r->pos = r->have = 0;
    while (r->have < n) {
        ssize_t got =
            pread(r->fd, r->data + r->have, n - r->have, (off_t)(offset + r->have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_set(r->err, ERR_IO, "%s: byte %llu: read:", r->name,
                           place(r, r->have));
        if (got == 0)
            return has_changed(r, index, "cut off");
        r->have += (size_t)got;
    }
    return 0;
}

int
tok_at(struct tok_reader *r, uint64_t index, struct tok_sample *s)
{
    if (r->err->kind)
        return -1;
    assert(r->bytes && r->keep && index < r->counts.samples);
    const struct tok_record *own = &r->record[index];
    bool last = index + 1 == r->counts.samples;
    size_t n = (size_t)((last ? r->end_offset : own[1].offset) - own->offset);
    if (r->again && read_again(r, index, n) < 0)
        return -1;
    r->pos = (size_t)(own->offset - r->base);
    if (xxh3_64(r->data + r->pos, n) != own->xxh3)
        return has_changed(r, index, "overwritten");
    return parse_sample(r, index, s);
}

/* ---- open and close ----------------------------------------------------------------- */

static int
begin_reading(struct tok_reader *r, const char *path, unsigned flags, struct err *err)
{
    struct buf name = { 0 };
    *r = (struct tok_reader){ .fd = -1, .keep = flags & TOK_KEEP, .err = err };
    if (strcmp(path, "-") == 0)
        buf_str(&name, "<stdin>");
    else
        text_escape(&name, path, strlen(path));
    r->name = name.data;
    r->hash = hash_begin(HASH_XXH3);
    return r->name && r->hash ? 0 : err_set(err, ERR_MEMORY, "out of memory");
}

static int
begin_stream(struct tok_reader *r, int fd, struct slice begun)
{
    r->fd = fd;
    r->cap = begun.n + READ_BYTES;
    r->data = calloc(1, r->cap);
    if (!r->data)
        return err_set(r->err, ERR_MEMORY, "%s: out of memory", r->name);
    if (begun.n)
        memcpy(r->data, begun.p, begun.n);
    r->have = begun.n;
    return read_header(r);
}

int
tok_stream(struct tok_reader *r, int fd, const char *path, struct slice begun,
           unsigned flags, struct err *err)
{
    return begin_reading(r, path, flags, err) < 0 ? -1 : begin_stream(r, fd, begun);
}

int
tok_open(struct tok_reader *r, const char *path, unsigned flags, struct err *err)
{
    struct stat st;
    struct slice none = { NULL, 0 };
    if (strcmp(path, "-") == 0)
        return tok_stream(r, STDIN_FILENO, path, none, flags, err);
    if (begin_reading(r, path, flags, err) < 0)
        return -1;
    // check_kind looks at the first bytes of a file.
    if ((stat(path, &st) < 0 || S_ISDIR(st.st_mode)) &&
        foreign_path(path, FOREIGN_FOR_SAMPLES, err) < 0)
        return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_IO, "%s:", r->name);
    r->own_fd = true;
    r->again = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    return begin_stream(r, fd, none);
}

void
tok_close(struct tok_reader *r)
{
    if (r->own_fd)
        close(r->fd);
    hash_end(r->hash, NULL);
    free(r->data);
    free(r->record);
    free(r->head);
    free(r->inputs);
    free(r->ids);
    free(r->flags);
    free(r->starts);
    free(r->name);
    buf_free(&r->words);
    *r = (struct tok_reader){ .fd = -1 };
}

/* ---- provenance ---------------------------------------------------------------------- */

/* Of very many inputs the hash of the list: a provenance must stay small. */
static void
put_inputs(struct buf *b, const struct tok_reader *r)
{
    enum { LISTED = 256 };
    const struct slice none = { 0 };
    struct slice kind = r->header.input.p ? r->header.input : slice_of("text");
    size_t n = r->end.n_inputs;
    uint8_t all[XXH3_BYTES];
    if (n > LISTED) {
        xxh3_128(all, r->end.inputs, n * XXH3_BYTES);
        provenance_input(b, kind, none, n, all);
        return;
    }
    for (size_t i = 0; i < n; i++)
        provenance_input(b, kind, none, 1, r->end.inputs + i * XXH3_BYTES);
}

void
tok_put_provenance(struct buf *b, const struct tok_reader *r)
{
    const struct tok_header *h = &r->header;
    char hex[2 * SHA256_BYTES + 1];
    provenance_begin(b);
    put_inputs(b, r);
    provenance_options(b);
    buf_printf(b, "{\"packed\":%s,\"seq_len\":", h->packed ? "true" : "false");
    if (h->has_seq_len)
        buf_printf(b, "%u", h->seq_len);
    else
        buf_str(b, "null");
    buf_str(b, ",\"settings\":");
    buf_add(b, h->settings.p, h->settings.n);
    buf_str(b, ",\"template\":");
    json_put(b, h->template);
    buf_str(b, ",\"tokenizer\":");
    if (h->has_tokenizer) {
        hash_hex(hex, h->tokenizer, SHA256_BYTES);
        buf_printf(b, "\"%s\"", hex);
    } else {
        buf_str(b, "null");
    }
    buf_char(b, '}');
    provenance_end(b, "tokenize", h->version);
}
