/* SPDX-License-Identifier: MIT */
/* gemm: every path gives the bits of the plain loop, one fused multiply-add a product in
 * the order of k, for any shape, stride, type and number of threads; gemv the same; and
 * both again with operands that are rounded to bf16, also where numbers are odd. */
#include "kernels/cpu/gemm.h"

#include "lib/base/num.h"
#include "lib/nvfp4/codec.h"
#include "tests/unit/check.h"
#include "tests/unit/matrix.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST = 1 << 20, MAX_THREADS = 13 };

static float a[MOST], b[MOST], want[MOST], c[MOST];
static uint16_t half[2][MOST];
static uint8_t codes[MOST / 2], scales[MOST / 16];
static _Alignas(64) float workspace[8 * MOST];
static struct par *pool[4]; // of so many threads, the last of more than there are tiles
static struct err err;
static bool bf16; // operands are rounded

static float
value(uint64_t i)
{
    return (float)((double)check_random(i) * 0x1p-31 - 1);
}

/* Element (i, k) of a matrix, as a float. */
static float
at(const struct operand *x, size_t i, size_t k)
{
    size_t place = i * x->row_stride + k * x->col_stride;
    if (x->dtype == DT_F32)
        return ((const float *)x->data)[place];
    uint16_t bits = ((const uint16_t *)x->data)[place];
    return x->dtype == DT_BF16 ? num_from_bf16(bits) : num_from_f16(bits);
}

/* Denormals count as 0. */
static float
flushed(float x)
{
    return fabsf(x) < 0x1p-126F ? copysignf(0, x) : x;
}

static float
operand(float x, float factor)
{
    return bf16 ? flushed(num_from_bf16(num_to_bf16(flushed(flushed(x) * factor)))) : x;
}

/* Whether a result is denormal is told after rounding, as if exponents had no end. */
static float
step(float sum, float x, float y)
{
    float next = fmaf(x, y, sum);
    if (!bf16 || !(fabsf(next) <= 0x1p-126F))
        return next;
    return fabsf(fmaf(x * 0x1p64F, y * 0x1p36F, sum * 0x1p100F)) < 0x1p-26F
               ? copysignf(0, next)
               : next;
}

static float
start(float x)
{
    return bf16 ? flushed(x) : x;
}

/* factor: what A is multiplied by, if it is rounded. */
static void
plain(const struct gemm *g, float factor)
{
    for (size_t i = 0; i < g->m; i++)
        for (size_t j = 0; j < g->n; j++) {
            float sum = g->add ? start(want[i * g->ldc + j]) : 0;
            for (size_t k = 0; k < g->k; k++)
                sum = step(sum, operand(at(&g->a, i, k), factor),
                           operand(at(&g->b, k, j), 1));
            want[i * g->ldc + j] = sum;
        }
}

/* The kernels of a path: one, or of bf16 with AVX-512 two. */
static const struct gemm_isa *
kernel(enum isa isa, int i)
{
    if (!bf16)
        return i ? NULL : gemm_of(isa);
#if defined __x86_64__
    if (gemm_has_pairs(isa))
        return i == 0 ? gemm_bf16_of(isa) : i == 1 ? &gemm_bf16_avx512 : NULL;
#endif
    return i ? NULL : gemm_bf16_of(isa);
}

static bool
equal(const float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t one, other;
        memcpy(&one, x + i, sizeof one);
        memcpy(&other, y + i, sizeof other);
        if (one != other && !(isnan(x[i]) && isnan(y[i])))
            return false;
    }
    return true;
}

