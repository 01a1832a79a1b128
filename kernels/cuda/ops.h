/* SPDX-License-Identifier: MIT */
/* ops: the operations of the CUDA backend, each in the file of its name, see
 * kernels/kernels.h; then functions shared between files. */
#ifndef NIBBLE_KERNELS_CUDA_OPS_H
#define NIBBLE_KERNELS_CUDA_OPS_H

#include "kernels/cuda/cuda.h"

/* cuda.cu, gather.cu */
void cuda_copy(struct kernels *k, void *to, const void *from, size_t bytes);
void cuda_zero(struct kernels *k, void *p, size_t bytes);
void cuda_gather(struct kernels *k, const struct matrix *y, const struct matrix *x,
                 const int32_t *index);
void cuda_scatter(struct kernels *k, const struct matrix *y, const struct matrix *x,
                  const int32_t *index);

void cuda_convert(struct kernels *k, const struct matrix *y, const struct matrix *x);

/* replay.cu */
bool cuda_replay(struct kernels *k, const void *key, size_t bytes);
void cuda_recorded(struct kernels *k, bool repeats);

/* peers.cu */
void cuda_join(struct kernels *k, unsigned rank, unsigned ranks, const void *id);
bool cuda_join_copies(struct kernels *k, const struct company *of, char *why, size_t n);
void cuda_transfer(struct kernels *k, unsigned ranks, const struct exchanged *e,
                   size_t n);
double cuda_exchanged(struct kernels *k);
/* The compute queue begins, or ends, to wait for an exchange. */
void cuda_peers_wait(struct cuda *c, bool begins);
void cuda_peers_close(struct cuda *c);

/* copies.cu, for peers.cu.  Join: NULL: not all ranks can copy, and why, or an error. */
struct copies;
struct copies *cuda_copies_join(struct cuda *c, const struct company *of, char *why,
                                size_t n);
void cuda_copies_transfer(struct cuda *c, struct copies *p, const struct exchanged *e,
                          size_t n);
void cuda_copies_close(struct copies *p);
/* Why the environment does not want copies; NULL: it does not say. */
const char *cuda_copies_refused(void);
/* Whether NVLink joins two devices: it alone has atomics between them.  Without it NCCL knows
 * better which way is fast, and which is safe. */
bool cuda_has_nvlink(int from, int to);

/* gemm.cu: products, by cuBLASLt */
void cuda_linear(struct kernels *k, size_t n, const struct matrix *y,
                 const struct matrix *x, const struct matrix *w,
                 const struct matrix *c);
void cuda_linear_dx(struct kernels *k, size_t n, const struct matrix *dx,
                    const struct matrix *dy, const struct matrix *w,
                    const struct matrix *c);
void cuda_linear_dw(struct kernels *k, size_t n, const struct matrix *dw,
                    const struct matrix *dy, const struct matrix *x, bool add);

/* gemv.cu */
bool cuda_norm_linear(struct kernels *k, size_t n, const struct matrix *y,
                      const struct matrix *x, const float *gain, float eps,
                      const struct matrix *w);
bool cuda_norm_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *x,
                      const float *gain, float eps, const struct matrix *w);

bool cuda_attend(struct kernels *k, const struct matrix *out, const struct matrix *q,
                 const struct matrix *key, const struct matrix *value,
                 const struct attend *a);

/* layers.cu */
bool cuda_token(struct kernels *k, const struct layer_steps *l,
                const struct token_ends *e);
bool cuda_layers(struct kernels *k, const struct matrix *y, const struct matrix *x,
                 const struct layer_steps *l);

void cuda_embed(struct kernels *k, const struct matrix *y, const struct matrix *w,
                const int32_t *ids);
void cuda_embed_dw(struct kernels *k, const struct matrix *dw, const struct matrix *dy,
                   const int32_t *ids);

void cuda_norm(struct kernels *k, const struct matrix *y, float *rstd,
               const struct matrix *x, const float *gain, float eps);
