/* SPDX-License-Identifier: MIT */
/* attention_few_kernel: see attention_few.h.  For scores a lane is a key, for values a dimension. */
#include "kernels/cpu/attention_few.h"

#include "kernels/cpu/codes.h"
#include "kernels/cpu/sizes.h"

/* ---- scores ------------------------------------------------------------------------------ */

/* LANES dimensions from d on of LANES keys from i on become columns; what is not there is 0. */
static inline __attribute__((always_inline)) void
load_square(vf v[LANES], const struct few *a, size_t i, size_t d, bool bf16)
{
    const float *p = a->x + i * a->stride + d;
    size_t keys = min(a->n - i, LANES), dims = min(a->dim - d, LANES);
    for (size_t k = 0; k < LANES; k++, p += a->stride) {
        v[k] = (vf){ 0 };
        if (k < keys && dims == LANES)
            v[k] = load(p);
        else if (k < keys)
            memcpy(&v[k], p, dims * sizeof *p);
        if (bf16)
            v[k] = (vf)rounded(v[k], 1);
    }
    transpose(v);
}

/* A square's products are added to the scores of its keys. */
static inline __attribute__((always_inline)) void
add_square(const struct few *a, float *score, const float *query, const vf v[LANES],
           size_t d)
{
    size_t dims = min(a->dim - d, LANES);
    query += d;
    for (size_t r = 0; r < a->rows; r++, score += LANES, query += a->dim) {
        vf sum = load(score);
        if (dims == LANES)
            for (size_t k = 0; k < LANES; k++)
                sum = fused(sum, all(query[k]), v[k]);
        else
            for (size_t k = 0; k < dims; k++)
                sum = fused(sum, all(query[k]), v[k]);
        store(score, sum);
    }
}

static inline __attribute__((always_inline)) void
scores_of(const struct few *a, float *score, const float *query, bool bf16)
{
    for (size_t i = 0; i < a->n; i += LANES) {
        float sum[FEW_ROWS * LANES] = { 0 };
        for (size_t d = 0; d < a->dim; d += LANES) {
            vf v[LANES];
            load_square(v, a, i, d, bf16);
            add_square(a, sum, query, v, d);
        }
        for (size_t r = 0; r < a->rows; r++)
            memcpy(score + r * a->score_stride + i, sum + r * LANES,
                   min(a->n - i, LANES) * sizeof *sum);
    }
}

static void
scores(const struct few *a, float *score, const float *query)
{
    if (a->bf16)
        scores_of(a, score, query, true);
    else
        scores_of(a, score, query, false);
}

/* ---- values ------------------------------------------------------------------------------ */

/* A tile has up to 4 rows and 4 vectors of dimensions, as many as registers suffice for. */
#if defined __AVX2__ && !defined __AVX512F__
enum { EACH = 4, VECS = 4, SUMS = 8 };
#else
enum { EACH = 4, VECS = 4, SUMS = 16 };
#endif

/* Some rows, and vectors of dimensions; dims: of fewer than a vector has, else 0.  rows and vecs
 * are constants where this is inlined. */
static inline __attribute__((always_inline)) void
values_tile(const struct few *a, float *out, const float *score, size_t rows,
            size_t vecs, size_t dims, bool bf16)
{
    vf sum[EACH][VECS] = { 0 };
    const float *x = a->x;
    for (size_t i = 0; i < a->n; i++, x += a->stride)
        for (size_t v = 0; v < vecs; v++) {
            vf value = { 0 };
            if (dims)
                memcpy(&value, x, dims * sizeof *x);
            else
                value = load(x + v * LANES);
            if (bf16)
                value = (vf)rounded(value, 1);
            for (size_t r = 0; r < rows; r++)
                sum[r][v] =
                    fused(sum[r][v], all(score[r * a->score_stride + i]), value);
        }
    for (size_t r = 0; r < rows; r++)
        for (size_t v = 0; v < vecs; v++)
            memcpy(out + r * a->dim + v * LANES, &sum[r][v],
                   (dims ? dims : LANES) * sizeof *out);
}

static inline __attribute__((always_inline)) void
values_rows(const struct few *a, float *out, const float *score, size_t rows, bool bf16)
{
    struct few at = *a;
    size_t d = 0, vecs = min(VECS, SUMS / rows);
    for (; d + vecs * LANES <= a->dim; d += vecs * LANES) {
        at.x = a->x + d;
        values_tile(&at, out + d, score, rows, vecs, 0, bf16);
    }
    for (; d + LANES <= a->dim; d += LANES) {
        at.x = a->x + d;
        values_tile(&at, out + d, score, rows, 1, 0, bf16);
    }
    if (d < a->dim) {
        at.x = a->x + d;
        values_tile(&at, out + d, score, rows, 1, a->dim - d, bf16);
    }
}

static inline __attribute__((always_inline)) void
values_of(const struct few *a, float *out, const float *score, bool bf16)
{
    size_t r = 0;
    for (; r + EACH <= a->rows; r += EACH)
        values_rows(a, out + r * a->dim, score + r * a->score_stride, EACH, bf16);
    for (; r + 2 <= a->rows; r += 2)
        values_rows(a, out + r * a->dim, score + r * a->score_stride, 2, bf16);
    if (r < a->rows)
        values_rows(a, out + r * a->dim, score + r * a->score_stride, 1, bf16);
}

static void
values(const struct few *a, float *out, const float *score)
{
    if (a->bf16)
        values_of(a, out, score, true);
    else
        values_of(a, out, score, false);
}

const struct few_isa NAME(few) = { scores, values };
