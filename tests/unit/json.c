/* SPDX-License-Identifier: MIT */
/* json: what the reader takes and refuses, the values it gives, the strings it writes. */
#include "lib/base/json.h"

#include "tests/unit/check.h"

#include <math.h>

/* A text that may hold NULs. */
#define T(text)                                                                        \
    {                                                                                  \
        text, sizeof text - 1                                                          \
    }

static struct arena arena;

static void
begin(struct json *j, struct err *err, struct slice text)
{
    *err = (struct err){ 0 };
    json_open(j, "m.json", 100, text, &arena, err);
}

/* A whole text by json_skip. */
static bool
takes(struct slice text, struct err *err)
{
    struct json j;
    struct slice raw;
    begin(&j, err, text);
    return json_skip(&j, &raw) == 0 && json_end(&j) == 0;
}

static const struct slice good[] = {
    T("0"),
    T("-0"),
    T("-0.0e-0"),
    T("1E400"),
    T("123456789012345678901234567890.5e+10"),
    T("\"\""),
    T("\"\\u0000\\uD834\\uDd1e\\\"\\\\\\/\\b\\f\\n\\r\\t\""),
    T("\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x91\x8b\x7f\""),
    T("true"),
    T("false"),
    T("null"),
    T("[]"),
    T("{}"),
    T(" \t\r\n[ \n] \t"),
    T("[1,2 , 3\n,\t4]"),
    T("[[],{},[[]],{\"\":[]}]"),
    T("{\"a\":1,\"b\":{\"a\":[null]},\"\":\"\"}"),
    T("{\"a\":1,\"a\":2}"), // duplicates are the caller's
    T("{ \"a\" : \"b\" , \"c\" : [ ] }"),
};

static const struct slice bad[] = {
    T(""),
    T(" "),
    T("\xef\xbb\xbf{}"),
    T("{"),
    T("["),
    T("]"),
    T("}"),
    T(","),
    T(":"),
    T("[1,]"),
    T("[,1]"),
    T("[1,,2]"),
    T("[1 2]"),
    T("[1}"),
    T("{1]"),
    T("[1]]"),
    T("[]x"),
    T("{}{}"),
    T("{\"a\"}"),
    T("{\"a\":}"),
    T("{\"a\":1,}"),
    T("{,\"a\":1}"),
    T("{\"a\" 1}"),
    T("{\"a\":1 \"b\":2}"),
    T("{\"a\":1;\"b\":2}"),
    T("{a:1}"),
    T("{'a':1}"),
    T("{1:1}"),
    T("{null:1}"),
    T("{\"a\":[}"),
    T("[{]"),
    T("'a'"),
    T("\""),
    T("\"a"),
    T("\"a\\\""),
    T("\"\\"),
    T("\"\\x41\""),
    T("\"\\a\""),
    T("\"\\0\""),
    T("\"\\'\""),
    T("\"\\\0\""),
    T("\"\\u\""),
    T("\"\\u12\""),
    T("\"\\u123g\""),
    T("\"\\u 123\""),
    T("\"\\u-123\""),
    T("\"\\U0041\""),
    T("\"\\u004"),
    T("\"\\uD800\""),
    T("\"\\uDC00\""),
    T("\"\\uDBFF\\uDBFF\""),
    T("\"\\uD800\\u0041\""),
    T("\"\\uD800\\n\""),
    T("\"\\uD800\\"),
    T("\"\\uD800\\u"),
    T("\"\\uD800\\uDC0"),
    T("\"\\uD800x\\uDC00\""),
    T("\"\\uDC00\\uD800\""),
    T("\"a\nb\""),
    T("\"a\tb\""),
    T("\"a\0b\""),
    T("\"\x1f\""),
    T("\"\xff\""),
    T("\"\xc0\x80\""),
    T("\"\xed\xa0\x80\""),
    T("\"\xe2\x82\""),
    T("\"\xe2\x82"),
    T("\"\xf4\x90\x80\x80\""),
    T("\"\x80\""),
    T("{\"\xff\":1}"),
    T("tru"),
    T("trueX"),
    T("True"),
    T("TRUE"),
    T("t"),
    T("nul"),
    T("nullnull"),
    T("undefined"),
    T("NaN"),
    T("Infinity"),
    T("-Infinity"),
    T("inf"),
    T("-"),
    T("+1"),
    T("-+1"),
    T("--1"),
    T("- 1"),
    T("01"),
    T("-01"),
    T("00"),
    T("1."),
    T(".1"),
    T("-.1"),
    T("1.e5"),
    T("1e"),
    T("1e+"),
    T("1E-"),
    T("1e1.5"),
    T("1.5.5"),
    T("0x10"),
    T("1_000"),
    T("1a"),
    T("[1]\0"),
    T("\0"),
    T("[\0]"),
    T("[1\f]"),
    T("[1\v]"),
    T("[1\xc2\xa0]"),
    T("/* */[]"),
    T("[]//"),
    T("#"),
    T("\xff"),
};

