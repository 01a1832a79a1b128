/* SPDX-License-Identifier: MIT */
/* text: UTF-8 checking, and names from files made safe to show. */
#ifndef NIBBLE_BASE_TEXT_H
#define NIBBLE_BASE_TEXT_H

#include "lib/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Borrowed bytes; not NUL-terminated. */
struct slice {
    const char *p;
    size_t n;
};

static inline bool // inline: the length of a literal is known
slice_is(struct slice s, const char *text)
{
    size_t n = strlen(text);
    return s.n == n && (n == 0 || memcmp(s.p, text, n) == 0);
}
bool slice_eq(struct slice a, struct slice b);
bool slice_ends(struct slice s, const char *suffix);
bool slice_starts(struct slice s, const char *prefix);
struct slice slice_of(const char *text);

/* Length in bytes of the well-formed UTF-8 character at p, or 0 (truncated, overlong,
 * surrogate, above U+10FFFF).  *cp is its code point. */
unsigned utf8_char(uint32_t *cp, const char *p, size_t n);
/* Offset of the first bad byte, or n when all of it is UTF-8. */
size_t utf8_check(const char *p, size_t n);
/* n without the bytes at the end that can be the beginning of a longer character. */
size_t utf8_whole(const char *p, size_t n);
/* Whether the beginning of a file, of n bytes above 0, is a text: no control characters but
 * tabs and ends of lines, and UTF-8 but for a character that is cut at the end. */
bool text_is_plain(const char *p, size_t n);
/* Append a code point below 0x110000 that is no surrogate. */
void utf8_add(struct buf *b, uint32_t cp);
/* Append the text with U+FFFD for each maximal bad sequence (the longest start of a
 * well-formed character, else one byte); returns how many there were. */
size_t utf8_repair(struct buf *out, struct slice text);

/* Characters that could move the cursor or reorder the line: C0, DEL, C1, line and
 * paragraph separators, bidi marks, embeddings, overrides and isolates. */
bool text_unsafe(uint32_t cp);
/* Append the name as a text column may show it: \n \t \\ and \xNN for each byte of
 * any other control, bidi control or invalid character. */
void text_escape(struct buf *b, const char *p, size_t n);
/* The same for words that hold escaped names already: a backslash stays. */
void text_harmless(struct buf *b, const char *p, size_t n);
/* Append lines of text as a terminal may show them: line feed, tab and backslash stay,
 * and each byte of any other control, bidi control or invalid character is \xNN.  Of a
 * JSON text, which must stay one, such a character is \uNNNN. */
void text_screen(struct buf *b, const char *p, size_t n, bool json);
/* As text_escape into out[size], cut in the middle with "…" when longer; for
 * messages. */
enum { TEXT_QUOTE = 160 };
const char *text_quote(char out[TEXT_QUOTE], const char *p, size_t n);

#endif
