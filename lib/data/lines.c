/* SPDX-License-Identifier: MIT */
/* lines: see lines.h. */
#include "lib/data/lines.h"

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
