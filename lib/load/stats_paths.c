/* SPDX-License-Identifier: MIT */
/* stats_paths: the table of stats' kernels. */
#include "lib/load/stats.h"

static const struct stats_isa *const table[ISA_COUNT] = {
    [ISA_SCALAR] = &stats_scalar,
#if defined __x86_64__
    [ISA_AVX2] = &stats_avx2,
    [ISA_AVX512] = &stats_avx512,
#elif defined __aarch64__
    [ISA_NEON] = &stats_neon,
#endif
};

const struct stats_isa *
stats_isa(enum isa isa)
{
    return table[isa];
}
