/* SPDX-License-Identifier: MIT */
/* swiglu: silu(gate) * up. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"

#include <string.h>

enum { PIECE = 1 << 10 }; // elements

struct swiglu_job {
    const struct cpu *c;
    float *y, *d_gate_up;
    const float *gate, *up;
    size_t n;    // of a row
    float *amax; // where y or d_gate_up is not written
};

static void
forward(const void *ctx, size_t at, size_t end)
{
    const struct swiglu_job *j = ctx;
    j->c->rows->swiglu(j->y + at, j->gate + at, j->up + at, end - at);
}

static void
forward_unwritten(const void *ctx, size_t at, size_t end)
{
    const struct swiglu_job *j = ctx;
    float y[PIECE];
    for (; at < end; at += PIECE) {
        size_t n = min(end - at, PIECE);
        j->c->rows->swiglu(y, j->gate + at, j->up + at, n);
        cpu_grow_amax(j->amax, y, DT_F32, 0, n);
    }
}

void
cpu_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *gate,
           const struct matrix *up)
{
    struct cpu *c = cpu_of(k);
    struct swiglu_job j = { .c = c, .y = y->data, .gate = gate->data, .up = up->data };
    j.amax = y->amax;
    cpu_for_ranges(c, y->rows * y->cols, SMALL_PART,
                   y->data ? forward : forward_unwritten, &j);
    if (y->data)
        cpu_grow_result(c, y);
}

/* y overwrites its gradient, a piece at a time once that has been used. */
static void
backward_rows(const void *ctx, size_t t, size_t end)
{
    const struct swiglu_job *j = ctx;
    float y[PIECE];
    for (; t < end; t++)
        for (size_t k = 0; k < j->n; k += PIECE) {
            size_t n = min(j->n - k, PIECE), at = t * j->n + k;
            float *d_gate = j->d_gate_up + 2 * t * j->n + k;
            j->c->rows->swiglu(y, j->gate + at, j->up + at, n);
            j->c->rows->swiglu_bwd(d_gate, d_gate + j->n, j->gate + at, j->up + at,
                                   j->y + at, n);
            memcpy(j->y + at, y, n * sizeof *y);
        }
}

static void
backward_unwritten(const void *ctx, size_t t, size_t end)
{
    const struct swiglu_job *j = ctx;
    float d_gate[PIECE], d_up[PIECE];
    for (size_t at = t * j->n; at < end * j->n; at += PIECE) {
        size_t n = min(end * j->n - at, PIECE);
        j->c->rows->swiglu_bwd(d_gate, d_up, j->gate + at, j->up + at, j->y + at, n);
        cpu_grow_amax(j->amax, d_gate, DT_F32, 0, n);
        cpu_grow_amax(j->amax, d_up, DT_F32, 0, n);
    }
}

void
cpu_swiglu_bwd(struct kernels *k, const struct matrix *d_gate_up,
               const struct matrix *d, const struct matrix *gate,
               const struct matrix *up)
{
    struct swiglu_job j = { .c = cpu_of(k),
                            .y = d->data,
                            .d_gate_up = d_gate_up->data,
                            .gate = gate->data,
                            .up = up->data,
                            .n = d->cols,
                            .amax = d_gate_up->amax };
    cpu_for_ranges(cpu_of(k), d->rows, SMALL_PART / d->cols + 1,
                   d_gate_up->data ? backward_rows : backward_unwritten, &j);
    if (d_gate_up->data)
        cpu_grow_result(cpu_of(k), d_gate_up);
}
