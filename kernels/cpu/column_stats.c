/* SPDX-License-Identifier: MIT */
/* column_stats: squares and magnitudes of activations by column. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"

#include <math.h>

enum { COLUMNS = 256 }; // of a thread at a time

struct column_stats_job {
    double *squares;
    float *peak;
    const struct matrix *x;
};

static void
stats_of(const void *ctx, size_t first, size_t end)
{
    const struct column_stats_job *j = ctx;
    for (size_t r = 0; r < j->x->rows; r++) {
        const float *row = (const float *)j->x->data + r * j->x->stride;
        for (size_t i = first; i < end; i++) {
            j->squares[i] += (double)row[i] * (double)row[i];
            j->peak[i] = fmaxf(j->peak[i], fabsf(row[i]));
        }
    }
}

void
cpu_column_stats(struct kernels *k, double *squares, float *peak,
                 const struct matrix *x)
{
    struct column_stats_job j = { squares, peak, x };
    cpu_for_ranges(cpu_of(k), x->cols, COLUMNS, stats_of, &j);
}
