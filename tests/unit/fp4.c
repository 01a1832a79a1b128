/* SPDX-License-Identifier: MIT */
/* fp4: scales in tiles against the definition as a permutation; activations in NVFP4
 * against the quantizer written here again; their products bit for bit those of a plain
 * loop, and close to what a tensor core computes from codes and tiles; everything the same
 * for any threads and instruction set, and for a row alone or among others. */
#include "kernels/kernels.h"
#include "lib/base/num.h"
#include "lib/nvfp4/tiles.h"
#include "tests/unit/check.h"
#include "tests/unit/matrix.h"

#include <float.h>
#include <math.h>

enum { ROWS = 140, WIDE = 608, MOST = ROWS * WIDE, THREADS = 3 };

static float x[MOST];
static struct err err;

static float
bell(uint64_t i)
{
    float sum = 0;
    for (uint64_t k = 0; k < 4; k++)
        sum += (float)((double)check_random(4 * i + k) * 0x1p-32 - 0.5);
    return sum;
}

/* ---- tiles --------------------------------------------------------------------------- */

/* The place of each scale, by the other definition: filled up to [a,128,b,4], axes
 * 0,2,1,3, as [-1,4,32,4], axes 1 and 2 exchanged, flat.  size_t[a * 128][b * 4]. */
static size_t *
places(size_t rows, size_t blocks, size_t *n)
{
    size_t a = (rows + 127) / 128, b = (blocks + 3) / 4, at = 0;
    size_t *place = malloc(a * b * 512 * sizeof *place + 1);
    NEED(place);
    for (size_t down = 0; down < a; down++)
        for (size_t across = 0; across < b; across++)
            for (size_t r = 0; r < 32; r++)
                for (size_t group = 0; group < 4; group++)
                    for (size_t c = 0; c < 4; c++)
                        place[(down * 128 + group * 32 + r) * b * 4 + across * 4 + c] =
                            at++;
    *n = at;
    return place;
}

static void
check_tiles(size_t rows, size_t blocks)
{
    size_t n, wide = (blocks + 3) / 4 * 4, wrong = 0;
    size_t *place = places(rows, blocks, &n);
    uint8_t *scales = malloc(rows * blocks + 1), *tiles = malloc(n + 1);
    NEED(scales && tiles);
    check_fill(scales, rows * blocks);
    memset(tiles, 0xff, n + 1);
    tiles_make(tiles, scales, rows, blocks);
    CHECK(tiles_bytes(rows, blocks) == n && tiles[n] == 0xff);
    for (size_t r = 0; r < n / (wide ? wide : 1); r++)
        for (size_t b = 0; b < wide; b++) {
            bool real = r < rows && b < blocks;
            size_t at = place[r * wide + b];
            wrong += tiles[at] != (real ? scales[r * blocks + b] : 0);
            wrong += real && tiles_at(r, b, blocks) != at;
        }
    CHECK_SAY(wrong == 0, "tiles of %zu x %zu: %zu are wrong", rows, blocks, wrong);
    free(place);
    free(scales);
    free(tiles);
}

static void
check_all_tiles(void)
{
    static const size_t rows[] = { 0, 1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 257 };
    static const size_t blocks[] = { 1, 2, 3, 4, 5, 8, 9, 38 };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
            check_tiles(rows[r], blocks[b]);
    // Written out: rows 0, 1, 32 and 128 of 5 blocks, which are two tiles across.
    CHECK(tiles_at(0, 3, 5) == 3 && tiles_at(1, 0, 5) == 16 &&
          tiles_at(32, 1, 5) == 5 && tiles_at(0, 4, 5) == 512 &&
          tiles_at(128, 0, 5) == 1024 && tiles_at(127, 3, 5) == 511);
}

/* ---- the quantizer again ------------------------------------------------------------ */

static const float magnitude[8] = { 0, 0.5F, 1, 1.5F, 2, 3, 4, 6 };

