/* SPDX-License-Identifier: MIT */
/* dtype: see dtype.h. */
#include "lib/base/dtype.h"

#include "lib/base/num.h"

static const struct {
    const char *name;
    unsigned bits;
    bool is_float;
    uint16_t block, block_bytes;
} table[DT_COUNT] = {
    [DT_NONE] = { "none", 0, false, 0, 0 },
    [DT_F16] = { "f16", 16, true, 0, 0 },
    [DT_BF16] = { "bf16", 16, true, 0, 0 },
    [DT_F32] = { "f32", 32, true, 0, 0 },
    [DT_F64] = { "f64", 64, true, 0, 0 },
    [DT_U8] = { "u8", 8, false, 0, 0 },
    [DT_I8] = { "i8", 8, false, 0, 0 },
    [DT_I16] = { "i16", 16, false, 0, 0 },
    [DT_I32] = { "i32", 32, false, 0, 0 },
    [DT_I64] = { "i64", 64, false, 0, 0 },
    [DT_U16] = { "u16", 16, false, 0, 0 },
    [DT_U32] = { "u32", 32, false, 0, 0 },
    [DT_U64] = { "u64", 64, false, 0, 0 },
    [DT_BOOL] = { "bool", 8, false, 0, 0 },
    [DT_C64] = { "c64", 64, false, 0, 0 },
    [DT_C128] = { "c128", 128, false, 0, 0 },
    [DT_F8_E4M3] = { "f8_e4m3", 8, true, 0, 0 },
    [DT_F8_E5M2] = { "f8_e5m2", 8, true, 0, 0 },
    [DT_F8_E8M0] = { "f8_e8m0", 8, true, 0, 0 },
    [DT_F8_E4M3FNUZ] = { "f8_e4m3fnuz", 8, true, 0, 0 },
    [DT_F8_E5M2FNUZ] = { "f8_e5m2fnuz", 8, true, 0, 0 },
    [DT_F6_E2M3] = { "f6_e2m3", 6, true, 0, 0 },
    [DT_F6_E3M2] = { "f6_e3m2", 6, true, 0, 0 },
    [DT_F4_E2M1] = { "f4_e2m1", 4, true, 0, 0 },
    [DT_NVFP4_GGUF] = { "nvfp4_gguf", 0, true, 64, 36 },
    [DT_Q4_0] = { "q4_0", 0, true, 32, 18 },
    [DT_Q4_1] = { "q4_1", 0, true, 32, 20 },
    [DT_Q5_0] = { "q5_0", 0, true, 32, 22 },
    [DT_Q5_1] = { "q5_1", 0, true, 32, 24 },
    [DT_Q8_0] = { "q8_0", 0, true, 32, 34 },
    [DT_Q8_1] = { "q8_1", 0, true, 32, 40 },
    [DT_Q2_K] = { "q2_k", 0, true, 256, 84 },
    [DT_Q3_K] = { "q3_k", 0, true, 256, 110 },
    [DT_Q4_K] = { "q4_k", 0, true, 256, 144 },
    [DT_Q5_K] = { "q5_k", 0, true, 256, 176 },
    [DT_Q6_K] = { "q6_k", 0, true, 256, 210 },
    [DT_Q8_K] = { "q8_k", 0, true, 256, 292 },
    [DT_IQ1_S] = { "iq1_s", 0, true, 256, 50 },
    [DT_IQ1_M] = { "iq1_m", 0, true, 256, 56 },
    [DT_IQ2_XXS] = { "iq2_xxs", 0, true, 256, 66 },
    [DT_IQ2_XS] = { "iq2_xs", 0, true, 256, 74 },
    [DT_IQ2_S] = { "iq2_s", 0, true, 256, 82 },
    [DT_IQ3_XXS] = { "iq3_xxs", 0, true, 256, 98 },
    [DT_IQ3_S] = { "iq3_s", 0, true, 256, 110 },
    [DT_IQ4_NL] = { "iq4_nl", 0, true, 32, 18 },
    [DT_IQ4_XS] = { "iq4_xs", 0, true, 256, 136 },
    [DT_TQ1_0] = { "tq1_0", 0, true, 256, 54 },
    [DT_TQ2_0] = { "tq2_0", 0, true, 256, 66 },
    [DT_MXFP4] = { "mxfp4", 0, true, 32, 17 },
    [DT_Q1_0] = { "q1_0", 0, true, 128, 18 },
    [DT_NVFP4] = { "nvfp4", 0, true, 0, 0 },
};

const char *
dtype_name(enum dtype t)
{
    return table[t].name;
}

enum dtype
dtype_from_name(struct slice name)
{
    for (enum dtype t = DT_NONE + 1; t < DT_COUNT; t++)
        if (slice_is(name, table[t].name))
            return t;
    return DT_NONE;
}

unsigned
dtype_bits(enum dtype t)
{
    return table[t].bits;
}

unsigned
dtype_block(enum dtype t)
{
    return table[t].block;
}

bool
dtype_is_float(enum dtype t)
{
    return table[t].is_float;
}

bool
dtype_size(uint64_t *numel, uint64_t *nbytes, enum dtype t, const uint64_t *dims,
           unsigned rank)
{
    uint64_t n = 1;
    uint64_t bits;
    bool empty = false;
    for (unsigned i = 0; i < rank; i++) {
        if (dims[i] == 0)
            empty = true;
        else if (!mul_fits(&n, n, dims[i], INT64_MAX))
            return false;
    }
    if (table[t].block) {
        if (rank == 0 || dims[rank - 1] % table[t].block ||
            !mul_fits(nbytes, n / table[t].block, table[t].block_bytes, INT64_MAX))
            return false;
        *numel = empty ? 0 : n;
        *nbytes = empty ? 0 : *nbytes;
        return true;
    }
    unsigned per = table[t].bits;
    // Split so that bits of a legal payload (up to 2^66) are never formed.
    if (!mul_fits(&bits, n % 8, per, UINT64_MAX) || (bits % 8 != 0 && !empty))
        return false;
    uint64_t bytes;
    if (!mul_fits(&bytes, n / 8, per, INT64_MAX) ||
        !add_fits(&bytes, bytes, bits / 8, INT64_MAX))
        return false;
    *numel = empty ? 0 : n;
    *nbytes = empty ? 0 : bytes;
    return true;
}
