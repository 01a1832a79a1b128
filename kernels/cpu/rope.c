/* SPDX-License-Identifier: MIT */
/* rope: RMSNorm of heads, then rotary embedding. */
#include "kernels/cpu/norm.h"
#include "kernels/cpu/ops.h"

struct rope_job {
    const struct cpu *c;
    const struct matrix *x;
    const struct rope *r;
    float sign; // of sines: -1 backward
};

static void
rope_tokens(const void *ctx, size_t t, size_t end)
{
    const struct rope_job *j = ctx;
    size_t dim = j->r->dim, half = dim / 2;
    for (; t < end; t++) {
        const float *cosine = j->r->table + (size_t)j->r->position[t] * dim;
        float *x = (float *)j->x->data + t * j->x->stride;
        for (size_t h = 0; h < j->r->heads; h++, x += dim)
            j->c->rows->rope(x, x + half, cosine, cosine + half, j->sign, half);
    }
}

static void
rope(struct cpu *c, const struct matrix *x, const struct rope *r, float sign)
{
    struct rope_job j = { c, x, r, sign };
    cpu_for_ranges(c, x->rows, SMALL_PART / (r->heads * r->dim) + 1, rope_tokens, &j);
}

void
cpu_qk_norm_rope(struct kernels *k, const struct matrix *y, float *rstd,
                 const struct matrix *x, const float *gain, const struct rope *r)
{
    cpu_norm_rows(cpu_of(k), y->data, rstd, x->data, gain, x->rows * r->heads, r->dim,
                  r->eps);
    rope(cpu_of(k), y, r, 1);
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
    rope(cpu_of(k), d, r, -1);
    cpu_norm_bwd_rows(cpu_of(k), &b);
}