static void
check_tables(void)
{
    struct err err;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        CHECK_SAY(takes(good[i], &err), "refused: %s: %s", good[i].p, err.msg);
        struct slice cut = good[i];
        while (cut.n && strchr(" \t\r\n", cut.p[cut.n - 1]))
            cut.n--;
        if (!strchr("{[\"tfn", *cut.p)) // a shorter number may be one, too
            continue;
        while (cut.n) {
            cut.n--;
            CHECK_SAY(!takes(cut, &err) && err.kind == ERR_FORMAT,
                      "taken: the first %zu bytes of %s", cut.n, good[i].p);
        }
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_SAY(!takes(bad[i], &err), "taken: bad[%zu] %s", i, bad[i].p);
        CHECK_SAY(err.kind == ERR_FORMAT && strncmp(err.msg, "m.json: byte 1", 14) == 0,
                  "bad[%zu] says: %s", i, err.msg);
    }
}

static void
check_depth(void)
{
    enum { DEEPEST = 1000 };
    struct err err;
    struct buf b = { 0 };
    for (int depth = DEEPEST - 1; depth <= DEEPEST + 2; depth++) {
        b.len = 0;
        for (int i = 0; i < depth; i++)
            buf_str(&b, i % 2 ? "{\"k\":" : "[");
        buf_char(&b, '1');
        for (int i = depth; i-- > 0;)
            buf_char(&b, i % 2 ? '}' : ']');
        CHECK_SAY(takes((struct slice){ b.data, b.len }, &err) == (depth <= DEEPEST),
                  "%d levels: %s", depth, err.msg);
    }
    b.len = 0;
    buf_fill(&b, '[', 1 << 20);
    CHECK(!takes((struct slice){ b.data, b.len }, &err));
    CHECK_ERR(err, ERR_FORMAT, "deeper than 1000");
    buf_free(&b);
}

