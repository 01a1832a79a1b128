/* SPDX-License-Identifier: MIT */
/* mp: see mp.h. */
#include "lib/format/mp.h"

#include "lib/base/hash.h"
#include "lib/base/json.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 16 };

void
mp_report(struct mp *m, size_t at, const char *fmt, ...)
{
    char words[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    err_fill(m->err, ERR_FORMAT, "%s: byte %llu: %s", m->file,
             (unsigned long long)(m->base + at), words);
}

/* n bytes, high byte first. */
static int
read_be(struct mp *m, unsigned n, uint64_t *v)
{
    if (m->len - m->pos < n)
        return mp_fail(m, m->pos, "the header ends inside a value");
    *v = 0;
    for (unsigned i = 0; i < n; i++)
        *v = *v << 8 | m->data[m->pos++];
    return 0;
}

/* An integer of 1, 2, 4 or 8 bytes that must need them: low is the smallest value of
 * this form. */
static int
read_sized(struct mp *m, unsigned bytes, uint64_t low, uint64_t *v)
{
    size_t at = m->pos - 1;
    if (read_be(m, bytes, v) < 0)
        return -1;
    return *v < low ? mp_fail(m, at, "a number that is not in its shortest form") : 0;
}

static int
read_negative(struct mp *m, unsigned bytes, struct mp_value *v)
{
    // Shortest form: below the range of the next smaller one (5-bit, 8, 16, 32 bits).
    static const int64_t high[9] = {
        [1] = -33, [2] = -129, [4] = -32769, [8] = -2147483649
    };
    size_t at = m->pos - 1;
    assert(bytes >= 1 && bytes <= 8);
    if (read_be(m, bytes, &v->u) < 0)
        return -1;
    unsigned unused = 64 - 8 * bytes;
    int64_t n = (int64_t)(v->u << unused) >> unused;
    if (n > high[bytes])
        return mp_fail(m, at, "a number that is not in its shortest form");
    v->type = MP_INT;
    v->u = (uint64_t)n;
    return 0;
}

static int
read_bytes(struct mp *m, enum mp_type type, uint64_t n, struct mp_value *v)
{
    size_t at = m->pos;
    if (n > m->len - m->pos)
        return mp_fail(m, at, "a string of %llu bytes, %zu are left",
                       (unsigned long long)n, m->len - m->pos);
    v->type = type;
    v->s = (struct slice){ (const char *)m->data + m->pos, (size_t)n };
    m->pos += (size_t)n;
    if (type == MP_STR && utf8_check(v->s.p, v->s.n) < v->s.n)
        return mp_fail(m, at, "a str that is not UTF-8");
    return 0;
}

static int
set_count(struct mp *m, enum mp_type type, uint64_t n, struct mp_value *v)
{
    uint64_t item_bytes = type == MP_MAP ? 2 : 1; // the fewest
    if (n > (m->len - m->pos) / item_bytes)
        return mp_fail(m, m->pos, "%llu items announced, %zu bytes are left",
                       (unsigned long long)n, m->len - m->pos);
    v->type = type;
    v->n = (uint32_t)n;
    return 0;
}

/* The forms 0xc0 .. 0xdf: an integer of so many bytes follows, the value or its length;
 * low is the smallest that needs them. */
static const struct form {
    uint8_t type; // enum mp_type; MP_ERROR: not accepted
    uint8_t bytes;
    uint64_t low;
} forms[0x20] = {
    [0x00] = { MP_NIL, 0, 0 },
    [0x02] = { MP_BOOL, 0, 0 },
    [0x03] = { MP_BOOL, 0, 0 },
    [0x04] = { MP_BIN, 1, 0 },
    [0x05] = { MP_BIN, 2, 0x100 },
    [0x06] = { MP_BIN, 4, 0x10000 },
    [0x0b] = { MP_F64, 8, 0 },
    [0x0c] = { MP_UINT, 1, 0x80 },
    [0x0d] = { MP_UINT, 2, 0x100 },
    [0x0e] = { MP_UINT, 4, 0x10000 },
    [0x0f] = { MP_UINT, 8, 0x100000000 },
    [0x10] = { MP_INT, 1, 0 },
    [0x11] = { MP_INT, 2, 0 },
    [0x12] = { MP_INT, 4, 0 },
    [0x13] = { MP_INT, 8, 0 },
    [0x19] = { MP_STR, 1, 32 },
    [0x1a] = { MP_STR, 2, 0x100 },
    [0x1b] = { MP_STR, 4, 0x10000 },
    [0x1c] = { MP_ARRAY, 2, 16 },
    [0x1d] = { MP_ARRAY, 4, 0x10000 },
    [0x1e] = { MP_MAP, 2, 16 },
    [0x1f] = { MP_MAP, 4, 0x10000 },
};

static int
read_form(struct mp *m, uint8_t c, struct mp_value *v)
{
    const struct form *f = &forms[c - 0xc0];
    uint64_t n = 0;
    if (f->type == MP_ERROR)
        return mp_fail(m, m->pos - 1, "msgpack byte 0x%02x has no place here", c);
    if (f->type == MP_INT)
        return read_negative(m, f->bytes, v);
    if (read_sized(m, f->bytes, f->low, &n) < 0)
        return -1;
    if (f->type == MP_STR || f->type == MP_BIN)
        return read_bytes(m, f->type, n, v);
    if (f->type == MP_ARRAY || f->type == MP_MAP)
        return set_count(m, f->type, n, v);
    v->type = f->type;
    if (f->type == MP_F64)
        memcpy(&v->f, &n, sizeof v->f);
    else
        v->u = f->type == MP_BOOL ? c & 1 : n;
    return 0;
}

int
mp_next(struct mp *m, struct mp_value *v)
{
    uint64_t n;
    *v = (struct mp_value){ 0 };
    if (m->err->kind || read_be(m, 1, &n) < 0)
        return -1;
    uint8_t c = (uint8_t)n;
    if (c >= 0x80 && c <= 0x8f)
        return set_count(m, MP_MAP, c & 15, v);
    if (c >= 0x90 && c <= 0x9f)
        return set_count(m, MP_ARRAY, c & 15, v);
    if (c >= 0xa0 && c <= 0xbf)
        return read_bytes(m, MP_STR, c & 31, v);
    if (c >= 0xc0 && c <= 0xdf)
        return read_form(m, c, v);
    v->type = c < 0x80 ? MP_UINT : MP_INT;
    v->u = (uint64_t)(int64_t)(int8_t)c;
    return 0;
}

int
mp_want(struct mp *m, enum mp_type type, struct mp_value *v, const char *what)
{
    static const char *const names[] = {
        "",        "nil",   "a boolean", "an integer", "a negative integer",
        "a float", "a str", "a bin",     "an array",   "a map"
    };
    size_t at = m->pos;
    if (mp_next(m, v) < 0)
        return -1;
    if (v->type != type)
        return mp_fail(m, at, "\"%s\": expected %s, found %s", what, names[type],
                       names[v->type]);
    return 0;
}

int
mp_key(struct mp *m, struct slice *key, struct slice *last)
{
    struct mp_value v;
    size_t at = m->pos;
    if (mp_want(m, MP_STR, &v, "a key") < 0)
        return -1;
    *key = v.s;
    if (last->p) {
        size_t n = last->n < key->n ? last->n : key->n;
        int c = n ? memcmp(last->p, key->p, n) : 0;
        if (c > 0 || (c == 0 && last->n >= key->n))
            return mp_fail(m, at, "keys of a map are not sorted and unique");
    }
    *last = *key;
    return 0;
}

static void
put_scalar(struct buf *json, const struct mp_value *v)
{
    if (!json)
        return;
    switch (v->type) {
    case MP_NIL:
        buf_str(json, "null");
        break;
    case MP_BOOL:
        buf_str(json, v->u ? "true" : "false");
        break;
    case MP_UINT:
        buf_printf(json, "%llu", (unsigned long long)v->u);
        break;
    case MP_INT:
        buf_printf(json, "%lld", (long long)v->u);
        break;
    case MP_F64:
        json_put_number(json, v->f, 17);
        break;
    case MP_STR:
        json_put(json, v->s);
        break;
    default: { // MP_BIN
        buf_char(json, '"');
        for (size_t i = 0; i < v->s.n; i++)
            buf_printf(json, "%02x", (unsigned)(uint8_t)v->s.p[i]);
        buf_char(json, '"');
    }
    }
}

int
mp_skip(struct mp *m, struct buf *json)
{
    struct level {
        bool map;
        uint32_t n, done;
        struct slice last;
    } open[MAX_DEPTH];
    int depth = 0;
    do {
        struct mp_value v;
        size_t at = m->pos;
        if (mp_next(m, &v) < 0)
            return -1;
        if (v.type == MP_MAP || v.type == MP_ARRAY) {
            if ((unsigned)depth + m->depth >= MAX_DEPTH)
                return mp_fail(m, at, "nested deeper than %d", MAX_DEPTH);
            open[depth++] = (struct level){ .map = v.type == MP_MAP, .n = v.n };
            if (json)
                buf_char(json, v.type == MP_MAP ? '{' : '[');
        } else {
            put_scalar(json, &v);
        }
        while (depth) { // close what is complete, else go to the next item
            struct level *l = &open[depth - 1];
            if (l->done < l->n) {
                struct slice key;
                if (json && l->done)
                    buf_char(json, ',');
                if (l->map) {
                    if (mp_key(m, &key, &l->last) < 0)
                        return -1;
                    if (json) {
                        json_put(json, key);
                        buf_char(json, ':');
                    }
                }
                l->done++;
                break;
            }
            if (json)
                buf_char(json, l->map ? '}' : ']');
            depth--;
        }
    } while (depth);
    return 0;
}

static int
add_bytes(void *ctx, const char *bytes, size_t n)
{
    struct buf *b = ctx;
    buf_add(b, bytes, n);
    return b->failed ? -1 : 0;
}

void
mp_pack_into(msgpack_packer *pk, struct buf *b)
{
    msgpack_packer_init(pk, b, add_bytes);
}

void
mp_put_str(msgpack_packer *pk, struct slice s)
{
    msgpack_pack_str(pk, s.n);
    msgpack_pack_str_body(pk, s.p, s.n);
}

void
mp_put_bin(msgpack_packer *pk, const void *bytes, size_t n)
{
    msgpack_pack_bin(pk, n);
    msgpack_pack_bin_body(pk, bytes, n);
}
