/* SPDX-License-Identifier: MIT */
/* mp: canonical msgpack, each form at its edges, and what is refused. */
#include "lib/format/mp.h"

#include "lib/base/json.h"
#include "tests/unit/check.h"

#include <math.h>

#define T(text)                                                                        \
    {                                                                                  \
        text, sizeof text - 1                                                          \
    }

static struct mp
begin(struct err *err, struct slice bytes)
{
    *err = (struct err){ 0 };
    return (struct mp){ .data = (const uint8_t *)bytes.p,
                        .len = bytes.n,
                        .base = 64,
                        .file = "m.ckpt",
                        .err = err };
}

/* One value and nothing behind it; its JSON in *json. */
static bool
takes(struct slice bytes, struct buf *json, struct err *err)
{
    struct mp m = begin(err, bytes);
    json->len = 0;
    return mp_skip(&m, json) == 0 && m.pos == m.len;
}

static const struct {
    struct slice bytes;
    const char *json;
} good[] = {
    { T("\xc0"), "null" },
    { T("\xc2"), "false" },
    { T("\xc3"), "true" },
    { T("\x00"), "0" },
    { T("\x7f"), "127" },
    { T("\xcc\x80"), "128" },
    { T("\xcc\xff"), "255" },
    { T("\xcd\x01\x00"), "256" },
    { T("\xcd\xff\xff"), "65535" },
    { T("\xce\x00\x01\x00\x00"), "65536" },
    { T("\xce\xff\xff\xff\xff"), "4294967295" },
    { T("\xcf\x00\x00\x00\x01\x00\x00\x00\x00"), "4294967296" },
    { T("\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), "18446744073709551615" },
    { T("\xff"), "-1" },
    { T("\xe0"), "-32" },
    { T("\xd0\xdf"), "-33" },
    { T("\xd0\x80"), "-128" },
    { T("\xd1\xff\x7f"), "-129" },
    { T("\xd1\x80\x00"), "-32768" },
    { T("\xd2\xff\xff\x7f\xff"), "-32769" },
    { T("\xd2\x80\x00\x00\x00"), "-2147483648" },
    { T("\xd3\xff\xff\xff\xff\x7f\xff\xff\xff"), "-2147483649" },
    { T("\xd3\x80\x00\x00\x00\x00\x00\x00\x00"), "-9223372036854775808" },
    { T("\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"), "1.5" },
    { T("\xcb\x00\x00\x00\x00\x00\x00\x00\x00"), "0" },
    { T("\xcb\x80\x00\x00\x00\x00\x00\x00\x00"), "-0" },
    { T("\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"), "\"NaN\"" },
    { T("\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00"), "\"Infinity\"" },
    { T("\xcb\xff\xf0\x00\x00\x00\x00\x00\x00"), "\"-Infinity\"" },
    { T("\xa0"), "\"\"" },
    { T("\xa1\x61"), "\"a\"" },
    { T("\xa3\x00\n\x22"), "\"\\u0000\\n\\\"\"" },
    { T("\xa2\xc3\xa9"), "\"\xc3\xa9\"" },
    { T("\xbf"
        "0123456789012345678901234567890"),
      "\"0123456789012345678901234567890\"" },
    { T("\xd9\x20"
        "01234567890123456789012345678901"),
      "\"01234567890123456789012345678901\"" },
    { T("\xc4\x00"), "\"\"" },
    { T("\xc4\x03\x00\xff\x61"), "\"00ff61\"" },
    { T("\x90"), "[]" },
    { T("\x93\x01\xc0\x90"), "[1,null,[]]" },
    { T("\x9f\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]" },
    { T("\xdc\x00\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
      "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]" },
    { T("\x80"), "{}" },
    { T("\x81\xa0\xc0"), "{\"\":null}" },
    { T("\x82\xa1"
        "a\x01\xa2"
        "aa\x02"),
      "{\"a\":1,\"aa\":2}" },
    { T("\x82\xa1"
        "Z\x01\xa1"
        "a\x02"),
      "{\"Z\":1,\"a\":2}" },
    { T("\x82\xa1"
        "z\x01\xa2\xc3\xa9\x02"),
      "{\"z\":1,\"\xc3\xa9\":2}" },
    // The order is that of each map alone.
    { T("\x82\xa1"
        "b\x81\xa1"
        "a\x01\xa1"
        "c\x81\xa1"
        "a\x02"),
      "{\"b\":{\"a\":1},\"c\":{\"a\":2}}" },
    { T("\x92\x81\xa1"
        "b\x01\x81\xa1"
        "a\x02"),
      "[{\"b\":1},{\"a\":2}]" },
};

static const struct slice bad[] = {
    T(""),
    // No place in the subset: never used, float32, ext.
    T("\xc1"),
    T("\xca\x3f\xc0\x00\x00"),
    T("\xc7\x01\x00\x00"),
    T("\xc8\x00\x01\x00\x00"),
    T("\xc9\x00\x00\x00\x01\x00\x00"),
    T("\xd4\x00\x00"),
    T("\xd5\x00\x00\x00"),
    T("\xd6\x00\x00\x00\x00\x00"),
    T("\xd7\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
    T("\xd8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
    // Not the shortest form: the largest value of the form before.
    T("\xcc\x7f"),
    T("\xcc\x00"),
    T("\xcd\x00\xff"),
    T("\xce\x00\x00\xff\xff"),
    T("\xcf\x00\x00\x00\x00\xff\xff\xff\xff"),
    T("\xd0\xe0"),
    T("\xd0\xff"),
    T("\xd1\xff\x80"),
    T("\xd2\xff\xff\x80\x00"),
    T("\xd3\xff\xff\xff\xff\x80\x00\x00\x00"),
    // Not negative in a signed form.
    T("\xd0\x00"),
    T("\xd0\x7f"),
    T("\xd1\x7f\xff"),
    T("\xd2\x7f\xff\xff\xff"),
    T("\xd3\x7f\xff\xff\xff\xff\xff\xff\xff"),
    T("\xd9\x00"),
    T("\xd9\x1f"
      "0123456789012345678901234567890"),
    T("\xdc\x00\x00"),
    T("\xdc\x00\x0f\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
    T("\xdd\x00\x00\x00\x00"),
    T("\xde\x00\x00"),
    T("\xdf\x00\x00\x00\x00"),
    T("\xc5\x00\x01\x00"),
    T("\xc6\x00\x00\x00\x01\x00"),
    // A str that is not UTF-8.
    T("\xa1\xff"),
    T("\xa2\xc0\x80"),
    T("\xa3\xed\xa0\x80"),
    T("\xa1\xc3"),
    // More announced than there is.
    T("\xa2\x61"),
    T("\xc4\x02\x00"),
    T("\x91"),
    T("\x92\x00"),
    T("\x81\xa0"),
    T("\xdd\xff\xff\xff\xff\x00"),
    T("\xdf\xff\xff\xff\xff\x00\x00"),
    T("\xdb\xff\xff\xff\xff\x00"),
    T("\xc6\xff\xff\xff\xff\x00"),
    // Keys: sorted, unique, str.
    T("\x82\xa1"
      "b\x01\xa1"
      "a\x02"),
    T("\x82\xa1"
      "a\x01\xa1"
      "a\x02"),
    T("\x82\xa0\x01\xa0\x02"),
    T("\x82\xa2"
      "aa\x01\xa1"
      "a\x02"),
    T("\x82\xa2\xc3\xa9\x01\xa1"
      "z\x02"),
    T("\x82\xa1"
      "a\x01\xa0\x02"),
    T("\x81\x01\x01"),
    T("\x81\xc4\x01"
      "a\x01"),
    T("\x81\xc0\x01"),
    T("\x81\x90\x01"),
    T("\x92\x82\xa1"
      "b\x01\xa1"
      "a\x02\x00"),
    // A second value.
    T("\xc0\xc0"),
    T("\x90\x00"),
};

static void
check_cuts(struct slice bytes, struct buf *json)
{
    struct err err;
    while (bytes.n) {
        bytes.n--;
        CHECK_SAY(!takes(bytes, json, &err), "taken when cut at byte %zu: %02x...",
                  bytes.n, (uint8_t)*bytes.p);
    }
}

static void
check_tables(void)
{
    struct buf json = { 0 };
    struct arena arena = { 0 };
    struct err err;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        bool ok = takes(good[i].bytes, &json, &err);
        CHECK_SAY(ok && strcmp(json.data, good[i].json) == 0, "good[%zu]: %s, %s", i,
                  json.data ? json.data : "", err.msg);
        if (!ok)
            continue;
        struct json j;
        json_open(&j, "json", 0, (struct slice){ json.data, json.len }, &arena, &err);
        CHECK_SAY(json_skip(&j, NULL) == 0 && json_end(&j) == 0, "no JSON: %s",
                  json.data);
        struct mp m = begin(&err, good[i].bytes);
        CHECK(mp_skip(&m, NULL) == 0 && m.pos == m.len);
        check_cuts(good[i].bytes, &json);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mp m = begin(&err, bad[i]);
        bool ok = mp_skip(&m, &json) == 0 && m.pos == m.len;
        CHECK_SAY(!ok, "bad[%zu] is taken: %.*s", i, (int)json.len, json.data);
        CHECK_SAY(m.pos < m.len || (err.kind == ERR_FORMAT &&
                                    strncmp(err.msg, "m.ckpt: byte ", 13) == 0),
                  "bad[%zu] says: %s", i, err.msg);
    }
    arena_free(&arena);
    buf_free(&json);
}

/* Strings, bins, arrays and maps whose count has 8, 16 or 32 bits, in each form. */
static void
check_counts(void)
{
    static const struct {
        char code;
        unsigned bytes; // of the count
        uint32_t least; // that may be written so
        unsigned per;   // bytes an item
    } forms[] = {
        { '\xd9', 1, 32, 1 },    { '\xda', 2, 256, 1 },   { '\xdb', 4, 65536, 1 },
        { '\xc4', 1, 0, 1 },     { '\xc5', 2, 256, 1 },   { '\xc6', 4, 65536, 1 },
        { '\xdc', 2, 16, 1 },    { '\xdd', 4, 65536, 1 }, { '\xde', 2, 16, 7 },
        { '\xdf', 4, 65536, 7 },
    };
    struct buf b = { 0 }, json = { 0 };
    struct err err;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int more = -1; more <= 1; more++) {
            if (forms[i].least == 0 && more < 0)
                continue;
            uint32_t n = forms[i].least + (uint32_t)more;
            b.len = 0;
            buf_char(&b, forms[i].code);
            for (unsigned k = forms[i].bytes; k-- > 0;)
                buf_char(&b, (char)(n >> 8 * k));
            for (uint32_t k = 0; k < n && forms[i].per == 7; k++)
                buf_printf(&b, "\xa5%05xa", k); // a key of 5 bytes, then "a": 0x61
            buf_fill(&b, 'a', forms[i].per == 1 ? n : 0);
            bool ok = takes((struct slice){ b.data, b.len }, &json, &err);
            CHECK_SAY(ok == (more >= 0), "form %02x with %u items: %s",
                      (uint8_t)forms[i].code, n, err.msg);
            if (!ok)
                CHECK_ERR(err, ERR_FORMAT, "shortest form");
            CHECK(!takes((struct slice){ b.data, b.len - 1 }, &json, &err));
        }
    buf_free(&b);
    buf_free(&json);
}

static void
check_depth(void)
{
    struct buf b = { 0 }, json = { 0 };
    struct err err;
    for (int depth = 15; depth <= 18; depth++) {
        b.len = 0;
        for (int i = 0; i < depth; i++)
            buf_str(&b, i % 2 ? "\x81\xa1k" : "\x91");
        buf_char(&b, '\x01');
        CHECK_SAY(takes((struct slice){ b.data, b.len }, &json, &err) == (depth <= 16),
                  "%d levels: %s", depth, err.msg);
    }
    b.len = 0;
    buf_fill(&b, '\x91', 100000);
    CHECK(!takes((struct slice){ b.data, b.len }, &json, &err));
    CHECK_ERR(err, ERR_FORMAT, "deeper than 16");
    buf_free(&b);
    buf_free(&json);
}

static void
check_pull(void)
{
    static const struct slice bytes = T("\x82\xa1"
                                        "a\x93\xd0\x80\xcc\x80\xc4\x01\xff\xa1"
                                        "b\xcb\xc0\x04\x00\x00\x00\x00\x00\x00");
    struct err err;
    struct mp_value v;
    struct slice key, last = { NULL, 0 };
    struct mp m = begin(&err, bytes);
    CHECK(mp_want(&m, MP_MAP, &v, "top") == 0 && v.n == 2);
    CHECK(mp_key(&m, &key, &last) == 0 && slice_is(key, "a"));
    CHECK(mp_next(&m, &v) == 0 && v.type == MP_ARRAY && v.n == 3);
    CHECK(mp_next(&m, &v) == 0 && v.type == MP_INT && (int64_t)v.u == -128);
    CHECK(mp_next(&m, &v) == 0 && v.type == MP_UINT && v.u == 128);
    CHECK(mp_next(&m, &v) == 0 && v.type == MP_BIN && v.s.n == 1);
    CHECK(mp_key(&m, &key, &last) == 0 && slice_is(key, "b") && slice_is(last, "b"));
    CHECK(mp_want(&m, MP_F64, &v, "b") == 0 && v.f == -2.5 && m.pos == m.len);
    CHECK(mp_next(&m, &v) == -1 && err.kind == ERR_FORMAT);

    // A count is known to be too large before anything of it is read.
    static const struct slice large[] = { T("\xdd\x00\x01\x00\x00\x00"),
                                          T("\x93\x00\x00"),
                                          T("\xdf\x00\x01\x00\x00\xa0\x00"),
                                          T("\x82\xa0\x00\xa1") };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        m = begin(&err, large[i]);
        CHECK(mp_next(&m, &v) == -1);
        CHECK_ERR(err, ERR_FORMAT, "items announced");
    }

    // The first error stays and stops everything.
    m = begin(&err, bytes);
    CHECK(mp_want(&m, MP_ARRAY, &v, "top") == -1);
    CHECK_ERR(err, ERR_FORMAT,
              "m.ckpt: byte 64: \"top\": expected an array, found a map");
    struct err first = err;
    CHECK(mp_next(&m, &v) == -1 && mp_skip(&m, NULL) == -1 &&
          mp_key(&m, &key, &last) == -1 && mp_want(&m, MP_NIL, &v, "x") == -1);
    CHECK(memcmp(&first, &err, sizeof err) == 0);
}

/* What our writers write with msgpack-c is what the reader calls canonical. */
static void
check_writer(void)
{
    msgpack_sbuffer sb;
    msgpack_packer pk;
    struct err err;
    struct mp_value v;
    msgpack_sbuffer_init(&sb);
    msgpack_packer_init(&pk, &sb, msgpack_sbuffer_write);
    for (unsigned shift = 0; shift < 64; shift++)
        for (int delta = -2; delta <= 2; delta++) {
            uint64_t u = (uint64_t)1 << shift;
            u += (uint64_t)(int64_t)delta;
            sb.size = 0;
            msgpack_pack_uint64(&pk, u);
            msgpack_pack_int64(
                &pk, (int64_t)(~u | UINT64_C(1) << 63)); // some negative number
            struct mp m = begin(&err, (struct slice){ sb.data, sb.size });
            CHECK_SAY(mp_want(&m, MP_UINT, &v, "u") == 0 && v.u == u, "%llu: %s",
                      (unsigned long long)u, err.msg);
            CHECK_SAY(mp_want(&m, MP_INT, &v, "i") == 0 &&
                          v.u == (~u | UINT64_C(1) << 63) && m.pos == m.len,
                      "%lld: %s", (long long)(~u | UINT64_C(1) << 63), err.msg);
        }
    for (size_t n = 0; n < 70000; n = n * 9 / 8 + 1) {
        char *text = calloc(1, n + 1);
        NEED(text);
        sb.size = 0;
        mp_put_str(&pk, (struct slice){ text, n });
        mp_put_bin(&pk, text, n);
        struct mp m = begin(&err, (struct slice){ sb.data, sb.size });
        CHECK_SAY(mp_want(&m, MP_STR, &v, "s") == 0 && v.s.n == n &&
                      mp_want(&m, MP_BIN, &v, "b") == 0 && v.s.n == n && m.pos == m.len,
                  "str and bin of %zu bytes: %s", n, err.msg);
        free(text);
    }
    msgpack_sbuffer_destroy(&sb);
}

int
main(void)
{
    check_tables();
    check_counts();
    check_depth();
    check_pull();
    check_writer();
    return check_end();
}