void cuda_norm_bwd(struct kernels *k, const struct matrix *dx, float *dgain,
                   const struct matrix *y, const struct matrix *dy,
                   const struct matrix *x, const float *rstd, const float *gain,
                   const struct matrix *c);

/* rope.cu */
void cuda_qk_norm_rope(struct kernels *k, const struct matrix *y, float *rstd,
                       const struct matrix *x, const float *gain, const struct rope *r);
void cuda_qk_norm_rope_bwd(struct kernels *k, const struct matrix *d, float *dgain,
                           const struct matrix *x, const float *rstd, const float *gain,
                           const struct rope *r);

struct query_sums;
/* The same, but the gradient is dQ in f32, and d is only written.  Fit: whether these sizes can. */
bool cuda_rope_bwd_sums_fit(const struct matrix *d, const struct head_norm *n);
void cuda_rope_bwd_sums(struct cuda *c, const struct matrix *d,
                        const struct query_sums *s, const struct head_norm *n);

void cuda_attention(struct kernels *k, const struct matrix *out, float *lse,
                    const struct matrix *q, const struct matrix *key,
                    const struct matrix *value, const struct heads *h);
void cuda_attention_bwd(struct kernels *k, const struct matrix *dq,
                        const struct matrix *dkey, const struct matrix *dvalue,
                        const struct matrix *dout, const struct matrix *out,
                        const float *lse, const struct matrix *q,
                        const struct matrix *key, const struct matrix *value,
                        float *work, const struct heads *h);
bool cuda_attention_rope_bwd(struct kernels *k, const struct matrix *dq,
                             const struct matrix *dkey, const struct matrix *dvalue,
                             const struct matrix *dout, const struct matrix *out,
                             const float *lse, const struct matrix *q,
                             const struct matrix *key, const struct matrix *value,
                             float *work, const struct heads *h,
                             const struct head_norm *n);

void cuda_swiglu(struct kernels *k, const struct matrix *y, const struct matrix *gate,
                 const struct matrix *up);
void cuda_swiglu_bwd(struct kernels *k, const struct matrix *d_gate_up,
                     const struct matrix *d, const struct matrix *gate,
                     const struct matrix *up);

void cuda_cross_entropy(struct kernels *k, float *loss, const struct matrix *logits,
                        const int32_t *label, float scale);
void cuda_distill(struct kernels *k, float *ce, float *kl, const struct matrix *logits,
                  const struct matrix *teacher, const int32_t *label,
                  const struct distill *how, float scale);
void cuda_l1(struct kernels *k, float *loss, const struct matrix *dx,
             const struct matrix *dw, const struct matrix *x, const struct matrix *w,
             const int32_t *label, float scale);
void cuda_argmax(struct kernels *k, int32_t *id, const struct matrix *logits);

/* quant.cu */
void cuda_block_gram(struct kernels *k, double *gram, size_t width,
                     const struct matrix *x);
void cuda_column_stats(struct kernels *k, double *squares, float *peak,
                       const struct matrix *x);
void cuda_amax(struct kernels *k, float *out, const struct matrix *x);
void cuda_largest(struct kernels *k, float *amax, const float *of, size_t n,
                  size_t ranks);
void cuda_quantize(struct kernels *k, const struct matrix *to, const struct matrix *x,
                   const float *amax, size_t n, const struct quant_spec *spec);

/* fp8.cu */
void cuda_to_fp8(struct kernels *k, const struct matrix *to, const struct matrix *x,
                 const float *amax, size_t n, const struct fp8_found *found);
void cuda_norm_to_fp8(struct kernels *k, const struct matrix *to, float *rstd,
                      const struct matrix *x, const float *gain, float eps,
                      const float *amax, const struct fp8_found *found);
void cuda_norm_again_to_fp8(struct kernels *k, const struct matrix *to,
                            const float *rstd, const struct matrix *x,
                            const float *gain, const float *amax,
                            const struct fp8_found *found);
