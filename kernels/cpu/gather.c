/* SPDX-License-Identifier: MIT */
/* gather: bytes and rows from one place to another. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"

#include <string.h>

enum { BYTES = 1 << 18 }; // of an item of work

struct job {
    char *to;
    const char *from; // NULL: zeros
    size_t n;
};

static int
copy_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    size_t at = i * BYTES, n = least(j->n - at, BYTES);
    (void)worker;
    (void)err;
    if (j->from)
        memcpy(j->to + at, j->from + at, n);
    else
        memset(j->to + at, 0, n);
    return 0;
}

void
cpu_copy(struct kernels *k, void *to, const void *from, size_t bytes)
{
    struct job j = { to, from, bytes };
    cpu_for(cpu_of(k), parts(bytes, BYTES), copy_part, &j);
}

void
cpu_zero(struct kernels *k, void *p, size_t bytes)
{
    struct job j = { p, NULL, bytes };
    cpu_for(cpu_of(k), parts(bytes, BYTES), copy_part, &j);
}

static float *
row_of(const struct matrix *m, size_t r)
{
    return (float *)m->data + r * m->stride;
}

void
cpu_gather(struct kernels *k, const struct matrix *y, const struct matrix *x,
           const int32_t *index)
{
    (void)k;
    for (size_t r = 0; r < y->rows; r++)
        memcpy(row_of(y, r), row_of(x, (size_t)index[r]), y->cols * sizeof(float));
}

void
cpu_scatter(struct kernels *k, const struct matrix *y, const struct matrix *x,
            const int32_t *index)
{
    (void)k;
    for (size_t r = 0; r < x->rows; r++)
        memcpy(row_of(y, (size_t)index[r]), row_of(x, r), x->cols * sizeof(float));
}
