/* SPDX-License-Identifier: MIT */
/* ops: what a device implements, each as kernels.h describes it.
 *
 * kernels/ops.c calls these after it has checked shapes and counted; with k->err set none is
 * called, but for close, free and download.  NULL: the device has nothing to do there.  Empty
 * matrices come through, since a product of no tokens is zero.
 */
#ifndef NIBBLE_KERNELS_OPS_H
#define NIBBLE_KERNELS_OPS_H

#include "kernels/kernels.h"

struct ops {
    void (*close)(struct kernels *k);
    void *(*alloc)(struct kernels *k, enum memory what, size_t bytes);
    void (*free)(struct kernels *k, void *p);
    void (*upload)(struct kernels *k, void *to, const void *from, size_t bytes);
    int (*download)(struct kernels *k, void *to, const void *from, size_t bytes);
    int (*download_begin)(struct kernels *k, const void *from, size_t bytes,
                          bool stays);
    int (*download_end)(struct kernels *k, int handle, void *to, size_t bytes);
    void *(*stage)(struct kernels *k);
    void (*stage_upload)(struct kernels *k, void *to, void *stage, size_t bytes);
    void (*queue)(struct kernels *k, enum queue queue); // k->queue is the one before
    void (*record)(struct kernels *k, unsigned event);
    void (*wait)(struct kernels *k, unsigned event);
    bool (*replay)(struct kernels *k, const void *key, size_t bytes);
    void (*recorded)(struct kernels *k, bool repeats);

    void (*join)(struct kernels *k, unsigned rank, unsigned ranks, const void *id);
    bool (*join_copies)(struct kernels *k, const struct company *of, char *why,
                        size_t n);
    void (*transfer)(struct kernels *k, unsigned ranks, const struct exchanged *e,
                     size_t n);
    double (*exchanged)(struct kernels *k);

