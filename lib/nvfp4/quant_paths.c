/* SPDX-License-Identifier: MIT */
/* quant_paths: nvfp4_quant, by the fastest of its implementations. */
#include "lib/nvfp4/quant_kernel.h"

static quant_kernel_fn *const kernels[ISA_COUNT] = {
#if defined __x86_64__
    [ISA_AVX2] = nvfp4_kernel_avx2,
    [ISA_AVX512] = nvfp4_kernel_avx512,
#elif defined __aarch64__
    [ISA_NEON] = nvfp4_kernel_neon,
#endif
};

/* Blocks one behind the other, with weights of one row. */
static void
quant_blocks(quant_kernel_fn *kernel, uint8_t *codes, uint8_t *scales, const float *x,
             size_t blocks, const struct quant_spec *spec, const struct quant_scale *t,
             struct quant_error *e)
{
    enum { AT_ONCE = 256 };
    float noise[AT_ONCE], signal[AT_ONCE], largest[AT_ONCE], amax[AT_ONCE];
    struct quant_costs costs = { 0 };
    struct quant_spec own = *spec;
    if (e)
        costs = (struct quant_costs){ noise, signal, largest, amax, quant_unit(t) };
    for (size_t b = 0; b < blocks; b += AT_ONCE) {
        size_t n = blocks - b < AT_ONCE ? blocks - b : AT_ONCE;
        if (spec->column_weight)
            own.column_weight = spec->column_weight + b * NVFP4_BLOCK;
        kernel(codes + b * (NVFP4_BLOCK / 2), scales + b, x + b * NVFP4_BLOCK, n, &own,
               t, &costs);
        for (size_t i = 0; i < n && e; i++)
            quant_add_costs(e, noise[i], signal[i], largest[i], amax[i], scales[b + i],
                            t->scale2, costs.unit);
    }
}

void
nvfp4_quant(uint8_t *codes, uint8_t *scales, const float *x, size_t rows, size_t cols,
            uint64_t first, const struct quant_spec *spec, const struct quant_scale *t,
            struct quant_error *e)
{
    quant_kernel_fn *kernel = kernels[spec->isa];
    size_t at_once = spec->column_weight ? 1 : rows; // rows
    if (!kernel || spec->square || spec->stochastic) {
        nvfp4_quant_scalar(codes, scales, x, rows, cols, first, spec, t, e);
        return;
    }
    for (size_t r = 0; r < rows; r += at_once) {
        size_t at = r * cols;
        quant_blocks(kernel, codes + at / 2, scales + at / NVFP4_BLOCK, x + at,
                     at_once * cols / NVFP4_BLOCK, spec, t, e);
    }
}
