/* SPDX-License-Identifier: MIT */
/* quant: see quant.h.  x: the 16 values of a block, A: their largest magnitude, T: the
 * tensor's, D(c): the value of scale byte c. */
#include "lib/nvfp4/quant.h"

#include "lib/core/num.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { N = NVFP4_BLOCK, LAST_SCALE = 0x7e };

static const float sixth = 1.0F / 6.0F;

static const struct {
    const char *name;
    int levels;
    float bound; // largest block scale that the tensor scale aims at, times 6
    bool shares;
} table[QUANT_COUNT] = {
    [QUANT_TORCHAO] = { "torchao", 1, 0, false },
    [QUANT_NATIVE] = { "native", 1, 0, false },
    [QUANT_SWEEP1] = { "sweep1", 1, 0, false },
    [QUANT_MAX] = { "max", 2, 448 * 6, false },
    [QUANT_4OVER6] = { "4over6", 2, 256 * 6, true },
    [QUANT_SWEEP] = { "sweep", 2, 256 * 6, true },
};

const char *
quant_name(enum quant q)
{
    return table[q].name;
}

enum quant
quant_named(const char *name)
{
    enum quant q = 0;
    while (q < QUANT_COUNT && strcmp(table[q].name, name) != 0)
        q++;
    return q;
}

int
quant_levels(enum quant q)
{
    return table[q].levels;
}

bool
quant_shares_scale(enum quant q)
{
    return table[q].shares;
}

struct quant_scale
nvfp4_scale(const struct quant_spec *spec, float amax)
{
    struct quant_scale t = { .amax = amax, .enc = 1, .scale2 = 1 };
    float bound = table[spec->kind].bound;
    if (table[spec->kind].levels == 1 || amax == 0)
        return t;
    t.enc = fminf(bound / amax, FLT_MAX);
    if (t.enc == 0)
        t.enc = 1;
    bool modelopt = spec->kind == QUANT_MAX && spec->modelopt;
    t.scale2 = modelopt ? amax / bound : 1 / t.enc;
    if (t.scale2 == 0) // so small that no scale is left: as a tensor of zeros
        t.scale2 = 1;
    return t;
}

float
nvfp4_amax(const float *x, size_t n, size_t *bad)
{
    float most = 0;
    *bad = n;
    for (size_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (!(a <= FLT_MAX) && *bad == n)
            *bad = i;
        most = a > most ? a : most;
    }
    return most;
}

static float
block_amax(const float x[N])
{
    float most = 0;
    for (int i = 0; i < N; i++)
        most = fmaxf(most, fabsf(x[i]));
    return most;
}

static void
put_code(uint8_t codes[N / 2], int i, unsigned code)
{
    codes[i / 2] = (uint8_t)(i % 2 ? codes[i / 2] | code << 4 : code);
}

static unsigned
sign_bit(float x)
{
    return signbit(x) ? 8 : 0;
}

/* ---- one level, amax / 6 -------------------------------------------------------- */

/* The source is rounded to bf16 first; a block below 0.09375 sits on the floor. */
static uint8_t
torchao(uint8_t codes[N / 2], const float in[N])
{
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = num_from_bf16(num_to_bf16(in[i]));
    float t = block_amax(x) / 6.0F;
    uint8_t c = e4m3_from(fminf(fmaxf(t, 0x1p-6F), 448.0F));
    float s = e4m3_value(c);
    for (int i = 0; i < N; i++) {
        float y = x[i] / s; // a true division
        put_code(codes, i, e2m1_code_even(fabsf(y)) | sign_bit(x[i]));
    }
    return c;
}

static float
round_to(enum dtype d, float x)
{
    return d == DT_BF16  ? num_from_bf16(num_to_bf16(x))
           : d == DT_F16 ? num_from_f16(num_to_f16(x))
                         : x;
}

/* The scale may become 0; then every value that is not 0 gets code 7. */
static uint8_t
native(uint8_t codes[N / 2], const float x[N], enum dtype source)
{
    float t = round_to(source, block_amax(x) / 6.0F);
    uint8_t c = e4m3_from(fminf(fmaxf(t, 0x1p-16F), 448.0F));
    float s = e4m3_value(c) + 1e-12F;
    for (int i = 0; i < N; i++) {
        float y = x[i] / s;
        put_code(codes, i, e2m1_code_away(fabsf(y)) | (y < 0 ? 8U : 0U));
    }
    return c;
}

/* ---- two levels, max ------------------------------------------------------------- */

/* TransformerEngine's order: multiply by reciprocals. */
static uint8_t
max_te(uint8_t codes[N / 2], const float x[N], const struct quant_scale *t)
{
    float factor = t->enc * sixth; // the inner product first
    uint8_t c = e4m3_from(block_amax(x) * factor);
    float enc = fminf(1.0F / (e4m3_value(c) * t->scale2), FLT_MAX);
    for (int i = 0; i < N; i++)
        put_code(codes, i, e2m1_code_even(fabsf(x[i] * enc)) | sign_bit(x[i]));
    return c;
}

/* ModelOpt's order: divide.  A block of zeros has scale 1; a scale that would underflow
 * is 2^-9; -0 becomes 0. */