/* What lies beside the columns of C stays as it was. */
static void
check(const struct gemm *g, const char *what)
{
    struct gemm mine = *g;
    size_t cells = g->m * g->ldc;
    for (size_t i = 0; i < cells; i++)
        want[i] = value(i + 7);
    plain(g, 1);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (int run = 0; run < 6 && isa_have((enum isa)isa); run++) {
            const struct gemm_isa *k = kernel((enum isa)isa, run / 3);
            unsigned threads = (unsigned)run % 3 + 1;
            if (!k)
                break;
            mine.c = c;
            NEED(gemm_workspace(g->m, g->n, g->k) <= sizeof workspace);
            for (size_t i = 0; i < cells; i++)
                c[i] = value(i + 7);
            CHECK(gemm_run(&mine, k, pool[threads], workspace, &err) == 0);
            CHECK_SAY(equal(c, want, cells), "%s: %zu x %zu x %zu, %s%s, %u threads",
                      what, g->m, g->n, g->k, isa_name((enum isa)isa),
                      bf16 ? " bf16" : "", par_threads(pool[threads]));
        }
}

/* The same shape with all strides and types. */
static void
check_shape(size_t m, size_t n, size_t k)
{
    static const enum dtype types[] = { DT_F32, DT_BF16, DT_F16 };
    for (int order = 0; order < 4; order++)
        for (int t = 0; t < 3; t++) {
            bool along_a = order & 1, along_b = order & 2;
            struct gemm g = { .m = m, .n = n, .k = k, .ldc = n + 3, .add = t == 1 };
            enum dtype other = types[(t + order) % 3];
            g.a = (struct operand){ .data = types[t] == DT_F32 ? (void *)a : half[0],
                                    .dtype = types[t],
                                    .row_stride = along_a ? k + 1 : 1,
                                    .col_stride = along_a ? 1 : m + 2 };
            g.b = (struct operand){ .data = other == DT_F32 ? (void *)b : half[1],
                                    .dtype = other,
                                    .row_stride = along_b ? 1 : n + 5,
                                    .col_stride = along_b ? k + 2 : 1 };
            check(&g, "shape");
        }
}

/* Strides that are both more than one. */
static void
check_apart(size_t m, size_t n, size_t k)
{
    struct gemm g = { .m = m, .n = n, .k = k, .ldc = n, .add = true };
    g.a = (struct operand){
        .data = a, .dtype = DT_F32, .row_stride = 2 * k + 1, .col_stride = 2
    };
    g.b = (struct operand){
        .data = half[1], .dtype = DT_BF16, .row_stride = 3, .col_stride = 3 * k
    };
    check(&g, "apart");
}

/* ---- what lies behind -------------------------------------------------------------------- */

/* Memory that ends where nothing may be touched; it stays. */
static void *
before_the_end(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE),
           size = (bytes + page - 1) / page * page;
    char *p = mmap(NULL, size + page, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(p != MAP_FAILED && mprotect(p + size, page, PROT_NONE) == 0);
    return p + size - bytes;
}

/* Operands of those orders, and the workspace, to their very last byte. */
static void
check_ends(size_t m, size_t n, size_t k, bool along)
{
    float *mine = before_the_end(m * n * sizeof *mine);
    float *work = before_the_end(gemm_workspace(m, n, k));
    uint16_t *left = before_the_end(m * k * sizeof *left);
    float *right = before_the_end(k * n * sizeof *right);
    struct gemm g = { .m = m, .n = n, .k = k, .c = mine, .ldc = n };
    memcpy(left, half[0], m * k * sizeof *left);
    memcpy(right, b, k * n * sizeof *right);
    g.a = (struct operand){ .data = left, .dtype = DT_BF16 };
    g.b = (struct operand){ .data = right, .dtype = DT_F32 };
    g.a.row_stride = along ? k : 1;
    g.a.col_stride = along ? 1 : m;
    g.b.row_stride = along ? 1 : n;
    g.b.col_stride = along ? k : 1;
    plain(&g, 1);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (int i = 0; i < 2 && isa_have((enum isa)isa); i++) {
            const struct gemm_isa *how = kernel((enum isa)isa, i);
            if (!how)
                continue;
            CHECK(gemm_run(&g, how, pool[2], work, &err) == 0);
            CHECK_SAY(equal(mine, want, m * n), "ends: %zu x %zu x %zu, %s", m, n, k,
                      isa_name((enum isa)isa));
        }
}

