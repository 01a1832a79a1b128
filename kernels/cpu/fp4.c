/* SPDX-License-Identifier: MIT */
/* fp4: products of activations in NVFP4 with weights in NVFP4, emulated.
 *
 * Code times block scale has at most 6 significant bits, on both sides, so what is summed
 * is what a tensor core multiplies: products of 12 bits, exact in f32.  The sums are those
 * of gemm.h, in the order of k with one fused multiply-add each; tensor scales are outside
 * of them. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"

/* Operands are exact, in f32 as in bf16: sums are those of f32 whatever --compute says. */

size_t
cpu_linear_fp4_workspace(const struct cpu_kind *c, const struct matrix *w,
                         size_t tokens)
{
    if (tokens <= gemv_max(c->isa, w, false))
        return tokens * w->cols * sizeof(float);
    return gemm_workspace(tokens, w->rows, w->cols);
}

/* Few rows: the products of codes and scales, then a weight that is read once. */
static void
few(struct cpu *c, float *y, const struct matrix *x, const struct matrix *w)
{
    size_t n = x->rows * x->cols;
    float *plain = cpu_workspace(c, n * sizeof *plain);
    const struct operand codes = {
        .p = x->data, .dtype = DT_NVFP4, .scales = x->scales, .scale2 = 1
    };
    if (!plain)
        return;
    gemm_of(c->isa)->read(plain, &codes, 0, n);
    struct gemv g = { .y = y, .x = plain, .w = w, .tokens = x->rows };
    gemv_run(&g, c->isa, c->pool, c->k.err);
}

static void
many(struct cpu *c, float *y, const struct matrix *x, const struct matrix *w)
{
    struct gemm g = {
        .m = x->rows, .n = w->rows, .k = w->cols, .c = y, .ldc = w->rows
    };
    g.a = (struct operand){ .p = x->data,
                            .dtype = DT_NVFP4,
                            .rows = x->cols,
                            .cols = 1,
                            .scales = x->scales,
                            .scale2 = 1 };
    g.b = (struct operand){ .p = w->data,
                            .dtype = DT_NVFP4,
                            .rows = 1,
                            .cols = w->cols,
                            .scales = w->scales,
                            .scale2 = 1 };
    float *workspace = cpu_workspace(c, gemm_workspace(g.m, g.n, g.k));
    if (workspace)
        gemm_run(&g, gemm_of(c->isa), c->pool, workspace, c->k.err);
}

struct finish_job {
    float *y;
    const float *add, *scale2;
    float weight;
    size_t rows, out, part;
};

static int
finish_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct finish_job *j = ctx;
    (void)worker;
    (void)err;
    for (size_t r = i * j->part; r < j->rows && r < (i + 1) * j->part; r++) {
        float *y = j->y + r * j->out;
        for (size_t o = 0; o < j->out; o++)
            y[o] = y[o] * j->weight * j->scale2[r];
        for (size_t o = 0; o < j->out && j->add; o++)
            y[o] += j->add[r * j->out + o];
    }
    return 0;
}

void
cpu_linear_fp4(struct kernels *k, const struct matrix *y, const struct matrix *x,
               const struct matrix *w, const struct matrix *c)
{
    struct cpu *cpu = cpu_of(k);
    struct matrix codes = *w; // without its tensor scale
    codes.scale2 = NULL;
    if (x->rows <= gemv_max(cpu->isa, &codes, false))
        few(cpu, y->data, x, &codes);
    else
        many(cpu, y->data, x, &codes);
    struct finish_job j = { .y = y->data,
                            .add = c ? c->data : NULL,
                            .scale2 = x->scale2,
                            .weight = w->scale2 ? *w->scale2 : 1,
                            .rows = x->rows,
                            .out = w->rows,
                            .part = PART / w->rows + 1 };
    cpu_for(cpu, parts(x->rows, j.part), finish_part, &j);
}
