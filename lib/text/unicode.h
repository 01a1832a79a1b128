/* SPDX-License-Identifier: MIT */
/* unicode: classes of characters for the tokenizer, equal to those of its reference.
 *
 * The tables (unicode_data.c) are made by tools/unicode_tables.py from the answers of
 * the reference, whose parts follow different versions of Unicode; so they are right
 * for equal ids, not for a version.
 */
#ifndef NIBBLE_TEXT_UNICODE_H
#define NIBBLE_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

/* The classes of the pre-tokenizer; everything else is UNICODE_OTHER. */
enum {
    UNICODE_OTHER,
    UNICODE_LETTER,
    UNICODE_NUMBER,
    UNICODE_SPACE,
    UNICODE_CLASS = 3
};
/* Set for a character that NFC cannot pass by: a mark, one that is not normal, one
 * that may join the character before it. */
enum { UNICODE_SPECIAL = 4 };

/* One byte of class and flag for each code point below unicode_end (0 above), in
 * blocks of 128; unicode_index names the block.  The first block is ASCII. */
extern const uint32_t unicode_end;
extern const uint8_t unicode_index[];
extern const uint8_t unicode_blocks[];
/* Canonical combining classes, the same way. */
extern const uint32_t unicode_ccc_end;
extern const uint8_t unicode_ccc_index[];
extern const uint8_t unicode_ccc_blocks[];
/* Full canonical decompositions, sorted: code point << 16 | place << 3 | length. */
extern const size_t unicode_decomposed_n;
extern const uint64_t unicode_decomposed[];
extern const uint32_t unicode_pool[];
/* Canonical compositions, sorted: first << 21 | second, and what they make. */
extern const size_t unicode_composed_n;
extern const uint64_t unicode_pairs[];
extern const uint32_t unicode_composed[];

static inline unsigned
unicode_property(uint32_t cp)
{
    if (cp >= unicode_end)
        return 0;
    return unicode_blocks[(uint32_t)unicode_index[cp >> 7] << 7 | (cp & 127)];
}

static inline unsigned
unicode_ccc(uint32_t cp)
{
    if (cp >= unicode_ccc_end)
        return 0;
    return unicode_ccc_blocks[(uint32_t)unicode_ccc_index[cp >> 7] << 7 | (cp & 127)];
}

/* The character at p and its length.  pre: p is inside valid UTF-8; nothing is
 * checked, as this is most of the work on text that is not ASCII. */
static inline unsigned
unicode_char(uint32_t *cp, const uint8_t *p)
{
    uint32_t c = p[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c < 0xe0) {
        *cp = (c & 0x1f) << 6 | (p[1] & 0x3f);
        return 2;
    }
    if (c < 0xf0) {
        *cp = (c & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
        return 3;
    }
    *cp = (c & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
          (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
    return 4;
}

#endif
