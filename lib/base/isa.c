/* SPDX-License-Identifier: MIT */
/* isa: see isa.h. */
#include "lib/base/isa.h"

#include <string.h>

static const char *const names[ISA_COUNT] = {
    [ISA_SCALAR] = "scalar",
#if defined __x86_64__
    [ISA_AVX2] = "avx2",
    [ISA_AVX512] = "avx512",
#elif defined __aarch64__
    [ISA_NEON] = "neon",
#endif
};

const char *
isa_name(enum isa isa)
{
    return names[isa];
}

enum isa
isa_named(const char *name)
{
    int i = 0;
    while (i < ISA_COUNT && strcmp(names[i], name) != 0)
        i++;
    return (enum isa)i;
}

bool
isa_have(enum isa isa)
{
#if defined __x86_64__
    if (isa == ISA_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == ISA_AVX512)
        return isa_have(ISA_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
    (void)isa;
    return true; // scalar; NEON is part of every aarch64
}

bool
isa_have_bf16(void)
{
#if defined __x86_64__
    return isa_have(ISA_AVX512) && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

enum isa
isa_best(void)
{
    int best = ISA_COUNT - 1;
    while (!isa_have((enum isa)best))
        best--;
    return (enum isa)best;
}
