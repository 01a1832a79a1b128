/* SPDX-License-Identifier: MIT */
/* paths: the operations of a device give the same bits on every instruction set, for any
 * number of tokens, where panels end and begin; with products of f32 and of bf16. */
#include "kernels/kernels.h"

#include "tests/unit/check.h"

#include <math.h>

enum { MOST_TOKENS = 132, ROOM = 1 << 18, QUERY = 4, KV = 2, DIM = 32 };

static struct err err;
static struct kernels *device[ISA_COUNT];
static float *x[ISA_COUNT], *w[ISA_COUNT], *y[ISA_COUNT], *s[ISA_COUNT];
static int32_t *ids[ISA_COUNT], *first[ISA_COUNT];
static int devices;

static void
open_devices(enum dtype compute)
{
    devices = 0;
    for (int i = 0; i < ISA_COUNT; i++) {
        if (!isa_have((enum isa)i))
            continue;
        int d = devices++;
        const struct cpu_kind kind = { compute, (enum isa)i, 2 };
        struct kernels *k = device[d] = kernels_cpu(&kind, &err);
        NEED(k);
        float **all[] = { &x[d], &w[d], &y[d], &s[d] };
        for (int n = 0; n < 4; n++)
            NEED((*all[n] = kernels_alloc(k, MEMORY_WORK, ROOM * sizeof(float))));
        NEED((ids[d] = kernels_alloc(k, MEMORY_WORK, MOST_TOKENS * sizeof(int32_t))));
        NEED((first[d] = kernels_alloc(k, MEMORY_WORK, MOST_TOKENS * sizeof(int32_t))));
        for (size_t e = 0; e < ROOM; e++) {
            x[d][e] = (float)(check_random(e) * 0x1p-32 - 0.5);
            w[d][e] = (float)(check_random(e + ROOM) * 0x1p-32 - 0.5);
        }
    }
}

static void
close_devices(void)
{
    for (int d = 0; d < devices; d++) {
        struct kernels *k = device[d];
        void *all[] = { x[d], w[d], y[d], s[d], ids[d], first[d] };
        for (int n = 0; n < 6; n++)
            kernels_free(k, all[n]);
        kernels_close(k);
    }
}

/* The first n of y are what the first device made. */
static void
same(const char *what, size_t n, size_t tokens, size_t width)
{
    for (int d = 1; d < devices; d++)
        CHECK_SAY(memcmp(y[0], y[d], n * sizeof(float)) == 0,
                  "%s, %zu tokens of %zu: path %d", what, tokens, width, d);
}

static void
clear(size_t n)
{
    for (int d = 0; d < devices; d++)
        memset(y[d], 0, n * sizeof(float));
}

static struct matrix
rows_of(const float *at, size_t rows, size_t cols)
{
    return matrix_of(DT_F32, at, rows, cols);
}

static void
check_products(size_t t, size_t out, size_t in)
{
    for (int pass = 0; pass < 3; pass++) {
        clear(ROOM);
        for (int d = 0; d < devices; d++) {
            struct kernels *k = device[d];
            struct matrix m = rows_of(w[d], out, in);
            struct matrix of_in = rows_of(pass ? y[d] : x[d], t, in),
                          of_out = rows_of(pass ? x[d] : y[d], t, out);
            struct matrix right = rows_of(w[d], t, in), dw = rows_of(y[d], out, in);
            if (pass == 0)
                op_linear(k, 1, &of_out, &of_in, &m, NULL);
            else if (pass == 1)
                op_linear_dx(k, 1, &of_in, &of_out, &m, NULL);
            else
                op_linear_dw(k, 1, &dw, &of_out, &right, false);
        }
        same(pass == 0 ? "linear" : pass == 1 ? "linear_dx" : "linear_dw", ROOM, t, in);
    }
}

static void
check_rows(size_t t, size_t n)
{
    struct matrix a, b, g, u;
    clear(ROOM);
    for (int d = 0; d < devices; d++) {
        a = rows_of(y[d], t, n), b = rows_of(x[d], t, n);
        op_norm(device[d], &a, s[d], &b, w[d], 1e-6F);
    }
    same("norm", t * n, t, n);
    for (int d = 0; d < devices; d++) {
        struct matrix again = rows_of(y[d] + t * n, t, n),
                      dy = rows_of(x[d] + 99, t, n);
        a = rows_of(y[d], t, n), b = rows_of(x[d], t, n);
        op_norm_bwd(device[d], &a, y[d] + ROOM / 2, &again, &dy, &b, s[d], w[d], &a);
    }
    same("norm_bwd", ROOM, t, n);
    for (int d = 0; d < devices; d++) {
        a = rows_of(y[d], t, n), g = rows_of(x[d], t, n), u = rows_of(w[d], t, n);
        op_swiglu(device[d], &a, &g, &u);
    }
    same("swiglu", t * n, t, n);
    for (int d = 0; d < devices; d++) {
        memcpy(y[d] + 2 * t * n, x[d] + 77, t * n * sizeof(float));
        a = rows_of(y[d], t, 2 * n), b = rows_of(y[d] + 2 * t * n, t, n);
        g = rows_of(x[d], t, n), u = rows_of(w[d], t, n);
        op_swiglu_bwd(device[d], &a, &b, &g, &u);
    }
    same("swiglu_bwd", ROOM, t, n);
    for (int d = 0; d < devices; d++) {
        memcpy(y[d], x[d], t * n * sizeof(float));
        a = rows_of(y[d], t, n);
        op_cross_entropy(device[d], s[d], &a, ids[d], 0.1F);
    }
    same("cross_entropy", t * n, t, n);
}