    void (*copy)(struct kernels *k, void *to, const void *from, size_t bytes);
    void (*zero)(struct kernels *k, void *p, size_t bytes);
    void (*gather)(struct kernels *k, const struct matrix *y, const struct matrix *x,
                   const int32_t *index);
    void (*scatter)(struct kernels *k, const struct matrix *y, const struct matrix *x,
                    const int32_t *index);
    void (*convert)(struct kernels *k, const struct matrix *y, const struct matrix *x);
    void (*expand)(struct kernels *k, const struct matrix *w);
    void (*linear)(struct kernels *k, size_t n, const struct matrix *y,
                   const struct matrix *x, const struct matrix *w,
                   const struct matrix *c);
    bool (*norm_linear)(struct kernels *k, size_t n, const struct matrix *y,
                        const struct matrix *x, const float *gain, float eps,
                        const struct matrix *w);
    bool (*norm_swiglu)(struct kernels *k, const struct matrix *y,
                        const struct matrix *x, const float *gain, float eps,
                        const struct matrix *w);
    bool (*attend)(struct kernels *k, const struct matrix *out, const struct matrix *q,
                   const struct matrix *key, const struct matrix *value,
                   const struct attend *a);
    bool (*token)(struct kernels *k, const struct layer_steps *l,
                  const struct token_ends *e);
    bool (*layers)(struct kernels *k, const struct matrix *y, const struct matrix *x,
                   const struct layer_steps *l);
    void (*linear_dx)(struct kernels *k, size_t n, const struct matrix *dx,
                      const struct matrix *dy, const struct matrix *w,
                      const struct matrix *c);
    void (*linear_dw)(struct kernels *k, size_t n, const struct matrix *dw,
                      const struct matrix *dy, const struct matrix *x, bool add);
    void (*embed)(struct kernels *k, const struct matrix *y, const struct matrix *w,
                  const int32_t *ids);
    void (*embed_dw)(struct kernels *k, const struct matrix *dw,
                     const struct matrix *dy, const int32_t *ids);
    void (*norm)(struct kernels *k, const struct matrix *y, float *rstd,
                 const struct matrix *x, const float *gain, float eps);
    void (*norm_bwd)(struct kernels *k, const struct matrix *dx, float *dgain,
                     const struct matrix *y, const struct matrix *dy,
                     const struct matrix *x, const float *rstd, const float *gain,
                     const struct matrix *c);
    void (*qk_norm_rope)(struct kernels *k, const struct matrix *y, float *rstd,
                         const struct matrix *x, const float *gain,
                         const struct rope *r);
    void (*qk_norm_rope_bwd)(struct kernels *k, const struct matrix *d, float *dgain,
                             const struct matrix *x, const float *rstd,
                             const float *gain, const struct rope *r);
    void (*attention)(struct kernels *k, const struct matrix *out, float *lse,
                      const struct matrix *q, const struct matrix *key,
                      const struct matrix *value, const struct heads *h);
    void (*attention_bwd)(struct kernels *k, const struct matrix *dq,
                          const struct matrix *dkey, const struct matrix *dvalue,
                          const struct matrix *dout, const struct matrix *out,
                          const float *lse, const struct matrix *q,
                          const struct matrix *key, const struct matrix *value,
                          float *work, const struct heads *h);
    bool (*attention_rope_bwd)(struct kernels *k, const struct matrix *dq,
                               const struct matrix *dkey, const struct matrix *dvalue,
                               const struct matrix *dout, const struct matrix *out,
                               const float *lse, const struct matrix *q,
                               const struct matrix *key, const struct matrix *value,
                               float *work, const struct heads *h,
                               const struct head_norm *n); // false: not for these
    void (*swiglu)(struct kernels *k, const struct matrix *y, const struct matrix *gate,
                   const struct matrix *up);
    void (*swiglu_bwd)(struct kernels *k, const struct matrix *d_gate_up,
                       const struct matrix *d, const struct matrix *gate,
                       const struct matrix *up);
    void (*cross_entropy)(struct kernels *k, float *loss, const struct matrix *logits,
                          const int32_t *label, float scale);
    void (*distill)(struct kernels *k, float *ce, float *kl,
                    const struct matrix *logits, const struct matrix *teacher,
                    const int32_t *label, const struct distill *how, float scale);
    void (*l1)(struct kernels *k, float *loss, const struct matrix *dx,
               const struct matrix *dw, const struct matrix *x, const struct matrix *w,
               const int32_t *label, float scale);
    void (*argmax)(struct kernels *k, int32_t *id, const struct matrix *logits);
    void (*block_gram)(struct kernels *k, double *gram, size_t width,
                       const struct matrix *x);
    void (*column_stats)(struct kernels *k, double *squares, float *peak,
                         const struct matrix *x);
    void (*amax)(struct kernels *k, float *out, const struct matrix *x);
    void (*largest)(struct kernels *k, float *amax, const float *of, size_t n,
                    size_t ranks);
    void (*quantize)(struct kernels *k, const struct matrix *to, const struct matrix *x,
                     const float *amax, size_t n, const struct quant_spec *spec);
    void (*to_fp8)(struct kernels *k, const struct matrix *to, const struct matrix *x,
                   const float *amax, size_t n, const struct fp8_found *found);
    void (*norm_to_fp8)(struct kernels *k, const struct matrix *to, float *rstd,
                        const struct matrix *x, const float *gain, float eps,
                        const float *amax, const struct fp8_found *found);
    void (*norm_again_to_fp8)(struct kernels *k, const struct matrix *to,
                              const float *rstd, const struct matrix *x,
                              const float *gain, const float *amax,
                              const struct fp8_found *found);
    void (*swiglu_to_fp8)(struct kernels *k, const struct matrix *to,
                          const struct matrix *gate, const struct matrix *up,
                          const float *amax, const struct fp8_found *found);
    void (*swiglu_bwd_to_fp8)(struct kernels *k, const struct matrix *d_gate_up,
                              const float *amax, const struct fp8_found *found,
                              const struct matrix *y, const float *y_amax,
                              const struct matrix *d, const struct matrix *gate,
                              const struct matrix *up);
    void (*sum)(struct kernels *k, const struct matrix *y, size_t n,
                const struct matrix *x, bool add); // n: at most SUM_MAX
    void (*sum_squares)(struct kernels *k, double *out, const struct matrix *g,
                        size_t count);
    void (*block_squares)(struct kernels *k, double *out, const struct matrix *g,
                          size_t count);
    void (*clip)(struct kernels *k, float *out, const double *squares, float factor,
                 float limit, double max, const float *before);
    void (*adamw)(struct kernels *k, const struct adam_update *u, size_t count);
    void (*torchsharp_adamw)(struct kernels *k, const struct torchsharp_state *s,
                             const struct matrix *grad, size_t first, size_t n,
                             const struct adam_step *a);
};

/* Count an allocation, or with a negative size its end. */
void usage_add(struct usage *u, enum memory what, int64_t bytes);

#endif
