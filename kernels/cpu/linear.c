/* SPDX-License-Identifier: MIT */
/* linear: products of activations and weights, and their gradients. */
#include "kernels/cpu/coarse.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"

/* Whether operands of products are rounded to bf16. */
static bool
is_bf16(const struct cpu *c)
{
    return c->gemm->round_panel != NULL;
}

/* Products of FP8, whose operands are exact in f32, are those of f32 whatever --compute is, and
 * of many tokens. */
static bool
is_fp8(const struct matrix *m)
{
    return m->dtype == DT_F8_E4M3;
}

size_t
cpu_linear_workspace(const struct cpu_kind *c, const struct matrix *w, size_t tokens)
{
    bool bf16 = c->compute == DT_BF16;
    if (!is_fp8(w) && tokens <= gemv_max(c->isa, w, bf16))
        return bf16 ? tokens * w->cols * sizeof(float) : 0;
    return gemm_workspace(tokens, w->rows, w->cols);
}

static void
multiply(struct cpu *c, const struct gemm *g)
{
    bool fp8 = g->a.dtype == DT_F8_E4M3;
    float *workspace = cpu_workspace(c, gemm_workspace(g->m, g->n, g->k));
    if (workspace)
        gemm_run(g, fp8 ? gemm_of(c->isa) : c->gemm, c->pool, workspace, c->k.err);
}

/* Copies c to y, to which the product is then added; false: there is no c. */
static bool
copy_c(struct kernels *k, const struct matrix *y, const struct matrix *c)
{
    if (c && c->data != y->data)
        cpu_copy(k, y->data, c->data, y->rows * y->cols * sizeof(float));
    return c != NULL;
}

/* ---- forward ----------------------------------------------------------------------------- */

static void
multiply_few(struct cpu *c, struct gemv g)
{
    const struct matrix *w = g.w;
    struct matrix plain = *w;
    g.bf16 = is_bf16(c);
    if (g.bf16) {
        float *x = cpu_workspace(c, g.tokens * w->cols * sizeof *x);
        if (!x)
            return;
        gemv_round_x(x, g.x, w, g.tokens, c->isa);
        plain.scale2 = NULL; // x was multiplied by it
        g.w = &plain;
        g.x = x;
    }
    gemv_run(&g, c->isa, c->pool, c->k.err);
}

static void
multiply_coarse(struct cpu *c, const struct gemv *g)
{
    void *workspace = cpu_workspace(c, coarse_workspace(g->tokens, g->w->cols));
    if (workspace)
        coarse_run(g, c->isa, c->pool, workspace, c->k.err);
}

static void
linear(struct cpu *c, const struct matrix *y, const struct matrix *x,
       const struct matrix *w, const struct matrix *add)
{
    size_t tokens = x->rows;
    struct gemv few = { .y = y->data, .x = x->data, .w = w, .tokens = tokens };
    few.add = copy_c(&c->k, y, add);
    if (c->coarse && w->dtype == DT_NVFP4 && tokens <= COARSE_MAX) {
        multiply_coarse(c, &few);
    } else if (!is_fp8(w) && tokens <= gemv_max(c->isa, w, is_bf16(c))) {
        multiply_few(c, few);
    } else {
        struct gemm g = { .m = tokens,
                          .n = w->rows,
                          .k = w->cols,
                          .a = gemm_operand(x, false),
                          .b = gemm_operand(w, true),
                          .c = y->data,
                          .ldc = y->stride,
                          .add = few.add };
        multiply(c, &g);
    }
}

void
cpu_linear(struct kernels *k, size_t n, const struct matrix *y, const struct matrix *x,
           const struct matrix *w, const struct matrix *c)
{
    for (size_t i = 0; i < n; i++)
        if (x->dtype == DT_NVFP4)
            cpu_linear_fp4(k, &y[i], x, &w[i], c);
        else
            linear(cpu_of(k), &y[i], x, &w[i], c);
}

/* ---- backward ------------------------------------------------------------------------------ */

/* Each sum is continued by the next weight: the bits of one product with all of them. */
void
cpu_linear_dx(struct kernels *k, size_t n, const struct matrix *dx,
              const struct matrix *dy, const struct matrix *w, const struct matrix *c)
{
    bool add = copy_c(k, dx, c);
    for (size_t i = 0, first = 0; i < n; first += w[i].rows, i++, add = true) {
        struct matrix dy_i = matrix_cols(dy, first, w[i].rows);
        struct gemm g = { .m = dx->rows,
                          .n = dx->cols,
                          .k = w[i].rows,
                          .a = gemm_operand(&dy_i, false),
                          .b = gemm_operand(&w[i], false),
                          .c = dx->data,
                          .ldc = dx->stride,
                          .add = add };
        multiply(cpu_of(k), &g);
    }
}

void
cpu_linear_dw(struct kernels *k, size_t n, const struct matrix *dw,
              const struct matrix *dy, const struct matrix *x, bool add)
{
    for (size_t i = 0, first = 0; i < n; first += dw[i].rows, i++) {
        struct matrix dy_i = matrix_cols(dy, first, dw[i].rows);
        struct gemm g = { .m = dw[i].rows,
                          .n = x->cols,
                          .k = x->rows,
                          .a = gemm_operand(&dy_i, true),
                          .b = gemm_operand(x, false),
                          .c = dw[i].data,
                          .ldc = dw[i].stride,
                          .add = add };
        multiply(cpu_of(k), &g);
    }
}
