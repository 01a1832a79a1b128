/* SPDX-License-Identifier: MIT */
/* buf: a byte string that grows.
 *
 * A failed allocation marks the buffer; later calls do nothing, and buf_ok reports it
 * once at the end.  data is NUL-terminated whenever it is not NULL.
 */
#ifndef NIBBLE_BASE_BUF_H
#define NIBBLE_BASE_BUF_H

#include "lib/base/err.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data;
    size_t len, cap;
    bool failed;
};

void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_str(struct buf *b, const char *text);
void buf_char(struct buf *b, char c);
void buf_fill(struct buf *b, char c, size_t n);
void buf_u64(struct buf *b, uint64_t v); // in decimal
/* "[2, 3]", with that between the dimensions. */
void buf_shape(struct buf *b, const uint64_t *shape, unsigned rank,
               const char *between);
void buf_printf(struct buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));
/* 0, or -1 with *err: an allocation failed on the way. */
int buf_ok(const struct buf *b, struct err *err);
void buf_free(struct buf *b);

#endif
