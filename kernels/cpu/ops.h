/* SPDX-License-Identifier: MIT */
/* ops: the operations of the CPU, each in the file of its name; see kernels/kernels.h. */
#ifndef NIBBLE_KERNELS_CPU_OPS_H
#define NIBBLE_KERNELS_CPU_OPS_H

#include "kernels/kernels.h"

/* gather.c */
void cpu_copy(struct kernels *k, void *to, const void *from, size_t bytes);
void cpu_zero(struct kernels *k, void *p, size_t bytes);
void cpu_gather(struct kernels *k, const struct matrix *y, const struct matrix *x,
                const int32_t *index);
void cpu_scatter(struct kernels *k, const struct matrix *y, const struct matrix *x,
                 const int32_t *index);

void cpu_convert(struct kernels *k, const struct matrix *y, const struct matrix *x);

/* linear.c, and fp4.c where x is nvfp4 */
void cpu_linear(struct kernels *k, size_t n, const struct matrix *y,
                const struct matrix *x, const struct matrix *w, const struct matrix *c);
void cpu_linear_fp4(struct kernels *k, const struct matrix *y, const struct matrix *x,
                    const struct matrix *w, const struct matrix *c);
void cpu_linear_dx(struct kernels *k, size_t n, const struct matrix *dx,
                   const struct matrix *dy, const struct matrix *w,
                   const struct matrix *c);
void cpu_linear_dw(struct kernels *k, size_t n, const struct matrix *dw,
                   const struct matrix *dy, const struct matrix *x, bool add);

void cpu_embed(struct kernels *k, const struct matrix *y, const struct matrix *w,
               const int32_t *ids);
void cpu_embed_dw(struct kernels *k, const struct matrix *dw, const struct matrix *dy,
                  const int32_t *ids);

void cpu_norm(struct kernels *k, const struct matrix *y, float *rstd,
              const struct matrix *x, const float *gain, float eps);
void cpu_norm_bwd(struct kernels *k, const struct matrix *dx, float *dgain,
                  const struct matrix *y, const struct matrix *dy,
                  const struct matrix *x, const float *rstd, const float *gain,
                  const struct matrix *c);

/* rope.c */
void cpu_qk_norm_rope(struct kernels *k, const struct matrix *y, float *rstd,
                      const struct matrix *x, const float *gain, const struct rope *r);
void cpu_qk_norm_rope_bwd(struct kernels *k, const struct matrix *d, float *dgain,
                          const struct matrix *x, const float *rstd, const float *gain,
                          const struct rope *r);

void cpu_attention(struct kernels *k, const struct matrix *out, float *lse,
                   const struct matrix *q, const struct matrix *key,
                   const struct matrix *value, const struct heads *h);
void cpu_attention_bwd(struct kernels *k, const struct matrix *dq,
                       const struct matrix *dkey, const struct matrix *dvalue,
                       const struct matrix *dout, const struct matrix *out,
                       const float *lse, const struct matrix *q,
                       const struct matrix *key, const struct matrix *value,
                       float *work, const struct heads *h);

void cpu_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *gate,
                const struct matrix *up);
void cpu_swiglu_bwd(struct kernels *k, const struct matrix *d_gate_up,
                    const struct matrix *d, const struct matrix *gate,
                    const struct matrix *up);

void cpu_cross_entropy(struct kernels *k, float *loss, const struct matrix *logits,
                       const int32_t *label, float scale);
void cpu_distill(struct kernels *k, float *ce, float *kl, const struct matrix *logits,
                 const struct matrix *teacher, const int32_t *label,
                 const struct distill *how, float scale);
void cpu_l1(struct kernels *k, float *loss, const struct matrix *dx,
            const struct matrix *dw, const struct matrix *x, const struct matrix *w,
            const int32_t *label, float scale);
void cpu_argmax(struct kernels *k, int32_t *id, const struct matrix *logits);

void cpu_block_gram(struct kernels *k, double *gram, size_t width,
                    const struct matrix *x);
void cpu_column_stats(struct kernels *k, double *squares, float *peak,
                      const struct matrix *x);
/* quantize.c */
void cpu_amax(struct kernels *k, float *out, const struct matrix *x);
void cpu_largest(struct kernels *k, float *amax, const float *of, size_t n,
                 size_t ranks);
void cpu_quantize(struct kernels *k, const struct matrix *to, const struct matrix *x,
                  const float *amax, size_t n, const struct quant_spec *spec);

/* fp8.c */
void cpu_to_fp8(struct kernels *k, const struct matrix *to, const struct matrix *x,
                const float *amax, size_t n, const struct fp8_found *found);
void cpu_norm_to_fp8(struct kernels *k, const struct matrix *to, float *rstd,
                     const struct matrix *x, const float *gain, float eps,
                     const float *amax, const struct fp8_found *found);
void cpu_norm_again_to_fp8(struct kernels *k, const struct matrix *to,
                           const float *rstd, const struct matrix *x, const float *gain,
                           const float *amax, const struct fp8_found *found);
void cpu_swiglu_to_fp8(struct kernels *k, const struct matrix *to,
                       const struct matrix *gate, const struct matrix *up,
                       const float *amax, const struct fp8_found *found);
void cpu_swiglu_bwd_to_fp8(struct kernels *k, const struct matrix *d_gate_up,
                           const float *amax, const struct fp8_found *found,
                           const struct matrix *y, const float *y_amax,
                           const struct matrix *d, const struct matrix *gate,
                           const struct matrix *up);

/* clip.c */
void cpu_sum(struct kernels *k, const struct matrix *y, size_t n,
             const struct matrix *x, bool add);
void cpu_sum_squares(struct kernels *k, double *out, const struct matrix *g,
                     size_t count);
void cpu_block_squares(struct kernels *k, double *out, const struct matrix *g,
                       size_t count);
void cpu_clip(struct kernels *k, float *out, const double *squares, float factor,
              float limit, double max, const float *before);

void cpu_adamw(struct kernels *k, const struct adam_update *u, size_t count);
/* torchsharp.c */
void cpu_torchsharp_adamw(struct kernels *k, const struct torchsharp_state *s,
                          const struct matrix *grad, size_t first, size_t n,
                          const struct adam_step *a);

#endif
