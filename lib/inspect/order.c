/* SPDX-License-Identifier: MIT */
/* order: --sort and --top. */
#include "lib/inspect/inspect.h"

#include <stdlib.h>
#include <string.h>

static int
by_index(const struct ranked *x, const struct ranked *y)
{
    return (x->index > y->index) - (x->index < y->index);
}

static int
by_name(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    int d = strcmp(x->name, y->name);
    return d ? d : by_index(x, y);
}

static int
by_number(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    int d = (x->number < y->number) - (x->number > y->number);
    return d ? d : by_index(x, y);
}

void
order_rank(struct ranked *rows, size_t n, enum sort sort)
{
    if (n && sort != SORT_NONE)
        qsort(rows, n, sizeof *rows, sort == SORT_NAME ? by_name : by_number);
}

/* Tensors without values come last. */
static double
number_of(const struct inspect *c, const struct subject *f, size_t i)
{
    if (c->sort == SORT_ABSMAX)
        return f->stats[i].n ? stats_absmax(&f->stats[i]) : -1;
    return (double)f->views.v[i].nbytes;
}

/* Apply the order to views and statistics. */
static int
permute(struct subject *f, const struct ranked *rows, struct err *err)
{
    size_t n = f->views.n;
    struct view *v = calloc(n + 1, sizeof *v);
    struct stats *stats = f->stats ? calloc(n + 1, sizeof *stats) : NULL;
    bool ok = v && (stats || !f->stats);
    for (size_t i = 0; ok && i < n; i++) {
        v[i] = f->views.v[rows[i].index];
        if (stats)
            stats[i] = f->stats[rows[i].index];
    }
    if (ok)
        memcpy(f->views.v, v, n * sizeof *v);
    if (ok && stats)
        memcpy(f->stats, stats, n * sizeof *stats);
    free(v);
    free(stats);
    return ok ? 0 : err_set(err, ERR_MEMORY, "out of memory for an order");
}

int
order_views(const struct inspect *c, struct subject *f, struct err *err)
{
    size_t n = f->views.n;
    f->shown = c->top && c->top < n ? (size_t)c->top : n;
    if (c->sort == SORT_NONE || n == 0)
        return 0;
    struct ranked *rows = calloc(n, sizeof *rows);
    if (!rows)
        return err_set(err, ERR_MEMORY, "out of memory for an order");
    for (size_t i = 0; i < n; i++)
        rows[i] = (struct ranked){ f->views.v[i].name, number_of(c, f, i), i };
    order_rank(rows, n, c->sort);
    int rc = permute(f, rows, err);
    free(rows);
    return rc;
}
