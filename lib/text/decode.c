/* SPDX-License-Identifier: MIT */
/* decode: ids to bytes, all at once or one by one, see tokenizer.h. */
#include "lib/text/vocab.h"

#include <string.h>

int
decode(const struct tokenizer *t, struct buf *out, const uint32_t *ids, size_t n,
       struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        struct slice s = tokenizer_bytes(t, ids[i]);
        if (!s.p)
            return err_set(err, ERR_FORMAT,
                           "id %u at position %zu: the tokenizer has no such token",
                           (unsigned)ids[i], i);
        buf_add(out, s.p, s.n);
    }
    return buf_ok(out, err);
}

/* True if bytes could be the beginning of a UTF-8 character, but not all of it. */
static bool
unfinished(const uint8_t *p, size_t n)
{
    static const struct {
        uint8_t first, last, low, high; // lead bytes, and what may be second
        uint8_t n;
    } form[] = {
        { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 },
        { 0xe1, 0xec, 0x80, 0xbf, 3 }, { 0xed, 0xed, 0x80, 0x9f, 3 },
        { 0xee, 0xef, 0x80, 0xbf, 3 }, { 0xf0, 0xf0, 0x90, 0xbf, 4 },
        { 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
    };
    for (size_t i = 0; i < sizeof form / sizeof *form; i++)
        if (*p >= form[i].first && *p <= form[i].last)
            return n < form[i].n &&
                   (n < 2 || (p[1] >= form[i].low && p[1] <= form[i].high)) &&
                   (n < 3 || (p[2] & 0xc0) == 0x80);
    return false;
}

/* How many bytes at the end of a text must wait for more. */
static size_t
tail_of(const uint8_t *p, size_t n)
{
    for (size_t k = n < 3 ? n : 3; k; k--)
        if (unfinished(p + n - k, k))
            return k;
    return 0;
}

int
decode_push(struct decoder *d, struct buf *out, uint32_t id, struct err *err)
{
    struct slice s = tokenizer_bytes(d->t, id);
    if (!s.p)
        return err_set(err, ERR_FORMAT, "id %u: the tokenizer has no such token",
                       (unsigned)id);
    size_t start = out->len;
    decode_finish(d, out);
    buf_add(out, s.p, s.n);
    if (buf_ok(out, err) < 0)
        return -1;
    size_t tail = tail_of((const uint8_t *)out->data + start, out->len - start);
    out->len -= tail;
    memcpy(d->held, out->data + out->len, tail);
    d->n_held = (unsigned)tail;
    out->data[out->len] = '\0';
    return 0;
}

void
decode_finish(struct decoder *d, struct buf *out)
{
    buf_add(out, d->held, d->n_held);
    d->n_held = 0;
}
