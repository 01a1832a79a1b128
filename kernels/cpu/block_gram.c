/* SPDX-License-Identifier: MIT */
/* block_gram: products of the columns of activations, within blocks of columns. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"

struct block_gram_job {
    double *gram;
    size_t width;
    const struct matrix *x;
};

/* Rows first .. end - 1 of the products, of all blocks one after the other: each is one column
 * of x times those of its block. */
static void
gram_rows(const void *ctx, size_t first, size_t end)
{
    const struct block_gram_job *j = ctx;
    size_t w = j->width;
    for (size_t c = first; c < end; c++) {
        double *to = j->gram + c * w;
        const float *x = j->x->data;
        for (size_t r = 0; r < j->x->rows; r++, x += j->x->stride) {
            const float *block = x + c / w * w;
            double own = (double)x[c];
            for (size_t k = 0; k < w; k++)
                to[k] += own * (double)block[k];
        }
    }
}

void
cpu_block_gram(struct kernels *k, double *gram, size_t width, const struct matrix *x)
{
    struct block_gram_job j = { gram, width, x };
    cpu_for_ranges(cpu_of(k), x->cols, 1, gram_rows, &j);
}
