/* SPDX-License-Identifier: MIT */
/* gather: copies of bytes, and of rows by index. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"

#include <string.h>

enum { BYTES = 1 << 18 }; // that are one thread's at a time

struct gather_job {
    char *to;
    const char *from; // NULL: zeros
};

static void
copy_bytes(const void *ctx, size_t first, size_t end)
{
    const struct gather_job *j = ctx;
    if (j->from)
        memcpy(j->to + first, j->from + first, end - first);
    else
        memset(j->to + first, 0, end - first);
}

void
cpu_copy(struct kernels *k, void *to, const void *from, size_t bytes)
{
    struct gather_job j = { to, from };
    cpu_for_ranges(cpu_of(k), bytes, BYTES, copy_bytes, &j);
}

void
cpu_zero(struct kernels *k, void *p, size_t bytes)
{
    struct gather_job j = { p, NULL };
    cpu_for_ranges(cpu_of(k), bytes, BYTES, copy_bytes, &j);
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
