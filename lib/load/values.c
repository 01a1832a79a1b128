/* SPDX-License-Identifier: MIT */
/* values: see values.h. */
#include "lib/load/values.h"

#include "lib/base/num.h"
#include "lib/nvfp4/codec.h"
#include "lib/nvfp4/gguf.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum values_kind
values_kind(enum dtype d)
{
    if (dtype_block(d))
        return VALUES_NONE;
    switch (d) {
    case DT_C64:
    case DT_C128:
    case DT_F6_E2M3:
    case DT_F6_E3M2:
    case DT_F8_E4M3FNUZ:
    case DT_F8_E5M2FNUZ:
    case DT_NONE:
    case DT_COUNT:
        return VALUES_NONE;
    case DT_F64:
    case DT_I32:
    case DT_I64:
    case DT_U32:
    case DT_U64:
        return VALUES_F64;
    default:
        return VALUES_F32;
    }
}

int
values_scale(float *f, struct store *s, const struct tensor *t, const char *what,
             const char *of, struct err *err)
{
    uint8_t bytes[4];
    uint32_t bits;
    char q[TEXT_QUOTE];
    if (store_read(s, t, 0, bytes, sizeof bytes, err) < 0)
        return -1;
    bits = load_le32(bytes);
    memcpy(f, &bits, sizeof bits);
    if (isfinite(*f) && *f > 0)
        return 0;
    return err_set(
        err, ERR_FORMAT,
        "%s: byte %llu: %s scale of \"%s\": expected a number above 0, found %g",
        s->files[t->file].name, (unsigned long long)t->offset, what,
        text_quote(q, of, strlen(of)), (double)*f);
}

int
values_scale2(float *f, struct store *s, const struct view *v, struct err *err)
{
    char q[TEXT_QUOTE];
    *f = 1;
    if (!v->scale2)
        return 0;
    if (values_scale(f, s, v->scale2, "tensor", v->name, err) < 0)
        return -1;
    if (v->dialect->divides && 1 / *f > FLT_MAX)
        return err_set(err, ERR_FORMAT,
                       "%s: tensor scale of \"%s\": 1/%g is beyond the range of f32",
                       s->files[v->scale2->file].name,
                       text_quote(q, v->name, v->name_len), (double)*f);
    if (v->dialect->divides)
        *f = 1 / *f;
    return 0;
}

int
values_input(float *f, struct store *s, const struct view *v, struct err *err)
{
    char q[TEXT_QUOTE];
    if (v->input->dtype != DT_F32 || v->input->numel != 1)
        return err_set(err, ERR_FORMAT,
                       "%s: activation scale of \"%s\": expected one f32", s->name,
                       text_quote(q, v->name, v->name_len));
    return values_scale(f, s, v->input, "activation", v->name, err);
}

int
values_open(struct values *x, struct store *s, const struct view *v, enum isa isa,
            struct err *err)
{
    *x = (struct values){ .s = s, .v = v, .isa = stats_isa(isa) };
    x->kind = values_kind(v->dtype);
    return values_scale2(&x->scale2, s, v, err);
}

int
values_scratch(struct values_scratch *w, struct err *err)
{
    w->bytes = malloc((size_t)VALUES_CHUNK * 8);
    w->scales = malloc(VALUES_CHUNK / NVFP4_BLOCK);
    w->f64 = malloc((size_t)VALUES_CHUNK * sizeof *w->f64);
    if (!w->bytes || !w->scales || !w->f64)
        return err_set(err, ERR_MEMORY, "out of memory for decoding");
    return 0;
}

void
values_scratch_free(struct values_scratch *w)
{
    free(w->bytes);
    free(w->scales);
    free(w->f64);
    *w = (struct values_scratch){ 0 };
}

/* Where scale number i of an nvfp4 view is in its payload. */
static uint64_t
place_of_scale(const struct view *v, uint64_t i)
{
    if (!view_in_blocks(v))
        return i;
    return i / NVFP4_GGUF_SCALES * NVFP4_GGUF_BYTES + i % NVFP4_GGUF_SCALES;
}

int
values_check_scales(const struct values *x, uint64_t first, const uint8_t *scales,
                    size_t n, struct err *err)
{
    const struct view *v = x->v;
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < n; i++) {
        if (scales[i] < 0x7f)
            continue;
        uint64_t at = first / NVFP4_BLOCK + i;
        uint64_t cols = v->shape[v->rank - 1] / NVFP4_BLOCK;
        const struct tensor *t = view_in_blocks(v) ? v->entry : v->scale;
        return err_set(
            err, ERR_FORMAT,
            "%s: byte %llu: scale of \"%s\", row %llu, column %llu: 0x%02x has a "
            "sign or is NaN",
            x->s->files[t->file].name,
            (unsigned long long)(t->offset + place_of_scale(v, at)),
            text_quote(q, v->name, v->name_len), (unsigned long long)(at / cols),
            (unsigned long long)(at % cols), scales[i]);
    }
    return 0;
}

/* Blocks are read to the second half of w->bytes, since codes may be its first. */
static int
read_blocks(const struct values *x, uint64_t first, size_t n, uint8_t *codes,
            uint8_t *scales, struct values_scratch *w, struct err *err)
{
    uint8_t *blocks = w->bytes + VALUES_CHUNK;
    size_t count = (n + NVFP4_GGUF_BLOCK - 1) / NVFP4_GGUF_BLOCK;
    if (store_read(x->s, x->v->entry, first / NVFP4_GGUF_BLOCK * NVFP4_GGUF_BYTES,
                   blocks, count * NVFP4_GGUF_BYTES, err) < 0)
        return -1;
    nvfp4_gguf_unpack(codes, scales, blocks, count * NVFP4_GGUF_BLOCK);
    return 0;
}

