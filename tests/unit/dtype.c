/* SPDX-License-Identifier: MIT */
/* dtype: names, and sizes at the edges of 63 bits. */
#include "lib/base/dtype.h"

#include "tests/unit/check.h"

#define BIT(n) (1ULL << (n))

static const struct {
    enum dtype dtype;
    unsigned rank;
    uint64_t dims[4];
    bool fits;
    uint64_t numel, nbytes;
} cases[] = {
    { DT_F32, 0, { 0 }, true, 1, 4 },
    { DT_F32, 2, { 3, 5 }, true, 15, 60 },
    { DT_F32, 3, { 3, 0, 5 }, true, 0, 0 },
    { DT_U8, 1, { INT64_MAX }, true, INT64_MAX, INT64_MAX },
    { DT_U8, 1, { BIT(63) }, false, 0, 0 },
    { DT_U8, 1, { UINT64_MAX }, false, 0, 0 },
    { DT_U8, 2, { BIT(31), BIT(31) }, true, BIT(62), BIT(62) },
    { DT_U8, 2, { BIT(32), BIT(31) }, false, 0, 0 },
    { DT_U8, 2, { BIT(32), BIT(32) }, false, 0, 0 },      // 0 modulo 2^64
    { DT_U8, 3, { BIT(32), BIT(32), 3 }, false, 0, 0 },   // and again
    { DT_U8, 2, { 3, 0x5555555555555556 }, false, 0, 0 }, // 2 modulo 2^64
    { DT_U8, 2, { 7, INT64_MAX / 7 }, true, INT64_MAX, INT64_MAX },
    // Zeros are left out of the product, but it must fit all the same.
    { DT_U8, 3, { 0, BIT(31), BIT(31) }, true, 0, 0 },
    { DT_U8, 3, { 0, BIT(32), BIT(31) }, false, 0, 0 },
    { DT_U8, 3, { BIT(32), BIT(31), 0 }, false, 0, 0 },
    { DT_F32, 2, { 0, BIT(61) }, false, 0, 0 },
    { DT_F32, 2, { 0, BIT(61) - 1 }, true, 0, 0 },
    { DT_F32, 1, { BIT(61) }, false, 0, 0 },
    { DT_F32, 1, { BIT(61) - 1 }, true, BIT(61) - 1, BIT(63) - 4 },
    { DT_F16, 1, { BIT(62) }, false, 0, 0 },
    { DT_F16, 1, { BIT(62) - 1 }, true, BIT(62) - 1, BIT(63) - 2 },
    { DT_F64, 1, { BIT(60) }, false, 0, 0 },
    { DT_C128, 1, { BIT(59) }, false, 0, 0 },
    { DT_C128, 1, { BIT(59) - 1 }, true, BIT(59) - 1, BIT(63) - 16 },
    { DT_C128, 0, { 0 }, true, 1, 16 },
    // Less than a byte an element.
    { DT_F4_E2M1, 0, { 0 }, false, 0, 0 },
    { DT_F4_E2M1, 1, { 1 }, false, 0, 0 },
    { DT_F4_E2M1, 1, { 2 }, true, 2, 1 },
    { DT_F4_E2M1, 2, { 3, 3 }, false, 0, 0 },
    { DT_F4_E2M1, 2, { 3, 2 }, true, 6, 3 },
    { DT_F4_E2M1, 2, { 3, 0 }, true, 0, 0 },
    { DT_F4_E2M1, 1, { BIT(62) }, true, BIT(62), BIT(61) },
    { DT_F4_E2M1, 1, { INT64_MAX }, false, 0, 0 },
    { DT_F4_E2M1, 1, { BIT(63) }, false, 0, 0 }, // its bytes would fit
    { DT_F4_E2M1, 2, { BIT(32), BIT(31) }, false, 0, 0 },
    { DT_F4_E2M1, 3, { 0, BIT(32), BIT(31) }, false, 0, 0 },
    { DT_F4_E2M1, 1, { INT64_MAX - 1 }, true, INT64_MAX - 1, INT64_MAX / 2 },
    { DT_F6_E2M3, 1, { 3 }, false, 0, 0 },
    { DT_F6_E2M3, 1, { 4 }, true, 4, 3 },
    { DT_F6_E3M2, 2, { 2, 2 }, true, 4, 3 },
    { DT_F6_E3M2, 1, { 12 }, true, 12, 9 },
    { DT_F6_E3M2, 1, { 14 }, false, 0, 0 },
    { DT_F6_E3M2, 1, { INT64_MAX - 3 }, true, INT64_MAX - 3, INT64_MAX / 4 * 3 },
    // Blocks: whole ones in the last dimension.
    { DT_NVFP4_GGUF, 0, { 0 }, false, 0, 0 },
    { DT_NVFP4_GGUF, 1, { 64 }, true, 64, 36 },
    { DT_NVFP4_GGUF, 2, { 3, 128 }, true, 384, 216 },
    { DT_NVFP4_GGUF, 2, { 64, 32 }, false, 0, 0 },
    { DT_NVFP4_GGUF, 2, { 0, 64 }, true, 0, 0 },
    { DT_NVFP4_GGUF, 2, { 64, 0 }, true, 0, 0 },
    { DT_NVFP4_GGUF, 2, { 0, 63 }, false, 0, 0 },
    { DT_NVFP4_GGUF, 2, { BIT(32), BIT(31) }, false, 0, 0 },
    { DT_NVFP4_GGUF, 1, { BIT(62) }, true, BIT(62), BIT(56) * 36 },
    { DT_Q6_K, 2, { 2, 512 }, true, 1024, 840 },
    { DT_Q6_K, 2, { 2, 128 }, false, 0, 0 },
    // More bytes than elements: they no longer fit.
    { DT_Q8_0, 1, { BIT(62) }, true, BIT(62), BIT(57) * 34 },
    { DT_Q8_0, 1, { INT64_MAX - 31 }, false, 0, 0 },
};

