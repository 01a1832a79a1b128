/* SPDX-License-Identifier: MIT */
/* convert: f32 of any type, and sums of them. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "lib/nvfp4/codec.h"

struct convert_job {
    const struct cpu *c;
    const struct matrix *y, *x;
};

void
cpu_read_floats(const struct cpu *c, float *y, const void *x, enum dtype dtype,
                size_t at, size_t n)
{
    const struct operand m = { .data = x, .dtype = dtype };
    gemm_of(c->isa)->read(y, &m, at, n);
}

static void
convert_elements(const void *ctx, size_t first, size_t end)
{
    const struct convert_job *j = ctx;
    cpu_read_floats(j->c, (float *)j->y->data + first, j->x->data, j->x->dtype, first,
                    end - first);
}

static void
convert_nvfp4_rows(const void *ctx, size_t r, size_t end)
{
    const struct convert_job *j = ctx;
    const struct matrix *x = j->x;
    size_t n = x->cols;
    for (; r < end; r++) {
        float scale2 = x->per_row ? x->scale2[r] : x->scale2 ? *x->scale2 : 1;
        nvfp4_decode((float *)j->y->data + r * n, (const uint8_t *)x->data + r * n / 2,
                     x->scales + r * n / NVFP4_BLOCK, scale2, n);
    }
}

void
cpu_convert(struct kernels *k, const struct matrix *y, const struct matrix *x)
{
    struct cpu *c = cpu_of(k);
    struct convert_job j = { c, y, x };
    if (x->dtype == DT_NVFP4)
        cpu_for_ranges(c, x->rows, PART / x->cols + 1, convert_nvfp4_rows, &j);
    else
        cpu_for_ranges(c, x->rows * x->cols, SMALL_PART, convert_elements, &j);
}

static void
add_elements(const void *ctx, size_t first, size_t end)
{
    const struct convert_job *j = ctx;
    float x[SMALL_PART];
    cpu_read_floats(j->c, x, j->x->data, j->x->dtype, first, end - first);
    j->c->rows->axpy((float *)j->y->data + first, 1, x, end - first);
}

void
cpu_sum(struct kernels *k, const struct matrix *y, size_t n, const struct matrix *x,
        bool add)
{
    struct cpu *c = cpu_of(k);
    for (size_t i = 0; i < n; i++) {
        struct convert_job j = { c, y, &x[i] };
        if (add || i)
            cpu_for_ranges(c, x->rows * x->cols, SMALL_PART, add_elements, &j);
        else
            cpu_convert(k, y, x);
    }
}
