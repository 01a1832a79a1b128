/* SPDX-License-Identifier: MIT */
/* gemm: every path gives the bits of the plain loop, one fused multiply-add a product in
 * the order of k, for any shape, stride, type and number of threads. */
#include "kernels/cpu/gemm.h"

#include "lib/core/num.h"
#include "tests/unit/check.h"

#include <math.h>
#include <string.h>

enum { MOST = 1 << 20 };

static float a[MOST], b[MOST], want[MOST], c[MOST];
static uint16_t half[2][MOST];

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
            struct err err = { 0 };
            mine.c = c;
            for (size_t i = 0; i < cells; i++)
                c[i] = value(i + 7);
            CHECK(gemm_run(&mine, (enum isa)isa, threads, &err) == 0);
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
            g.a = (struct matrix){ types[t] == DT_F32 ? (void *)a : half[0], types[t],
                                   along_a ? k + 1 : 1, along_a ? 1 : m + 2 };
            g.b =
                (struct matrix){ types[(t + order) % 3] == DT_F32 ? (void *)b : half[1],
                                 types[(t + order) % 3], along_b ? 1 : n + 5,
                                 along_b ? k + 2 : 1 };
            check(&g, "shape");
        }
}

int
main(void)
{
    static const size_t sizes[] = { 1, 2, 5, 12, 13, 31, 33, 64 };
    for (size_t i = 0; i < MOST; i++) {
        a[i] = value(i);
        b[i] = value(i + MOST);
        half[0][i] = num_to_bf16(a[i]); // as f16 they are other numbers, and finite
        half[1][i] = num_to_bf16(b[i]);
    }
    for (size_t i = 0; i < 8; i++)
        for (size_t k = 0; k < 8; k++)
            check_shape(sizes[i], sizes[(i + k) % 8], sizes[k]);
    check_shape(3, 4, 0);
    check_shape(0, 4, 3);
    check_shape(7, 40, 600);   // several blocks of k
    check_shape(365, 490, 20); // several tiles, none of them whole
    return check_end();
}