static double
e4m3(unsigned c)
{
    unsigned e = c >> 3, m = c & 7;
    return e ? ldexp(1 + m / 8.0, (int)e - 7) : ldexp(m, -9);
}

/* The nearest of n values in ascending order, of two the even one or, if away, the
 * upper. */
static unsigned
nearest(double a, double (*value)(unsigned), unsigned n, bool away)
{
    unsigned best = 0;
    for (unsigned c = 1; c < n; c++) {
        double now = fabs(value(c) - a), was = fabs(value(best) - a);
        if (now < was || (now == was && (away || c % 2 == 0)))
            best = c;
    }
    return best;
}

static double
e2m1(unsigned c)
{
    return (double)magnitude[c];
}

struct row {
    uint8_t codes[WIDE / 2], scales[WIDE / 16];
    float scale2;
};

/* How rows are quantized: by `max` and `native`, each by its largest magnitude; by `max`, all
 * by one scale, whose reciprocal is small, large, or such that many bf16 lie between two
 * block scales, where the order of products shows. */
enum how { OWN, NATIVE, SMALL, TIES, LARGE, HOWS };
static const float given[HOWS] = { [SMALL] = 0.03F, [TIES] = 384, [LARGE] = 33000 };

/* One block; t: the tensor scale's inverse and itself. */
static void
block_again(struct row *to, const float *in, size_t b, enum how how, float enc,
            float dec)
{
    float amax = 0, sixth = 1.0F / 6.0F, factor = enc * sixth;
    bool native = how == NATIVE;
    for (int i = 0; i < 16; i++)
        amax = fmaxf(amax, fabsf(in[i]));
    float part = amax * sixth;
    float want = native       ? fmaxf(amax / 6.0F, 0x1p-16F)
                 : how == OWN ? amax * factor
                              : enc * part;
    unsigned c = nearest((double)fminf(want, 448), e4m3, 0x7f, false);
    float s = (float)e4m3(c);
    float each = fminf(1.0F / (s * dec), FLT_MAX);
    to->scales[b] = (uint8_t)c;
    for (int i = 0; i < 16; i++) {
        float y = native ? in[i] / (s + 1e-12F) : in[i] * each;
        unsigned code = nearest(fmin(fabs((double)y), 6), e2m1, 8, native);
        code |= (native ? y < 0 : signbit(in[i]) != 0) ? 8 : 0;
        uint8_t *p = &to->codes[b * 8 + (size_t)i / 2];
        *p = (uint8_t)(i % 2 ? *p | code << 4 : code);
    }
}

static void
row_again(struct row *to, const float *in, size_t n, enum how how)
{
    bool native = how == NATIVE;
    float most = 0, enc = 1, dec = 1;
    memset(to, 0, sizeof *to);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(in[i])) {
            to->scale2 = NAN;
            return;
        }
        most = fmaxf(most, fabsf(in[i]));
    }
    if (given[how] > 0) {
        enc = given[how];
        dec = 1.0F / enc;
    } else if (!native && most > 0) {
        enc = fminf(2688.0F / most, FLT_MAX);
        dec = 1.0F / enc;
    }
    to->scale2 = dec;
    for (size_t b = 0; b < n / 16; b++)
        block_again(to, in + b * 16, b, how, enc, dec);
}

/* Rows of many kinds: of a token that is like others, and of what may happen. */
static void
make_rows(void)
{
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < WIDE; i++) {
            float v = bell(r * WIDE + i);
            float *to = &x[r * WIDE + i];
            switch (r % 10) {
            case 1: // outliers
                *to = i % 67 == 3 ? 50 * v : v;
                break;
            case 2: // many ties
                *to = 0.25F * (float)((int)(check_random(i) % 25) - 12);
                break;
            case 3: // as on a GPU
                *to = num_from_bf16(num_to_bf16(v));
                break;
            case 4: // blocks of nothing
                *to = i / 16 % 3 ? v : i % 2 ? -0.0F : 0;
                break;
            case 5:
                *to = v * (r < 70 ? 1e-30F : 1e30F);
                break;
            case 6: // blocks that differ by all that a scale can
                *to = v * ldexpf(1, -(int)(i / 16 % 20));
                break;
            default:
                *to = v;
            }
        }
    memset(x + 7 * WIDE, 0, WIDE * sizeof *x);
    x[8 * WIDE + 5] = NAN;
    x[9 * WIDE + WIDE - 1] = -INFINITY;
}

