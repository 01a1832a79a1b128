/* SPDX-License-Identifier: MIT */
/* mp: canonical msgpack, read with bounds on everything; doc/FORMAT.md section 4.
 *
 * Writing is msgpack-c's, whose packers choose the shortest forms.  Reading is a
 * pull reader: msgpack-c builds objects of 24 bytes for counts that a file announces,
 * and does not distinguish shortest forms from others.
 */
#ifndef NIBBLE_FORMAT_MP_H
#define NIBBLE_FORMAT_MP_H

#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "lib/base/text.h"

#include <msgpack.h>
#include <stdbool.h>
#include <stdint.h>

struct mp {
    const uint8_t *data;
    size_t len, pos;
    uint64_t base;    // of data in its file
    const char *file; // escaped
    unsigned depth;   // levels that the caller has open around what it reads next
    struct err *err;
};

enum mp_type {
    MP_ERROR,
    MP_NIL,
    MP_BOOL,
    MP_UINT,
    MP_INT,
    MP_F64,
    MP_STR,
    MP_BIN,
    MP_ARRAY,
    MP_MAP
};

struct mp_value {
    enum mp_type type;
    uint64_t u;     // MP_UINT, MP_BOOL; the bits of MP_INT (negative)
    double f;       // MP_F64
    struct slice s; // MP_STR, MP_BIN
    uint32_t n;     // items of MP_ARRAY, pairs of MP_MAP: they follow
};

/* Read one value (of an array or map: its head).  -1 with *err for anything that is not
 * canonical or runs over the end. */
int mp_next(struct mp *m, struct mp_value *v);
/* Read a value of that type. */
int mp_want(struct mp *m, enum mp_type type, struct mp_value *v, const char *what);
/* Read a str key of a map and check its order against *last (start with p == NULL). */
int mp_key(struct mp *m, struct slice *key, struct slice *last);
/* Read any value with all below it; as JSON into *json if that is not NULL. */
int mp_skip(struct mp *m, struct buf *json);
void mp_report(struct mp *m, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define mp_fail(...) (mp_report(__VA_ARGS__), err_minus_one())

/* Begin to pack into b, whose `failed` tells in the end whether all is there. */
void mp_pack_into(msgpack_packer *pk, struct buf *b);
void mp_put_str(msgpack_packer *pk, struct slice s);
void mp_put_bin(msgpack_packer *pk, const void *bytes, size_t n);

#endif
