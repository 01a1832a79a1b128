/* SPDX-License-Identifier: MIT */
/* text: see text.h. */
#include "lib/base/text.h"

#include "lib/base/num.h"

#include <assert.h>
#include <string.h>

bool
slice_eq(struct slice a, struct slice b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

struct slice
slice_of(const char *text)
{
    return (struct slice){ text, strlen(text) };
}

bool
slice_ends(struct slice s, const char *suffix)
{
    size_t n = strlen(suffix);
    return s.n >= n && memcmp(s.p + s.n - n, suffix, n) == 0;
}

bool
slice_starts(struct slice s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.n >= n && memcmp(s.p, prefix, n) == 0;
}

unsigned
utf8_char(uint32_t *cp, const char *p, size_t n)
{
    static const uint32_t lowest[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    const uint8_t *b = (const uint8_t *)p;
    if (n == 0)
        return 0;
    if (b[0] < 0x80) {
        *cp = b[0];
        return 1;
    }
    unsigned len = b[0] >= 0xf0 ? 4 : b[0] >= 0xe0 ? 3 : 2;
    if (b[0] < 0xc2 || b[0] > 0xf4 || n < len)
        return 0;
    uint32_t c = b[0] & (0x7fU >> len);
    for (unsigned i = 1; i < len; i++) {
        if ((b[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (b[i] & 0x3f);
    }
    if (c < lowest[len] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return 0;
    *cp = c;
    return len;
}

size_t
utf8_check(const char *p, size_t n)
{
    size_t i = 0;
    uint32_t cp;
    while (i < n) {
        while (n - i >= 8 && !(load_le64(p + i) & 0x8080808080808080))
            i += 8;
        if (i == n)
            break;
        if (!(p[i] & 0x80)) {
            i++;
            continue;
        }
        unsigned len = utf8_char(&cp, p + i, n - i);
        if (len == 0)
            return i;
        i += len;
    }
    return n;
}

size_t
utf8_whole(const char *p, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        uint8_t lead = (uint8_t)p[n - k];
        if (lead < 0x80)
            break;
        if (lead < 0xc0)
            continue;
        size_t len = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
        return lead <= 0xf4 && len > k ? n - k : n;
    }
    return n;
}

bool
text_is_plain(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)p[i] < ' ' && p[i] != '\t' && p[i] != '\n' && p[i] != '\r')
            return false;
    size_t whole = utf8_whole(p, n);
    return n > 0 && utf8_check(p, whole) == whole;
}

void
utf8_add(struct buf *b, uint32_t cp)
{
    if (cp < 0x80) {
        buf_char(b, (char)cp);
    } else if (cp < 0x800) {
        buf_char(b, (char)(0xc0 | cp >> 6));
        buf_char(b, (char)(0x80 | (cp & 0x3f)));
    } else if (cp < 0x10000) {
        buf_char(b, (char)(0xe0 | cp >> 12));
        buf_char(b, (char)(0x80 | (cp >> 6 & 0x3f)));
        buf_char(b, (char)(0x80 | (cp & 0x3f)));
    } else {
        buf_char(b, (char)(0xf0 | cp >> 18));
        buf_char(b, (char)(0x80 | (cp >> 12 & 0x3f)));
        buf_char(b, (char)(0x80 | (cp >> 6 & 0x3f)));
        buf_char(b, (char)(0x80 | (cp & 0x3f)));
    }
}

/* Length of the maximal bad sequence at p, where no character is well-formed. */
static size_t
bad_run(const char *p, size_t n)
{
    const uint8_t *b = (const uint8_t *)p;
    if (b[0] < 0xc2 || b[0] > 0xf4 || n < 2)
        return 1;
    uint8_t low = 0x80, high = 0xbf; // of the second byte
    if (b[0] == 0xe0)
        low = 0xa0;
    if (b[0] == 0xf0)
        low = 0x90;
    if (b[0] == 0xed)
        high = 0x9f;
    if (b[0] == 0xf4)
        high = 0x8f;
    if (b[1] < low || b[1] > high)
        return 1;
    size_t len = b[0] >= 0xf0 ? 4 : b[0] >= 0xe0 ? 3 : 2, i = 2;
    while (i < len && i < n && (b[i] & 0xc0) == 0x80)
        i++;
    return i;
}

size_t
utf8_repair(struct buf *out, struct slice text)
{
    size_t bad = 0;
    while (text.n) {
        size_t good = utf8_check(text.p, text.n);
        buf_add(out, text.p, good);
        text.p += good;
        text.n -= good;
        if (text.n == 0)
            break;
        size_t run = bad_run(text.p, text.n);
        utf8_add(out, 0xfffd);
        text.p += run;
        text.n -= run;
        bad++;
    }
    return bad;
}

bool
text_unsafe(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e ||
           c == 0x200f || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

/* One escaped character into out; returns the bytes used from p, *made those put. */
static unsigned
escape_char(char out[20], unsigned *made, const char *p, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    uint32_t cp;
    unsigned len = utf8_char(&cp, p, n);
    if (len && cp == '\\') {
        memcpy(out, "\\\\", 2);
        *made = 2;
    } else if (len && (cp == '\n' || cp == '\t')) {
        memcpy(out, cp == '\n' ? "\\n" : "\\t", 2);
        *made = 2;
    } else if (len && !text_unsafe(cp)) {
        memcpy(out, p, len);
        *made = len;
    } else {
        if (len == 0)
            len = 1;
        *made = 4 * len;
        for (unsigned i = 0; i < len; i++) {
            uint8_t byte = (uint8_t)p[i];
            out[4 * i] = '\\';
            out[4 * i + 1] = 'x';
            out[4 * i + 2] = hex[byte >> 4];
            out[4 * i + 3] = hex[byte & 15];
        }
    }
    return len;
}

void
text_escape(struct buf *b, const char *p, size_t n)
{
    buf_add(b, p, 0); // an empty text is not NULL either
    while (n) {
        char out[20];
        unsigned made;
        unsigned used = escape_char(out, &made, p, n);
        buf_add(b, out, made);
        p += used;
        n -= used;
    }
}

void
text_harmless(struct buf *b, const char *p, size_t n)
{
    while (n) {
        char out[20];
        unsigned made;
        unsigned used = escape_char(out, &made, p, n);
        if (*p == '\\')
            buf_char(b, '\\');
        else
            buf_add(b, out, made);
        p += used;
        n -= used;
    }
}

/* The replacement of a character that a JSON text must not show; a control outside of
 * strings is white space. */
static void
screen_json(struct buf *b, const char *p, unsigned len)
{
    uint32_t cp;
    if (utf8_char(&cp, p, len) == 0)
        buf_str(b, "\\ufffd");
    else if (cp < 0x20)
        buf_char(b, ' ');
    else
        buf_printf(b, "\\u%04x", cp);
}

void
text_screen(struct buf *b, const char *p, size_t n, bool json)
{
    while (n) {
        char out[20];
        unsigned made;
        unsigned used = escape_char(out, &made, p, n);
        bool kept = *p == '\\' || *p == '\n' || *p == '\t';
        if (kept || made == used)
            buf_add(b, p, used);
        else if (json)
            screen_json(b, p, used);
        else
            buf_add(b, out, made);
        p += used;
        n -= used;
    }
}

const char *
text_quote(char out[TEXT_QUOTE], const char *p, size_t n)
{
    static const char cut[] = "…";
    const size_t half = (TEXT_QUOTE - sizeof cut) / 2;
    size_t used = 0;
    while (n) {
        char piece[20];
        unsigned made;
        unsigned len = escape_char(piece, &made, p, n);
        if (used + made > half && n > half / 4) {
            // Keep the last characters: step back over whole ones only.
            size_t tail = half / 4;
            memcpy(out + used, cut, sizeof cut - 1);
            used += sizeof cut - 1;
            p += n - tail;
            while (tail && (*p & 0xc0) == 0x80) {
                p++;
                tail--;
            }
            n = tail;
            continue;
        }
        // Of the last half / 4 bytes each makes four at most.
        assert(used + made < TEXT_QUOTE);
        memcpy(out + used, piece, made);
        used += made;
        p += len;
        n -= len;
    }
    out[used] = '\0';
    return out;
}