/* ---- on a device -------------------------------------------------------------------------- */

struct buffers {
    uint8_t codes[MOST / 2], scales[MOST / 16], tiles[256 * (WIDE / 16 + 4)];
    float scale2[ROWS];
};

static struct matrix
view(struct buffers *b, size_t rows, size_t in)
{
    struct matrix m = matrix_of_nvfp4(b->codes, b->scales, b->scale2, rows, in);
    m.per_row = true;
    return m;
}

static bool
same(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* The first `in` columns of all rows, and each row alone. */
static void
check_quantizer(struct kernels *k, const char *what, size_t in, enum how how)
{
    static struct buffers b, alone;
    static float packed[MOST], back[MOST];
    struct quant_spec spec = { .kind = how == NATIVE ? QUANT_NATIVE : QUANT_MAX,
                               .source = DT_F32,
                               .given = given[how] };
    static uint8_t tiles[sizeof b.tiles];
    struct matrix all = view(&b, ROWS, in), one = view(&alone, 1, in);
    struct matrix from = matrix_of(DT_F32, packed, ROWS, in),
                  to = matrix_of(DT_F32, back, ROWS, in);
    size_t wrong = 0, off = 0, lone = 0;
    for (size_t r = 0; r < ROWS; r++)
        memcpy(packed + r * in, x + r * WIDE, in * sizeof *x);
    all.tiles = b.tiles;
    NEED(tiles_bytes(ROWS, in / 16) <= sizeof tiles);
    op_quantize(k, &all, &from, NULL, 0, &spec);
    op_convert(k, &to, &all);
    tiles_make(tiles, b.scales, ROWS, in / 16);
    CHECK(memcmp(tiles, b.tiles, tiles_bytes(ROWS, in / 16)) == 0);
    for (size_t r = 0; r < ROWS; r++) {
        struct row want;
        row_again(&want, packed + r * in, in, how);
        wrong += !same(b.scale2[r], want.scale2) ||
                 memcmp(b.codes + r * in / 2, want.codes, in / 2) != 0 ||
                 memcmp(b.scales + r * in / 16, want.scales, in / 16) != 0;
        for (size_t i = 0; i < in; i++) {
            unsigned code = want.codes[i / 2] >> (i % 2 * 4) & 15;
            float v = (float)e2m1(code & 7) * (float)e4m3(want.scales[i / 16]);
            v = (code & 8 ? -v : v) * want.scale2;
            off += !same(back[r * in + i], v);
        }
        struct matrix row = matrix_rows(&from, r, 1);
        op_quantize(k, &one, &row, NULL, 0, &spec);
        lone += memcmp(alone.codes, b.codes + r * in / 2, in / 2) != 0 ||
                memcmp(alone.scales, b.scales + r * in / 16, in / 16) != 0 ||
                !same(*alone.scale2, b.scale2[r]);
    }
    CHECK_SAY(wrong == 0, "%s, %zu columns, %s: %zu rows are wrong", what, in,
              quant_name(spec.kind), wrong);
    CHECK_SAY(off == 0, "%s, %zu columns, %s: %zu values are wrong", what, in,
              quant_name(spec.kind), off);
    CHECK_SAY(lone == 0, "%s, %zu columns, %s: %zu rows are others alone", what, in,
              quant_name(spec.kind), lone);
}

/* ---- products -------------------------------------------------------------------------------- */

struct product {
    struct matrix x, w;
    const float *add;
    const char *what;
};

static float
value(const uint8_t *codes, const uint8_t *scales, size_t i)
{
    unsigned code = codes[i / 2] >> (i % 2 * 4) & 15;
    float v = (float)e2m1(code & 7) * (float)e4m3(scales[i / 16]);
    return code & 8 ? -v : v;
}

/* The plain loop. */
static float
plain(const struct product *p, size_t row, size_t o)
{
    float sum = 0;
    for (size_t i = 0; i < p->w.cols; i++)
        sum = fmaf(value((const uint8_t *)p->x.data, p->x.scales, row * p->w.cols + i),
                   value(p->w.data, p->w.scales, o * p->w.cols + i), sum);
    float y = sum * (p->w.scale2 ? *p->w.scale2 : 1);
    y = y * p->x.scale2[row];
    return p->add ? y + p->add[row * p->w.rows + o] : y;
}

/* What a tensor core makes of the same: codes, and scales where tiles have them. */
static double
by_tiles(const struct product *p, const uint8_t *xt, const size_t *x_place,
         const uint8_t *wt, const size_t *w_place, size_t row, size_t o)
{
    size_t in = p->w.cols, wide = (in / 16 + 3) / 4 * 4;
    const uint8_t *w = p->w.data, *a = p->x.data;
    double sum = 0;
    for (size_t b = 0; b < in / 16; b++) {
        double dot = 0;
        for (size_t i = b * 16; i < b * 16 + 16; i++) {
            size_t at = row * in + i, wat = o * in + i;
            unsigned c = a[at / 2] >> (at % 2 * 4) & 15;
            unsigned d = w[wat / 2] >> (wat % 2 * 4) & 15;
            dot += e2m1(c & 7) * e2m1(d & 7) * ((c ^ d) & 8 ? -1 : 1);
        }
        sum +=
            dot * e4m3(xt[x_place[row * wide + b]]) * e4m3(wt[w_place[o * wide + b]]);
    }
    return sum * (p->w.scale2 ? (double)*p->w.scale2 : 1) * (double)p->x.scale2[row] +
           (p->add ? (double)p->add[row * p->w.rows + o] : 0);
}

static void
check_tiled(const struct product *p, const float *want)
{
    size_t n, blocks = p->w.cols / 16;
    size_t *x_place = places(p->x.rows, blocks, &n);
    uint8_t *xt = malloc(n + 1);
    size_t *w_place = places(p->w.rows, blocks, &n);
    uint8_t *wt = malloc(n + 1);
    double off = 0, size = 0;
    NEED(xt && wt);
    tiles_make(xt, p->x.scales, p->x.rows, blocks);
    tiles_make(wt, p->w.scales, p->w.rows, blocks);
    for (size_t r = 0; r < p->x.rows; r++)
        for (size_t o = 0; o < p->w.rows; o++) {
            double y = by_tiles(p, xt, x_place, wt, w_place, r, o);
            double d = y - (double)want[r * p->w.rows + o];
            off += d * d;
            size += y * y;
        }
    CHECK_SAY(sqrt(off) <= 1e-6 * sqrt(size), "%s: off by %g from tiles", p->what,
              sqrt(off / size));
    free(x_place);
    free(w_place);
    free(xt);
    free(wt);
}

static void
check_product(struct kernels *const k[][THREADS], const struct product *p)
{
    static float want[MOST], y[MOST];
    size_t rows = p->x.rows, out = p->w.rows, n = rows * out;
    struct matrix to = matrix_of(DT_F32, y, rows, out),
                  add = matrix_of(DT_F32, p->add, rows, out);
    NEED(n <= MOST);
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < out; o++)
            want[r * out + o] = plain(p, r, o);
    check_tiled(p, want);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (int t = 0; t < THREADS && k[isa][t]; t++) {
            memset(y, 0xff, n * sizeof *y);
            op_linear(k[isa][t], 1, &to, &p->x, &p->w, p->add ? &add : NULL);
            CHECK_SAY(memcmp(y, want, n * sizeof *y) == 0,
                      "%s, %zu rows, (%zu, %zu), %s, %d threads", p->what, rows, out,
                      p->w.cols, isa_name((enum isa)isa), t + 1);
        }
}

