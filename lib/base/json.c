/* SPDX-License-Identifier: MIT */
/* json: see json.h. */
#include "lib/base/json.h"

#include "lib/base/num.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 1000, WATCH_STEP = 2 << 20 }; // provenances nest

void
json_open(struct json *j, const char *file, uint64_t base, struct slice text,
          struct arena *arena, struct err *err)
{
    *j = (struct json){ .text = text.p,
                        .len = text.n,
                        .horizon = text.n,
                        .base = base,
                        .file = file,
                        .first = true,
                        .arena = arena,
                        .err = err };
}

void
json_watch(struct json *j, void (*passed)(void *ctx, size_t pos), void *ctx)
{
    j->passed = passed;
    j->ctx = ctx;
    j->horizon = j->pos;
}

/* Whether there is text at i.  All loops over text end at the horizon to ask this, so a
 * value of 100 MB is watched in its middle, too. */
static bool
text_at(struct json *j, size_t i)
{
    if (i < j->horizon)
        return true;
    if (i >= j->len)
        return false;
    j->passed(j->ctx, i); // an unwatched horizon is the end
    j->horizon = j->len - i > WATCH_STEP ? i + WATCH_STEP : j->len;
    return true;
}

void
json_report(struct json *j, size_t at, const char *fmt, ...)
{
    char words[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    err_fill(j->err, ERR_FORMAT, "%s: byte %llu: %s", j->file,
             (unsigned long long)(j->base + at), words);
}

static inline void
skip_space(struct json *j)
{
    if (j->pos < j->horizon && (uint8_t)j->text[j->pos] > ' ')
        return;
    while (text_at(j, j->pos)) {
        char c = j->text[j->pos];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r')
            break;
        j->pos++;
    }
}

int
json_expected(struct json *j, const char *want)
{
    skip_space(j);
    if (j->pos >= j->len)
        return json_fail(j, j->pos, "expected %s, found the end of the JSON text",
                         want);
    char found[TEXT_QUOTE];
    size_t n = j->len - j->pos;
    text_quote(found, j->text + j->pos, n < 16 ? n : 16);
    return json_fail(j, j->pos, "expected %s, found %s", want, found);
}

static bool
broken(const struct json *j)
{
    return j->err->kind != ERR_NONE;
}

char
json_peek(struct json *j)
{
    if (broken(j))
        return '\0';
    skip_space(j);
    if (j->pos >= j->len)
        return '\0';
    char c = j->text[j->pos];
    if (c == '-' || (c >= '0' && c <= '9'))
        return '0';
    return c && strchr("{[\"tfn", c) ? c : '\0';
}

static bool
accept(struct json *j, char c)
{
    skip_space(j);
    if (j->pos >= j->len || j->text[j->pos] != c)
        return false;
    j->pos++;
    return true;
}

static int
open_container(struct json *j, char c, const char *want)
{
    if (broken(j))
        return -1;
    if (!accept(j, c))
        return json_expected(j, want);
    j->first = true;
    return 0;
}

int
json_object(struct json *j)
{
    return open_container(j, '{', "an object");
}

int
json_array(struct json *j)
{
    return open_container(j, '[', "an array");
}

/* 1: a member follows; 0: the container is closed. */
static int
next_member(struct json *j, char close, const char *want)
{
    if (broken(j))
        return -1;
    bool first = j->first;
    j->first = false;
    if (accept(j, close))
        return 0;
    if (!first && !accept(j, ','))
        return json_expected(j, want);
    return 1;
}

int
json_key(struct json *j, struct slice *key)
{
    int more = next_member(j, '}', "',' or '}'");
    if (more <= 0)
        return more;
    skip_space(j);
    if (j->pos >= j->len || j->text[j->pos] != '"')
        return json_expected(j, "a key in double quotes");
    if (json_string(j, key) < 0)
        return -1;
    if (!accept(j, ':'))
        return json_expected(j, "':'");
    return 1;
}

int
json_item(struct json *j)
{
    return next_member(j, ']', "',' or ']'");
}

static int
hex4(struct json *j, uint32_t *v)
{
    *v = 0;
    for (int i = 0; i < 4; i++) {
        char c = j->pos < j->len ? j->text[j->pos] : '\0';
        uint32_t d;
        if (c >= '0' && c <= '9')
            d = (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            d = (uint32_t)((c | 32) - 'a' + 10);
        else
            return json_fail(j, j->pos, "expected 4 hex digits after \\u");
        *v = *v << 4 | d;
        j->pos++;
    }
    return 0;
}

/* One escape, the backslash already read; out may be NULL. */
static int
unescape(struct json *j, struct buf *out)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    size_t at = j->pos - 1;
    char c = j->pos < j->len ? j->text[j->pos++] : '\0';
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        if (out)
            buf_char(out, to[found - from]);
        return 0;
    }
    if (c != 'u')
        return json_fail(j, at, "expected an escape such as \\n or \\u0041");
    uint32_t hi, lo;
    if (hex4(j, &hi) < 0)
        return -1;
    if (hi >= 0xdc00 && hi <= 0xdfff)
        return json_fail(j, at, "low surrogate \\u%04x without a high one", hi);
    if (hi >= 0xd800 && hi <= 0xdbff) {
        if (j->len - j->pos < 6 || memcmp(j->text + j->pos, "\\u", 2) != 0)
            return json_fail(j, at, "high surrogate \\u%04x without a low one", hi);
        j->pos += 2;
        if (hex4(j, &lo) < 0)
            return -1;
        if (lo < 0xdc00 || lo > 0xdfff)
            return json_fail(j, at, "high surrogate \\u%04x without a low one", hi);
        hi = 0x10000 + ((hi - 0xd800) << 10 | (lo - 0xdc00));
    }
    if (out)
        utf8_add(out, hi);
    return 0;
}