/* ---- NVFP4 and gemv -------------------------------------------------------------------- */

static const float scale2 = 0.0123F, *level2 = &scale2; // NULL: one level

static struct matrix
weight(enum dtype dtype, size_t out, size_t in)
{
    if (dtype == DT_NVFP4)
        return matrix_of_nvfp4(codes, scales, level2, out, in);
    return matrix_of(dtype, dtype == DT_F32 ? (void *)b : half[1], out, in);
}

/* The weight as floats is that of nvfp4_decode, in both directions. */
static void
check_nvfp4(size_t m, size_t out, size_t in)
{
    struct operand w = { .data = codes, .dtype = DT_NVFP4, .scales = scales };
    struct gemm g = { .m = m, .n = out, .k = in, .ldc = out };
    static float decoded[MOST];
    w.scale2 = scale2;
    nvfp4_decode(decoded, codes, scales, bf16 ? 1 : scale2, out * in);
    for (int back = 0; back < 2; back++) {
        if (back)
            g = (struct gemm){ .m = m, .n = in, .k = out, .ldc = in, .add = true };
        g.a = (struct operand){
            .data = a, .dtype = DT_F32, .row_stride = g.k, .col_stride = 1
        };
        g.b = (struct operand){ .data = decoded, .dtype = DT_F32 };
        g.b.row_stride = w.row_stride = back ? in : 1;
        g.b.col_stride = w.col_stride = back ? 1 : in;
        for (size_t i = 0; i < m * g.ldc; i++)
            want[i] = value(i + 7);
        plain(&g, scale2);
        g.b = w;
        for (int isa = 0; isa < ISA_COUNT; isa++) {
            if (!isa_have((enum isa)isa))
                continue;
            for (size_t i = 0; i < m * g.ldc; i++)
                c[i] = value(i + 7);
            g.c = c;
            CHECK(gemm_run(&g, kernel((enum isa)isa, 0), pool[2], workspace, &err) ==
                  0);
            CHECK_SAY(equal(c, want, m * g.ldc), "nvfp4 %zu x %zu x %zu, %s, %s", m,
                      out, in, isa_name((enum isa)isa), back ? "back" : "forward");
        }
    }
}

/* As gemm_run: one sum in the order of k. */
static float
plain_dot(const struct matrix *w, const float *values, size_t row, const float *x,
          float sum)
{
    struct operand m = {
        .data = w->data, .dtype = w->dtype, .row_stride = w->cols, .col_stride = 1
    };
    bool packed = w->dtype == DT_NVFP4;
    float factor = packed && level2 ? *level2 : 1;
    for (size_t k = 0; k < w->cols; k++)
        sum = step(sum, operand(x[k], factor),
                   operand(packed ? values[row * w->cols + k] : at(&m, row, k), 1));
    return sum;
}

/* A copy whose memory ends where it ends: a read beyond is seen by ASan and valgrind. */
static void *
copy_of(const void *p, size_t bytes)
{
    void *copy = malloc(bytes);
    if (!copy)
        exit(1);
    return memcpy(copy, p, bytes);
}

static void
check_gemv(enum dtype dtype, size_t rows, size_t out, size_t in)
{
    struct matrix w = weight(dtype, out, in), given = w;
    bool add = rows % 2;
    static float decoded[MOST], x[MOST];
    struct gemv g = { c, bf16 ? x : a, &given, rows, add, bf16 };
    nvfp4_decode(decoded, codes, scales, level2 && !bf16 ? *level2 : 1, out * in);
    for (size_t i = 0; i < rows * out; i++)
        want[i] = plain_dot(&w, decoded, i % out, a + i / out * in,
                            add ? start(value(i)) : 0);
    given.scale2 = bf16 ? NULL : w.scale2;
    given.data = copy_of(w.data, out * in * (w.scales ? 4 : dtype_bits(dtype)) / 8);
    if (w.scales)
        given.scales = copy_of(w.scales, out * in / NVFP4_BLOCK);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (unsigned threads = 1; threads <= 3 && isa_have((enum isa)isa); threads++) {
            if (gemv_max((enum isa)isa, &w, bf16) == 0)
                break;
            if (bf16)
                gemv_round_x(x, a, &w, rows, (enum isa)isa);
            for (size_t i = 0; i < rows * out; i++)
                c[i] = value(i);
            CHECK(gemv_run(&g, (enum isa)isa, pool[threads], &err) == 0);
            CHECK_SAY(equal(c, want, rows * out),
                      "gemv %s: %zu rows, %zu x %zu, %s%s, %u threads",
                      dtype_name(dtype), rows, out, in, isa_name((enum isa)isa),
                      bf16 ? " bf16" : "", threads);
        }
    free(given.data);
    free(given.scales);
}

