/* SPDX-License-Identifier: MIT */
/* json: a pull reader for RFC 8259, and the writing of strings and numbers.
 *
 * Headers that we read can be 100 MB of untrusted bytes, and their errors must
 * name a byte: so there is no tree.  The reader walks the text once, in place, and
 * allocates only for strings that hold escapes and are asked for (from the caller's
 * arena).
 *
 * The first error stays; after it every call returns -1 (or false) and does nothing.
 * Duplicate keys are the caller's to refuse.
 */
#ifndef NIBBLE_BASE_JSON_H
#define NIBBLE_BASE_JSON_H

#include "lib/base/arena.h"
#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "lib/base/text.h"

#include <stdbool.h>
#include <stdint.h>

struct json {
    const char *text;
    size_t len, pos;
    uint64_t base;    // where text starts in its file, for messages
    const char *file; // its name, escaped
    bool first;       // no member of the innermost object or array was read yet
    struct arena *arena;
    struct err *err;
    size_t longest; // of strings with escapes, unescaped; 0: no bound
    // see json_watch
    void (*passed)(void *ctx, size_t pos);
    void *ctx;
    size_t horizon;
};

void json_open(struct json *j, const char *file, uint64_t base, struct slice text,
               struct arena *arena, struct err *err);
/* From now on passed is called each time that some MiB more were read: text before pos
 * will not be looked at again, but for what the caller has borrowed. */
void json_watch(struct json *j, void (*passed)(void *ctx, size_t pos), void *ctx);
/* Report "file: byte N: expected WANT, found ..." at the current place; always -1. */
int json_expected(struct json *j, const char *want);
/* Like err_set with "file: byte N: " before the words; at is a position in text. */
void json_report(struct json *j, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define json_fail(...) (json_report(__VA_ARGS__), err_minus_one())

/* First character of the next value: one of { [ " 0 (a number) t f n, or '\0' at the
 * end or at anything else. */
char json_peek(struct json *j);

/* { ... }: after json_object, call json_key until it returns 0 (the closing brace was
 * read); 1 means *key is set and its value must be read next.  Arrays likewise.  key
 * and s of json_string may be NULL: then the text is checked and not unescaped. */
int json_object(struct json *j);
int json_key(struct json *j, struct slice *key);
int json_array(struct json *j);
int json_item(struct json *j);

int json_string(struct json *j, struct slice *s);
/* A JSON integer of 0 .. 2^63-1, written without fraction or exponent. */
int json_u63(struct json *j, uint64_t *v);
int json_number(struct json *j, double *v);
int json_bool(struct json *j, bool *v);
int json_null(struct json *j);
/* Skip any value, at most 1000 levels deep; its text is *raw if that is not NULL. */
int json_skip(struct json *j, struct slice *raw);
/* A key may occur once in an object: mark it as seen, or fail. */
int json_once(struct json *j, bool *seen, const char *key);
/* Only white space may follow. */
int json_end(struct json *j);

/* "text" with escapes; bytes that are no UTF-8 become U+FFFD. */
void json_put(struct buf *b, struct slice s);
/* A number in so many digits; NaN and infinities as strings. */
void json_put_number(struct buf *b, double v, int digits);

#endif