static uint8_t
max_modelopt(uint8_t codes[N / 2], const float x[N], const struct quant_scale *t)
{
    float amax = block_amax(x);
    if (amax == 0) {
        memset(codes, 0, N / 2);
        return 0x38;
    }
    float want = amax / (6.0F * t->scale2);
    uint8_t c = e4m3_from(fminf(fmaxf(want, 0x1p-9F), 448.0F));
    float s = e4m3_value(c) * t->scale2;
    for (int i = 0; i < N; i++) {
        float y = x[i] / s;
        put_code(codes, i, e2m1_code_even(fabsf(y)) | (x[i] < 0 ? 8U : 0U));
    }
    return c;
}

/* ---- two levels, the better of two ------------------------------------------------- */

/* Codes for one scale byte, and the error they make. */
static float
try_4over6(uint8_t codes[N / 2], const float x[N], uint8_t c,
           const struct quant_scale *t, bool mae)
{
    float d = e4m3_value(c);
    float enc = fminf(1.0F / (d * t->scale2), FLT_MAX);
    float err = 0;
    for (int i = 0; i < N; i++) {
        unsigned code = e2m1_code_even(fabsf(x[i] * enc)) | sign_bit(x[i]);
        float value = ((e2m1_value(code) * d) * t->amax) / 1536.0F;
        float diff = value - x[i];
        err += mae ? fabsf(diff) : diff * diff;
        put_code(codes, i, code);
    }
    return err;
}

static uint8_t
four_over_six(uint8_t codes[N / 2], const float x[N], const struct quant_scale *t,
              bool mae)
{
    float base = (block_amax(x) / 6.0F) * t->enc;
    uint8_t c6 = e4m3_from(fminf(base, 448.0F));
    uint8_t c4 = e4m3_from(fminf(base * 1.5F, 448.0F));
    uint8_t codes4[N / 2];
    float err6 = try_4over6(codes, x, c6, t, mae);
    float err4 = try_4over6(codes4, x, c4, t, mae);
    if (!(err4 < err6)) // a tie is the 6's
        return c6;
    memcpy(codes, codes4, sizeof codes4);
    return c4;
}

/* ---- the best scale ------------------------------------------------------------------- */

/* The magnitude code nearest to a/s, ties to even: products of a threshold and s are
 * exact, so no rounding decides. */
static unsigned
nearest(float a, float s)
{
    return (unsigned)((a > 0.25F * s) + (a >= 0.75F * s) + (a > 1.25F * s) +
                      (a >= 1.75F * s) + (a > 2.5F * s) + (a >= 3.5F * s) +
                      (a > 5.0F * s));
}

/* Squared error of a block of magnitudes at one scale, summed as a fixed tree. */
static float
sweep_error(const float a[N], float s, const float *weight)
{
    float r[N];
    for (int i = 0; i < N; i++) {
        float d = a[i] - e2m1_value(nearest(a[i], s)) * s;
        r[i] = d * d;
        if (weight)
            r[i] = r[i] * weight[i];
    }
    for (int w = N / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            r[i] = r[i] + r[i + w];
    return r[0];
}

/* From two codes below amax/6 to six above: a scale twice as large has no grid point
 * that amax/6 lacks, and lower ones clip. */
static uint8_t
sweep(uint8_t codes[N / 2], const float x[N], const struct quant_scale *t,
      const float *weight, bool exhaustive)
{
    float amax = block_amax(x);
    float a[N] = { 0 };
    int best = 0;
    if (amax > 0) {
        int c0 = e4m3_from(fminf((amax / 6.0F) * t->enc, 448.0F));
        int low = exhaustive || c0 - 2 < 1 ? 1 : c0 - 2;
        int high = exhaustive || c0 + 6 > LAST_SCALE ? LAST_SCALE : c0 + 6;
        float least = INFINITY;
        for (int i = 0; i < N; i++)
            a[i] = fabsf(x[i] * t->enc);
        best = low;
        for (int c = low; c <= high; c++) {
            float err = sweep_error(a, e4m3_value((uint8_t)c), weight);
            if (err < least) { // a tie is the smaller byte's
                least = err;
                best = c;
            }
        }
    }
    float s = e4m3_value((uint8_t)best);
    for (int i = 0; i < N; i++)
        put_code(codes, i, (amax > 0 ? nearest(a[i], s) : 0) | sign_bit(x[i]));
    return (uint8_t)best;
}

/* ------------------------------------------------------------------------------------------ */

void
nvfp4_quant_block(uint8_t codes[N / 2], uint8_t *scale, const float x[N], size_t column,
                  const struct quant_spec *spec, const struct quant_scale *t)
{
    const float *weight = spec->column_weight ? spec->column_weight + column : NULL;
    switch (spec->kind) {
    case QUANT_TORCHAO:
        *scale = torchao(codes, x);
        break;
    case QUANT_NATIVE:
        *scale = native(codes, x, spec->source);
        break;
    case QUANT_MAX:
        *scale = spec->modelopt ? max_modelopt(codes, x, t) : max_te(codes, x, t);
        break;
    case QUANT_4OVER6:
        *scale = four_over_six(codes, x, t, spec->mae);
        break;
    default: // QUANT_SWEEP, QUANT_SWEEP1
        *scale = sweep(codes, x, t, weight, spec->exhaustive);
    }
}

void
nvfp4_quant_row(uint8_t *codes, uint8_t *scales, const float *x, size_t n,
                const struct quant_spec *spec, const struct quant_scale *t)
{
    for (size_t b = 0; b < n / N; b++)
        nvfp4_quant_block(codes + b * (N / 2), scales + b, x + b * N, b * N, spec, t);
}
