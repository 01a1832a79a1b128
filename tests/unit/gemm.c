/* SPDX-License-Identifier: MIT */
/* gemm: every path gives the bits of the plain loop, one fused multiply-add a product in
 * the order of k, for any shape, stride, type and number of threads; gemv the
 * same. */
#include "kernels/cpu/gemm.h"

#include "lib/core/num.h"
#include "lib/nvfp4/codec.h"
#include "tests/unit/check.h"

#include <math.h>
#include <string.h>

enum { MOST = 1 << 20 };

static float a[MOST], b[MOST], want[MOST], c[MOST];
static uint16_t half[2][MOST];
static uint8_t codes[MOST / 2], scales[MOST / 16];
static _Alignas(64) float room[8 * MOST];
static struct team *team[4]; // of so many threads
static struct err err;

static float
value(uint64_t i)
{
    return (float)((double)check_random(i) * 0x1p-31 - 1);
}

/* Element (i, k) of a matrix, as a float. */
static float
at(const struct matrix *x, size_t i, size_t k)
{
    size_t place = i * x->rows + k * x->cols;
    if (x->dtype == DT_F32)
        return ((const float *)x->p)[place];
    uint16_t bits = ((const uint16_t *)x->p)[place];
    return x->dtype == DT_BF16 ? num_from_bf16(bits) : num_from_f16(bits);
}

static void
plain(const struct gemm *g)
{
    for (size_t i = 0; i < g->m; i++)
        for (size_t j = 0; j < g->n; j++) {
            float sum = g->add ? want[i * g->ldc + j] : 0;
            for (size_t k = 0; k < g->k; k++)
                sum = fmaf(at(&g->a, i, k), at(&g->b, k, j), sum);
            want[i * g->ldc + j] = sum;
        }
}

/* What lies beside the columns of C stays as it was. */
static void
check(const struct gemm *g, const char *what)
{
    struct gemm mine = *g;
    size_t cells = g->m * g->ldc;
    for (size_t i = 0; i < cells; i++)
        want[i] = value(i + 7);
    plain(g);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (unsigned threads = 1; threads <= 3 && isa_have((enum isa)isa); threads++) {
            mine.c = c;
            NEED(gemm_room(g, team[threads]) <= sizeof room);
            for (size_t i = 0; i < cells; i++)
                c[i] = value(i + 7);
            CHECK(gemm_run(&mine, (enum isa)isa, team[threads], room, &err) == 0);
            CHECK_SAY(memcmp(c, want, cells * sizeof *c) == 0,
                      "%s: %zu x %zu x %zu, %s, %u threads", what, g->m, g->n, g->k,
                      isa_name((enum isa)isa), threads);
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
            g.a = (struct matrix){ .p = types[t] == DT_F32 ? (void *)a : half[0],
                                   .dtype = types[t],
                                   .rows = along_a ? k + 1 : 1,
                                   .cols = along_a ? 1 : m + 2 };
            g.b = (struct matrix){ .p = other == DT_F32 ? (void *)b : half[1],
                                   .dtype = other,
                                   .rows = along_b ? 1 : n + 5,
                                   .cols = along_b ? k + 2 : 1 };
            check(&g, "shape");
        }
}

/* Strides that are both more than one. */
static void
check_apart(size_t m, size_t n, size_t k)
{
    struct gemm g = { .m = m, .n = n, .k = k, .ldc = n, .add = true };
    g.a = (struct matrix){ .p = a, .dtype = DT_F32, .rows = 2 * k + 1, .cols = 2 };
    g.b = (struct matrix){ .p = half[1], .dtype = DT_BF16, .rows = 3, .cols = 3 * k };
    check(&g, "apart");
}

/* ---- NVFP4 and gemv -------------------------------------------------------------------- */

static const float scale2 = 0.0123F, *level2 = &scale2; // NULL: one level

static struct weight
weight(enum dtype dtype, size_t out, size_t in)
{
    struct weight w = { .dtype = dtype, .out = out, .in = in, .values = half[1] };
    if (dtype == DT_F32)
        w.values = b;
    if (dtype != DT_NVFP4)
        return w;
    w.values = codes;
    w.scales = scales;
    w.scale2 = level2;
    return w;
}

