/* SPDX-License-Identifier: MIT */
/* embed: rows of the embedding, and their gradients in the order of tokens. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"

void
cpu_embed(struct kernels *k, const struct matrix *y, const struct matrix *w,
          const int32_t *ids)
{
    size_t n = w->cols;
    for (size_t t = 0; t < y->rows; t++)
        cpu_read_floats(cpu_of(k), (float *)y->data + t * n, w->data, w->dtype,
                        (size_t)ids[t] * n, n);
}

void
cpu_embed_dw(struct kernels *k, const struct matrix *dw, const struct matrix *dy,
             const int32_t *ids)
{
    size_t n = dw->cols;
    for (size_t t = 0; t < dy->rows; t++)
        cpu_of(k)->rows->axpy((float *)dw->data + (size_t)ids[t] * n, 1,
                              (const float *)dy->data + t * n, n);
}
