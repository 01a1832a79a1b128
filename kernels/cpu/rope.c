/* SPDX-License-Identifier: MIT */
/* rope: RMSNorm of heads and rotary embedding. */
#include "kernels/cpu/norm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"

struct job {
    const struct cpu *c;
    const struct matrix *x;
    const struct rope *r;
    float sign; // of sines: -1 backward
    size_t part;
};

static int
rope_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    size_t dim = j->r->dim, half = dim / 2, end = least((i + 1) * j->part, j->x->rows);
    (void)worker;
    (void)err;
    for (size_t t = i * j->part; t < end; t++) {
        const float *cosine = j->r->table + (size_t)j->r->position[t] * dim;
        float *x = (float *)j->x->data + t * j->x->stride;
        for (size_t h = 0; h < j->r->heads; h++, x += dim)
            j->c->rows->rotate(x, x + half, cosine, cosine + half, j->sign, half);
    }
    return 0;
}

static void
rotate(struct cpu *c, const struct matrix *x, const struct rope *r, float sign)
{
    struct job j = { c, x, r, sign, SMALL_PART / (r->heads * r->dim) + 1 };
    cpu_for(c, parts(x->rows, j.part), rope_part, &j);
}

void
cpu_qk_norm_rope(struct kernels *k, const struct matrix *y, float *rstd,
                 const struct matrix *x, const float *gain, const struct rope *r)
{
    cpu_norm_rows(cpu_of(k), y->data, rstd, x->data, gain, x->rows * r->heads, r->dim,
                  r->eps);
    rotate(cpu_of(k), y, r, 1);
}

void
cpu_qk_norm_rope_bwd(struct kernels *k, const struct matrix *d, float *dgain,
                     const struct matrix *x, const float *rstd, const float *gain,
                     const struct rope *r)
{
    const struct norm_bwd b = { .dx = d->data,
                                .dgain = dgain,
                                .dy = d->data,
                                .x = x->data,
                                .rstd = rstd,
                                .gain = gain,
                                .rows = x->rows * r->heads,
                                .n = r->dim,
                                .heads = r->heads,
                                .stride = d->stride };
    rotate(cpu_of(k), d, r, -1);
    cpu_norm_bwd_rows(cpu_of(k), &b);
}
