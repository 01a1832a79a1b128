/* SPDX-License-Identifier: MIT */
/* text: UTF-8 against an encoder written here, names made safe to show.
 *
 * A sequence is well-formed if, read without any check, it gives a character whose
 * encoding is the same bytes again. */
#include "lib/base/text.h"

#include "tests/unit/check.h"

static unsigned
encode(uint8_t out[4], uint32_t cp)
{
    unsigned n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const uint8_t lead[5] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    for (unsigned i = n; i-- > 1; cp /= 64)
        out[i] = (uint8_t)(0x80 + cp % 64);
    out[0] = (uint8_t)(lead[n] + cp);
    return n;
}

/* The length of the character at p by that rule, or 0. */
static unsigned
expected(uint32_t *cp, const uint8_t *p, size_t n)
{
    unsigned len = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    static const uint32_t lead[5] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    uint8_t again[4];
    if (n < len)
        return 0;
    uint32_t c = p[0] - lead[len];
    for (unsigned i = 1; i < len; i++)
        c = c * 64 + (p[i] - 0x80U);
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000) || encode(again, c) != len ||
        memcmp(again, p, len) != 0)
        return 0;
    *cp = c;
    return len;
}

static void
check_char(const uint8_t *p, size_t n)
{
    uint32_t want = 0, found = 0;
    unsigned len = expected(&want, p, n);
    unsigned got = utf8_char(&found, (const char *)p, n);
    CHECK_SAY(got == len && found == want,
              "utf8_char of %zu bytes %02x %02x %02x %02x: %u, U+%04X", n, p[0],
              n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, n > 3 ? p[3] : 0, got, found);
}

static void
check_utf8_chars(void)
{
    static const uint8_t edges[] = { 0x00, 0x7f, 0x80, 0x81, 0xbe, 0xbf, 0xc0, 0xff };
    uint32_t cp;
    CHECK(utf8_char(&cp, "", 0) == 0);
    for (unsigned a = 0; a < 256; a++) {
        uint8_t p[4] = { (uint8_t)a };
        check_char(p, 1);
        for (unsigned b = 0; b < 256; b++) {
            p[1] = (uint8_t)b;
            check_char(p, 2);
            for (unsigned c = 0; c < 256; c++) {
                p[2] = (uint8_t)c;
                check_char(p, 3);
            }
            for (size_t c = 0; c < sizeof edges; c++)
                for (size_t d = 0; d < sizeof edges; d++) {
                    p[2] = edges[c];
                    p[3] = edges[d];
                    check_char(p, 4);
                }
        }
    }
    for (uint32_t c = 0; c < 0x110000; c++) {
        uint8_t p[4];
        struct buf b = { 0 };
        unsigned n = encode(p, c);
        check_char(p, n);
        if (c % 61 || (c >= 0xd800 && c < 0xe000))
            continue;
        utf8_add(&b, c);
        CHECK_SAY(b.len == n && memcmp(b.data, p, n) == 0, "utf8_add of U+%04X", c);
        buf_free(&b);
    }
}

static void
check_utf8_check(void)
{
    static const struct {
        const char *text;
        size_t n, good;
    } cases[] = {
        { "", 0, 0 },
        { "abc", 3, 3 },
        { "a\0b", 3, 3 },
        { "ab\xff", 3, 2 },
        { "\xc3\xa9\xe2\x82\xac\xf0\x9f\x91\x8b", 9, 9 },
        { "x\xe2\x82", 3, 1 },
        { "x\xf0\x9f\x91", 4, 1 },
        { "x\xed\xa0\x80y", 5, 1 },
        { "x\xc0\x80", 3, 1 },
        { "x\xe0\x9f\xbf", 4, 1 },
        { "x\xf4\x90\x80\x80", 5, 1 },
        { "\x80", 1, 0 },
        { "\xc3\xa9\xa9", 3, 2 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t got = utf8_check(cases[i].text, cases[i].n);
        CHECK_SAY(got == cases[i].good, "utf8_check of case %zu: %zu", i, got);
    }
}

/* Unicode's Cc, Zl, Zp and Bidi_Control. */
static bool
acts(uint32_t cp)
{
    static const uint32_t others[] = { 0x61c,  0x200e, 0x200f, 0x2028, 0x2029,
                                       0x202a, 0x202b, 0x202c, 0x202d, 0x202e,
                                       0x2066, 0x2067, 0x2068, 0x2069 };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (cp == others[i])
            return true;
    return cp < 0x20 || (cp >= 0x7f && cp <= 0x9f);
}

/* What text_escape promises of any bytes: UTF-8 without a character that acts. */
static bool
is_safe(const char *p, size_t n)
{
    while (n) {
        uint32_t cp = 0;
        unsigned len = expected(&cp, (const uint8_t *)p, n);
        if (len == 0 || acts(cp))
            return false;
        p += len;
        n -= len;
    }
    return true;
}

/* The bytes behind an escaped text. */
static void
unescape(struct buf *out, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != '\\') {
            buf_char(out, p[i]);
        } else if (i + 3 < n && p[i + 1] == 'x') {
            char hex[3] = { p[i + 2], p[i + 3], '\0' };
            buf_char(out, (char)strtol(hex, NULL, 16));
            i += 3;
        } else {
            i++;
            buf_char(out, (char)(p[i] == 'n' ? '\n' : p[i] == 't' ? '\t' : p[i]));
        }
}