static void
check_rows(void)
{
    static const enum dtype types[] = { DT_F32, DT_BF16, DT_F16, DT_NVFP4 };
    static const size_t widths[] = { 16, 48, 128, 144, 1, 15, 31, 257 };
    static const size_t rows[] = { 1, 2, 3, 4, 5, 7, 8, GEMV_MAX };
    for (int t = 0; t < 4; t++)
        for (size_t i = 0; i < (t == 3 ? 4 : 8); i++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                check_gemv(types[t], rows[r], 1, widths[i]);
                check_gemv(types[t], rows[r], 65 + rows[r], widths[i]);
            }
    check_gemv(DT_NVFP4, 1, 70, 1200);  // more than a line of scales
    check_gemv(DT_NVFP4, 3, 333, 2064); // several strips of a thread, lines of each
    level2 = NULL;
    check_gemv(DT_NVFP4, 1, 70, 1200);
    check_gemv(DT_NVFP4, 7, 130, 272);
    level2 = &scale2;
    check_gemv(DT_F32, 3, 300, 144); // more than one thread
}

/* Tensor scales with which weights are denormals, or infinite. */
static void
check_levels(void)
{
    static const float hard[] = {
        3.3e-42F, 1e-30F, -0.3F, 0, 0x1p90F, 3e38F, INFINITY
    };
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++) {
        level2 = &hard[i];
        check_gemv(DT_NVFP4, 1, 70, 144);
        check_gemv(DT_NVFP4, 4, 33, 48);
    }
    level2 = &scale2;
}

/* A sum that is -0 stays so with products that are. */
static void
check_zeros(void)
{
    enum { OUT = 40, IN = 16 };
    static uint8_t zeros[OUT][IN / 2]; // of both signs, a row by turns
    float x[IN], y[OUT];
    struct matrix w = weight(DT_NVFP4, OUT, IN);
    struct gemv g = { y, x, &w, 1, true, false };
    w.data = zeros;
    for (size_t r = 0; r < OUT; r += 2)
        memset(zeros[r], 0x88, sizeof zeros[r]);
    for (size_t k = 0; k < IN; k++)
        x[k] = 1;
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        size_t wrong = 0;
        if (!isa_have((enum isa)isa))
            continue;
        for (size_t r = 0; r < OUT; r++)
            y[r] = -0.0F;
        CHECK(gemv_run(&g, (enum isa)isa, pool[1], &err) == 0);
        for (size_t r = 0; r < OUT; r++)
            wrong += y[r] != 0 || !signbit(y[r]) != (r % 2 == 1);
        CHECK_SAY(wrong == 0, "zeros, %s: %zu", isa_name((enum isa)isa), wrong);
    }
}

/* ---- odd numbers -------------------------------------------------------------------------- */

