/* SPDX-License-Identifier: MIT */
/* fp4: products of activations in NVFP4 with weights in NVFP4, emulated.
 *
 * Code times block scale has at most 6 significant bits, on both sides, so what is summed
 * is what a tensor core multiplies: products of 12 bits, exact in f32.  The sums are those
 * of gemm.h, in the order of k with one fused multiply-add each; tensor scales are outside
 * of them. */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/gemm.h"
#include "lib/nvfp4/tiles.h"

#include <math.h>
#include <string.h>

enum { PART = 1 << 14 }; // numbers that are one thread's at a time

static size_t
rows_of(size_t n)
{
    return PART / n + 1;
}

/* ---- activations to codes and back --------------------------------------------------- */

struct rows_job {
    const struct packed_rows *to;
    const float *x;
    float *y;
    const struct quant_spec *spec;
    size_t part; // rows
};

static void
quantize_row(const struct rows_job *j, size_t row)
{
    size_t n = j->to->in, at = row * n, bad;
    uint8_t *codes = j->to->codes + at / 2, *scales = j->to->scales + at / NVFP4_BLOCK;
    float most = nvfp4_amax(DT_F32, j->x + at, n, &bad);
    if (bad < n) {
        memset(codes, 0, n / 2);
        memset(scales, 0, n / NVFP4_BLOCK);
        j->to->scale2[row] = NAN;
        return;
    }
    struct quant_scale t = nvfp4_scale(j->spec, most);
    nvfp4_quant(codes, scales, j->x + at, 1, n, 0, j->spec, &t, NULL);
    j->to->scale2[row] = t.scale2;
}

static int
quantize_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct rows_job *j = ctx;
    (void)worker;
    (void)err;
    for (size_t r = i * j->part; r < j->to->rows && r < (i + 1) * j->part; r++)
        quantize_row(j, r);
    return 0;
}

void
cpu_quantize_rows(struct kernels *k, const struct packed_rows *to, const void *x,
                  const struct quant_spec *spec)
{
    struct cpu *c = (struct cpu *)k;
    struct quant_spec mine = *spec;
    struct rows_job j = { .to = to, .x = x, .spec = &mine, .part = rows_of(to->in) };
    mine.isa = c->isa;
    cpu_for(c, (to->rows + j.part - 1) / j.part, quantize_part, &j);
}

static int
unpack_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct rows_job *j = ctx;
    size_t n = j->to->in;
    (void)worker;
    (void)err;
    for (size_t r = i * j->part; r < j->to->rows && r < (i + 1) * j->part; r++)
        nvfp4_decode(j->y + r * n, j->to->codes + r * n / 2,
                     j->to->scales + r * n / NVFP4_BLOCK, j->to->scale2[r], n);
    return 0;
}

void
cpu_unpack_rows(struct kernels *k, void *y, const struct packed_rows *x)
{
    struct cpu *c = (struct cpu *)k;
    struct rows_job j = { .to = x, .y = y, .part = rows_of(x->in) };
    cpu_for(c, (x->rows + j.part - 1) / j.part, unpack_part, &j);
}

/* ---- products -------------------------------------------------------------------------- */

/* Operands are exact, in f32 as in bf16: sums are those of f32 whatever --compute says. */

size_t
cpu_linear_fp4_room(const struct cpu_kind *c, const struct weight *w, size_t tokens)
{
    if (tokens <= gemv_most(c->isa, w, false))
        return tokens * w->in * sizeof(float);
    return gemm_room(tokens, w->out, w->in);
}

/* Few rows: the products of codes and scales, then a weight that is read once. */
static void
few(struct cpu *c, float *y, const struct packed_rows *x, const struct weight *w)
{
    size_t n = x->rows * x->in;
    float *plain = cpu_room(c, n * sizeof *plain);
    const struct matrix codes = {
        .p = x->codes, .dtype = DT_NVFP4, .scales = x->scales, .scale2 = 1
    };
    if (!plain)
        return;
    gemm_of(c->isa)->read(plain, &codes, 0, n);
    struct gemv g = { .y = y, .x = plain, .w = w, .tokens = x->rows };
    gemv_run(&g, c->isa, c->team, c->err);
}

static void
many(struct cpu *c, float *y, const struct packed_rows *x, const struct weight *w)
{
    struct gemm g = { .m = x->rows, .n = w->out, .k = w->in, .c = y, .ldc = w->out };
    g.a = (struct matrix){ .p = x->codes,
                           .dtype = DT_NVFP4,
                           .rows = x->in,
                           .cols = 1,
                           .scales = x->scales,
                           .scale2 = 1 };
    g.b = (struct matrix){ .p = w->values,
                           .dtype = DT_NVFP4,
                           .rows = 1,
                           .cols = w->in,
                           .scales = w->scales,
                           .scale2 = 1 };
    float *room = cpu_room(c, gemm_room(g.m, g.n, g.k));
    if (room)
        gemm_run(&g, gemm_of(c->isa), c->team, room, c->err);
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
cpu_linear_fp4(struct kernels *k, void *y, const struct packed_rows *x,
               const struct weight *w, const void *c)
{
    struct cpu *cpu = (struct cpu *)k;
    struct weight codes = *w; // without its tensor scale
    if (cpu->err->kind)
        return;
    if (w->dtype != DT_NVFP4 || w->in != x->in) {
        err_set(cpu->err, ERR_USAGE, "a product of NVFP4 with %s",
                dtype_name(w->dtype));
        return;
    }
    codes.scale2 = NULL;
    k->ledger.flops += 2.0 * (double)x->rows * (double)w->out * (double)w->in;
    if (x->rows <= gemv_most(cpu->isa, &codes, false))
        few(cpu, y, x, &codes);
    else
        many(cpu, y, x, &codes);
    struct finish_job j = { .y = y,
                            .add = c,
                            .scale2 = x->scale2,
                            .weight = w->scale2 ? *w->scale2 : 1,
                            .rows = x->rows,
                            .out = w->out,
                            .part = rows_of(w->out) };
    cpu_for(cpu, (x->rows + j.part - 1) / j.part, finish_part, &j);
}

/* ---- tiles ------------------------------------------------------------------------------- */

void
cpu_tile(struct kernels *k, uint8_t *tiles, const uint8_t *scales, size_t rows,
         size_t blocks)
{
    (void)k;
    memset(tiles, 0, tiles_bytes(rows, blocks));
    for (size_t r = 0; r < rows; r++)
        for (size_t b = 0; b < blocks; b++)
            tiles[tiles_at(r, b, blocks)] = scales[r * blocks + b];
}
