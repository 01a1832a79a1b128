/* SPDX-License-Identifier: MIT */
/* values: the values of a tensor of any type as floats or doubles; NVFP4 is decoded. */
#ifndef NIBBLE_LOAD_VALUES_H
#define NIBBLE_LOAD_VALUES_H

#include "lib/format/view.h"
#include "lib/load/stats.h"

/* What values of a type are read as: floats, which hold them exactly, doubles, or not at
 * all. */
enum values_kind { VALUES_NONE, VALUES_F32, VALUES_F64 };

struct values {
    struct store *s;
    const struct view *v;
    const struct stats_isa *isa;
    float scale2; // as a multiplier
    enum values_kind kind;
};

/* Elements that are read at a time; a multiple of every block size. */
enum { VALUES_CHUNK = 1 << 16 };

/* Buffers of values_read for VALUES_CHUNK elements of any type. */
struct values_scratch {
    uint8_t *bytes;  // (VALUES_CHUNK * 8)
    uint8_t *scales; // (VALUES_CHUNK / 16)
    union {          // (VALUES_CHUNK) by values.kind
        float *f32;
        double *f64;
    };
};

enum values_kind values_kind(enum dtype d);
int values_open(struct values *x, struct store *s, const struct view *v, enum isa isa,
                struct err *err);
/* The tensor scale of an nvfp4 view as a multiplier; 1 if it has none. */
int values_scale2(float *f, struct store *s, const struct view *v, struct err *err);
/* The activation scale of an nvfp4 view that has one, as it is stored. */
int values_input(float *f, struct store *s, const struct view *v, struct err *err);
/* The one f32 of t as it is stored; it must be above 0.  For the message: what is "tensor"
 * or "activation", of the name of the tensor that it scales. */
int values_scale(float *f, struct store *s, const struct tensor *t, const char *what,
                 const char *of, struct err *err);
int values_scratch(struct values_scratch *w, struct err *err);
void values_scratch_free(struct values_scratch *w);

/* Elements [first, first+n) into w->out as floats or doubles by x->kind; n is at most
 * VALUES_CHUNK, first a multiple of 64.  Scales of NVFP4 are checked: a sign or a NaN is
 * ERR_FORMAT with row and column. */
int values_read(const struct values *x, uint64_t first, size_t n,
                struct values_scratch *w, struct err *err);

/* The rounding error of element i that values_read left in w: not 0 only for 64-bit
 * integers beyond 2^53. */
double values_rest(const struct values *x, const struct values_scratch *w, size_t i);

/* 1: the payloads of two tensors are the same bytes; 0; -1. */
int values_same_bytes(struct store *a, const struct tensor *x, struct store *b,
                      const struct tensor *y, struct err *err);

/* Codes (two a byte, the even column low) and scales of elements [first, first+n) of an
 * nvfp4 view in any layout; the scales are checked.  first is a multiple of 64, and the
 * buffers have space for n rounded up to one.  codes may be w->bytes, scales w->scales. */
int values_planes(const struct values *x, uint64_t first, size_t n, uint8_t *codes,
                  uint8_t *scales, struct values_scratch *w, struct err *err);

/* Check n scales, those of the elements from `first` on: a sign or a NaN is an error. */
int values_check_scales(const struct values *x, uint64_t first, const uint8_t *scales,
                        size_t n, struct err *err);

/* Statistics of chunk number i. */
int values_stats(const struct values *x, uint64_t chunk, struct values_scratch *w,
                 struct stats *out, struct err *err);
static inline uint64_t
values_chunks(const struct view *v)
{
    return (v->numel + VALUES_CHUNK - 1) / VALUES_CHUNK;
}

#endif
