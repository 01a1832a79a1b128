/* SPDX-License-Identifier: MIT */
/* swiglu: silu(gate) * up. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"

#include <string.h>

enum { PIECE = 1 << 10 }; // elements of y that wait until their gradient was used

struct job {
    const struct cpu *c;
    float *y, *d_gate_up;
    const float *gate, *up;
    size_t n; // of a row; forward all is one row
    size_t rows, part;
};

static int
forward_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    size_t at = i * j->part, n = least(j->n - at, j->part);
    (void)worker;
    (void)err;
    j->c->rows->swiglu(j->y + at, j->gate + at, j->up + at, n);
    return 0;
}

void
cpu_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *gate,
           const struct matrix *up)
{
    struct job j = { .c = cpu_of(k),
                     .y = y->data,
                     .gate = gate->data,
                     .up = up->data,
                     .n = y->rows * y->cols,
                     .part = SMALL_PART };
    cpu_for(cpu_of(k), parts(j.n, j.part), forward_part, &j);
}

/* y is where its gradient is. */
static int
backward_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    size_t t = i * j->part, end = least(t + j->part, j->rows);
    float y[PIECE];
    (void)worker;
    (void)err;
    for (; t < end; t++)
        for (size_t k = 0; k < j->n; k += PIECE) {
            size_t n = least(j->n - k, PIECE), at = t * j->n + k;
            float *d_gate = j->d_gate_up + 2 * t * j->n + k;
            j->c->rows->swiglu(y, j->gate + at, j->up + at, n);
            j->c->rows->swiglu_dx(d_gate, d_gate + j->n, j->gate + at, j->up + at,
                                  j->y + at, n);
            memcpy(j->y + at, y, n * sizeof *y);
        }
    return 0;
}

void
cpu_swiglu_bwd(struct kernels *k, const struct matrix *d_gate_up,
               const struct matrix *d, const struct matrix *gate,
               const struct matrix *up)
{
    struct job j = { .c = cpu_of(k),
                     .y = d->data,
                     .d_gate_up = d_gate_up->data,
                     .gate = gate->data,
                     .up = up->data,
                     .n = d->cols,
                     .rows = d->rows,
                     .part = SMALL_PART / d->cols + 1 };
    cpu_for(cpu_of(k), parts(j.rows, j.part), backward_part, &j);
}
