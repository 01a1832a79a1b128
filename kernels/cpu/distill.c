/* SPDX-License-Identifier: MIT */
/* distill: how far rows of logits are from a teacher's, and their gradients in the same
 * place. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "lib/base/maths.h"

#include <string.h>

struct distill_job {
    const struct rows_isa *rows;
    float *ce, *kl, *logits;
    const float *teacher;
    const int32_t *label;
    size_t vocab;
    const struct distill *how;
    float scale;
};

static void
distill_row(const struct distill_job *j, size_t r)
{
    float *z = j->logits + r * j->vocab, share = j->how->share;
    const float *t = j->teacher + r * j->vocab;
    int32_t label = j->label[r];
    if (label < 0) {
        j->ce[r] = j->kl[r] = 0;
        memset(z, 0, j->vocab * sizeof *z);
        return;
    }
    struct rows_distill d = { .z_max = j->rows->max(z, j->vocab),
                              .t_max = j->rows->max(t, j->vocab),
                              .per_t = 1 / j->how->temperature };
    float e_sum = j->rows->exp_total(z, d.z_max, 1, j->vocab);
    float z_sum =
        d.per_t == 1 ? e_sum : j->rows->exp_total(z, d.z_max, d.per_t, j->vocab);
    float t_sum = j->rows->exp_total(t, d.t_max, d.per_t, j->vocab);
    float target = z[label], hard = j->scale * (1 - share);
    d.z_share = 1 / z_sum;
    d.t_share = 1 / t_sum;
    d.hard = hard / e_sum;
    d.soft = j->scale * share * j->how->temperature;
    d.shift = (float)(maths_log((double)t_sum) - maths_log((double)z_sum) +
                      ((double)d.t_max - (double)d.z_max) * (double)d.per_t);
    j->ce[r] = (float)maths_log((double)e_sum) + (d.z_max - target);
    j->kl[r] = j->rows->distill(z, t, &d, j->vocab);
    z[label] -= hard;
}

static void
distill_rows(const void *ctx, size_t r, size_t end)
{
    for (; r < end; r++)
        distill_row(ctx, r);
}

void
cpu_distill(struct kernels *k, float *ce, float *kl, const struct matrix *logits,
            const struct matrix *teacher, const int32_t *label,
            const struct distill *how, float scale)
{
    struct cpu *c = cpu_of(k);
    struct distill_job j = { c->rows, ce,           kl,  logits->data, teacher->data,
                             label,   logits->cols, how, scale };
    cpu_for_ranges(c, logits->rows, 1, distill_rows, &j);
}
