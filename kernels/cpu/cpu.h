/* SPDX-License-Identifier: MIT */
/* cpu: what the files of the CPU backend share; ops.h has its operations. */
#ifndef NIBBLE_KERNELS_CPU_CPU_H
#define NIBBLE_KERNELS_CPU_CPU_H

#include "kernels/cpu/rows.h"
#include "kernels/ops.h"
#include "lib/base/par.h"

struct few_isa;
struct gemm_isa;

struct cpu {
    struct kernels k; // first: a struct kernels * is one of these
    enum isa isa;
    const struct gemm_isa *gemm; // of products
    bool coarse;                 // products of few tokens are those of coarse.h
    struct par *pool;
    const struct rows_isa *rows;
    const struct few_isa *few; // of attention
    float *workspace;          // of cpu_workspace
    size_t workspace_bytes;
};

/* Elements that are one thread's at a time; SMALL where no sum goes over them, so that
 * small models have work for many threads. */
enum { PART = 1 << 14, SMALL_PART = 1 << 12 };

static inline struct cpu *
cpu_of(struct kernels *k)
{
    return (struct cpu *)k;
}

/* fn for items 0 .. n-1 on all threads; the error is kept. */
void cpu_for(struct cpu *c, size_t n, par_fn fn, void *ctx);
/* fn for items first .. end-1, `size` of them or fewer, until all n are done. */
typedef void cpu_range_fn(const void *ctx, size_t first, size_t end);
void cpu_for_ranges(struct cpu *c, size_t n, size_t size, cpu_range_fn *fn,
                    const void *ctx);

/* As kernels_alloc and kernels_free; p is not NULL. */
void *cpu_alloc(struct kernels *k, enum memory what, size_t bytes);
void cpu_free(struct kernels *k, void *p);
/* Scratch memory until the operation ends; it grows and stays.  NULL: the error is
 * kept. */
float *cpu_workspace(struct cpu *c, size_t bytes);

/* n elements of a type from element `at` on, as floats. */
void cpu_read_floats(const struct cpu *c, float *y, const void *x, enum dtype dtype,
                     size_t at, size_t n);

/* *amax grows to the largest magnitude of n elements from `first` on, NaN if one is not
 * finite; by several threads at once, too. */
void cpu_grow_amax(float *amax, const void *values, enum dtype dtype, uint64_t first,
                   size_t n);
/* y->amax, if it is wanted, by all of y. */
void cpu_grow_result(struct cpu *c, const struct matrix *y);

/* Bytes of workspace, for a plan: y = x W', also of nvfp4 by nvfp4, and attention; any other
 * product has gemm_workspace. */
size_t cpu_linear_workspace(const struct cpu_kind *c, const struct matrix *w,
                            size_t tokens);
size_t cpu_linear_fp4_workspace(const struct cpu_kind *c, const struct matrix *w,
                                size_t tokens);
size_t cpu_attention_workspace(const struct cpu_kind *c, const struct heads *h);
size_t cpu_attention_bwd_workspace(const struct cpu_kind *c, const struct heads *h);

#endif