static void
check_products(struct kernels *const k[][THREADS], size_t out, size_t in)
{
    static struct buffers a;
    static uint8_t codes[MOST / 2], scales[MOST / 16];
    static float plainly[MOST], add[MOST];
    static const size_t rows[] = { 1, 8, 9, 32, 33, 130 };
    struct quant_spec spec = { .kind = QUANT_MAX }, sweep = { .kind = QUANT_SWEEP };
    struct kernels *first = k[ISA_SCALAR][0];
    size_t bad;
    NEED(out * in <= MOST && 130 * in <= MOST);
    for (size_t i = 0; i < 130 * in; i++)
        plainly[i] = bell(i) * (i / in == 3 ? 1000 : 1);
    struct matrix all = view(&a, 130, in), from = matrix_of(DT_F32, plainly, 130, in);
    op_quantize(first, &all, &from, NULL, 0, &spec);
    for (size_t i = 0; i < out * in; i++)
        plainly[i] = 0.05F * bell(i + 77);
    struct quant_scale t =
        nvfp4_scale(&sweep, nvfp4_amax(DT_F32, plainly, out * in, &bad));
    nvfp4_quant(codes, scales, plainly, out, in, 0, &sweep, &t, NULL);
    for (size_t i = 0; i < 130 * out; i++)
        add[i] = bell(i + 5);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int way = 0; way < 2; way++) {
            struct product p = { .x = all,
                                 .w = matrix_of_nvfp4(codes, scales,
                                                      way ? NULL : &t.scale2, out, in),
                                 .add = way ? add : NULL,
                                 .what = way ? "one level, added" : "two levels" };
            p.x.rows = rows[i];
            check_product(k, &p);
        }
}

