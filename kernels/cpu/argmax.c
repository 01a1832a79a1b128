/* SPDX-License-Identifier: MIT */
/* argmax: the most likely token of each row of logits. */
#include "kernels/cpu/ops.h"

#include <math.h>

static int32_t
argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return -1;
        if (x[i] > x[best])
            best = i;
    }
    return (int32_t)best;
}

void
cpu_argmax(struct kernels *k, int32_t *id, const struct matrix *logits)
{
    (void)k;
    for (size_t r = 0; r < logits->rows; r++)
        id[r] = argmax((const float *)logits->data + r * logits->stride, logits->cols);
}
