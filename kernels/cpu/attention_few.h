/* SPDX-License-Identifier: MIT */
/* attention_few: attention's products for a few rows, as those of one token and the heads that
 * share a kv head, from keys and values as they lie in the cache.  Panels pay for many rows; for
 * these, to pack a key would cost several times what its products do.  Sums have the order of
 * gemm.h, so the bits are the same. */
#ifndef NIBBLE_KERNELS_CPU_ATTENTION_FEW_H
#define NIBBLE_KERNELS_CPU_ATTENTION_FEW_H

#include "lib/base/isa.h"

#include <stdbool.h>
#include <stddef.h>

enum { FEW_ROWS = 8 }; // at most

/* n keys or values, `stride` floats from one to the next, and `rows` rows of `dim` queries or
 * results, dense, with rows of n scores, `score_stride` floats from one to the next.  bf16:
 * keys and values are rounded as gemm_bf16_of says, and what is multiplied by them was. */
struct few {
    const float *x;
    size_t stride, n, rows, dim, score_stride;
    bool bf16;
};

struct few_isa {
    /* score[r][i] = sum of query[r][d] * x[i][d] */
    void (*scores)(const struct few *a, float *score, const float *query);
    /* out[r][d] = sum of score[r][i] * x[i][d] */
    void (*values)(const struct few *a, float *out, const float *score);
};

extern const struct few_isa few_scalar;
#if defined __x86_64__
extern const struct few_isa few_avx2, few_avx512;
#elif defined __aarch64__
extern const struct few_isa few_neon;
#endif

#endif