/* How many of the characters at p are plain: ASCII but '"', '\\' and controls. */
static size_t
common_run(const char *p, size_t n)
{
    const uint64_t ones = 0x0101010101010101, tops = 0x8080808080808080;
    size_t i = 0;
    for (; n - i >= 8; i += 8) {
        uint64_t v = load_le64(p + i), quote = v ^ ones * '"', slash = v ^ ones * '\\';
        // The top bit of a byte that is below 0x20, '"' or '\\'; or of one behind it.
        if (((v - ones * 0x20) | (quote - ones) | (slash - ones) | v) & tops)
            break;
    }
    while (i < n && !(p[i] & 0x80) && (uint8_t)p[i] >= 0x20 && p[i] != '"' &&
           p[i] != '\\')
        i++;
    return i;
}

/* Length of the plain characters at the current place, up to a quote, a backslash, or
 * the end; -1 for a control character or bad UTF-8. */
static int
plain_run(struct json *j, size_t *n)
{
    size_t i = j->pos;
    for (;;) {
        i += common_run(j->text + i, j->horizon > i ? j->horizon - i : 0);
        if (!text_at(j, i))
            break;
        uint8_t c = (uint8_t)j->text[i];
        uint32_t cp;
        if (c == '"' || c == '\\')
            break;
        unsigned len = c < 0x80 ? 1 : utf8_char(&cp, j->text + i, j->len - i);
        if (c < 0x20)
            return json_fail(j, i, "control character 0x%02x inside a string", c);
        if (len == 0)
            return json_fail(j, i, "byte 0x%02x is not UTF-8", c);
        i += len;
    }
    if (i >= j->len)
        return json_fail(j, i, "string without its closing quote");
    *n = i - j->pos;
    return 0;
}

/* The rest of a string, its quote already read. */
static int
pass_string(struct json *j)
{
    size_t n;
    for (;;) {
        if (plain_run(j, &n) < 0)
            return -1;
        j->pos += n;
        if (j->text[j->pos++] == '"')
            return 0;
        if (unescape(j, NULL) < 0)
            return -1;
    }
}

int
json_string(struct json *j, struct slice *s)
{
    if (broken(j))
        return -1;
    if (!accept(j, '"'))
        return json_expected(j, "a string");
    if (!s)
        return pass_string(j);
    size_t n;
    if (plain_run(j, &n) < 0)
        return -1;
    if (j->text[j->pos + n] == '"') { // no escapes: borrow
        *s = (struct slice){ j->text + j->pos, n };
        j->pos += n + 1;
        return 0;
    }
    struct buf out = { 0 };
    int rc = 0;
    for (;;) {
        buf_add(&out, j->text + j->pos, n);
        j->pos += n;
        if (j->longest && out.len > j->longest) {
            rc = json_fail(j, j->pos, "a string of more than %zu bytes", j->longest);
            break;
        }
        if (j->text[j->pos++] == '"')
            break;
        if (unescape(j, &out) < 0 || plain_run(j, &n) < 0) {
            rc = -1;
            break;
        }
    }
    if (rc == 0)
        rc = buf_ok(&out, j->err);
    if (rc == 0) {
        s->n = out.len;
        s->p = arena_copy(j->arena, out.data ? out.data : "", out.len);
        if (!s->p)
            rc = err_set(j->err, ERR_MEMORY, "%s: out of memory for a string", j->file);
    }
    buf_free(&out);
    return rc;
}

static size_t
digits(struct json *j, size_t i)
{
    while (text_at(j, i) && j->text[i] >= '0' && j->text[i] <= '9')
        i++;
    return i;
}

/* The span of a number by the JSON grammar; *integer: no fraction, exponent, minus. */
static int
number_span(struct json *j, struct slice *s, bool *integer)
{
    if (broken(j))
        return -1;
    skip_space(j);
    size_t i = j->pos;
    const char *t = j->text;
    size_t n = j->len;
    *integer = true;
    if (i < n && t[i] == '-') {
        *integer = false;
        i++;
    }
    size_t start = i;
    i = digits(j, i);
    bool ok = i > start && (t[start] != '0' || i == start + 1);
    if (ok && i < n && t[i] == '.') {
        *integer = false;
        start = ++i;
        i = digits(j, i);
        ok = i > start;
    }
    if (ok && i < n && (t[i] | 32) == 'e') {
        *integer = false;
        i++;
        if (i < n && (t[i] == '+' || t[i] == '-'))
            i++;
        start = i;
        i = digits(j, i);
        ok = i > start;
    }
    if (!ok)
        return json_expected(j, "a number");
    *s = (struct slice){ t + j->pos, i - j->pos };
    j->pos = i;
    return 0;
}

