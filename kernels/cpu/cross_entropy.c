/* SPDX-License-Identifier: MIT */
/* cross_entropy: losses of rows of logits, and their gradients in the same place. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "lib/core/maths.h"

#include <string.h>

struct job {
    const struct rows_isa *rows;
    float *loss, *logits;
    const int32_t *label;
    size_t vocab;
    float scale;
};

static int
loss_row(void *ctx, size_t r, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    float *row = j->logits + r * j->vocab;
    int32_t label = j->label[r];
    (void)worker;
    (void)err;
    if (label < 0) {
        j->loss[r] = 0;
        memset(row, 0, j->vocab * sizeof *row);
        return 0;
    }
    float max = j->rows->max(row, j->vocab), target = row[label];
    float sum = j->rows->exp_sum(row, max, j->vocab);
    j->loss[r] = (float)maths_log((double)sum) + (max - target);
    j->rows->stretch(row, j->scale / sum, j->vocab);
    row[label] -= j->scale;
    return 0;
}

void
cpu_cross_entropy(struct kernels *k, float *loss, const struct matrix *logits,
                  const int32_t *label, float scale)
{
    struct cpu *c = cpu_of(k);
    struct job j = { c->rows, loss, logits->data, label, logits->cols, scale };
    cpu_for(c, logits->rows, loss_row, &j);
}
