/* SPDX-License-Identifier: MIT */
/* quant: see quant.h.  A block is 16 values of a row, or with spec->square 16 rows of
 * them; A: its largest magnitude, T: the tensor's, D(c): the value of scale byte c. */
#include "lib/nvfp4/quant.h"

#include "lib/base/num.h"
#include "lib/base/philox.h"
#include "lib/nvfp4/quant_kernel.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { N = NVFP4_BLOCK };

static const float sixth = 1.0F / 6.0F;

static const struct {
    const char *name;
    int levels;
    float bound; // largest block scale that the tensor scale aims at, times 6
    bool shares, sweeps;
} table[QUANT_COUNT] = {
    [QUANT_TORCHAO] = { "torchao", 1, 0, false, false },
    [QUANT_NATIVE] = { "native", 1, 0, false, false },
    [QUANT_SWEEP1] = { "sweep1", 1, 0, false, true },
    [QUANT_MAX] = { "max", 2, 448 * 6, false, false },
    [QUANT_4OVER6] = { "4over6", 2, 256 * 6, true, false },
    [QUANT_SWEEP] = { "sweep", 2, 256 * 6, true, true },
    [QUANT_SWEEPFP8] = { "sweepfp8", 2, 256 * 6, true, true },
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

float
quant_bound(enum quant q)
{
    return table[q].bound / 6;
}

bool
quant_sweeps(enum quant q)
{
    return table[q].sweeps;
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
    if (spec->given > 0)
        return (struct quant_scale){ bound / spec->given, spec->given, 1 / spec->given,
                                     1 };
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

/* ---- blocks --------------------------------------------------------------------- */

/* Values and codes of one block: k = 16 * row + column. */
struct block {
    const float *x;
    uint8_t *codes;
    size_t stride;  // columns of a row
    int n;          // values: 16 a row
    uint64_t first; // index of x[0] in its tensor
};

static size_t
place(const struct block *b, int k)
{
    return (size_t)(k / N) * b->stride + (size_t)(k % N);
}

static float
at(const struct block *b, int k)
{
    return b->x[place(b, k)];
}

static void
put_code(const struct block *b, int k, unsigned code)
{
    uint8_t *p = &b->codes[place(b, k) / 2];
    *p = (uint8_t)(k % 2 ? *p | code << 4 : code);
}

static unsigned
get_code(const struct block *b, int k)
{
    return b->codes[place(b, k) / 2] >> (k % 2 ? 4 : 0) & 15;
}

static float
block_amax(const struct block *b)
{
    float amax = 0;
    for (int k = 0; k < b->n; k++)
        amax = fmaxf(amax, fabsf(at(b, k)));
    return amax;
}

static unsigned
sign_bit(float x)
{
    return signbit(x) ? 8 : 0;
}

/* ---- one level, amax / 6 -------------------------------------------------------- */

/* The source is rounded to bf16 first; a block below 0.09375 sits on the floor. */
static uint8_t
torchao(const struct block *b)
{
    float t = num_from_bf16(num_to_bf16(block_amax(b))) / 6.0F;
    uint8_t c = e4m3_from(fminf(fmaxf(t, 0x1p-6F), 448.0F));
    float s = e4m3_value(c);
    for (int k = 0; k < b->n; k++) {
        float x = num_from_bf16(num_to_bf16(at(b, k)));
        float y = x / s; // a true division
        put_code(b, k, e2m1_code_even(fabsf(y)) | sign_bit(x));
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
native(const struct block *b, enum dtype source)
{
    float t = round_to(source, block_amax(b) / 6.0F);
    uint8_t c = e4m3_from(fminf(fmaxf(t, 0x1p-16F), 448.0F));
    float s = e4m3_value(c) + 1e-12F;
    for (int k = 0; k < b->n; k++) {
        float y = at(b, k) / s;
        put_code(b, k, e2m1_code_away(fabsf(y)) | (y < 0 ? 8U : 0U));
    }
    return c;
}

/* ---- two levels, max ------------------------------------------------------------- */

/* The magnitude code below or above a, by chance: the mean is a.  The draw depends on
 * the element's place in its tensor and on nothing else. */
static unsigned
stochastic_code(const struct quant_spec *spec, uint64_t index, float a)
{
    uint32_t counter[4] = { (uint32_t)(index / 4), (uint32_t)(index / 4 >> 32),
                            spec->row, PHILOX_ROUND };
    uint32_t key[2] = { spec->seed, spec->step }, draw[4];
    if (!(a < 6.0F))
        return 7;
    unsigned low = 6;
    while (e2m1_value(low) > a)
        low--;
    float step = e2m1_value(low + 1) - e2m1_value(low);
    philox4x32(draw, counter, key);
    float u = (float)(draw[index % 4] >> 8) * 0x1p-24F;
    return low + (u < (a - e2m1_value(low)) / step);
}

/* TransformerEngine's order: multiply by reciprocals.  With a given tensor scale vLLM's. */
static uint8_t
max_te(const struct block *b, const struct quant_spec *spec,
       const struct quant_scale *t)
{
    float factor = t->enc * sixth; // the inner product first
    float sixth_first = block_amax(b) * sixth;
    uint8_t c = e4m3_from(t->given ? t->enc * sixth_first : block_amax(b) * factor);
    float enc = fminf(1.0F / (e4m3_value(c) * t->scale2), FLT_MAX);
    for (int k = 0; k < b->n; k++) {
        float x = at(b, k);
        float a = fabsf(x * enc);
        unsigned code = spec->stochastic
                            ? stochastic_code(spec, b->first + place(b, k), a)
                            : e2m1_code_even(a);
        put_code(b, k, code | sign_bit(x));
    }
    return c;
}

/* ModelOpt's order: divide.  A block of zeros has scale 1; a scale that would underflow
 * is 2^-9; -0 becomes 0. */
static uint8_t
max_modelopt(const struct block *b, const struct quant_scale *t)
{
    float amax = block_amax(b);
    float want = amax / (6.0F * t->scale2);
    uint8_t c = amax == 0 ? 0x38 : e4m3_from(fminf(fmaxf(want, 0x1p-9F), 448.0F));
    float s = e4m3_value(c) * t->scale2;
    for (int k = 0; k < b->n; k++) {
        float y = at(b, k) / s;
        put_code(b, k, e2m1_code_even(fabsf(y)) | (at(b, k) < 0 ? 8U : 0U));
    }
    return c;
}

/* ---- two levels, the better of two ------------------------------- */

/* The errors of the rows of a block, pairwise as TransformerEngine adds those of a
 * square one; rows that are not there are 0 and change no bit. */
static float
sum_rows(float err[N])
{
    for (int w = N / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            err[i] += err[i + w];
    return err[0];
}

/* Codes for one scale byte; the error they make. */
static float
try_4over6(const struct block *b, uint8_t c, const struct quant_scale *t, bool mae,
           const float *weight)
{
    float d = e4m3_value(c);
    float enc = fminf(1.0F / (d * t->scale2), FLT_MAX);
    float err[N] = { 0 };
    for (int k = 0; k < b->n; k++) {
        float x = at(b, k);
        unsigned code = e2m1_code_even(fabsf(x * enc)) | sign_bit(x);
        float value = ((e2m1_value(code) * d) * t->amax) / 1536.0F;
        float diff = value - x;
        float r = mae ? fabsf(diff) : diff * diff;
        err[k / N] += weight ? r * weight[k % N] : r;
        put_code(b, k, code);
    }
    return sum_rows(err);
}

static uint8_t
four_over_six(const struct block *b, const struct quant_scale *t, bool mae,
              const float *weight)
{
    float base = (block_amax(b) / 6.0F) * t->enc;
    uint8_t c6 = e4m3_from(fminf(base, 448.0F));
    uint8_t c4 = e4m3_from(fminf(base * 1.5F, 448.0F));
    float err6 = try_4over6(b, c6, t, mae, weight);
    float err4 = try_4over6(b, c4, t, mae, weight);
    if (err4 < err6)
        return c4;
    try_4over6(b, c6, t, mae, weight); // a tie is the 6's
    return c6;
}

/* ---- the best scale ------------------------------- */

/* Squared error of 16 magnitudes at one scale, summed as a fixed tree. */
static float
sweep_error(const float a[N], float s, const float *weight)
{
    float r[N];
    for (int i = 0; i < N; i++) {
        float d = a[i] - e2m1_value(quant_nearest(a[i], s)) * s;
        r[i] = d * d;
        if (weight)
            r[i] = r[i] * weight[i];
    }
    for (int w = N / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            r[i] = r[i] + r[i + w];
    return r[0];
}

static uint8_t
sweep(const struct block *b, const struct quant_spec *spec, const struct quant_scale *t,
      const float *weight)
{
    float amax = block_amax(b);
    float a[N * N] = { 0 };
    int best = 0;
    if (amax > 0) {
        int c0 = e4m3_from(fminf((amax / 6.0F) * t->enc, 448.0F));
        struct quant_range r = quant_range(spec->kind, c0, spec->exhaustive);
        float min = INFINITY;
        for (int k = 0; k < b->n; k++)
            a[k] = fabsf(at(b, k) * t->enc);
        best = r.low;
        for (int c = r.low; c <= r.high; c = quant_next_scale(spec->kind, c)) {
            float s = e4m3_value((uint8_t)c);
            float rows[N] = { 0 };
            for (int k = 0; k < b->n; k += N)
                rows[k / N] = sweep_error(a + k, s, weight);
            float err = sum_rows(rows);
            if (err < min) { // a tie is the smaller byte's
                min = err;
                best = c;
            }
        }
    }
    float s = e4m3_value((uint8_t)best);
    for (int k = 0; k < b->n; k++)
        put_code(b, k, (amax > 0 ? quant_nearest(a[k], s) : 0) | sign_bit(at(b, k)));
    return (uint8_t)best;
}

/* ---- all of them ------------------------------- */

static uint8_t
quant_block(const struct block *b, size_t column, const struct quant_spec *spec,
            const struct quant_scale *t)
{
    const float *weight = spec->column_weight ? spec->column_weight + column : NULL;
    switch (spec->kind) {
    case QUANT_TORCHAO:
        return torchao(b);
    case QUANT_NATIVE:
        return native(b, spec->source);
    case QUANT_MAX:
        return spec->modelopt ? max_modelopt(b, t) : max_te(b, spec, t);
    case QUANT_4OVER6:
        return four_over_six(b, t, spec->mae, weight);
    default: // those of quant_sweeps
        return sweep(b, spec, t, weight);
    }
}

float
quant_unit(const struct quant_scale *t)
{
    int e = t->amax > 0 ? ilogbf(t->amax) : 0;
    return ldexpf(1, e < -126 ? 126 : e > 126 ? -126 : -e);
}

void
quant_add_costs(struct quant_error *e, float noise, float signal, float largest,
                float amax, uint8_t c, float scale2, float unit)
{
    double back = 1 / (double)unit;
    e->noise += (double)noise * back * back;
    e->signal += (double)signal * back * back;
    e->max = fmaxf(e->max, (float)((double)largest * back));
    e->zero_scales += c == 0;
    e->saturated += amax > 2784.0F * scale2; // 6 * 464: from there on 448 is clipped
}

static void
measure_scale(const struct block *b, uint8_t c, const struct quant_scale *t,
              struct quant_error *e)
{
    float s = e4m3_value(c), unit = quant_unit(t);
    for (int row = 0; row < b->n; row += N) {
        float noise = 0, signal = 0, largest = 0, amax = 0;
        for (int k = row; k < row + N; k++) {
            float x = fabsf(at(b, k));
            float d = e2m1_value(get_code(b, k) & 7) * s * t->scale2 - x;
            float du = d * unit, xu = x * unit;
            noise += du * du;
            signal += xu * xu;
            largest = fmaxf(largest, fabsf(du));
            amax = fmaxf(amax, x);
        }
        quant_add_costs(e, noise, signal, largest, amax, c, t->scale2, unit);
    }
}

void
nvfp4_measure(const uint8_t *codes, const uint8_t *scales, const float *x, size_t n,
              const struct quant_scale *t, struct quant_error *e)
{
    for (size_t i = 0; i < n; i += N) {
        struct block b = { .x = x + i,
                           .codes = (uint8_t *)(uintptr_t)codes + i / 2,
                           .stride = N,
                           .n = N };
        measure_scale(&b, scales[i / N], t, e);
    }
}

void
nvfp4_quant_scalar(uint8_t *codes, uint8_t *scales, const float *x, size_t rows,
                   size_t cols, uint64_t first, const struct quant_spec *spec,
                   const struct quant_scale *t, struct quant_error *e)
{
    size_t step = spec->square ? N : 1;
    for (size_t row = 0; row < rows; row += step) {
        size_t high = rows - row < step ? rows - row : step;
        for (size_t column = 0; column < cols; column += N) {
            size_t from = row * cols + column;
            struct block b = { .x = x + from,
                               .codes = codes + from / 2,
                               .stride = cols,
                               .n = (int)high * N,
                               .first = first + from };
            uint8_t c = quant_block(&b, column, spec, t);
            for (size_t r = 0; r < high; r++)
                scales[(from + r * cols) / N] = c;
            if (e)
                measure_scale(&b, c, t, e);
        }
    }
}

/* ---- before quantizing ------------------------------- */

/* The largest magnitude as bits: they are in the order of the values. */
static uint32_t
amax16(const uint16_t *v, size_t n)
{
    uint16_t max = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t a = v[i] & 0x7fff;
        max = a > max ? a : max;
    }
    return max;
}

static uint32_t
amax32(const uint32_t *v, size_t n)
{
    uint32_t max = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = v[i] & 0x7fffffff;
        max = a > max ? a : max;
    }
    return max;
}

float
nvfp4_amax(enum dtype dtype, const void *values, size_t n, size_t *bad)
{
    uint32_t max = dtype == DT_F32 ? amax32(values, n) : amax16(values, n);
    uint32_t infinite = dtype == DT_F32   ? 0x7f800000
                        : dtype == DT_F16 ? 0x7c00
                                          : 0x7f80;
    const uint16_t *half = values;
    const uint32_t *full = values;
    *bad = n;
    for (size_t i = 0; i < n && max >= infinite && *bad == n; i++)
        if ((dtype == DT_F32 ? full[i] & 0x7fffffff : half[i] & 0x7fffU) >= infinite)
            *bad = i;
    if (dtype == DT_F16)
        return num_from_f16((uint16_t)max);
    if (dtype == DT_BF16)
        return num_from_bf16((uint16_t)max);
    float f;
    memcpy(&f, &max, sizeof f);
    return f;
}

void
nvfp4_rht16(float *x, size_t n)
{
    static const float sign[N] = { 1,  1,  1,  -1, 1,  -1, -1, -1,
                                   -1, -1, -1, 1,  -1, 1,  -1, -1 };
    for (size_t b = 0; b + N <= n; b += N) {
        float *y = x + b;
        for (int i = 0; i < N; i++)
            y[i] = y[i] * sign[i];
        for (int w = 1; w < N; w *= 2) // sums and differences over one bit of i
            for (int i = 0; i < N; i++)
                if (!(i & w)) {
                    float sum = y[i] + y[i + w];
                    y[i + w] = y[i] - y[i + w];
                    y[i] = sum;
                }
        for (int i = 0; i < N; i++)
            y[i] = y[i] * 0.25F;
    }
}