/* The largest logit: the first of equals, and none where one is not finite. */
static void
check_argmax(void)
{
    static const struct {
        float v[5];
        int32_t want;
    } cases[] = {
        { { 1, 2, 5, 5, 0 }, 2 },         { { -3, -2, -9, -2, -4 }, 1 },
        { { 0, -0.0F, 0, 0, 0 }, 0 },     { { -0.0F, 0, -1, 0, 0 }, 0 },
        { { 1, 2, INFINITY, 0, 0 }, -1 }, { { 1, 2, 0, 0, -INFINITY }, -1 },
        { { 9, 2, NAN, 0, 10 }, -1 },     { { NAN, 0, 0, 0, 0 }, -1 },
    };
    for (int d = 0; d < devices; d++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct matrix logits = rows_of(cases[i].v, 1, 5);
            op_argmax(device[d], ids[d], &logits);
            CHECK_SAY(*ids[d] == cases[i].want, "argmax: case %zu is %d, want %d", i,
                      (int)*ids[d], (int)cases[i].want);
            *ids[d] = 0;
        }
}

/* Several rows at once. */
static void
check_argmax_rows(void)
{
    static const float v[3][4] = { { 1, 3, 2, 3 },
                                   { 0, NAN, 9, 9 },
                                   { -1, -2, -1, -3 } };
    for (int d = 0; d < devices; d++) {
        struct matrix logits = rows_of(v[0], 3, 4);
        op_argmax(device[d], ids[d], &logits);
        CHECK(ids[d][0] == 1 && ids[d][1] == -1 && ids[d][2] == 0);
    }
}

static void
check_heads(size_t t)
{
    size_t q = t * QUERY * DIM, kv = t * KV * DIM, wide = QUERY * DIM, thin = KV * DIM;
    for (int d = 0; d < devices; d++) {
        struct rope r = { w[d], ids[d], QUERY, DIM, 1e-6F };
        struct matrix to = rows_of(y[d], t, wide), from = rows_of(x[d], t, wide),
                      grad = rows_of(s[d] + ROOM / 2, t, wide);
        op_qk_norm_rope(device[d], &to, s[d], &from, w[d], &r);
        memcpy(s[d] + ROOM / 2, x[d] + 5, q * sizeof(float));
        op_qk_norm_rope_bwd(device[d], &grad, y[d] + q, &from, s[d], w[d], &r);
        memcpy(y[d] + q + DIM, s[d] + ROOM / 2, q * sizeof(float));
    }
    same("qk_norm_rope", 2 * q + DIM, t, DIM);
    for (int back = 0; back < 2; back++) {
        for (int d = 0; d < devices; d++) {
            struct heads h = { t, 0, QUERY, KV, DIM, first[d], 0 };
            struct matrix out = rows_of(y[d], t, wide), from = rows_of(x[d], t, wide),
                          key = rows_of(w[d], t, thin),
                          value = rows_of(w[d] + kv, t, thin);
            if (!back) {
                op_attention(device[d], &out, s[d], &from, &key, &value, &h);
                continue;
            }
            struct matrix dk = rows_of(y[d] + q, t, thin),
                          dv = rows_of(y[d] + q + kv, t, thin),
                          dout = rows_of(x[d] + 55, t, wide),
                          was = rows_of(s[d] + ROOM / 2, t, wide);
            memcpy(was.data, y[d], q * sizeof(float));
            op_attention_bwd(device[d], &out, &dk, &dv, &dout, &was, s[d], &from, &key,
                             &value, NULL, &h);
        }
        same(back ? "attention_bwd" : "attention", back ? q + 2 * kv : q, t, DIM);
    }
}

static void
check_compute(enum dtype compute)
{
    static const size_t widths[] = { 16, 33, 64, 97, 128 };
    enum { WIDTHS = sizeof widths / sizeof *widths };
    open_devices(compute);
    if (compute == DT_F32)
        check_argmax(), check_argmax_rows();
    for (size_t t = 1; t <= MOST_TOKENS; t++) {
        for (int d = 0; d < devices; d++)
            for (size_t i = 0; i < t; i++) {
                ids[d][i] = (int32_t)(check_random(i) % 16);
                first[d][i] = (int32_t)(t % 3 == 0 ? i - i % 16 : 0);
            }
        for (size_t a = 0; a < WIDTHS; a++) {
            check_products(t, widths[a], widths[(a + t) % WIDTHS]);
            if (compute == DT_F32) // others know nothing of it
                check_rows(t, widths[a]);
        }
        check_heads(t);
    }
    CHECK_SAY(err.kind == ERR_NONE, "%s", err.msg);
    close_devices();
}

int
main(void)
{
    check_compute(DT_F32);
    check_compute(DT_BF16);
    return check_end();
}
