/* SPDX-License-Identifier: MIT */
/* cpu: what the parts of the CPU backend share. */
#ifndef NIBBLE_KERNELS_CPU_CPU_H
#define NIBBLE_KERNELS_CPU_CPU_H

#include "kernels/cpu/rows.h"
#include "kernels/cpu/team.h"
#include "kernels/kernels.h"

struct cpu {
    struct kernels k; // first: a struct kernels * is one of these
    enum isa isa;
    const struct gemm_isa *gemm; // of products
    bool coarse;                 // of few tokens: those of coarse.h
    struct team *team;
    const struct rows_isa *rows;
    struct err *err;
    float *room; // of cpu_room
    size_t room_bytes;
};

/* fn for 0 .. n-1 on all threads; errors are kept. */
void cpu_for(struct cpu *c, size_t n, par_fn fn, void *ctx);

/* *amax grows to the largest magnitude of n values from `first` on, NaN if one is not
 * finite; by several threads at once, too. */
void cpu_grow_amax(float *amax, const void *values, enum dtype dtype, uint64_t first,
                   size_t n);

/* Memory to work in until the operation ends; it grows and stays.  NULL: the error is
 * kept. */
float *cpu_room(struct cpu *c, size_t bytes);

/* What it will be for them, so that there can be a plan: y = x W', that of NVFP4 with
 * NVFP4, and attention; any other product has gemm_room. */
size_t cpu_linear_room(const struct cpu_kind *c, const struct weight *w, size_t tokens);
size_t cpu_linear_fp4_room(const struct cpu_kind *c, const struct weight *w,
                           size_t tokens);
size_t cpu_attention_room(const struct cpu_kind *c, const struct heads *h);
size_t cpu_attention_dx_room(const struct cpu_kind *c, const struct heads *h);

/* fp4.c */
void cpu_quantize_rows(struct kernels *k, const struct packed_rows *to, const void *x,
                       const struct quant_spec *spec);
void cpu_unpack_rows(struct kernels *k, void *y, const struct packed_rows *x);
void cpu_linear_fp4(struct kernels *k, void *y, const struct packed_rows *x,
                    const struct weight *w, const void *c);
void cpu_tile(struct kernels *k, uint8_t *tiles, const uint8_t *scales, size_t rows,
              size_t blocks);

/* adamw.c */
void cpu_adamw(struct kernels *k, const struct adam_state *s, const struct grad *grad,
               uint64_t first, size_t n, const struct adam_step *a);

/* seed.c */
void cpu_seed_adamw(struct kernels *k, const struct seed_state *s,
                    const struct grad *grad, size_t first, size_t n,
                    const struct adam_step *a);
void cpu_seed_values(struct kernels *k, float *y, const struct seed_state *s);

/* attention.c */
void cpu_attention(struct kernels *k, void *out, float *lse, const void *q,
                   const void *key, const void *value, const struct heads *h);
void cpu_attention_dx(struct kernels *k, void *dq, void *dkey, void *dvalue,
                      const void *dout, const void *out, const float *lse,
                      const void *q, const void *key, const void *value, float *work,
                      const struct heads *h);

#endif
