/* SPDX-License-Identifier: MIT */
/* split: see split.h.  The alternatives are tried in their order by the class of the
 * first character, so each function below begins where its alternative can match.
 * Equality with the reference is proven by tests/tokenizer_parity.py, every code point
 * in ten contexts.
 */
#include "lib/text/split.h"

#include "lib/text/unicode.h"

const char split_regex[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
                           "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
                           "|\\p{N}"
                           "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                           "|\\s*[\\r\\n]+"
                           "|\\s+(?!\\S)"
                           "|\\s+";

/* Class and length of the character at p; no class at the end of the text. */
static inline unsigned
class_at(unsigned *len, const uint8_t *p, const uint8_t *end)
{
    uint32_t cp;
    if (p == end) {
        *len = 0;
        return UNICODE_CLASS + 1;
    }
    if (*p < 0x80) {
        *len = 1;
        return unicode_blocks[*p] & UNICODE_CLASS;
    }
    *len = unicode_char(&cp, p);
    return unicode_property(cp) & UNICODE_CLASS;
}

static inline const uint8_t *
skip_class(const uint8_t *p, const uint8_t *end, unsigned class)
{
    unsigned len;
    while (class_at(&len, p, end) == class)
        p += len;
    return p;
}

/* Length of 's 't 're 've 'm 'll 'd in any case, or 0.  pre: *p is the apostrophe.
 * The one fold from outside ASCII is U+017F, the long s. */
static size_t
contraction(const uint8_t *p, size_t n)
{
    if (n < 2)
        return 0;
    unsigned a = p[1] | 0x20u, b = n > 2 ? p[2] | 0x20u : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l'))
        return 3;
    return n > 2 && p[1] == 0xc5 && p[2] == 0xbf ? 3 : 0;
}

/* [^\s\p{L}\p{N}]+[\r\n]* from its first character. */
static const uint8_t *
others(const uint8_t *p, const uint8_t *end)
{
    p = skip_class(p, end, UNICODE_OTHER);
    while (p < end && (*p == '\r' || *p == '\n'))
        p++;
    return p;
}

/* The last three alternatives.  A run with line ends is cut behind the last of them;
 * one before something visible leaves its last character to it; but one character
 * alone is a piece. */
static const uint8_t *
spaces(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *start = p, *last = p, *behind_line_end = NULL;
    unsigned len;
    while (class_at(&len, p, end) == UNICODE_SPACE) {
        last = p;
        p += len;
        if (*last == '\r' || *last == '\n')
            behind_line_end = p;
    }
    if (behind_line_end)
        return behind_line_end;
    return p == end || last == start ? p : last;
}

size_t
split_piece(const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + n;
    unsigned len, next_len;
    unsigned class = class_at(&len, p, end);
    if (class == UNICODE_LETTER)
        return (size_t)(skip_class(p + len, end, UNICODE_LETTER) - p);
    if (class == UNICODE_NUMBER)
        return len;
    if (*p == '\'') {
        size_t short_form = contraction(p, n);
        if (short_form)
            return short_form;
    }
    unsigned next = class_at(&next_len, p + len, end);
    if (next == UNICODE_LETTER && *p != '\r' && *p != '\n')
        return (size_t)(skip_class(p + len + next_len, end, UNICODE_LETTER) - p);
    if (class == UNICODE_OTHER || (*p == ' ' && next == UNICODE_OTHER))
        return (size_t)(others(p + len, end) - p);
    return (size_t)(spaces(p, end) - p);
}
