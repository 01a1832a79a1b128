/* SPDX-License-Identifier: MIT */
/* lines: see lines.h. */
#include "cmd/tokenize/lines.h"

#include <string.h>

bool
line_next(struct slice text, size_t *at, struct slice *line)
{
    if (*at >= text.n)
        return false;
    const char *begin = text.p + *at;
    size_t left = text.n - *at;
    const char *lf = memchr(begin, '\n', left);
    size_t n = lf ? (size_t)(lf - begin) : left;
    *at += n + (lf != NULL);
    if (lf && n && begin[n - 1] == '\r')
        n--;
    *line = (struct slice){ begin, n };
    return true;
}

static bool
is_space(uint32_t c)
{
    return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Length of the White_Space character that ends at n, or 0. */
static unsigned
space_before(const char *p, size_t n)
{
    uint32_t cp;
    for (unsigned len = 1; len <= 3 && len <= n; len++)
        if (utf8_char(&cp, p + n - len, len) == len)
            return is_space(cp) ? len : 0;
    return 0;
}

struct slice
line_trim(struct slice s)
{
    uint32_t cp;
    for (unsigned len; (len = utf8_char(&cp, s.p, s.n)) && is_space(cp);) {
        s.p += len;
        s.n -= len;
    }
    for (unsigned len; (len = space_before(s.p, s.n));)
        s.n -= len;
    return s;
}

enum tsv
line_tsv(struct slice line, struct slice *prompt, struct slice *target)
{
    line = line_trim(line);
    if (line.n == 0 || line.p[0] == '#')
        return TSV_NOTHING;
    const char *tab = memchr(line.p, '\t', line.n);
    if (!tab)
        return TSV_NO_TAB;
    size_t n = (size_t)(tab - line.p);
    *prompt = line_trim((struct slice){ line.p, n });
    *target = line_trim((struct slice){ tab + 1, line.n - n - 1 });
    return prompt->n && target->n ? TSV_PAIR : TSV_EMPTY_SIDE;
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
