/* SPDX-License-Identifier: MIT */
/* fp8: matrices in E4M3, for products of FP8; the bytes are those of every device. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "lib/core/num.h"
#include "lib/nvfp4/e4m3.h"

#define E4M3_FN static inline
#include "lib/nvfp4/e4m3_scale.h"

#include <math.h>
#include <string.h>

struct job {
    const struct matrix *to, *x;
    const struct fp8_found *found; // NULL: not wanted
    int exponent;
};

static void
add_lost(const struct job *j, uint64_t lost)
{
    if (j->found && lost)
        __atomic_fetch_add(j->found->lost, lost, __ATOMIC_RELAXED);
}

static uint8_t *
transposed_at(const struct matrix *m, size_t row, size_t col)
{
    return m->transposed ? m->transposed + col * m->transposed_stride + row : NULL;
}

static void
codes_of_rows(const void *ctx, size_t r, size_t end)
{
    const struct job *j = ctx;
    size_t cols = j->x->cols, at = r * cols;
    add_lost(
        j, nvfp4_e4m3(dtype_at(DT_F8_E4M3, j->to->data, at), transposed_at(j->to, r, 0),
                      j->to->transposed_stride, (const uint8_t *)j->x->data + at / 2,
                      j->x->scales + at / NVFP4_BLOCK, end - r, cols, j->exponent));
}

static void
values_of_rows(const void *ctx, size_t r, size_t end)
{
    const struct job *j = ctx;
    size_t cols = j->x->cols;
    float factor = ldexpf(1, j->exponent);
    const float *x = j->x->data;
    uint8_t *data = j->to->data;
    uint64_t lost = 0;
    if (j->found)
        cpu_grow_amax(j->found->amax, x, DT_F32, r * cols, (end - r) * cols);
    for (; r < end; r++)
        for (size_t c = 0; c < cols; c++) {
            float v = x[r * cols + c] * factor;
            bool finite = isfinite(x[r * cols + c]);
            uint8_t byte =
                finite ? e4m3_from(fabsf(v)) | (signbit(v) ? 0x80 : 0) : 0x7f;
            lost += finite && fabsf(v) > E4M3_LIMIT;
            if (data)
                data[r * cols + c] = byte;
            if (j->to->transposed)
                *transposed_at(j->to, r, c) = byte;
        }
    add_lost(j, lost);
}

/* Elements of a tensor that is not finite, and those behind the last row. */
static void
clear_rows(const struct matrix *to, size_t first, size_t end)
{
    if (to->data && first < to->rows)
        memset((uint8_t *)to->data + first * to->cols, 0,
               (to->rows - first) * to->cols);
    for (size_t c = 0; c < to->cols && to->transposed; c++)
        memset(transposed_at(to, first, c), 0, end - first);
}

void
cpu_to_fp8(struct kernels *k, const struct matrix *to, const struct matrix *x,
           const float *amax, size_t n, const struct fp8_found *found)
{
    struct job j = { .to = to, .x = x, .found = found };
    bool codes = x->dtype == DT_NVFP4;
    size_t padded = (size_t)round_up(to->rows, FP8_UNIT);
    float max = 0;
    for (size_t i = 0; i < n; i++)
        max = isnan(amax[i]) || amax[i] > max ? amax[i] : max;
    if (isnan(max)) {
        *to->scale2 = max;
        if (found && !codes)
            *found->amax = max;
        clear_rows(to, 0, padded);
        return;
    }
    j.exponent = e4m3_exponent(num_bits_f32(max));
    *to->scale2 = ldexpf(codes && x->scale2 ? *x->scale2 : 1, -j.exponent);
    cpu_for_ranges(cpu_of(k), to->rows, SMALL_PART / to->cols + 1,
                   codes ? codes_of_rows : values_of_rows, &j);
    clear_rows(to, to->rows, padded);
}
