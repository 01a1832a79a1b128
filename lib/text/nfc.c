/* SPDX-License-Identifier: MIT */
/* nfc: see nfc.h.
 *
 * Text is copied up to a character that is flagged UNICODE_SPECIAL.  The flagged run
 * and the one character before it are a segment: nothing outside it can change or be
 * changed, because a character without the flag is a starter that joins nothing before
 * it.  A segment is decomposed, put into canonical order, and composed.
 */
#include "lib/text/nfc.h"

#include "lib/base/grow.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum {
    HANGUL_S = 0xac00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11a7, // itself no trailing consonant: U+11A8 is the first
    HANGUL_L_N = 19,
    HANGUL_V_N = 21,
    HANGUL_T_N = 28,
    HANGUL_S_N = HANGUL_L_N * HANGUL_V_N * HANGUL_T_N,
};

enum { SMALL_RUN = 16 }; // marks: insertion sort up to here

/* A character and its combining class, in one word: code point << 8 | class. */
struct segment {
    uint32_t *v;
    size_t n, cap;
    bool failed;
};

static void
segment_add(struct segment *s, uint32_t cp)
{
    if (GROW(s->v, s->n, s->cap, 64))
        s->v[s->n++] = cp << 8 | unicode_ccc(cp);
    else
        s->failed = true;
}

/* First place in a sorted array that is not below key. */
static size_t
lower_bound(const uint64_t *v, size_t n, uint64_t key)
{
    size_t lo = 0;
    while (n) {
        size_t half = n / 2;
        if (v[lo + half] < key) {
            lo += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return lo;
}

static void
decompose(struct segment *s, uint32_t cp)
{
    if (cp - HANGUL_S < HANGUL_S_N) {
        uint32_t i = cp - HANGUL_S, t = i % HANGUL_T_N;
        segment_add(s, HANGUL_L + i / (HANGUL_V_N * HANGUL_T_N));
        segment_add(s, HANGUL_V + i / HANGUL_T_N % HANGUL_V_N);
        if (t)
            segment_add(s, HANGUL_T + t);
        return;
    }
    size_t at =
        lower_bound(unicode_decomposed, unicode_decomposed_n, (uint64_t)cp << 16);
    if (at == unicode_decomposed_n || unicode_decomposed[at] >> 16 != cp) {
        segment_add(s, cp);
        return;
    }
    const uint32_t *part = unicode_pool + (unicode_decomposed[at] >> 3 & 0x1fff);
    for (unsigned n = unicode_decomposed[at] & 7; n; n--)
        segment_add(s, *part++);
}

/* What two characters make, or 0. */
static uint32_t
compose(uint32_t a, uint32_t b)
{
    if (a - HANGUL_L < HANGUL_L_N && b - HANGUL_V < HANGUL_V_N)
        return HANGUL_S + ((a - HANGUL_L) * HANGUL_V_N + b - HANGUL_V) * HANGUL_T_N;
    if (a - HANGUL_S < HANGUL_S_N && (a - HANGUL_S) % HANGUL_T_N == 0 && b > HANGUL_T &&
        b < HANGUL_T + HANGUL_T_N)
        return a + b - HANGUL_T;
    uint64_t key = (uint64_t)a << 21 | b;
    size_t at = lower_bound(unicode_pairs, unicode_composed_n, key);
    return at < unicode_composed_n && unicode_pairs[at] == key ? unicode_composed[at]
                                                               : 0;
}

static void
insertion_sort(uint32_t *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        uint32_t x = v[i];
        size_t k = i;
        for (; k && (v[k - 1] & 0xff) > (x & 0xff); k--)
            v[k] = v[k - 1];
        v[k] = x;
    }
}

/* Stable by class.  A text may be one run of a million marks, so long ones are
 * counted, not compared. */
static bool
counting_sort(uint32_t *v, size_t n)
{
    size_t start[257] = { 0 };
    uint32_t *copy = malloc(n * sizeof *copy);
    if (!copy)
        return false;
    memcpy(copy, v, n * sizeof *copy);
    for (size_t i = 0; i < n; i++)
        start[(v[i] & 0xff) + 1]++;
    for (unsigned k = 1; k < 257; k++)
        start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++)
        v[start[copy[i] & 0xff]++] = copy[i];
    free(copy);
    return true;
}

static void
order(struct segment *s)
{
    for (size_t i = 0; i < s->n;) {
        size_t end = i + 1;
        if (s->v[i] & 0xff) {
            while (end < s->n && s->v[end] & 0xff)
                end++;
            if (end - i <= SMALL_RUN)
                insertion_sort(s->v + i, end - i);
            else if (!counting_sort(s->v + i, end - i))
                s->failed = true;
        }
        i = end;
    }
}

/* Join each character to the last starter unless one between them is in the way: one
 * of an equal or higher class, or another starter. */
static void
compose_all(struct segment *s)
{
    size_t kept = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < s->n; i++) {
        uint32_t c = s->v[i], class = c & 0xff;
        if (starter != SIZE_MAX &&
            (kept == starter + 1 || (s->v[kept - 1] & 0xff) < class)) {
            uint32_t joined = compose(s->v[starter] >> 8, c >> 8);
            if (joined) {
                s->v[starter] = joined << 8;
                continue;
            }
        }
        if (class == 0)
            starter = kept;
        s->v[kept++] = c;
    }
    s->n = kept;
}

static void
add_segment(struct buf *out, struct segment *s, const uint8_t *p, const uint8_t *end)
{
    s->n = 0;
    while (p < end) {
        uint32_t cp;
        p += unicode_char(&cp, p);
        decompose(s, cp);
    }
    order(s);
    compose_all(s);
    for (size_t i = 0; i < s->n; i++)
        utf8_add(out, s->v[i] >> 8);
}

/* The next special character, or end. */
static const uint8_t *
next_special(const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        uint64_t eight;
        if (*p < 0x80) {
            p++;
            while (end - p >= 8 &&
                   (memcpy(&eight, p, 8), eight & 0x8080808080808080) == 0)
                p += 8;
            continue;
        }
        uint32_t cp;
        unsigned n = unicode_char(&cp, p);
        if (unicode_property(cp) & UNICODE_SPECIAL)
            return p;
        p += n;
    }
    return end;
}

static const uint8_t *
next_plain(const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        uint32_t cp;
        unsigned n = unicode_char(&cp, p);
        if (!(unicode_property(cp) & UNICODE_SPECIAL))
            return p;
        p += n;
    }
    return end;
}

bool
nfc_plain(struct slice text)
{
    const uint8_t *p = (const uint8_t *)text.p;
    return text.n == 0 || next_special(p, p + text.n) == p + text.n;
}

void
nfc_add(struct buf *out, struct slice text)
{
    const uint8_t *p = (const uint8_t *)text.p, *end = text.n ? p + text.n : p;
    struct segment s = { 0 };
    while (p < end) {
        const uint8_t *special = next_special(p, end), *start = special;
        if (special < end && special > p)
            do
                start--;
            while ((*start & 0xc0) == 0x80);
        buf_add(out, p, (size_t)(start - p));
        p = next_plain(special, end);
        add_segment(out, &s, start, p);
    }
    if (s.failed)
        out->failed = true;
    free(s.v);
}
