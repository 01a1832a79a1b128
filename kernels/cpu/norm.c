/* SPDX-License-Identifier: MIT */
/* norm: RMSNorm.  Rows are divided among threads, and columns where a sum goes over rows: no
 * sum is ever cut. */
#include "kernels/cpu/norm.h"

#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"

#include <math.h>

enum { COLUMNS = 32 };

struct forward {
    const struct cpu *c;
    float *y, *rstd;
    const float *x, *gain;
    size_t rows, n, part;
    float eps;
};

static int
forward_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct forward *j = ctx;
    (void)worker;
    (void)err;
    for (size_t r = i * j->part; r < j->rows && r < (i + 1) * j->part; r++) {
        const float *x = j->x + r * j->n;
        float mean = j->c->rows->dot(x, x, j->n) / (float)j->n;
        float rstd = 1 / sqrtf(mean + j->eps);
        j->c->rows->norm(j->y + r * j->n, x, rstd, j->gain, j->n);
        j->rstd[r] = rstd;
    }
    return 0;
}

void
cpu_norm_rows(struct cpu *c, float *y, float *rstd, const float *x, const float *gain,
              size_t rows, size_t n, float eps)
{
    struct forward j = { c, y, rstd, x, gain, rows, n, SMALL_PART / n + 1, eps };
    cpu_for(c, parts(rows, j.part), forward_part, &j);
}

void
cpu_norm(struct kernels *k, const struct matrix *y, float *rstd, const struct matrix *x,
         const float *gain, float eps)
{
    cpu_norm_rows(cpu_of(k), y->data, rstd, x->data, gain, x->rows, x->cols, eps);
}

/* ---- backward ----------------------------------------------------------------------------- */

struct backward {
    const struct cpu *c;
    const struct norm_bwd *b;
    size_t part;
};

/* Where row r of dx and dy begins. */
static size_t
at_gradient(const struct norm_bwd *b, size_t r)
{
    return r / b->heads * b->stride + r % b->heads * b->n;
}

static int
dx_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct backward *j = ctx;
    const struct norm_bwd *b = j->b;
    (void)worker;
    (void)err;
    for (size_t r = i * j->part; r < b->rows && r < (i + 1) * j->part; r++) {
        size_t at = at_gradient(b, r);
        const float *x = b->x + r * b->n;
        j->c->rows->norm_dx(b->dx + at, b->dy + at, x, b->rstd[r], b->gain, b->n,
                            b->add);
        if (b->y)
            j->c->rows->norm(b->y + r * b->n, x, b->rstd[r], b->gain, b->n);
    }
    return 0;
}

/* Rows in order, for some columns. */
static int
dgain_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct backward *j = ctx;
    const struct norm_bwd *b = j->b;
    size_t from = i * COLUMNS, n = least(COLUMNS, b->n - from);
    (void)worker;
    (void)err;
    for (size_t r = 0; r < b->rows; r++)
        j->c->rows->gain_dx(b->dgain + from, b->dy + at_gradient(b, r) + from,
                            b->x + r * b->n + from, b->rstd[r], n);
    return 0;
}

void
cpu_norm_bwd_rows(struct cpu *c, const struct norm_bwd *b)
{
    struct backward j = { c, b, SMALL_PART / b->n + 1 };
    if (b->dgain) // first: dx may be where dy is
        cpu_for(c, parts(b->n, COLUMNS), dgain_part, &j);
    cpu_for(c, parts(b->rows, j.part), dx_part, &j);
}

void
cpu_norm_bwd(struct kernels *k, const struct matrix *dx, float *dgain,
             const struct matrix *y, const struct matrix *dy, const struct matrix *x,
             const float *rstd, const float *gain, const struct matrix *c)
{
    const struct norm_bwd b = { .dx = dx->data,
                                .dgain = dgain,
                                .y = y ? y->data : NULL,
                                .dy = dy->data,
                                .x = x->data,
                                .rstd = rstd,
                                .gain = gain,
                                .rows = x->rows,
                                .n = x->cols,
                                .heads = 1,
                                .stride = dx->stride,
                                .add = c != NULL };
    cpu_norm_bwd_rows(cpu_of(k), &b);
}
