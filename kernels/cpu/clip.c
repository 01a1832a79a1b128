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
    double *sum; // of each part
};

static void
sum_part(const void *ctx, size_t first, size_t end)
{
    const struct job *j = ctx;
    j->sum[first / PART] = j->rows->sum_squares(j->x + first, end - first);
}

static void
sum_squares(struct cpu *c, double *out, const struct matrix *g)
{
    size_t n = g->rows * g->cols, parts = ceil_div(n, PART);
    struct job j = { c->rows, g->data, malloc((parts + 1) * sizeof(double)) };
    *out = 0;
    if (!j.sum) {
        err_set(c->k.err, ERR_MEMORY, "out of memory for a norm");
        return;
    }
    cpu_for_ranges(c, n, PART, sum_part, &j);
    for (size_t i = 0; i < parts; i++)
        *out += j.sum[i];
    free(j.sum);
}

void
cpu_sum_squares(struct kernels *k, double *out, const struct matrix *g, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (g[i].data)
            sum_squares(cpu_of(k), &out[i], &g[i]);
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