static void
check_shown(const char *p, size_t n)
{
    static const char cut[] = "…";
    char quoted[TEXT_QUOTE];
    struct buf full = { 0 }, back = { 0 };
    memset(quoted, 'Z', sizeof quoted);
    text_escape(&full, p, n);
    const char *whole = full.data ? full.data : "";
    unescape(&back, whole, full.len);
    CHECK_SAY(is_safe(whole, full.len), "text_escape leaves something that acts: %s",
              whole);
    CHECK_SAY(back.len == n && (n == 0 || check_equal(back.data, p, n)),
              "the bytes behind an escaped text are not the same: %s", whole);

    // Words that hold names which are escaped already are not escaped again.
    struct buf words = { 0 };
    text_harmless(&words, whole, full.len);
    CHECK_SAY(words.len == full.len &&
                  (full.len == 0 || check_equal(words.data, whole, full.len)),
              "text_harmless of \"%s\" is \"%s\"", whole, words.data);
    words.len = 0;
    text_harmless(&words, p, n);
    CHECK_SAY(is_safe(words.data ? words.data : "", words.len),
              "text_harmless leaves something that acts: %s", words.data);
    buf_free(&words);

    CHECK(text_quote(quoted, p, n) == quoted);
    const char *end = memchr(quoted, '\0', sizeof quoted);
    NEED(end);
    size_t len = (size_t)(end - quoted);
    CHECK_SAY(is_safe(quoted, len), "text_quote leaves something that acts: %s",
              quoted);
    const char *dots = strstr(quoted, cut);
    bool same = len == full.len && (len == 0 || memcmp(quoted, whole, len) == 0);
    if (!dots || same) {
        CHECK_SAY(same, "text_quote is \"%s\", the whole is \"%s\"", quoted, whole);
    } else {
        size_t head = (size_t)(dots - quoted);
        size_t tail = len - head - strlen(cut);
        CHECK_SAY(head + tail < full.len && memcmp(whole, quoted, head) == 0,
                  "text_quote is \"%s\", the whole is \"%s\"", quoted, whole);
        // A cut inside a character of the input may escape its rest differently.
        CHECK_SAY(tail == 0 || slice_ends((struct slice){ whole, full.len }, end - 1),
                  "text_quote ends \"%s\", the whole \"%s\"", quoted, whole);
    }
    buf_free(&full);
    buf_free(&back);
}

static void
check_escape_table(void)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "", "" },
        { "model.layers.0.weight", "model.layers.0.weight" },
        { "a b\"c'", "a b\"c'" },
        { "a\nb\tc\\d", "a\\nb\\tc\\\\d" },
        { "\x1b[31m\r\x7f", "\\x1b[31m\\x0d\\x7f" },
        { "\xc2\x85\xc2\xa0", "\\xc2\\x85\xc2\xa0" },
        { "a\xe2\x80\xae"
          "b",
          "a\\xe2\\x80\\xaeb" },
        { "\xe2\x81\xa6", "\\xe2\\x81\\xa6" },
        { "\xe2\x80\xa8", "\\xe2\\x80\\xa8" },
        { "\xd8\x9c", "\\xd8\\x9c" },
        { "\xff\xe2\x82", "\\xff\\xe2\\x82" },
        { "\xed\xa0\x80", "\\xed\\xa0\\x80" },
        { "層.重み 👋", "層.重み 👋" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b = { 0 };
        char quoted[TEXT_QUOTE];
        text_escape(&b, cases[i].text, strlen(cases[i].text));
        CHECK_SAY(strcmp(b.data ? b.data : "", cases[i].want) == 0,
                  "text_escape of case %zu: %s", i, b.data);
        text_quote(quoted, cases[i].text, strlen(cases[i].text));
        CHECK_SAY(strcmp(quoted, cases[i].want) == 0, "text_quote of case %zu: %s", i,
                  quoted);
        buf_free(&b);
    }
    struct buf b = { 0 };
    text_escape(&b, "a\0b", 3);
    CHECK(b.data && strcmp(b.data, "a\\x00b") == 0);
    buf_free(&b);
    for (uint32_t cp = 0; cp < 0x110000; cp++)
        CHECK_SAY(text_unsafe(cp) == acts(cp), "text_unsafe of U+%04X", cp);
}

