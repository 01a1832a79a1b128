/* SPDX-License-Identifier: MIT */
/* torchsharp: the packed optimizer of the TorchSharp system, numerics.md 7.4, for
 * comparison.
 *
 * Weight and moments are unpacked to f32, updated by AdamW (7.3) and packed again, a row at
 * a time:
 *
 *   weight   NVFP4 by the quantizer "native" from bf16
 *   moments  NVFP4 by "native" from f32; or s = max(largest magnitude of the row, 1e-8) / 127
 *            and RNE(x / s) within +-127
 *
 * An update of less than half a code's step is lost each time.  That fault is what it is
 * kept to show. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/sizes.h"
#include "lib/base/num.h"

#include <math.h>
#include <stdlib.h>

struct torchsharp_job {
    const struct cpu *c;
    const struct torchsharp_state *s;
    const float *grad;
    size_t first, n, part; // rows; part: those of one thread at a time
    const struct adam_step *a;
};

/* ---- rows of a plane ------------------------------------------------------------------ */

static void
read_nvfp4(float *x, const struct torchsharp_plane *p, size_t row, size_t cols)
{
    nvfp4_decode(x, (const uint8_t *)p->q + row * cols / 2,
                 (const uint8_t *)p->scales + row * cols / NVFP4_BLOCK, 1, cols);
}

static void
write_nvfp4(const struct cpu *c, const struct torchsharp_plane *p, size_t row,
            const float *x, size_t cols, enum dtype source)
{
    const struct quant_spec spec = { .kind = QUANT_NATIVE,
                                     .isa = c->isa,
                                     .source = source };
    const struct quant_scale scale = nvfp4_scale(&spec, 0);
    nvfp4_quant((uint8_t *)p->q + row * cols / 2,
                (uint8_t *)p->scales + row * cols / NVFP4_BLOCK, x, 1, cols, row * cols,
                &spec, &scale, NULL);
}

static void
read_moment(float *x, const struct torchsharp_state *s,
            const struct torchsharp_plane *p, size_t row)
{
    if (s->moments == TORCHSHARP_NVFP4) {
        read_nvfp4(x, p, row, s->cols);
        return;
    }
    const int8_t *q = (const int8_t *)p->q + row * s->cols;
    float scale = ((const float *)p->scales)[row];
    for (size_t i = 0; i < s->cols; i++)
        x[i] = (float)q[i] * scale;
}

static void
write_moment(const struct cpu *c, const struct torchsharp_state *s,
             const struct torchsharp_plane *p, size_t row, const float *x)
{
    if (s->moments == TORCHSHARP_NVFP4) {
        write_nvfp4(c, p, row, x, s->cols, DT_F32);
        return;
    }
    int8_t *q = (int8_t *)p->q + row * s->cols;
    float max = 1e-8F;
    for (size_t i = 0; i < s->cols; i++)
        max = fmaxf(max, fabsf(x[i]));
    float scale = max / 127;
    ((float *)p->scales)[row] = scale;
    for (size_t i = 0; i < s->cols; i++)
        q[i] = (int8_t)fmaxf(-127, fminf(127, rintf(x[i] / scale)));
}

/* ---- a step ------------------------------------------------------------------------------ */

/* w is rounded to bf16, from which it is quantized. */
static void
update(float *w, float *m, float *v, const float *grad, size_t n,
       const struct adam_step *a)
{
    for (size_t i = 0; i < n; i++) {
        float g = *a->clip * grad[i];
        m[i] = a->beta1 * m[i] + (1 - a->beta1) * g;
        v[i] = a->beta2 * v[i] + (1 - a->beta2) * (g * g);
        float u =
            m[i] / a->bias_correction1 / (sqrtf(v[i] / a->bias_correction2) + a->eps);
        float p = w[i] - a->lr * (u + a->decay * w[i]);
        w[i] = num_from_bf16(num_to_bf16(p));
    }
}

static int
step_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct torchsharp_job *j = ctx;
    const struct torchsharp_state *s = j->s;
    size_t row = j->first + i * j->part, end = min(row + j->part, j->first + j->n);
    float *w = malloc(3 * s->cols * sizeof *w);
    (void)worker;
    if (!w)
        return err_set(err, ERR_MEMORY, "out of memory for an update");
    float *m = w + s->cols, *v = m + s->cols;
    for (; row < end; row++) {
        read_nvfp4(w, &s->w, row, s->cols);
        read_moment(m, s, &s->m, row);
        read_moment(v, s, &s->v, row);
        update(w, m, v, j->grad + row * s->cols, s->cols, j->a);
        write_nvfp4(j->c, &s->w, row, w, s->cols, DT_BF16);
        write_moment(j->c, s, &s->m, row, m);
        write_moment(j->c, s, &s->v, row, v);
    }
    free(w);
    return 0;
}

void
cpu_torchsharp_adamw(struct kernels *k, const struct torchsharp_state *s,
                     const struct matrix *grad, size_t first, size_t n,
                     const struct adam_step *a)
{
    struct cpu *c = cpu_of(k);
    struct torchsharp_job j = {
        .c = c, .s = s, .grad = grad->data, .first = first, .n = n, .a = a
    };
    if (isnan(*a->clip))
        return;
    j.part = PART / s->cols + 1;
    cpu_for(c, ceil_div(n, j.part), step_part, &j);
}
