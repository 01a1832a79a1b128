/* SPDX-License-Identifier: MIT */
/* npy: --npy, a tensor in NumPy's format, version 1.0.
 *
 * Types that NumPy has are written as they are, the others as float32, which holds them
 * exactly but for NVFP4 with a tensor scale, whose products are rounded to it. */
#include "lib/inspect/inspect.h"

#include "lib/base/num.h"
#include "lib/file/feed.h"

#include <string.h>

/* The name that NumPy has for a type, or NULL. */
static const char *const descriptions[DT_COUNT] = {
    [DT_F16] = "<f2", [DT_F32] = "<f4",  [DT_F64] = "<f8", [DT_U8] = "|u1",
    [DT_I8] = "|i1",  [DT_I16] = "<i2",  [DT_I32] = "<i4", [DT_I64] = "<i8",
    [DT_U16] = "<u2", [DT_U32] = "<u4",  [DT_U64] = "<u8", [DT_BOOL] = "|b1",
    [DT_C64] = "<c8", [DT_C128] = "<c16"
};

/* Magic, version, length, and a dictionary up to a multiple of 64 bytes. */
static int
put_header(struct printer *p, const struct view *v, const char *description,
           struct err *err)
{
    enum { PREFIX = 10, ALIGNMENT = 64 };
    struct buf b = { 0 };
    uint8_t length[2];
    buf_printf(&b, "{'descr': '%s', 'fortran_order': False, 'shape': (", description);
    for (unsigned i = 0; i < v->rank; i++)
        buf_printf(&b, "%s%llu", i ? ", " : "", (unsigned long long)v->shape[i]);
    buf_str(&b, v->rank == 1 ? ",), }" : "), }");
    buf_fill(&b, ' ', ALIGNMENT - 1 - (PREFIX + b.len) % ALIGNMENT);
    buf_char(&b, '\n');
    int rc = buf_ok(&b, err);
    if (rc == 0) {
        length[0] = (uint8_t)b.len;
        length[1] = (uint8_t)(b.len >> 8);
        printer_bytes(p, "\x93NUMPY\1", 8);
        printer_bytes(p, length, sizeof length);
        printer_bytes(p, b.data, b.len);
    }
    buf_free(&b);
    return rc;
}

static int
put_floats(struct printer *p, const struct values *x, struct err *err)
{
    struct values_scratch w = { 0 };
    int rc = values_scratch(&w, err);
    for (uint64_t at = 0; rc == 0 && at < x->v->numel; at += VALUES_CHUNK) {
        uint64_t left = x->v->numel - at;
        size_t n = left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
        rc = values_read(x, at, n, &w, err);
        for (size_t i = 0; rc == 0 && i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &w.f32[i], sizeof bits);
            store_le32(w.bytes + 4 * i, bits);
        }
        if (rc == 0) {
            printer_bytes(p, w.bytes, 4 * n);
            rc = printer_end(p);
        }
    }
    values_scratch_free(&w);
    return rc;
}

int
npy_write(const struct inspect *c, struct subject *f, struct err *err)
{
    uint64_t all;
    struct values x;
    const struct view *v = scan_find(c, f, &all, err);
    if (!v || values_open(&x, &f->store, v, f->host->isa, err) < 0)
        return -1;
    const char *description = descriptions[v->dtype];
    if (!description && x.kind != VALUES_F32)
        return err_set(err, ERR_USAGE,
                       "%s: NumPy has no type for %s; --payload gives its bytes",
                       f->store.name, dtype_name(v->dtype));
    if (printer_refuse_terminal(c->printer) < 0 ||
        put_header(c->printer, v, description ? description : "<f4", err) < 0)
        return -1;
    int rc =
        description ? scan_put_bytes(c, f, v, err) : put_floats(c->printer, &x, err);
    return rc < 0 ? rc : printer_end(c->printer);
}