/* Texts of every length around the cut, of each kind of piece and of mixtures. */
static void
check_escape_random(void)
{
    static const char *const pieces[] = { "x",    "\\",       "\n",           "\x1b",
                                          "\xff", "\xc3\xa9", "\xe2\x80\xae", "層",
                                          "👋",    "\x80",     "\xe2\x82" };
    enum { PIECES = sizeof pieces / sizeof *pieces };
    uint64_t r = 0;
    for (unsigned kind = 0; kind < PIECES + 20; kind++)
        for (unsigned n = 0; n < 220; n++) {
            struct buf b = { 0 };
            for (unsigned i = 0; i < n; i++)
                buf_str(&b, pieces[kind < PIECES ? kind : check_random(r++) % PIECES]);
            check_shown(b.data ? b.data : "", b.len);
            buf_free(&b);
        }
    for (unsigned n = 0; n < 2000; n++) {
        char raw[400];
        size_t len = check_random(r++) % sizeof raw;
        for (size_t i = 0; i < len; i++)
            raw[i] = (char)check_random(r++);
        check_shown(raw, len);
    }
}

static void
check_slices(void)
{
    struct slice s = { "weight.scale", 12 }, none = { NULL, 0 };
    CHECK(slice_is(s, "weight.scale") && !slice_is(s, "weight.scal"));
    CHECK(slice_is(none, "") && !slice_is(none, "x") && slice_eq(none, slice_of("")));
    CHECK(slice_ends(s, ".scale") && slice_ends(s, "") &&
          !slice_ends(s, "aweight.scale"));
    CHECK(slice_starts(s, "weight") && !slice_starts(s, "weight.scale2"));
    CHECK(!slice_eq(s, (struct slice){ "weight.scalf", 12 }));
}

/* A character cut anywhere is held back, whatever is no beginning of one is not. */
static void
check_whole(void)
{
    static const char *const chars[] = { "a", "\xc3\xb6", "\xe4\xbd\xa0",
                                         "\xf0\x9f\x91\x8b" };
    static const char *const never[] = {
        "\x80", "\xbf\xbf\xbf", "\xff", "\xf8\x80\x80", "a\x80", "\xc3\xb6\xb6"
    };
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k <= strlen(chars[i]); k++) {
            char text[16] = "x\xc3\xb6";
            memcpy(text + 3, chars[i], k);
            bool whole = k == 0 || k == strlen(chars[i]);
            CHECK_SAY(utf8_whole(text, 3 + k) == (whole ? 3 + k : 3),
                      "%zu bytes of character %zu", k, i);
        }
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        CHECK_SAY(utf8_whole(never[i], strlen(never[i])) == strlen(never[i]),
                  "bad bytes %zu are held back", i);
    CHECK(utf8_whole("", 0) == 0);
}

static void
check_screen(void)
{
    static const struct {
        const char *text, *plain, *json;
    } rows[] = {
        { "a\tb\nc\\d gr\xc3\xb6\xc3\x9f"
          "e",
          "a\tb\nc\\d gr\xc3\xb6\xc3\x9f"
          "e",
          "a\tb\nc\\d gr\xc3\xb6\xc3\x9f"
          "e" },
        { "\x1b]0;x\x07\r", "\\x1b]0;x\\x07\\x0d", " ]0;x  " },
        { "\x7f\xc2\x9b", "\\x7f\\xc2\\x9b", "\\u007f\\u009b" },
        { "\xe2\x80\xae\xe2\x81\xa6", "\\xe2\\x80\\xae\\xe2\\x81\\xa6",
          "\\u202e\\u2066" },
        { "\x9b\xff", "\\x9b\\xff", "\\ufffd\\ufffd" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int json = 0; json < 2; json++) {
            struct buf b = { 0 };
            text_screen(&b, rows[i].text, strlen(rows[i].text), json);
            CHECK_SAY(b.data &&
                          strcmp(b.data, json ? rows[i].json : rows[i].plain) == 0,
                      "row %zu%s: %s", i, json ? ", JSON" : "", b.data);
            buf_free(&b);
        }
}

/* Whatever is added, a NUL stands behind it: also where the text fills what there is. */
static void
check_buf(void)
{
    for (size_t n = 1; n <= 520; n++) {
        struct buf b = { 0 }, parts = { 0 };
        buf_fill(&b, 'x', n);
        CHECK_SAY(b.len == n && b.len < b.cap && b.data[n] == '\0', "%zu of %zu bytes",
                  b.len, b.cap);
        buf_char(&parts, 'x');
        buf_add(&parts, b.data, n - 1);
        buf_add(&parts, b.data, n);
        CHECK_SAY(parts.len == 2 * n && parts.len < parts.cap &&
                      parts.data[2 * n] == '\0' && memcmp(parts.data, b.data, n) == 0,
                  "%zu of %zu bytes", parts.len, parts.cap);
        buf_free(&b);
        buf_free(&parts);
    }
}

int
main(void)
{
    check_utf8_chars();
    check_utf8_check();
    check_escape_table();
    check_escape_random();
    check_slices();
    check_whole();
    check_screen();
    check_buf();
    return check_end();
}
