/* SPDX-License-Identifier: MIT */
/* clip: norms of gradients, and what they are multiplied by. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"

#include <math.h>
#include <stdlib.h>

struct job {
    const struct rows_isa *rows;
    const float *x;
    size_t n;
    double *sum; // of each part
};

static int
squares_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct job *j = ctx;
    size_t at = i * PART;
    (void)worker;
    (void)err;
    j->sum[i] = j->rows->squares(j->x + at, least(j->n - at, PART));
    return 0;
}

static void
squares_of(struct cpu *c, double *out, const struct matrix *g)
{
    size_t n = g->rows * g->cols, n_parts = parts(n, PART);
    struct job j = { c->rows, g->data, n, malloc((n_parts + 1) * sizeof(double)) };
    *out = 0;
    if (!j.sum) {
        err_set(c->k.err, ERR_MEMORY, "out of memory for a norm");
        return;
    }
    cpu_for(c, n_parts, squares_part, &j);
    for (size_t i = 0; i < n_parts; i++)
        *out += j.sum[i];
    free(j.sum);
}

void
cpu_sum_squares(struct kernels *k, double *out, const struct matrix *g, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (g[i].data)
            squares_of(cpu_of(k), &out[i], &g[i]);
}

void
cpu_clip(struct kernels *k, float *out, const double *squares, float factor,
         float limit, double max, const float *before)
{
    double norm = sqrt(*squares), c = (double)factor;
    (void)k;
    if (limit > 0)
        c = fmin(1, (double)limit / (norm + 1e-6));
    *out = norm * c <= max && !(before && isnan(*before)) ? (float)c : NAN;
}