/* The weight as floats is that of nvfp4_decode, in both directions. */
static void
check_nvfp4(size_t m, size_t out, size_t in)
{
    struct matrix w = { .p = codes, .dtype = DT_NVFP4, .scales = scales };
    struct gemm g = { .m = m, .n = out, .k = in, .ldc = out };
    static float decoded[MOST];
    w.scale2 = scale2;
    nvfp4_decode(decoded, codes, scales, scale2, out * in);
    for (int back = 0; back < 2; back++) {
        if (back)
            g = (struct gemm){ .m = m, .n = in, .k = out, .ldc = in, .add = true };
        g.a = (struct matrix){ .p = a, .dtype = DT_F32, .rows = g.k, .cols = 1 };
        g.b = (struct matrix){ .p = decoded, .dtype = DT_F32 };
        g.b.rows = w.rows = back ? in : 1;
        g.b.cols = w.cols = back ? 1 : in;
        for (size_t i = 0; i < m * g.ldc; i++)
            want[i] = value(i + 7);
        plain(&g);
        g.b = w;
        for (int isa = 0; isa < ISA_COUNT; isa++) {
            if (!isa_have((enum isa)isa))
                continue;
            for (size_t i = 0; i < m * g.ldc; i++)
                c[i] = value(i + 7);
            g.c = c;
            CHECK(gemm_run(&g, (enum isa)isa, team[2], room, &err) == 0);
            CHECK_SAY(memcmp(c, want, m * g.ldc * sizeof *c) == 0,
                      "nvfp4 %zu x %zu x %zu, %s, %s", m, out, in,
                      isa_name((enum isa)isa), back ? "back" : "forward");
        }
    }
}

/* As gemm_run: one sum in the order of k. */
static float
plain_dot(const struct weight *w, const float *values, size_t row, const float *x,
          float sum)
{
    struct matrix m = { .p = w->values, .dtype = w->dtype, .rows = w->in, .cols = 1 };
    for (size_t k = 0; k < w->in; k++)
        sum = fmaf(
            x[k], w->dtype == DT_NVFP4 ? values[row * w->in + k] : at(&m, row, k), sum);
    return sum;
}

static void
check_gemv(enum dtype dtype, size_t rows, size_t out, size_t in)
{
    struct weight w = weight(dtype, out, in);
    bool add = rows % 2;
    static float decoded[MOST];
    nvfp4_decode(decoded, codes, scales, level2 ? *level2 : 1, out * in);
    for (size_t i = 0; i < rows * out; i++)
        want[i] = plain_dot(&w, decoded, i % out, a + i / out * in, add ? value(i) : 0);
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (unsigned threads = 1; threads <= 3 && isa_have((enum isa)isa); threads++) {
            for (size_t i = 0; i < rows * out; i++)
                c[i] = value(i);
            CHECK(gemv_run(c, a, &w, rows, add, (enum isa)isa, team[threads], &err) ==
                  0);
            CHECK_SAY(memcmp(c, want, rows * out * sizeof *c) == 0,
                      "gemv %s: %zu rows, %zu x %zu, %s, %u threads", dtype_name(dtype),
                      rows, out, in, isa_name((enum isa)isa), threads);
        }
}

static void
check_rows(void)
{
    static const enum dtype types[] = { DT_F32, DT_BF16, DT_F16, DT_NVFP4 };
    static const size_t widths[] = { 16, 48, 128, 144, 1, 15, 31, 257 };
    static const size_t rows[] = { 1, 2, 3, 5, 8, GEMV_MOST };
    for (int t = 0; t < 4; t++)
        for (size_t i = 0; i < (t == 3 ? 4 : 8); i++)
            for (size_t r = 0; r < 6; r++) {
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

int
main(void)
{
    static const size_t sizes[] = { 1, 2, 5, 12, 13, 31, 33, 64 };
    for (unsigned t = 1; t < 4; t++)
        NEED((team[t] = team_open(t, &err)));
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
    check_nvfp4(13, 100, 48);
    check_nvfp4(9, 40, 1040);
    check_nvfp4(3, 300, 144);
    check_rows();
    for (unsigned t = 1; t < 4; t++)
        team_close(team[t]);
    return check_end();
}