int
values_planes(const struct values *x, uint64_t first, size_t n, uint8_t *codes,
              uint8_t *scales, struct values_scratch *w, struct err *err)
{
    const struct view *v = x->v;
    if (view_in_blocks(v)) {
        if (read_blocks(x, first, n, codes, scales, w, err) < 0)
            return -1;
    } else if (store_read(x->s, v->entry, first / 2, codes, n / 2, err) < 0 ||
               store_read(x->s, v->scale, first / NVFP4_BLOCK, scales, n / NVFP4_BLOCK,
                          err) < 0) {
        return -1;
    }
    return values_check_scales(x, first, scales, n / NVFP4_BLOCK, err);
}

static int
read_nvfp4(const struct values *x, uint64_t first, size_t n, struct values_scratch *w,
           struct err *err)
{
    if (values_planes(x, first, n, w->bytes, w->scales, w, err) < 0)
        return -1;
    nvfp4_decode(w->f32, w->bytes, w->scales, x->scale2, n);
    return 0;
}

/* Types without a vector loop: one element. */
static double
one(enum dtype d, const uint8_t *p, size_t i)
{
    switch (d) {
    case DT_F64: {
        uint64_t bits = load_le64(p + 8 * i);
        double f;
        memcpy(&f, &bits, sizeof f);
        return f;
    }
    case DT_U8:
    case DT_BOOL:
        return p[i];
    case DT_I8:
        return (int8_t)p[i];
    case DT_I16:
        return (int16_t)load_le16(p + 2 * i);
    case DT_U16:
        return load_le16(p + 2 * i);
    case DT_I32:
        return (int32_t)load_le32(p + 4 * i);
    case DT_U32:
        return load_le32(p + 4 * i);
    case DT_I64:
        return (double)(int64_t)load_le64(p + 8 * i);
    case DT_U64:
        return (double)load_le64(p + 8 * i);
    case DT_F8_E4M3:
        return e4m3_value(p[i]);
    case DT_F8_E5M2:
        return e5m2_value(p[i]);
    case DT_F8_E8M0:
        return p[i] == 0xff ? NAN : ldexp(1, p[i] - 127);
    default: // DT_F4_E2M1
        return e2m1_value(p[i / 2] >> (i % 2 ? 4 : 0));
    }
}

int
values_read(const struct values *x, uint64_t first, size_t n, struct values_scratch *w,
            struct err *err)
{
    const struct view *v = x->v;
    enum dtype d = v->dtype;
    if (d == DT_NVFP4)
        return read_nvfp4(x, first, n, w, err);
    uint64_t bits = dtype_bits(d);
    size_t bytes = (size_t)((n * bits + 7) / 8);
    if (store_read(x->s, v->entry, first * bits / 8, w->bytes, bytes, err) < 0)
        return -1;
    float *f = w->f32;
    switch (d) {
    case DT_F16:
        x->isa->from_f16(f, w->bytes, n);
        break;
    case DT_BF16:
        x->isa->from_bf16(f, w->bytes, n);
        break;
    case DT_F32:
        for (size_t i = 0; i < n; i++) {
            uint32_t u = load_le32(w->bytes + 4 * i);
            memcpy(&f[i], &u, sizeof u);
        }
        break;
    default:
        for (size_t i = 0; i < n; i++)
            if (x->kind == VALUES_F32)
                f[i] = (float)one(d, w->bytes, i);
            else
                w->f64[i] = one(d, w->bytes, i);
    }
    return 0;
}

double
values_rest(const struct values *x, const struct values_scratch *w, size_t i)
{
    if (x->v->dtype != DT_I64 && x->v->dtype != DT_U64)
        return 0;
    double f = w->f64[i];
    // Modulo 2^64: f may be 2^64 or, of an i64, 2^63.
    uint64_t rounded = f >= 0x1p64 ? 0 : f < 0 ? 0 - (uint64_t)-f : (uint64_t)f;
    return (double)(int64_t)(load_le64(w->bytes + 8 * i) - rounded);
}

int
values_stats(const struct values *x, uint64_t chunk, struct values_scratch *w,
             struct stats *out, struct err *err)
{
    uint64_t first = chunk * VALUES_CHUNK;
    uint64_t left = x->v->numel - first;
    size_t n = left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
    *out = (struct stats){ 0 };
    if (values_read(x, first, n, w, err) < 0)
        return -1;
    for (size_t at = 0; at < n; at += STATS_BLOCK) {
        size_t part = n - at < STATS_BLOCK ? n - at : STATS_BLOCK;
        if (x->kind == VALUES_F32)
            x->isa->f32(out, w->f32 + at, part);
        else
            x->isa->f64(out, w->f64 + at, part);
    }
    return 0;
}

int
values_same_bytes(struct store *a, const struct tensor *x, struct store *b,
                  const struct tensor *y, struct err *err)
{
    enum { PIECE = 1 << 20 };
    if (x->nbytes != y->nbytes)
        return 0;
    uint8_t *p = malloc(2 * (size_t)PIECE);
    int same = p ? 1 : err_set(err, ERR_MEMORY, "out of memory");
    for (uint64_t at = 0; at < x->nbytes && same > 0; at += PIECE) {
        size_t n = x->nbytes - at < PIECE ? (size_t)(x->nbytes - at) : PIECE;
        if (store_read(a, x, at, p, n, err) < 0 ||
            store_read(b, y, at, p + PIECE, n, err) < 0)
            same = -1;
        else
            same = memcmp(p, p + PIECE, n) == 0;
    }
    free(p);
    return same;
}