static void
check_u63(void)
{
    static const struct {
        const char *text;
        bool good;
        uint64_t want;
    } cases[] = {
        { "0", true, 0 },
        { " 12", true, 12 },
        { "9223372036854775807", true, INT64_MAX },
        { "9223372036854775808", false, 0 },
        { "18446744073709551616", false, 0 },
        { "99999999999999999999999999999999999999999", false, 0 },
        { "-0", false, 0 },
        { "-1", false, 0 },
        { "1.0", false, 0 },
        { "1e0", false, 0 },
        { "01", false, 0 },
        { "\"1\"", false, 0 },
        { "true", false, 0 },
        { "null", false, 0 },
        { "", false, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json j;
        struct err err;
        uint64_t v = 77;
        begin(&j, &err, slice_of(cases[i].text));
        bool ok = json_u63(&j, &v) == 0 && json_end(&j) == 0;
        CHECK_SAY(ok == cases[i].good && (!ok || v == cases[i].want),
                  "json_u63 of %s: %s", cases[i].text, err.msg);
    }
}

static void
check_number(void)
{
    static const struct {
        const char *text;
        bool good;
        double want;
    } cases[] = {
        { "0", true, 0 },
        { "-0", true, 0 },
        { "1e-06", true, 1e-06 },
        { "-1.5E+3", true, -1500 },
        { "5000000", true, 5000000 },
        { "1.7976931348623157e308", true, 0x1.fffffffffffffp1023 },
        { "4.9e-324", true, 0x1p-1074 },
        { "1e-999", true, 0 },
        { "1e309", false, 0 },
        { "-1e400", false, 0 },
        { "\"1\"", false, 0 },
        { "NaN", false, 0 },
        { "[1]", false, 0 },
        { "1e5x", false, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json j;
        struct err err;
        double v = 77;
        begin(&j, &err, slice_of(cases[i].text));
        bool ok = json_number(&j, &v) == 0 && json_end(&j) == 0;
        CHECK_SAY(ok == cases[i].good && (!ok || v == cases[i].want),
                  "json_number of %s: %a: %s", cases[i].text, v, err.msg);
    }
    struct json j;
    struct err err;
    double v;
    begin(&j, &err, slice_of("-0.0"));
    CHECK(json_number(&j, &v) == 0 && v == 0 && signbit(v));
}

static void
check_strings(void)
{
    static const struct {
        const char *text;
        struct slice want;
    } cases[] = {
        { "\"\"", T("") },
        { "\"plain\"", T("plain") },
        { "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", T("\"\\/\b\f\n\r\t") },
        { "\"\\u0000\"", T("\0") },
        { "\"a\\u0000b\"", T("a\0b") },
        { "\"\\u0041\\u00e9\\u20AC\"", T("A\xc3\xa9\xe2\x82\xac") },
        { "\"\\ud800\\udc00\"", T("\xf0\x90\x80\x80") },
        { "\"\\uDBFF\\uDFFF\"", T("\xf4\x8f\xbf\xbf") },
        { "\"\\uD83D\\uDC4B!\"", T("\xf0\x9f\x91\x8b!") },
        { "\"\\uFFFF\\uFFFE\"", T("\xef\xbf\xbf\xef\xbf\xbe") },
        { "\"\xf0\x9f\x91\x8b\\n\xf0\x9f\x91\x8b\"",
          T("\xf0\x9f\x91\x8b\n\xf0\x9f\x91\x8b") },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json j;
        struct err err;
        struct slice s = { NULL, 0 };
        begin(&j, &err, slice_of(cases[i].text));
        CHECK_SAY(json_peek(&j) == '"' && json_string(&j, &s) == 0 &&
                      json_end(&j) == 0 && slice_eq(s, cases[i].want),
                  "json_string of %s: %s", cases[i].text, err.msg);
    }
}

/* The pull calls, mixed. */
static void
check_walk(void)
{
    static const char text[] = " { \"a\" : [ 1 , [ ] , { } , 2.5 ] , \"b\\n\" : true,"
                               "\"c\":null,\"d\": {\"e\":[\"x\"]} , \"f\" : false } ";
    struct json j;
    struct err err;
    struct slice s;
    uint64_t u;
    double d;
    bool b;
    begin(&j, &err, slice_of(text));
    CHECK(json_peek(&j) == '{' && json_object(&j) == 0);
    CHECK(json_key(&j, &s) == 1 && slice_is(s, "a"));
    CHECK(json_peek(&j) == '[' && json_array(&j) == 0);
    CHECK(json_item(&j) == 1 && json_peek(&j) == '0' && json_u63(&j, &u) == 0 &&
          u == 1);
    CHECK(json_item(&j) == 1 && json_array(&j) == 0 && json_item(&j) == 0);
    CHECK(json_item(&j) == 1 && json_object(&j) == 0 && json_key(&j, &s) == 0);
    CHECK(json_item(&j) == 1 && json_number(&j, &d) == 0 && d == 2.5);
    CHECK(json_item(&j) == 0);
    CHECK(json_key(&j, &s) == 1 && slice_is(s, "b\n"));
    CHECK(json_peek(&j) == 't' && json_bool(&j, &b) == 0 && b);
    CHECK(json_key(&j, &s) == 1 && slice_is(s, "c"));
    CHECK(json_peek(&j) == 'n' && json_null(&j) == 0);
    CHECK(json_key(&j, &s) == 1 && slice_is(s, "d"));
    CHECK(json_skip(&j, &s) == 0 && slice_is(s, "{\"e\":[\"x\"]}"));
    CHECK(json_key(&j, &s) == 1 && slice_is(s, "f"));
    CHECK(json_peek(&j) == 'f' && json_bool(&j, &b) == 0 && !b);
    CHECK(json_key(&j, &s) == 0 && json_end(&j) == 0 && err.kind == ERR_NONE);
}

/* The first error stays and stops everything. */
static void
check_broken(void)
{
    struct json j;
    struct err err;
    struct slice s;
    uint64_t u;
    double d;
    bool b;
    begin(&j, &err, slice_of("[x, 1, \"s\", true, null, {}]"));
    CHECK(json_array(&j) == 0 && json_item(&j) == 1 && json_u63(&j, &u) == -1);
    CHECK_ERR(err, ERR_FORMAT, "m.json: byte 101: expected a number, found x");
    struct err first = err;
    size_t pos = j.pos;
    CHECK(json_item(&j) == -1 && json_key(&j, &s) == -1 && json_object(&j) == -1 &&
          json_array(&j) == -1 && json_string(&j, &s) == -1 && json_u63(&j, &u) == -1 &&
          json_number(&j, &d) == -1 && json_bool(&j, &b) == -1 && json_null(&j) == -1 &&
          json_skip(&j, &s) == -1 && json_end(&j) == -1 && json_peek(&j) == '\0');
    CHECK(j.pos == pos && memcmp(&err, &first, sizeof err) == 0);

    // What has the wrong type is refused where it stands.
    static const struct {
        const char *text, *want;
    } wrong[] = {
        { "{\"a\"", "byte 104: expected ':', found the end" },
        { "{\"a\":1 x", "byte 107: expected ',' or '}', found x" },
        { "{x", "byte 101: expected a key in double quotes" },
        { "\"\\ud800\"", "byte 101: high surrogate \\ud800" },
        { "\"ab\\q", "byte 103: expected an escape" },
        { "\"ab\x01", "byte 103: control character 0x01" },
        { "[\"abc", "byte 105: string without its closing quote" },
        { "[1,2", "byte 104: expected ',' or ']', found the end" },
        { "[1] 2", "byte 104: expected the end" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        takes(slice_of(wrong[i].text), &err);
        CHECK_ERR(err, ERR_FORMAT, wrong[i].want);
    }
    begin(&j, &err, slice_of("{}"));
    CHECK(json_array(&j) == -1);
    CHECK_ERR(err, ERR_FORMAT, "expected an array, found {}");
    begin(&j, &err, slice_of("1"));
    CHECK(json_bool(&j, &b) == -1);
    CHECK_ERR(err, ERR_FORMAT, "expected true or false");
    begin(&j, &err, slice_of("truf"));
    CHECK(json_bool(&j, &b) == -1);
    begin(&j, &err, slice_of("0"));
    CHECK(json_null(&j) == -1);
}

/* What json_put writes is read back; what is no UTF-8 became U+FFFD. */
static void
check_round(const char *p, size_t n)
{
    struct buf b = { 0 };
    struct json j;
    struct err err;
    struct slice s = { NULL, 0 };
    json_put(&b, (struct slice){ p, n });
    for (size_t i = 0; i < b.len; i++)
        CHECK_SAY((uint8_t)b.data[i] >= 0x20 && b.data[i] != 0x7f,
                  "json_put leaves byte 0x%02x", (uint8_t)b.data[i]);
    begin(&j, &err, (struct slice){ b.data, b.len });
    CHECK_SAY(json_string(&j, &s) == 0 && json_end(&j) == 0,
              "json_put of %zu bytes: %s: %s", n, b.data, err.msg);
    bool valid = utf8_check(p, n) == n;
    if (valid)
        CHECK_SAY(slice_eq(s, (struct slice){ p, n }), "json_put of %zu bytes: %s", n,
                  b.data);
    else
        CHECK_SAY(memmem(s.p, s.n, "\xef\xbf\xbd", 3), "json_put hides bad UTF-8: %s",
                  b.data);
    CHECK(utf8_check(b.data, b.len) == b.len);
    buf_free(&b);
}

static void
check_writing(void)
{
    static const char *const pieces[] = { "x",        "\"",       "\\",
                                          "/",        "\n",       "\x01",
                                          "\x7f",     "\xc3\xa9", "\xff",
                                          "\xe2\x82", "👋",        "\xe2\x80\xae",
                                          "\xc2\x85", "\t",       "\r" };
    enum { PIECES = sizeof pieces / sizeof *pieces };
    uint64_t r = 0;
    for (int i = 0; i < 3000; i++) {
        struct buf b = { 0 };
        // The last rows of the table only now and then, so that much stays valid.
        unsigned n = check_random(r++) % 30;
        unsigned kinds = i % 2 ? PIECES : 8;
        while (n--)
            buf_str(&b, pieces[check_random(r++) % kinds]);
        buf_add(&b, "", i % 3 == 0); // a NUL at the end
        check_round(b.data ? b.data : "", b.len);
        buf_free(&b);
    }
    static const struct {
        double v;
        int digits;
        const char *want;
    } numbers[] = {
        { 0.1, 17, "0.10000000000000001" },
        { 1, 9, "1" },
        { -2.5, 9, "-2.5" },
        { 1e300, 9, "1e+300" },
        { NAN, 9, "\"NaN\"" },
        { INFINITY, 9, "\"Infinity\"" },
        { -INFINITY, 9, "\"-Infinity\"" },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct buf b = { 0 };
        struct err err;
        json_put_number(&b, numbers[i].v, numbers[i].digits);
        CHECK_SAY(b.data && strcmp(b.data, numbers[i].want) == 0, "json_put_number: %s",
                  b.data);
        CHECK(takes((struct slice){ b.data, b.len }, &err));
        buf_free(&b);
    }
}

/* Each byte at each place of a string, with each byte behind it: eight bytes at a time
 * are looked at, and what one of them holds must not hide the next. */
static void
check_bytes(void)
{
    char text[24];
    struct err err;
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 256; b++)
            for (size_t at = 1; at < 10; at++) {
                memset(text, 'x', sizeof text);
                text[0] = text[sizeof text - 1] = '"';
                text[at] = (char)a;
                text[at + 1] = (char)b;
                bool plain = a >= 0x20 && a < 0x80 && b >= 0x20 && b < 0x80 &&
                             a != '"' && b != '"' && a != '\\' && b != '\\';
                bool pair = a >= 0xc2 && a < 0xe0 && b >= 0x80 && b < 0xc0;
                bool escape = a == '\\' && b && strchr("\"\\/bfnrt", (int)b);
                struct slice s = { text, sizeof text };
                CHECK_SAY(takes(s, &err) == (plain || pair || escape),
                          "bytes %02x %02x at %zu: %s", a, b, at, err.msg);
            }
}

/* Strings that nobody wants are checked all the same. */
static void
check_unwanted(void)
{
    struct json j;
    struct err err;
    begin(&j, &err, slice_of("{\"a\\n\":\"b\\u00e9\",\"c\":\"\\ud800\"}"));
    CHECK(json_object(&j) == 0 && json_key(&j, NULL) == 1);
    CHECK(json_string(&j, NULL) == 0 && json_key(&j, NULL) == 1);
    CHECK(json_string(&j, NULL) < 0);
    CHECK_ERR(err, ERR_FORMAT, "byte 122: high surrogate");
    begin(&j, &err, slice_of("[1]"));
    CHECK(json_string(&j, NULL) < 0);
    CHECK_ERR(err, ERR_FORMAT, "expected a string");
}

static void
check_longest(void)
{
    static const char text[] = "[\"\\n345\",\"12345678\",\"\\n23456\"]";
    struct json j;
    struct err err;
    struct slice s = { NULL, 0 };
    begin(&j, &err, slice_of(text));
    j.longest = 4;
    CHECK(json_array(&j) == 0 && json_item(&j) == 1 && json_string(&j, &s) == 0);
    CHECK(slice_is(s, "\n345"));
    CHECK(json_item(&j) == 1 && json_string(&j, &s) == 0 && s.n == 8); // borrowed
    CHECK(json_item(&j) == 1 && json_string(&j, &s) < 0);
    CHECK_ERR(err, ERR_FORMAT, "a string of more than 4 bytes");
}

struct watch {
    size_t calls, last;
};

static void
passed(void *ctx, size_t pos)
{
    struct watch *w = ctx;
    CHECK(pos >= w->last);
    w->calls++;
    w->last = pos;
}

/* A reader that is watched reads the same, and tells of its way through long strings,
 * numbers and white space. */
static void
check_watch(void)
{
    enum { LONG = 10 << 20 };
    static const char fill[] = { 'x', ' ', '1' };
    for (size_t i = 0; i < sizeof fill; i++) {
        struct watch w = { 0, 0 };
        struct buf b = { 0 };
        struct json j;
        struct err err;
        struct slice raw = { NULL, 0 };
        buf_str(&b, i == 0 ? "[\"" : "[");
        buf_fill(&b, fill[i], LONG);
        buf_str(&b, i == 0 ? "\"]" : i == 1 ? "2]" : "]");
        begin(&j, &err, (struct slice){ b.data, b.len });
        json_watch(&j, passed, &w);
        CHECK_SAY(json_skip(&j, &raw) == 0 && json_end(&j) == 0 && raw.n == b.len,
                  "%zu: %s", i, err.msg);
        CHECK_SAY(w.calls >= 5 && w.last > LONG / 2, "%zu: %zu calls, last %zu", i,
                  w.calls, w.last);
        buf_free(&b);
    }
}

int
main(void)
{
    check_bytes();
    check_unwanted();
    check_longest();
    check_watch();
    check_tables();
    check_depth();
    check_u63();
    check_number();
    check_strings();
    check_walk();
    check_broken();
    check_writing();
    arena_free(&arena);
    return check_end();
}
