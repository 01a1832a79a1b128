/* SPDX-License-Identifier: MIT */
/* dtype: see dtype.h. */
#include "lib/core/dtype.h"

#include "lib/core/num.h"

static const struct {
    const char *name;
    unsigned bits;
    bool is_float;
} table[DT_COUNT] = {
    [DT_NONE] = { "none", 0, false },
    [DT_F16] = { "f16", 16, true },
    [DT_BF16] = { "bf16", 16, true },
    [DT_F32] = { "f32", 32, true },
    [DT_F64] = { "f64", 64, true },
    [DT_U8] = { "u8", 8, false },
    [DT_I8] = { "i8", 8, false },
    [DT_I16] = { "i16", 16, false },
    [DT_I32] = { "i32", 32, false },
    [DT_I64] = { "i64", 64, false },
    [DT_U16] = { "u16", 16, false },
    [DT_U32] = { "u32", 32, false },
    [DT_U64] = { "u64", 64, false },
    [DT_BOOL] = { "bool", 8, false },
    [DT_C64] = { "c64", 64, false },
    [DT_C128] = { "c128", 128, false },
    [DT_F8_E4M3] = { "f8_e4m3", 8, true },
    [DT_F8_E5M2] = { "f8_e5m2", 8, true },
    [DT_F8_E8M0] = { "f8_e8m0", 8, true },
    [DT_F8_E4M3FNUZ] = { "f8_e4m3fnuz", 8, true },
    [DT_F8_E5M2FNUZ] = { "f8_e5m2fnuz", 8, true },
    [DT_F6_E2M3] = { "f6_e2m3", 6, true },
    [DT_F6_E3M2] = { "f6_e3m2", 6, true },
    [DT_F4_E2M1] = { "f4_e2m1", 4, true },
    [DT_NVFP4] = { "nvfp4", 0, true },
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
