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

void
nvfp4_quant(uint8_t *codes, uint8_t *scales, const float *x, size_t rows, size_t cols,
            uint64_t first, const struct quant_spec *spec, const struct quant_scale *t,
            struct quant_error *e)
{
    enum { AT_ONCE = 256 };
    float noise[AT_ONCE], signal[AT_ONCE], largest[AT_ONCE], amax[AT_ONCE];
    struct quant_costs costs = { 0 };
    quant_kernel_fn *kernel = kernels[spec->isa];
    if (!kernel || spec->square || spec->stochastic || spec->column_weight) {
        nvfp4_quant_scalar(codes, scales, x, rows, cols, first, spec, t, e);
        return;
    }
    if (e)
        costs = (struct quant_costs){ noise, signal, largest, amax, quant_unit(t) };
    size_t blocks = rows * cols / NVFP4_BLOCK;
    for (size_t b = 0; b < blocks; b += AT_ONCE) {
        size_t n = blocks - b < AT_ONCE ? blocks - b : AT_ONCE;
        kernel(codes + b * (NVFP4_BLOCK / 2), scales + b, x + b * NVFP4_BLOCK, n, spec,
               t, &costs);
        for (size_t i = 0; i < n && e; i++)
            quant_add_costs(e, noise[i], signal[i], largest[i], amax[i], scales[b + i],
                            t->scale2, costs.unit);
    }
}
