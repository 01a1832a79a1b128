/* SPDX-License-Identifier: MIT */
/* quant: the vector paths give the bytes of the scalar truth for any finite values, what
 * is stored is legal, and of sweepfp8 exact in E4M3.
 *
 * Byte 0: quantizer and its variants; byte 1: source type, whether T is larger than what
 * the blocks hold; then values, which lose what makes them not finite. */
#include "lib/nvfp4/quant.h"

#include "tests/fuzz/fuzz.h"

#include <float.h>
#include <math.h>

enum { MOST = 64 * 16 };

static size_t
take_values(float *x, const uint8_t *data, size_t n, enum dtype source)
{
    size_t width = source == DT_F32 ? 4 : 2, count = 0;
    for (; (count + 1) * width <= n && count < MOST; count++) {
        const uint8_t *p = data + count * width;
        uint32_t bits = source == DT_F32 ? load_le32(p) : load_le16(p);
        if (source == DT_F32) {
            bits &= (bits >> 23 & 255) == 255 ? 0xff7fffff : 0xffffffff;
            memcpy(&x[count], &bits, sizeof bits);
        } else if (source == DT_BF16) {
            bits &= (bits >> 7 & 255) == 255 ? 0xff7f : 0xffff;
            x[count] = num_from_bf16((uint16_t)bits);
        } else {
            bits &= (bits >> 10 & 31) == 31 ? 0xfbff : 0xffff;
            x[count] = num_from_f16((uint16_t)bits);
        }
    }
    return count / 16 * 16;
}

static void
check_legal(const uint8_t *codes, const uint8_t *scales, size_t n, float scale2,
            enum quant kind)
{
    float y[MOST];
    nvfp4_decode(y, codes, scales, 0.25F, n);
    for (size_t i = 0; i < n && kind == QUANT_SWEEPFP8; i++)
        HOLDS(e4m3_value(e4m3_from(fabsf(y[i]))) == fabsf(y[i]), "value %zu: %a", i,
              (double)y[i]);
    for (size_t b = 0; b < n / 16; b++)
        HOLDS(scales[b] <= 0x7e, "scale %02x", scales[b]);
    nvfp4_decode(y, codes, scales, scale2, n);
    for (size_t i = 0; i < n; i++)
        HOLDS(!isnan(y[i]), "value %zu", i);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const enum dtype types[] = { DT_F16, DT_BF16, DT_F32 };
    float x[MOST];
    uint8_t codes[2][MOST / 2], scales[2][MOST / 16];
    if (n < 2)
        return 0;
    struct quant_spec spec = { .kind = (enum quant)(data[0] % QUANT_COUNT),
                               .modelopt = data[0] & 64,
                               .mae = data[0] & 64,
                               .exhaustive = data[0] & 64,
                               .source = types[data[1] % 3] };
    size_t count = take_values(x, data + 2, n - 2, spec.source), bad;
    float amax = nvfp4_amax(DT_F32, x, count, &bad);
    HOLDS(bad == count, "value %zu", bad);
    if (data[1] & 64)
        amax = fminf(amax * 30, FLT_MAX);
    struct quant_scale t = nvfp4_scale(&spec, amax);
    HOLDS(t.scale2 > 0 && isfinite(t.scale2), "scale2 %a for %a", (double)t.scale2,
          (double)amax);
    float weights[MOST];
    for (size_t i = 0; i < count && data[1] & 32; i++)
        weights[i] = (float)(data[i % n] % 16);
    if (data[1] & 32)
        spec.column_weight = weights;
    struct quant_error e[2] = { { 0 }, { 0 } };
    nvfp4_quant(codes[0], scales[0], x, 1, count, 0, &spec, &t, &e[0]);
    check_legal(codes[0], scales[0], count, t.scale2, spec.kind);
    for (int isa = 1; isa < ISA_COUNT; isa++) {
        if (!isa_have((enum isa)isa))
            continue;
        spec.isa = (enum isa)isa;
        e[1] = (struct quant_error){ 0 };
        nvfp4_quant(codes[1], scales[1], x, 1, count, 0, &spec, &t, &e[1]);
        HOLDS(memcmp(codes[0], codes[1], count / 2) == 0 &&
                  memcmp(scales[0], scales[1], count / 16) == 0,
              "%s by %s", quant_name(spec.kind), isa_name((enum isa)isa));
        HOLDS(e[0].noise == e[1].noise && e[0].signal == e[1].signal &&
                  e[0].max == e[1].max && e[0].zero_scales == e[1].zero_scales &&
                  e[0].saturated == e[1].saturated,
              "%a %a", e[0].noise, e[1].noise);
    }
    return 0;
}
