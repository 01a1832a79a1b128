/* SPDX-License-Identifier: MIT */
/* fp4: products of activations in NVFP4 with weights in NVFP4, emulated.
 *
 * Code times block scale has at most 6 significant bits, on both sides, so products have 12
 * and are exact in f32, as those of a tensor core are.  Sums are those of gemm.h, in the
 * order of k with one fused multiply-add each; tensor scales are multiplied after them. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"

/* Operands are exact in f32 and in bf16, so these are the products of f32 whatever
 * --compute is. */

size_t
cpu_linear_fp4_workspace(const struct cpu_kind *c, const struct matrix *w,
                         size_t tokens)
{
    if (tokens <= gemv_max(c->isa, w, false))
        return tokens * w->cols * sizeof(float);
    return gemm_workspace(tokens, w->rows, w->cols);
}

/* By gemv: x is decoded, without its tensor scales. */
static void
multiply_few(struct cpu *c, float *y, const struct matrix *x, const struct matrix *w)
{
    size_t n = x->rows * x->cols;
    float *decoded = cpu_workspace(c, n * sizeof *decoded);
    const struct operand codes = {
        .data = x->data, .dtype = DT_NVFP4, .scales = x->scales, .scale2 = 1
    };
    if (!decoded)
        return;
    gemm_of(c->isa)->read(decoded, &codes, 0, n);
    struct gemv g = { .y = y, .x = decoded, .w = w, .tokens = x->rows };
    gemv_run(&g, c->isa, c->pool, c->k.err);
}

static void
multiply(struct cpu *c, float *y, const struct matrix *x, const struct matrix *w)
{
    struct gemm g = {
        .m = x->rows, .n = w->rows, .k = w->cols, .c = y, .ldc = w->rows
    };
    g.a = (struct operand){ .data = x->data,
                            .dtype = DT_NVFP4,
                            .row_stride = x->cols,
                            .col_stride = 1,
                            .scales = x->scales,
                            .scale2 = 1 };
    g.b = (struct operand){ .data = w->data,
                            .dtype = DT_NVFP4,
                            .row_stride = 1,
                            .col_stride = w->cols,
                            .scales = w->scales,
                            .scale2 = 1 };
    float *workspace = cpu_workspace(c, gemm_workspace(g.m, g.n, g.k));
    if (workspace)
        gemm_run(&g, gemm_of(c->isa), c->pool, workspace, c->k.err);
}

struct finish {
    float *y;
    const float *add, *scale2;
    float weight; // its tensor scale
    size_t out;
};

static void
finish_rows(const void *ctx, size_t r, size_t end)
{
    const struct finish *j = ctx;
    for (; r < end; r++) {
        float *y = j->y + r * j->out;
        for (size_t o = 0; o < j->out; o++)
            y[o] = y[o] * j->weight * j->scale2[r];
        for (size_t o = 0; o < j->out && j->add; o++)
            y[o] += j->add[r * j->out + o];
    }
}

void
cpu_linear_fp4(struct kernels *k, const struct matrix *y, const struct matrix *x,
               const struct matrix *w, const struct matrix *c)
{
    struct cpu *cpu = cpu_of(k);
    struct matrix codes = *w; // without the tensor scale
    codes.scale2 = NULL;
    if (x->rows <= gemv_max(cpu->isa, &codes, false))
        multiply_few(cpu, y->data, x, &codes);
    else
        multiply(cpu, y->data, x, &codes);
    struct finish j = { .y = y->data,
                        .add = c ? c->data : NULL,
                        .scale2 = x->scale2,
                        .weight = w->scale2 ? *w->scale2 : 1,
                        .out = w->rows };
    cpu_for_ranges(cpu, x->rows, PART / w->rows + 1, finish_rows, &j);
}