static void
check_sizes(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t numel = 77, nbytes = 77;
        bool fits =
            dtype_size(&numel, &nbytes, cases[i].dtype, cases[i].dims, cases[i].rank);
        CHECK_SAY(fits == cases[i].fits &&
                      (!fits || (numel == cases[i].numel && nbytes == cases[i].nbytes)),
                  "case %zu, %s: fits %d, %llu elements, %llu bytes", i,
                  dtype_name(cases[i].dtype), fits, (unsigned long long)numel,
                  (unsigned long long)nbytes);
    }
    // 64 dims: the product of ones, and the first of them that is too much.
    uint64_t dims[64], numel, nbytes;
    for (int i = 0; i < 64; i++)
        dims[i] = i < 62 ? 2 : 1;
    CHECK(dtype_size(&numel, &nbytes, DT_U8, dims, 64) && nbytes == BIT(62));
    dims[63] = 2;
    CHECK(!dtype_size(&numel, &nbytes, DT_U8, dims, 64));
    dims[0] = 0;
    CHECK(dtype_size(&numel, &nbytes, DT_U8, dims, 64) && nbytes == 0 && numel == 0);
}

static void
check_names(void)
{
    for (enum dtype t = DT_NONE + 1; t < DT_COUNT; t++) {
        const char *name = dtype_name(t);
        NEED(name);
        CHECK_SAY(dtype_from_name(slice_of(name)) == t, "%s there and back", name);
        uint64_t eight = 8, numel, nbytes;
        CHECK_SAY(!dtype_block(t) || dtype_bits(t) == 0, "%s has bits, too", name);
        if (dtype_block(t))
            continue;
        CHECK_SAY(dtype_size(&numel, &nbytes, t, &eight, 1) && numel == 8 &&
                      nbytes == dtype_bits(t),
                  "8 elements of %s have as many bytes as one has bits", name);
    }
    CHECK(dtype_from_name(slice_of("none")) == DT_NONE);
    CHECK(dtype_from_name(slice_of("")) == DT_NONE);
    CHECK(dtype_from_name(slice_of("F32")) == DT_NONE);
    CHECK(dtype_from_name((struct slice){ "f32x", 4 }) == DT_NONE);
    CHECK(dtype_from_name((struct slice){ "f32x", 3 }) == DT_F32);
    CHECK(dtype_bits(DT_NONE) == 0 && dtype_bits(DT_NVFP4) == 0);
    CHECK(dtype_is_float(DT_F8_E4M3) && !dtype_is_float(DT_U8));
}

int
main(void)
{
    check_sizes();
    check_names();
    return check_end();
}
