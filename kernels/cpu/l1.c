/* SPDX-License-Identifier: MIT */
/* l1: mean distance of rows from rows of the embedding. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "lib/base/num.h"

#include <math.h>

static float
element(const struct matrix *w, size_t i)
{
    switch (w->dtype) {
    case DT_BF16:
        return num_from_bf16(((const uint16_t *)w->data)[i]);
    case DT_F16:
        return num_from_f16(((const uint16_t *)w->data)[i]);
    default:
        return ((const float *)w->data)[i];
    }
}

void
cpu_l1(struct kernels *k, float *loss, const struct matrix *dx, const struct matrix *dw,
       const struct matrix *x, const struct matrix *w, const int32_t *label,
       float scale)
{
    size_t n = w->cols;
    float step = scale / (float)n, *out = dx ? dx->data : NULL;
    const float *in = x->data;
    (void)k;
    for (size_t r = 0; r < x->rows; r++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) {
            size_t at = (size_t)label[r] * n + i;
            float off = in[r * n + i] - element(w, at);
            float d = off > 0 ? step : off < 0 ? -step : 0;
            sum += fabs((double)off);
            if (out)
                out[r * n + i] = d;
            if (dw)
                ((float *)dw->data)[at] -= d;
        }
        loss[r] = (float)(sum / (double)n);
    }
}
