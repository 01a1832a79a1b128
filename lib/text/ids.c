/* SPDX-License-Identifier: MIT */
/* ids: growing lists of ids, see tokenizer.h. */
#include "lib/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* Reserve capacity for n more. */
static bool
reserve(struct ids *l, size_t n)
{
    if (l->failed)
        return false;
    if (l->cap - l->n >= n)
        return true;
    size_t cap = l->cap ? l->cap : 64;
    while (cap - l->n < n && cap <= SIZE_MAX / 2 / sizeof *l->v)
        cap *= 2;
    uint32_t *v = cap - l->n < n ? NULL : realloc(l->v, cap * sizeof *v);
    if (!v) {
        l->failed = true;
        return false;
    }
    l->v = v;
    l->cap = cap;
    return true;
}

void
ids_add(struct ids *l, uint32_t id)
{
    if (reserve(l, 1))
        l->v[l->n++] = id;
}

void
ids_append(struct ids *l, const uint32_t *v, size_t n)
{
    if (n && reserve(l, n)) {
        memcpy(l->v + l->n, v, n * sizeof *v);
        l->n += n;
    }
}

int
ids_ok(const struct ids *l, struct err *err)
{
    if (l->failed)
        return err_set(err, ERR_MEMORY, "out of memory for %zu ids", l->n);
    return 0;
}

void
ids_free(struct ids *l)
{
    free(l->v);
    *l = (struct ids){ 0 };
}