int
json_u63(struct json *j, uint64_t *v)
{
    struct slice s;
    bool integer;
    size_t at = (skip_space(j), j->pos);
    if (number_span(j, &s, &integer) < 0)
        return -1;
    bool fits = integer && s.n <= 19; // 10^19 is below 2^64
    *v = 0;
    for (size_t i = 0; fits && i < s.n; i++)
        *v = 10 * *v + (uint64_t)(s.p[i] - '0');
    if (fits && *v <= INT64_MAX)
        return 0;
    char found[TEXT_QUOTE];
    return json_fail(j, at, "expected an integer of 0..2^63-1, found %s",
                     text_quote(found, s.p, s.n));
}

int
json_number(struct json *j, double *v)
{
    struct slice s;
    bool integer;
    if (number_span(j, &s, &integer) < 0)
        return -1;
    char *text = arena_copy(j->arena, s.p, s.n);
    if (!text)
        return err_set(j->err, ERR_MEMORY, "%s: out of memory for a number", j->file);
    *v = strtod(text, NULL);
    if (!isfinite(*v))
        return json_fail(j, j->pos, "expected a number that a double can hold");
    return 0;
}

static int
word(struct json *j, const char *text)
{
    size_t n = strlen(text);
    if (j->len - j->pos < n || memcmp(j->text + j->pos, text, n) != 0)
        return json_expected(j, "a JSON value");
    j->pos += n;
    return 0;
}

int
json_bool(struct json *j, bool *v)
{
    char c = json_peek(j);
    if (c != 't' && c != 'f')
        return broken(j) ? -1 : json_expected(j, "true or false");
    *v = c == 't';
    return word(j, *v ? "true" : "false");
}

int
json_null(struct json *j)
{
    if (json_peek(j) != 'n')
        return broken(j) ? -1 : json_expected(j, "null");
    return word(j, "null");
}

static int
skip_scalar(struct json *j)
{
    struct slice s;
    bool b;
    switch (json_peek(j)) {
    case '"':
        return json_string(j, NULL);
    case '0':
        return number_span(j, &s, &b);
    case 't':
    case 'f':
        return json_bool(j, &b);
    case 'n':
        return json_null(j);
    default:
        return broken(j) ? -1 : json_expected(j, "a JSON value");
    }
}

int
json_skip(struct json *j, struct slice *raw)
{
    char open[MAX_DEPTH]; // what is open: { or [
    int depth = 0;
    json_peek(j);
    size_t start = j->pos;
    do {
        char c = json_peek(j);
        if (c == '{' || c == '[') {
            if (depth == MAX_DEPTH)
                return json_fail(j, j->pos, "nested deeper than %d", MAX_DEPTH);
            open[depth++] = c;
            j->pos++;
            j->first = true;
        } else if (skip_scalar(j) < 0) {
            return -1;
        }
        while (depth) {
            int more = open[depth - 1] == '{' ? json_key(j, NULL) : json_item(j);
            if (more < 0)
                return -1;
            if (more)
                break;
            depth--;
        }
    } while (depth);
    j->first = false;
    if (raw)
        *raw = (struct slice){ j->text + start, j->pos - start };
    return 0;
}

int
json_once(struct json *j, bool *seen, const char *key)
{
    if (*seen)
        return json_fail(j, j->pos, "a second \"%s\"", key);
    *seen = true;
    return 0;
}

int
json_end(struct json *j)
{
    if (broken(j))
        return -1;
    skip_space(j);
    return j->pos == j->len ? 0 : json_expected(j, "the end of the JSON text");
}

void
json_put(struct buf *b, struct slice s)
{
    buf_char(b, '"');
    while (s.n) {
        uint32_t cp;
        unsigned len = utf8_char(&cp, s.p, s.n);
        if (len == 0) {
            buf_str(b, "\xef\xbf\xbd");
            len = 1;
        } else if (cp == '"' || cp == '\\') {
            buf_char(b, '\\');
            buf_char(b, (char)cp);
        } else if (cp == '\n') {
            buf_str(b, "\\n");
        } else if (cp == '\t') {
            buf_str(b, "\\t");
        } else if (text_unsafe(cp)) {
            buf_printf(b, "\\u%04x", cp);
        } else {
            buf_add(b, s.p, len);
        }
        s.p += len;
        s.n -= len;
    }
    buf_char(b, '"');
}

void
json_put_number(struct buf *b, double v, int digits)
{
    if (isnan(v))
        buf_str(b, "\"NaN\"");
    else if (isinf(v))
        buf_str(b, v > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    else
        buf_printf(b, "%.*g", digits, v);
}
