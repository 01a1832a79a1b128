/* SPDX-License-Identifier: MIT */
/* arrays: see arrays.h. */
#include "lib/model/arrays.h"

#include "lib/model/optimizer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static int
add(struct arrays *a, const struct row *r, size_t row, const char *prefix,
    enum array_plane plane, const struct array_form *f)
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

/* The planes `from` .. `to` of a row of the table, those that the optimizer keeps. */
static int
add_planes(struct arrays *a, const struct row *r, size_t row,
           const struct array_layout *l, enum array_plane from, enum array_plane to,
           struct err *err)
{
    static const char *const prefixes[ARRAY_PLANES] = {
        [ARRAY_MASTER] = "",   [ARRAY_MASTER_SCALE] = "",
        [ARRAY_M] = "adam.m/", [ARRAY_M_SCALE] = "adam.m/",
        [ARRAY_V] = "adam.v/", [ARRAY_V_SCALE] = "adam.v/",
    };
    for (enum array_plane p = from; p <= to; p++) {
        struct array_form form;
        int has = optimizer_of(l)->form(l, p, r, &form, err);
        if (has < 0)
            return -1;
        if (has && add(a, r, row, prefixes[p], p, &form) < 0)
            return err_set(err, ERR_MEMORY, "out of memory for a training");
    }
    return 0;
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
        rc =
            add_planes(a, &t->row[i], i, layout, ARRAY_MASTER, ARRAY_MASTER_SCALE, err);
    for (size_t i = 0; i < t->n && rc == 0; i++)
        rc = add_planes(a, &t->row[i], i, layout, ARRAY_M, ARRAY_V_SCALE, err);
    return rc;
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