/* Any bits; or exponents around that of the square root of what is hard. */
static float
odd_value(uint64_t i, int kind)
{
    static const uint32_t least[] = { 57, 178, 118 }; // small, large, ordinary
    uint32_t bits = check_random(i);
    float x;
    if (kind < 3)
        bits = (bits & 0x87ffffff) + (least[kind] << 23);
    else if (kind == 4) // denormals and what is next to them
        bits &= 0x80ffffff;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum { ODD_KINDS = 5 };

/* a and c of one kind, b of another; the weight is dtype, bf16 or f32. */
static void
check_odd(enum dtype dtype, size_t m, size_t n, size_t k)
{
    struct gemm g = { .m = m, .n = n, .k = k, .c = c, .ldc = n, .add = true };
    static float x[MOST], y[MOST], z[MOST];
    static uint16_t narrow[MOST];
    bool wide = dtype == DT_F32;
    struct matrix w = matrix_of(dtype, wide ? (void *)y : narrow, n, k);
    struct gemv few = { c, x, &w, m, true, true };
    g.a = (struct operand){
        .data = x, .dtype = DT_F32, .row_stride = k, .col_stride = 1
    };
    g.b = (struct operand){
        .data = y, .dtype = DT_F32, .row_stride = 1, .col_stride = k
    };
    for (int kind = 0; kind < ODD_KINDS * ODD_KINDS; kind++) {
        for (size_t i = 0; i < m * k; i++)
            x[i] = odd_value(i, kind % ODD_KINDS);
        for (size_t i = 0; i < n * k; i++) {
            y[i] = odd_value(i + MOST, kind / ODD_KINDS);
            narrow[i] = num_to_bf16(y[i]);
            y[i] = wide ? y[i] : num_from_bf16(narrow[i]);
        }
        for (size_t i = 0; i < m * n; i++)
            want[i] = z[i] = odd_value(i + 2 * MOST, i % 2 ? 4 : kind % ODD_KINDS);
        plain(&g, 1);
        for (int isa = 0; isa < ISA_COUNT; isa++)
            for (int i = 0; i < 3 && isa_have((enum isa)isa); i++) {
                const struct gemm_isa *how = i < 2 ? kernel((enum isa)isa, i) : NULL;
                static float mine[MOST];
                memcpy(c, z, m * n * sizeof *c);
                if (how) {
                    CHECK(gemm_run(&g, how, pool[2], workspace, &err) == 0);
                } else if (i == 2) {
                    gemv_round_x(mine, x, &w, m, (enum isa)isa);
                    few.x = mine;
                    CHECK(gemv_run(&few, (enum isa)isa, pool[2], &err) == 0);
                } else {
                    continue;
                }
                CHECK_SAY(equal(c, want, m * n), "odd numbers %d, %s: %s, way %d", kind,
                          dtype_name(dtype), isa_name((enum isa)isa), i);
            }
    }
}

/* What rounding to bf16 does to all bits that matter, and to NaN. */
static void
check_rounding(void)
{
    enum { ALL = 1 << 18 };
    static float in[ALL], out[ALL];
    struct matrix w = matrix_of(DT_BF16, NULL, 1, ALL);
    for (uint32_t i = 0; i < ALL; i++) { // each upper half with the ends and the tie
        static const uint32_t low[] = { 0, 0x7fff, 0x8000, 0x8001 };
        uint32_t bits = i >> 2 << 16 | low[i & 3];
        memcpy(in + i, &bits, sizeof bits);
        want[i] = operand(in[i], 1);
    }
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (!isa_have((enum isa)isa))
            continue;
        gemv_round_x(out, in, &w, 1, (enum isa)isa);
        CHECK_SAY(equal(out, want, ALL), "rounding, %s", isa_name((enum isa)isa));
    }
}

