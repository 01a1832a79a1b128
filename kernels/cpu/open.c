/* SPDX-License-Identifier: MIT */
/* open: opens the CPU as a device; the table of its operations. */
#include "kernels/cpu/attention_few.h"
#include "kernels/cpu/coarse.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct rows_isa *const rows_table[ISA_COUNT] = {
    [ISA_SCALAR] = &rows_scalar,
#if defined __x86_64__
    [ISA_AVX2] = &rows_avx2,
    [ISA_AVX512] = &rows_avx512,
#elif defined __aarch64__
    [ISA_NEON] = &rows_neon,
#endif
};

static const struct few_isa *const few_table[ISA_COUNT] = {
    [ISA_SCALAR] = &few_scalar,
#if defined __x86_64__
    [ISA_AVX2] = &few_avx2,
    [ISA_AVX512] = &few_avx512,
#elif defined __aarch64__
    [ISA_NEON] = &few_neon,
#endif
};

static void
cpu_upload(struct kernels *k, void *to, const void *from, size_t bytes)
{
    (void)k;
    memcpy(to, from, bytes);
}

static int
cpu_download(struct kernels *k, void *to, const void *from, size_t bytes)
{
    (void)k;
    memcpy(to, from, bytes);
    return 0;
}

static void
cpu_close(struct kernels *k)
{
    struct cpu *c = cpu_of(k);
    if (c->workspace)
        cpu_free(k, c->workspace);
    par_close(c->pool);
    free(c);
}

static const struct ops cpu_ops = {
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_upload,
    .download = cpu_download,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .gather = cpu_gather,
    .scatter = cpu_scatter,
    .convert = cpu_convert,
    .linear = cpu_linear,
    .linear_dx = cpu_linear_dx,
    .linear_dw = cpu_linear_dw,
    .embed = cpu_embed,
    .embed_dw = cpu_embed_dw,
    .norm = cpu_norm,
    .norm_bwd = cpu_norm_bwd,
    .qk_norm_rope = cpu_qk_norm_rope,
    .qk_norm_rope_bwd = cpu_qk_norm_rope_bwd,
    .attention = cpu_attention,
    .attention_bwd = cpu_attention_bwd,
    .swiglu = cpu_swiglu,
    .swiglu_bwd = cpu_swiglu_bwd,
    .cross_entropy = cpu_cross_entropy,
    .distill = cpu_distill,
    .l1 = cpu_l1,
    .argmax = cpu_argmax,
    .block_gram = cpu_block_gram,
    .column_stats = cpu_column_stats,
    .amax = cpu_amax,
    .largest = cpu_largest,
    .quantize = cpu_quantize,
    .to_fp8 = cpu_to_fp8,
    .norm_to_fp8 = cpu_norm_to_fp8,
    .norm_again_to_fp8 = cpu_norm_again_to_fp8,
    .swiglu_to_fp8 = cpu_swiglu_to_fp8,
    .swiglu_bwd_to_fp8 = cpu_swiglu_bwd_to_fp8,
    .sum = cpu_sum,
    .sum_squares = cpu_sum_squares,
    .block_squares = cpu_block_squares,
    .clip = cpu_clip,
    .adamw = cpu_adamw,
    .torchsharp_adamw = cpu_torchsharp_adamw,
};

const struct device kernels_cpu_device = { .name = "cpu",
                                           .act = DT_F32,
                                           .grad = DT_F32,
                                           .max_logits = 1 << 25,
                                           .host = true,
                                           .alike = SIZE_MAX,
                                           .cut = 1,
                                           .torchsharp = true };

/* Version of our arithmetic: increment it whenever a change changes bits of a model's values, so
 * that a resumed run is warned. */
enum { ARITHMETIC = 2 };

struct kernels *
kernels_cpu(const struct cpu_kind *kind, struct err *err)
{
    bool bf16 = kind->compute == DT_BF16;
    struct cpu *c = calloc(1, sizeof *c);
    if (!c) {
        err_set(err, ERR_MEMORY, "out of memory");
        return NULL;
    }
    *c = (struct cpu){ .k = { .op = &cpu_ops, .is = kernels_cpu_device, .err = err },
                       .isa = kind->isa,
                       .gemm = bf16 ? gemm_bf16_of(kind->isa) : gemm_of(kind->isa),
                       .rows = rows_table[kind->isa],
                       .few = few_table[kind->isa] };
    snprintf(c->k.route, sizeof c->k.route, "cpu %s %d", bf16 ? "bf16" : "f32",
             ARITHMETIC);
    if (!(c->pool = par_open(kind->threads, err))) {
        free(c);
        return NULL;
    }
    return &c->k;
}

bool
kernels_cpu_pairs(enum isa isa)
{
    return gemm_has_pairs(isa);
}

bool
kernels_cpu_coarse_pays(enum isa isa)
{
    return coarse_pays(isa);
}

void
kernels_cpu_coarse(struct kernels *k)
{
    size_t n = strlen(k->route);
    cpu_of(k)->coarse = true;
    k->is.alike = 1;
    snprintf(k->route + n, sizeof k->route - n, " coarse 1");
}