/* A row that is not finite makes its results NaN, and no others. */
static void
check_bad(struct kernels *k)
{
    static struct buffers b;
    float in[3 * 16] = { 1, 2, 3 }, y[3];
    uint8_t codes[8] = { 0x22, 0x22 }, scales[1] = { 0x38 };
    struct matrix w = matrix_of_nvfp4(codes, scales, NULL, 1, 16),
                  rows = view(&b, 3, 16), from = matrix_of(DT_F32, in, 3, 16),
                  to = matrix_of(DT_F32, y, 3, 1);
    struct quant_spec spec = { .kind = QUANT_MAX };
    in[16] = INFINITY;
    in[32] = 6;
    op_quantize(k, &rows, &from, NULL, 0, &spec);
    op_linear(k, 1, &to, &rows, &w, NULL);
    CHECK(y[0] > 5.5F && y[0] < 6.5F && isnan(y[1]) && fabsf(y[2] - 6) < 1e-5F);
}

int
main(void)
{
    struct kernels *k[ISA_COUNT][THREADS] = { { NULL } };
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (unsigned t = 0; t < THREADS && isa_have((enum isa)isa); t++)
            NEED((k[isa][t] = kernels_cpu(
                      &(struct cpu_kind){ DT_F32, (enum isa)isa, t + 1 }, &err)));
    struct kernels *first = k[ISA_SCALAR][0];
    NEED(first);
    make_rows();
    check_all_tiles();
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (int t = 0; t < THREADS && k[isa][t]; t += 2)
            for (enum how how = 0; how < HOWS; how++) {
                check_quantizer(k[isa][t], isa_name((enum isa)isa), WIDE, how);
                check_quantizer(k[isa][t], isa_name((enum isa)isa), 48, how);
            }
    check_products(k, 100, 144);
    check_products(k, 33, WIDE);
    check_products(k, 128, 128);
    check_products(k, 1, 16);
    check_bad(first);
    CHECK_SAY(err.kind == ERR_NONE, "%s", err.msg);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (int t = 0; t < THREADS && k[isa][t]; t++)
            kernels_close(k[isa][t]);
    return check_end();
}
