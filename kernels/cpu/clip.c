/* SPDX-License-Identifier: MIT */
/* clip: norms of gradients, and what they are multiplied by. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"

#include <math.h>
#include <stdlib.h>

struct clip_job {
    const struct rows_isa *rows;
    const float *x;
    double *sum; // of each block
};

static void
sum_block(const void *ctx, size_t first, size_t end)
{
    const struct clip_job *j = ctx;
    j->sum[first / SQUARES_BLOCK] = j->rows->sum_squares(j->x + first, end - first);
}

/* To `sums`; how many blocks there are. */
static size_t
sum_blocks(struct cpu *c, double *sums, const struct matrix *g)
{
    size_t n = g->rows * g->cols;
    const struct clip_job j = { c->rows, g->data, sums };
    cpu_for_ranges(c, n, SQUARES_BLOCK, sum_block, &j);
    return ceil_div(n, SQUARES_BLOCK);
}

static void
sum_squares(struct cpu *c, double *out, const struct matrix *g)
{
    size_t blocks = ceil_div(g->rows * g->cols, SQUARES_BLOCK);
    double *sums = malloc((blocks + 1) * sizeof *sums);
    *out = 0;
    if (!sums) {
        err_set(c->k.err, ERR_MEMORY, "out of memory for a norm");
        return;
    }
    *out = rows_add_neighbours(sums, sum_blocks(c, sums, g));
    free(sums);
}

void
cpu_block_squares(struct kernels *k, double *out, const struct matrix *g, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out += sum_blocks(cpu_of(k), out, &g[i]);
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
