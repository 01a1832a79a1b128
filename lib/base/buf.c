/* SPDX-License-Identifier: MIT */
/* buf: see buf.h. */
#include "lib/base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool
reserve(struct buf *b, size_t extra)
{
    if (b->failed)
        return false;
    if (extra < b->cap - b->len) // one byte stays for the NUL
        return true;
    size_t cap = b->cap ? b->cap : 128;
    while (cap - b->len <= extra) {
        if (cap > SIZE_MAX / 2) {
            b->failed = true;
            return false;
        }
        cap *= 2;
    }
    char *data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void
buf_add(struct buf *b, const void *bytes, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void
buf_str(struct buf *b, const char *text)
{
    buf_add(b, text, strlen(text));
}

void
buf_char(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void
buf_fill(struct buf *b, char c, size_t n)
{
    if (!reserve(b, n))
        return;
    memset(b->data + b->len, c, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void
buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    va_list again;
    if (!reserve(b, 0))
        return;
    va_copy(again, ap);
    size_t left = b->cap - b->len;
    int n = vsnprintf(b->data + b->len, left, fmt, ap);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n < left) {
        b->len += (size_t)n;
    } else if (reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void
buf_u64(struct buf *b, uint64_t v)
{
    char digits[20];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + v % 10);
    while (v /= 10);
    buf_add(b, digits + at, sizeof digits - at);
}

void
buf_shape(struct buf *b, const uint64_t *shape, unsigned rank, const char *between)
{
    buf_char(b, '[');
    for (unsigned i = 0; i < rank; i++) {
        buf_str(b, i ? between : "");
        buf_u64(b, shape[i]);
    }
    buf_char(b, ']');
}

void
buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

int
buf_ok(const struct buf *b, struct err *err)
{
    return b->failed ? err_set(err, ERR_MEMORY, "out of memory for a text") : 0;
}

void
buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){ 0 };
}
