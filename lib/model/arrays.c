/* SPDX-License-Identifier: MIT */
/* arrays: see arrays.h. */
#include "lib/model/arrays.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOMENT_GROUP = 32 }; // elements that share the scale of an 8-bit moment

/* How a plane of a tensor is stored: the bits of a group of elements are an element.  group
 * 0: a row of the tensor. */
struct form {
    const char *suffix;
    enum dtype dtype;
    uint64_t group;
    bool flat; // one dimension, whatever the tensor's rank
};

static const struct form nvfp4_codes = { ".qdata", DT_U8, 2, false };
static const struct form nvfp4_scales = { ".scale", DT_F8_E4M3, NVFP4_BLOCK, false };
static const struct form group_scales = { ".scale", DT_BF16, MOMENT_GROUP, true };
static const struct form row_scales = { ".scale", DT_F32, 0, true };

static int
add(struct arrays *a, const struct row *r, size_t row, const char *prefix,
    enum array_plane plane, const struct form *f)
{
    char name[160];
    struct array *x = &a->v[a->n++];
    uint64_t cols = r->shape[r->rank - 1];
    int len = snprintf(name, sizeof name, "%s%s%s", prefix, r->name, f->suffix);
    *x = (struct array){ .name = arena_copy(&a->arena, name, (size_t)len),
                         .row = row,
                         .plane = plane,
                         .dtype = f->dtype,
                         .rank = f->flat ? 1 : r->rank,
                         .shape = { r->shape[0], r->shape[1] },
                         .group = f->group ? f->group : cols };
    uint64_t n = (r->numel + x->group - 1) / x->group;
    if (f->flat)
        x->shape[0] = n, x->shape[1] = 0;
    else
        x->shape[r->rank - 1] /= x->group;
    x->bytes = n * dtype_bits(f->dtype) / 8;
    return x->name ? 0 : -1;
}

/* The first moment (with `second` the second one) of a row of the table. */
static int
add_moment(struct arrays *a, const struct row *r, size_t row,
           const struct array_layout *l, bool second)
{
    const char *prefix = second ? "adam.v/" : "adam.m/";
    enum array_plane plane = second ? ARRAY_V : ARRAY_M;
    bool bytes = l->torchsharp == TORCHSHARP_NONE && l->moments == MOMENTS_INT8;
    struct form whole = { "", l->moments == MOMENTS_F32 ? DT_F32 : DT_BF16, 1, false };
    const struct form *scales = bytes ? &group_scales : NULL;
    if (bytes)
        whole.dtype = second ? DT_U8 : DT_I8;
    if (l->torchsharp == TORCHSHARP_INT8) {
        whole.dtype = DT_I8;
        scales = &row_scales;
    } else if (l->torchsharp == TORCHSHARP_NVFP4) {
        whole = nvfp4_codes;
        scales = &nvfp4_scales;
    }
    if (add(a, r, row, prefix, plane, &whole) < 0)
        return -1;
    return scales ? add(a, r, row, prefix, plane + 1, scales) : 0;
}

static int
add_master(struct arrays *a, const struct row *r, size_t row,
           const struct array_layout *l, struct err *err)
{
    const struct form whole = { "", l->master, 1, false };
    if (l->torchsharp == TORCHSHARP_NONE)
        return add(a, r, row, "", ARRAY_MASTER, &whole);
    if (r->shape[r->rank - 1] % NVFP4_BLOCK)
        return err_set(
            err, ERR_USAGE,
            "%s: rows of %llu columns cannot be packed: expected a multiple of %d",
            r->name, (unsigned long long)r->shape[r->rank - 1], NVFP4_BLOCK);
    if (add(a, r, row, "", ARRAY_MASTER, &nvfp4_codes) < 0)
        return -1;
    return add(a, r, row, "", ARRAY_MASTER_SCALE, &nvfp4_scales);
}

int
arrays_open(struct arrays *a, const struct table *t, const struct array_layout *layout,
            struct err *err)
{
    int rc = 0;
    *a = (struct arrays){ .v = calloc(ARRAY_PLANES * t->n, sizeof *a->v) };
    if (!a->v)
        return err_set(err, ERR_MEMORY, "out of memory for a training");
    for (size_t i = 0; i < t->n && rc == 0; i++)
        rc = add_master(a, &t->row[i], i, layout, err);
    for (size_t i = 0; i < t->n && rc == 0; i++)
        for (int second = 0; second < 2 && rc == 0; second++)
            rc = add_moment(a, &t->row[i], i, layout, second);
    return rc < 0 ? err_set(err, ERR_MEMORY, "out of memory for a training") : 0;
}

void
arrays_close(struct arrays *a)
{
    arena_free(&a->arena);
    free(a->v);
    *a = (struct arrays){ 0 };
}

uint64_t
array_bytes(const struct array *a, const struct span *s, uint64_t *at)
{
    uint64_t size = dtype_bits(a->dtype) / 8;
    uint64_t n = (s->count + a->group - 1) / a->group;
    assert(s->row == a->row && (s->first % a->group == 0 || s->count == 0));
    *at = (s->first + a->group - 1) / a->group * size;
    return n * size;
}
