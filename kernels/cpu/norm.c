/* SPDX-License-Identifier: MIT */
/* norm: RMSNorm.  Rows are divided among threads, and columns where a sum goes over rows: no
 * sum is ever cut. */
#include "kernels/cpu/norm.h"

#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"

#include <math.h>

enum {
    COLUMNS = 32,    // of dgain that are one thread's
    PIECE = 1 << 10, // elements that are computed and not written, at a time
};

struct forward {
    const struct cpu *c;
    float *y, *rstd; // y: NULL, it is not written
    const float *x, *gain;
    size_t n;
    float eps, *amax; // amax: where y is not written; NULL: not wanted
};

static void
grow_unwritten(const struct forward *j, const float *x, float rstd)
{
    float y[PIECE];
    for (size_t i = 0; i < j->n; i += PIECE) {
        size_t n = min(j->n - i, PIECE);
        j->c->rows->norm(y, x + i, rstd, j->gain + i, n);
        cpu_grow_amax(j->amax, y, DT_F32, 0, n);
    }
}

static void
forward_rows(const void *ctx, size_t r, size_t end)
{
    const struct forward *j = ctx;
    for (; r < end; r++) {
        const float *x = j->x + r * j->n;
        float mean = j->c->rows->dot(x, x, j->n) / (float)j->n;
        float rstd = 1 / sqrtf(mean + j->eps);
        if (j->y)
            j->c->rows->norm(j->y + r * j->n, x, rstd, j->gain, j->n);
        else if (j->amax)
            grow_unwritten(j, x, rstd);
        j->rstd[r] = rstd;
    }
}

void
cpu_norm_rows(struct cpu *c, float *y, float *rstd, const float *x, const float *gain,
              size_t rows, size_t n, float eps)
{
    struct forward j = { c, y, rstd, x, gain, n, eps, NULL };
    cpu_for_ranges(c, rows, SMALL_PART / n + 1, forward_rows, &j);
}

void
cpu_norm(struct kernels *k, const struct matrix *y, float *rstd, const struct matrix *x,
         const float *gain, float eps)
{
    struct forward j = { .c = cpu_of(k),
                         .y = y->data,
                         .rstd = rstd,
                         .x = x->data,
                         .gain = gain,
                         .n = x->cols,
                         .eps = eps,
                         .amax = y->amax };
    cpu_for_ranges(cpu_of(k), x->rows, SMALL_PART / x->cols + 1, forward_rows, &j);
    if (y->data)
        cpu_grow_result(cpu_of(k), y);
}

/* ---- backward ----------------------------------------------------------------------------- */

struct backward {
    const struct cpu *c;
    const struct norm_bwd *b;
};

/* Offset of row r in dx and dy. */
static size_t
d_offset(const struct norm_bwd *b, size_t r)
{
    return r / b->heads * b->stride + r % b->heads * b->n;
}

static void
dx_rows(const void *ctx, size_t r, size_t end)
{
    const struct backward *j = ctx;
    const struct norm_bwd *b = j->b;
    for (; r < end; r++) {
        size_t at = d_offset(b, r);
        const float *x = b->x + r * b->n;
        j->c->rows->norm_bwd(b->dx + at, b->dy + at, x, b->rstd[r], b->gain, b->n,
                             b->add);
        if (b->y)
            j->c->rows->norm(b->y + r * b->n, x, b->rstd[r], b->gain, b->n);
    }
}

static void
dgain_columns(const void *ctx, size_t first, size_t end)
{
    const struct backward *j = ctx;
    const struct norm_bwd *b = j->b;
    for (size_t r = 0; r < b->rows; r++)
        j->c->rows->norm_bwd_gain(b->dgain + first, b->dy + d_offset(b, r) + first,
                                  b->x + r * b->n + first, b->rstd[r], end - first);
}

void
cpu_norm_bwd_rows(struct cpu *c, const struct norm_bwd *b)
{
    struct backward j = { c, b };
    if (b->dgain) // before dx, which may overwrite dy
        cpu_for_ranges(c, b->n, COLUMNS, dgain_columns, &j);
    cpu_for_ranges(c, b->rows, SMALL_PART / b->n + 1, dx_rows, &j);
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
    cpu_grow_result(cpu_of(k), dx);
}
