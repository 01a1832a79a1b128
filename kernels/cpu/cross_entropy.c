/* SPDX-License-Identifier: MIT */
/* cross_entropy: losses of rows of logits, and their gradients in the same place. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "lib/base/maths.h"

#include <string.h>

struct cross_entropy_job {
    const struct rows_isa *rows;
    float *loss, *logits;
    const int32_t *label;
    size_t vocab;
    float scale;
};

static void
loss_of_row(const struct cross_entropy_job *j, size_t r)
{
    float *row = j->logits + r * j->vocab;
    int32_t label = j->label[r];
    if (label < 0) {
        j->loss[r] = 0;
        memset(row, 0, j->vocab * sizeof *row);
        return;
    }
    float max = j->rows->max(row, j->vocab), target = row[label];
    float sum = j->rows->exp_sum(row, max, j->vocab);
    j->loss[r] = (float)maths_log((double)sum) + (max - target);
    j->rows->scale_in_place(row, j->scale / sum, j->vocab);
    row[label] -= j->scale;
}

static void
loss_of_rows(const void *ctx, size_t r, size_t end)
{
    for (; r < end; r++)
        loss_of_row(ctx, r);
}

void
cpu_cross_entropy(struct kernels *k, float *loss, const struct matrix *logits,
                  const int32_t *label, float scale)
{
    struct cpu *c = cpu_of(k);
    struct cross_entropy_job j = { c->rows, loss,         logits->data,
                                   label,   logits->cols, scale };
    cpu_for_ranges(c, logits->rows, 1, loss_of_rows, &j);
}