/* Sums that end where denormals begin, by less than can be seen after rounding. */
static void
check_edge(void)
{
#if defined __x86_64__
    static const float x[] = { 0x1p-70F, 0x1.8p-75F, 0x1p-75F, 0x1p-76F };
    for (int i = 0; i < 8; i++) {
        float y = i < 4 ? -0x1p-76F : 0x1p-76F, p = x[i % 4], sum = i < 4 ? 1 : -1;
        struct gemm g = { .m = 1, .n = 1, .k = 1, .c = c, .ldc = 1, .add = true };
        g.a = (struct operand){
            .data = &p, .dtype = DT_F32, .row_stride = 1, .col_stride = 1
        };
        g.b = (struct operand){
            .data = &y, .dtype = DT_F32, .row_stride = 1, .col_stride = 1
        };
        want[0] = sum * 0x1p-126F;
        plain(&g, 1);
        for (int isa = 0; isa < ISA_COUNT; isa++) {
            if (!isa_have((enum isa)isa))
                continue;
            c[0] = sum * 0x1p-126F;
            CHECK(gemm_run(&g, kernel((enum isa)isa, 0), pool[1], workspace, &err) ==
                  0);
            CHECK_SAY(equal(c, want, 1), "edge %d, %s: %a, want %a", i,
                      isa_name((enum isa)isa), (double)c[0], (double)want[0]);
        }
    }
#endif
}

/* gemv flushes what it adds to by itself where the processor does not. */
static void
check_start(void)
{
    static const uint8_t one[8] = { 0x22, 0x22 }, scale = 0x38;
    struct matrix w = matrix_of_nvfp4(one, &scale, NULL, 1, 16);
    float x[16] = { 0x1p-126F }, y;
    struct gemv g = { &y, x, &w, 1, true, true };
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (!isa_have((enum isa)isa) || gemv_max((enum isa)isa, &w, true) == 0)
            continue;
        y = 0x1p-127F;
        CHECK(gemv_run(&g, (enum isa)isa, pool[1], &err) == 0);
        CHECK_SAY(y == 0x1p-126F, "start, %s: %a", isa_name((enum isa)isa), (double)y);
    }
}

static void
check_all(void)
{
    static const size_t sizes[] = { 1, 2, 5, 12, 13, 31, 33, 64 };
    for (size_t i = 0; i < 8; i++)
        for (size_t k = 0; k < 8; k++)
            check_shape(sizes[i], sizes[(i + k) % 8], sizes[k]);
    check_shape(3, 4, 0);
    check_shape(0, 4, 3);
    check_shape(7, 40, 600);   // several blocks of k
    check_shape(365, 490, 20); // several tiles, none of them whole
    check_shape(2, 2000, 20);  // B in more than one part
    check_shape(800, 3, 20);   // A
    check_shape(5, 7, 1100);   // k
    check_apart(100, 101, 300);
    for (int along = 0; along < 2; along++) {
        check_ends(96, 96, 256, along); // squares that are full
        check_ends(192, 60, 511, along);
        check_ends(5, 200, 37, along);
        check_ends(1, 1, 1, along);
    }
    check_nvfp4(13, 100, 48);
    check_nvfp4(9, 40, 1040);
    check_nvfp4(3, 300, 144);
    check_rows();
}

int
main(void)
{
    for (unsigned t = 1; t < 4; t++)
        NEED((pool[t] = par_open(t < 3 ? t : MAX_THREADS, &err)));
    for (size_t i = 0; i < MOST; i++) {
        a[i] = value(i);
        b[i] = value(i + MOST);
        half[0][i] = num_to_bf16(a[i]); // as f16 they are other numbers, and finite
        half[1][i] = num_to_bf16(b[i]);
    }
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)check_random(i + 11);
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = (uint8_t)(check_random(i + 12345) % 127);
    check_all();
    check_levels();
    check_zeros();
    bf16 = true;
    check_all();
    if (!getenv("NIBBLE_VALGRIND")) { // which does not flush denormals
        check_rounding();
        check_odd(DT_BF16, 5, 37, 67);
        check_odd(DT_BF16, 13, 70, 300);
        check_odd(DT_F32, 5, 37, 67);
        check_odd(DT_F32, 13, 70, 300);
        check_edge();
    }
    check_start();
    // Where the instruction is, it does what the definition says.
    CHECK(!isa_have_bf16() || gemm_has_pairs(isa_best()));
    for (unsigned t = 1; t < 4; t++)
        par_close(pool[t]);
    return check_end();
}
