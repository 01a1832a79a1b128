/* SPDX-License-Identifier: MIT */
/* quantize: nvfp4 of matrices, by lib/nvfp4, and the largest magnitudes that it needs. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"
#include "lib/base/num.h"
#include "lib/nvfp4/tiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- largest magnitudes ------------------------------------------------------------------ */

/* Compares bits, of which those of NaN are the largest: the order of threads does not
 * matter. */
void
cpu_grow_amax(float *amax, const void *values, enum dtype dtype, uint64_t first,
              size_t n)
{
    size_t bad;
    float max = nvfp4_amax(dtype, dtype_at(dtype, values, first), n, &bad), old;
    if (bad < n)
        max = NAN;
    __atomic_load(amax, &old, __ATOMIC_RELAXED);
    while (num_bits_f32(max) > num_bits_f32(old) &&
           !__atomic_compare_exchange(amax, &old, &max, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED))
        ;
}

struct amax_job {
    float *out;
    const struct matrix *x;
};

static void
amax_elements(const void *ctx, size_t first, size_t end)
{
    const struct amax_job *j = ctx;
    cpu_grow_amax(j->out, j->x->data, j->x->dtype, first, end - first);
}

void
cpu_grow_result(struct cpu *c, const struct matrix *y)
{
    struct amax_job j = { y->amax, y };
    if (y->amax)
        cpu_for_ranges(c, y->rows * y->cols, SMALL_PART, amax_elements, &j);
}

static void
amax_codes(float *out, const struct matrix *x)
{
    uint8_t most = 0;
    for (size_t i = 0; i < x->rows * x->cols / NVFP4_BLOCK; i++)
        most = x->scales[i] > most ? x->scales[i] : most;
    *out = e2m1_value(7) * e4m3_value(most);
}

void
cpu_amax(struct kernels *k, float *out, const struct matrix *x)
{
    struct amax_job j = { out, x };
    if (x->dtype == DT_NVFP4) {
        amax_codes(out, x);
        return;
    }
    *out = 0;
    cpu_for_ranges(cpu_of(k), x->rows * x->cols, SMALL_PART, amax_elements, &j);
}

void
cpu_largest(struct kernels *k, float *amax, const float *of, size_t n, size_t ranks)
{
    (void)k;
    memcpy(amax, of, n * sizeof *amax);
    for (size_t q = 1; q < ranks; q++)
        for (size_t i = 0; i < n; i++)
            if (isnan(of[q * n + i]) || of[q * n + i] > amax[i])
                amax[i] = of[q * n + i];
}

/* ---- a tensor ------------------------------------------------------------------------------ */

struct quantize_job {
    const struct cpu *c;
    const struct matrix *to, *x;
    const struct quant_spec *spec;
    struct quant_scale scale; // of the tensor
    size_t part;              // rows of a tensor that are one thread's
};

static int
tensor_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct quantize_job *j = ctx;
    const struct matrix *to = j->to;
    size_t row = i * j->part, rows = min(to->rows - row, j->part);
    size_t at = row * to->cols, n = rows * to->cols;
    const float *from = dtype_at(j->x->dtype, j->x->data, at);
    float *x = NULL;
    (void)worker;
    if (j->x->dtype != DT_F32) {
        if (!(x = malloc(n * sizeof *x)))
            return err_set(err, ERR_MEMORY, "out of memory for quantizing");
        cpu_read_floats(j->c, x, from, j->x->dtype, 0, n);
    }
    nvfp4_quant((uint8_t *)to->data + at / 2, to->scales + at / NVFP4_BLOCK,
                x ? x : from, rows, to->cols, at, j->spec, &j->scale, NULL);
    free(x);
    return 0;
}

static void
quantize_tensor(struct quantize_job *j, struct cpu *c, const float *amax, size_t n)
{
    float max = 0;
    for (size_t i = 0; i < n; i++)
        max = isnan(amax[i]) || amax[i] > max ? amax[i] : max;
    if (isnan(max)) {
        *j->to->scale2 = max;
        return;
    }
    j->scale = nvfp4_scale(j->spec, max);
    j->part = (SMALL_PART / j->to->cols + 1 + 15) / 16 * 16; // whole square blocks
    *j->to->scale2 = j->scale.scale2;
    cpu_for(c, ceil_div(j->to->rows, j->part), tensor_part, j);
}

/* ---- rows by scales of their own -------------------------------------------------------------------------- */

static void
quantize_row(const struct quantize_job *j, size_t row)
{
    size_t n = j->to->cols, at = row * n, bad;
    const float *x = (const float *)j->x->data + at;
    uint8_t *codes = (uint8_t *)j->to->data + at / 2,
            *scales = j->to->scales + at / NVFP4_BLOCK;
    float max = nvfp4_amax(DT_F32, x, n, &bad);
    if (bad < n) {
        memset(codes, 0, n / 2);
        memset(scales, 0, n / NVFP4_BLOCK);
        j->to->scale2[row] = NAN;
        return;
    }
    struct quant_scale t = nvfp4_scale(j->spec, max);
    nvfp4_quant(codes, scales, x, 1, n, 0, j->spec, &t, NULL);
    j->to->scale2[row] = t.scale2;
}

static void
quantize_rows(const void *ctx, size_t r, size_t end)
{
    for (; r < end; r++)
        quantize_row(ctx, r);
}

void
cpu_quantize(struct kernels *k, const struct matrix *to, const struct matrix *x,
             const float *amax, size_t n, const struct quant_spec *spec)
{
    struct cpu *c = cpu_of(k);
    struct quant_spec own = *spec;
    struct quantize_job j = { .c = c, .to = to, .x = x, .spec = &own };
    own.isa = c->isa;
    if (to->per_row) {
        cpu_for_ranges(c, to->rows, PART / to->cols + 1, quantize_rows, &j);
    } else {
        own.source = x->dtype;
        quantize_tensor(&j, c, amax, n);
    }
    if (to->tiles)
        tiles_make(to->tiles, to->scales, to->rows, to->cols / NVFP4_BLOCK);
}
