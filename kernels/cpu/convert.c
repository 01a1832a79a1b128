/* SPDX-License-Identifier: MIT */
/* convert: any type to f32. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"
#include "lib/nvfp4/codec.h"

struct job {
    const struct cpu *c;
    const struct matrix *y, *x;
    size_t part; // elements, or rows
};

void
cpu_read_floats(const struct cpu *c, float *y, const void *x, enum dtype dtype,
                size_t at, size_t n)
{
    const struct operand m = { .p = x, .dtype = dtype };
    gemm_of(c->isa)->read(y, &m, at, n);
}

static int
plain_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    size_t at = i * j->part, n = least(j->x->rows * j->x->cols - at, j->part);
    (void)worker;
    (void)err;
    cpu_read_floats(j->c, (float *)j->y->data + at, j->x->data, j->x->dtype, at, n);
    return 0;
}

static int
nvfp4_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    const struct matrix *x = j->x;
    size_t n = x->cols, end = least((i + 1) * j->part, x->rows);
    (void)worker;
    (void)err;
    for (size_t r = i * j->part; r < end; r++) {
        float scale2 = x->per_row ? x->scale2[r] : x->scale2 ? *x->scale2 : 1;
        nvfp4_decode((float *)j->y->data + r * n, (const uint8_t *)x->data + r * n / 2,
                     x->scales + r * n / NVFP4_BLOCK, scale2, n);
    }
    return 0;
}

void
cpu_convert(struct kernels *k, const struct matrix *y, const struct matrix *x)
{
    struct job j = { cpu_of(k), y, x, SMALL_PART };
    if (x->dtype != DT_NVFP4) {
        cpu_for(cpu_of(k), parts(x->rows * x->cols, j.part), plain_part, &j);
        return;
    }
    j.part = PART / x->cols + 1;
    cpu_for(cpu_of(k), parts(x->rows, j.part), nvfp4_part, &j);
}