void cuda_swiglu_to_fp8(struct kernels *k, const struct matrix *to,
                        const struct matrix *gate, const struct matrix *up,
                        const float *amax, const struct fp8_found *found);
void cuda_swiglu_bwd_to_fp8(struct kernels *k, const struct matrix *d_gate_up,
                            const float *amax, const struct fp8_found *found,
                            const struct matrix *y, const float *y_amax,
                            const struct matrix *d, const struct matrix *gate,
                            const struct matrix *up);

/* adamw.cu */
void cuda_sum(struct kernels *k, const struct matrix *y, size_t n,
              const struct matrix *x, bool add);
void cuda_sum_squares(struct kernels *k, double *out, const struct matrix *g,
                      size_t count);
void cuda_block_squares(struct kernels *k, double *out, const struct matrix *g,
                        size_t count);
void cuda_clip(struct kernels *k, float *out, const double *squares, float factor,
               float limit, double max, const float *before);

void cuda_adamw(struct kernels *k, const struct adam_update *u, size_t count);

/* ---- between files --------------------------------------------------------------- */

/* embed.cu: row label[r] of dw -= share * sign(x[r] - that row of w). */
void cuda_l1_dw(struct cuda *c, const struct matrix *dw, const struct matrix *x,
                const struct matrix *w, const int32_t *label, float share);

/* replay.cu: forget what is recorded, since memory that it may use is freed. */
void cuda_forget(struct cuda *c);
void cuda_replay_close(struct cuda *c);

/* gemm.cu */
bool cuda_gemm_open(struct cuda *c);
void cuda_gemm_close(struct cuda *c);
/* d (rows, w->rows) = NVFP4 codes times w in f32, by 4-bit tensor cores, times
 * w->scale2. codes and d are padded to whole tiles of rows. */
void cuda_gemm_fp4(struct cuda *c, float *d, const uint8_t *codes, const uint8_t *tiles,
                   const struct matrix *w, size_t rows);
/* Whether cuBLASLt supports that here; if not, the error has the reason. */
bool cuda_gemm_has_fp4(struct cuda *c);

/* gemv.cu: products of at most GEMV_MAX tokens.  cuda_gemv_many: several products of one x
 * in one launch; false if that is not possible. add: NULL, or what is added. */
void cuda_gemv(struct cuda *c, const struct matrix *y, const struct matrix *x,
               const struct matrix *w, const struct matrix *add);
bool cuda_gemv_many(struct cuda *c, size_t n, const struct matrix *y,
                    const struct matrix *x, const struct matrix *w);

/* fp4.cu: activations in nvfp4, and their products. */
void cuda_quantize_rows(struct cuda *c, const struct matrix *to, const struct matrix *x,
                        const struct quant_spec *spec);
void cuda_unpack(struct cuda *c, const struct matrix *y, const struct matrix *x);
void cuda_linear_fp4(struct cuda *c, const struct matrix *y, const struct matrix *x,
                     const struct matrix *w, const struct matrix *add);
/* Scales from row-major order to tiles. */
void cuda_tile(struct cuda *c, const struct matrix *m);

/* attention.cu: bytes of scratch, about; major: of the compute capability. */
size_t cuda_attention_workspace(const struct heads *h, int major, bool any_order);

/* quant.cu: n codes times their scales as bf16; n is a multiple of 16. */
void cuda_expand(struct cuda *c, void *to, const uint8_t *codes, const uint8_t *scales,
                 size_t n);
void cuda_expand_weight(struct kernels *k, const struct matrix *w);

/* fp8.cu: what op_amax gives of nvfp4; *out is 0. */
void cuda_amax_codes(struct cuda *c, float *out, const struct matrix *x);

/* convert.cu: f32 from f32, bf16 or f16. */
void cuda_convert_plain(struct cuda *c, float *y, const void *x, enum dtype dtype,
                        size_t n);

/* norm.cu: to += the sum of slices of n elements, one after another in
 * c->q.partials. */
void cuda_add_slices(struct cuda *c, float *to, size_t slices, size_t n);

#endif
