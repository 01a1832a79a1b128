/* SPDX-License-Identifier: MIT */
/* fp8: matrices in E4M3, for products of FP8; the bytes are those of every device. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"
#include "lib/base/num.h"
#include "lib/nvfp4/e4m3.h"

#define E4M3_FN static inline
#include "lib/nvfp4/e4m3_scale.h"

#include <math.h>
#include <string.h>

enum { PIECE = 1 << 10 }; // elements that are computed at a time

/* What rows are converted of: codes or values of x; or values that are computed of it. */
struct fp8_job {
    const struct rows_isa *rows;
    const struct matrix *to, *x, *up;
    const struct fp8_found *found; // NULL: not wanted
    const float *rstd, *gain;      // of norm
    int exponent;
    // of the gradient of swiglu, x being gate
    const float *d;
    const struct matrix *y; // what swiglu gives
    int y_exponent;
};

static void
add_lost(const struct fp8_job *j, uint64_t lost)
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
    const struct fp8_job *j = ctx;
    size_t cols = j->x->cols, at = r * cols;
    add_lost(
        j, nvfp4_e4m3(dtype_at(DT_F8_E4M3, j->to->data, at), transposed_at(j->to, r, 0),
                      j->to->transposed_stride, (const uint8_t *)j->x->data + at / 2,
                      j->x->scales + at / NVFP4_BLOCK, end - r, cols, j->exponent));
}

/* n values of row r from column c on; how many are clipped. */
static uint64_t
convert(const struct matrix *to, size_t r, size_t c, const float *x, size_t n,
        int exponent)
{
    float factor = ldexpf(1, exponent);
    uint8_t *data = to->data;
    uint64_t lost = 0;
    for (size_t i = 0; i < n; i++) {
        float v = x[i] * factor;
        bool finite = isfinite(x[i]);
        uint8_t byte = finite ? e4m3_from(fabsf(v)) | (signbit(v) ? 0x80 : 0) : 0x7f;
        lost += finite && fabsf(v) > E4M3_LIMIT;
        if (data)
            data[r * to->cols + c + i] = byte;
        if (to->transposed)
            *transposed_at(to, r, c + i) = byte;
    }
    return lost;
}

/* The same, counted. */
static void
convert_counting(const struct fp8_job *j, size_t r, size_t c, const float *x, size_t n)
{
    if (j->found)
        cpu_grow_amax(j->found->amax, x, DT_F32, 0, n);
    add_lost(j, convert(j->to, r, c, x, n, j->exponent));
}

static void
values_of_rows(const void *ctx, size_t r, size_t end)
{
    const struct fp8_job *j = ctx;
    size_t cols = j->x->cols;
    for (; r < end; r++)
        convert_counting(j, r, 0, (const float *)j->x->data + r * cols, cols);
}

static void
norm_of_rows(const void *ctx, size_t r, size_t end)
{
    const struct fp8_job *j = ctx;
    size_t cols = j->x->cols;
    float y[PIECE];
    for (; r < end; r++)
        for (size_t c = 0; c < cols; c += PIECE) {
            size_t n = min(cols - c, PIECE);
            j->rows->norm(y, (const float *)j->x->data + r * cols + c, j->rstd[r],
                          j->gain + c, n);
            convert_counting(j, r, c, y, n);
        }
}

static void
swiglu_of_rows(const void *ctx, size_t r, size_t end)
{
    const struct fp8_job *j = ctx;
    size_t cols = j->x->cols;
    float y[PIECE];
    for (; r < end; r++)
        for (size_t c = 0; c < cols; c += PIECE) {
            size_t n = min(cols - c, PIECE), at = r * cols + c;
            j->rows->swiglu(y, (const float *)j->x->data + at,
                            (const float *)j->up->data + at, n);
            convert_counting(j, r, c, y, n);
        }
}

/* What is not finite has been cleared. */
static void
swiglu_bwd_of_rows(const void *ctx, size_t r, size_t end)
{
    const struct fp8_job *j = ctx;
    size_t cols = j->x->cols;
    float dgate[PIECE], dup[PIECE], y[PIECE];
    for (; r < end; r++)
        for (size_t c = 0; c < cols; c += PIECE) {
            size_t n = min(cols - c, PIECE), at = r * cols + c;
            const float *gate = (const float *)j->x->data + at,
                        *up = (const float *)j->up->data + at;
            if (!isnan(*j->to->scale2)) {
                j->rows->swiglu_bwd(dgate, dup, gate, up, j->d + at, n);
                convert_counting(j, r, c, dgate, n);
                convert_counting(j, r, cols + c, dup, n);
            }
            if (!isnan(*j->y->scale2)) {
                j->rows->swiglu(y, gate, up, n);
                convert(j->y, r, c, y, n, j->y_exponent);
            }
        }
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

/* The scale of the largest of n values at amax, that of x being x_scale2, and its exponent;
 * rows behind the last one are cleared.  Whether there is something to convert: else all is
 * cleared. */
static bool
begin_rounding(const struct matrix *to, float x_scale2, const float *amax, size_t n,
               int *exponent)
{
    size_t padded = (size_t)round_up(to->rows, FP8_UNIT);
    float max = 0;
    for (size_t i = 0; i < n; i++)
        max = isnan(amax[i]) || amax[i] > max ? amax[i] : max;
    if (isnan(max)) {
        *to->scale2 = max;
        clear_rows(to, 0, padded);
        return false;
    }
    *exponent = e4m3_exponent(num_bits_f32(max));
    *to->scale2 = ldexpf(x_scale2, -*exponent);
    clear_rows(to, to->rows, padded);
    return true;
}

static void
convert_rows(struct kernels *k, struct fp8_job *j, cpu_range_fn *fn, float x_scale2,
             const float *amax, size_t n)
{
    j->rows = cpu_of(k)->rows;
    if (begin_rounding(j->to, x_scale2, amax, n, &j->exponent))
        cpu_for_ranges(cpu_of(k), j->to->rows, SMALL_PART / j->to->cols + 1, fn, j);
    else if (j->found && j->found->amax)
        *j->found->amax = *j->to->scale2;
}

void
cpu_to_fp8(struct kernels *k, const struct matrix *to, const struct matrix *x,
           const float *amax, size_t n, const struct fp8_found *found)
{
    struct fp8_job j = { .to = to, .x = x, .found = found };
    bool codes = x->dtype == DT_NVFP4;
    convert_rows(k, &j, codes ? codes_of_rows : values_of_rows,
                 codes && x->scale2 ? *x->scale2 : 1, amax, n);
}

void
cpu_norm_to_fp8(struct kernels *k, const struct matrix *to, float *rstd,
                const struct matrix *x, const float *gain, float eps, const float *amax,
                const struct fp8_found *found)
{
    const struct matrix unwritten = matrix_of(DT_F32, NULL, x->rows, x->cols);
    cpu_norm(k, &unwritten, rstd, x, gain, eps);
    cpu_norm_again_to_fp8(k, to, rstd, x, gain, amax, found);
}

void
cpu_norm_again_to_fp8(struct kernels *k, const struct matrix *to, const float *rstd,
                      const struct matrix *x, const float *gain, const float *amax,
                      const struct fp8_found *found)
{
    struct fp8_job j = { .to = to, .x = x, .found = found, .rstd = rstd, .gain = gain };
    convert_rows(k, &j, norm_of_rows, 1, amax, 1);
}

void
cpu_swiglu_to_fp8(struct kernels *k, const struct matrix *to, const struct matrix *gate,
                  const struct matrix *up, const float *amax,
                  const struct fp8_found *found)
{
    struct fp8_job j = { .to = to, .x = gate, .up = up, .found = found };
    convert_rows(k, &j, swiglu_of_rows, 1, amax, 1);
}

void
cpu_swiglu_bwd_to_fp8(struct kernels *k, const struct matrix *d_gate_up,
                      const float *amax, const struct fp8_found *found,
                      const struct matrix *y, const float *y_amax,
                      const struct matrix *d, const struct matrix *gate,
                      const struct matrix *up)
{
    struct fp8_job j = { .rows = cpu_of(k)->rows,
                         .to = d_gate_up,
                         .x = gate,
                         .up = up,
                         .found = found,
                         .d = d->data,
                         .y = y };
    if (!begin_rounding(d_gate_up, 1, amax, 1, &j.exponent) && found)
        *found->amax = *d_gate_up->scale2;
    begin_rounding(y, 1, y_amax, 1, &j.y_exponent);
    cpu_for_ranges(cpu_of(k), d->rows, SMALL_PART / d->cols + 1, swiglu_bwd_of_rows,
                   &j);
}
