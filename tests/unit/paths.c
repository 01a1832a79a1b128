/* SPDX-License-Identifier: MIT */
/* paths: the operations of the CPU give the same bits on every instruction set, for any
 * number of tokens, at the ends of panels; with products of f32 and of bf16. */
#include "kernels/kernels.h"

#include "tests/unit/check.h"

#include <math.h>

enum { MAX_TOKENS = 132, SIZE = 1 << 18, QUERY = 4, KV = 2, DIM = 32 };

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
        struct kernels *k = device[d] =
            kernels_cpu(&(struct cpu_kind){ compute, (enum isa)i, 2 }, &err);
        NEED(k);
        float **all[] = { &x[d], &w[d], &y[d], &s[d] };
        for (int n = 0; n < 4; n++)
            NEED((*all[n] = kernels_alloc(k, MEMORY_WORK, SIZE * sizeof(float))));
        NEED((ids[d] = kernels_alloc(k, MEMORY_WORK, MAX_TOKENS * sizeof(int32_t))));
        NEED((first[d] = kernels_alloc(k, MEMORY_WORK, MAX_TOKENS * sizeof(int32_t))));
        for (size_t e = 0; e < SIZE; e++) {
            x[d][e] = (float)(check_random(e) * 0x1p-32 - 0.5);
            w[d][e] = (float)(check_random(e + SIZE) * 0x1p-32 - 0.5);
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

/* The first n of y are those of the first device. */
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
f32(const float *p, size_t rows, size_t cols)
{
    return matrix_of(DT_F32, p, rows, cols);
}

static void
check_products(size_t t, size_t out, size_t in)
{
    for (int pass = 0; pass < 3; pass++) {
        clear(SIZE);
        for (int d = 0; d < devices; d++) {
            struct matrix weight = f32(w[d], out, in), in_x = f32(x[d], t, in),
                          in_w = f32(w[d], t, in), d_out = f32(x[d], t, out);
            struct matrix to = pass == 0   ? f32(y[d], t, out)
                               : pass == 1 ? f32(y[d], t, in)
                                           : f32(y[d], out, in);
            if (pass == 0)
                op_linear(device[d], 1, &to, &in_x, &weight, NULL);
            else if (pass == 1)
                op_linear_dx(device[d], 1, &to, &d_out, &weight, NULL);
            else
                op_linear_dw(device[d], 1, &to, &d_out, &in_w, false);
        }
        same(pass == 0 ? "linear" : pass == 1 ? "linear_dx" : "linear_dw", SIZE, t, in);
    }
}

static void
check_rows(size_t t, size_t n)
{
    clear(SIZE);
    for (int d = 0; d < devices; d++) {
        struct matrix to = f32(y[d], t, n), in = f32(x[d], t, n);
        op_norm(device[d], &to, s[d], &in, w[d], 1e-6F);
    }
    same("norm", t * n, t, n);
    for (int d = 0; d < devices; d++) {
        struct matrix dx = f32(y[d], t, n), again = f32(y[d] + t * n, t, n),
                      dy = f32(x[d] + 99, t, n), in = f32(x[d], t, n);
        op_norm_bwd(device[d], &dx, y[d] + SIZE / 2, &again, &dy, &in, s[d], w[d], &dx);
    }
    same("norm_bwd", SIZE, t, n);
    for (int d = 0; d < devices; d++) {
        struct matrix to = f32(y[d], t, n), gate = f32(x[d], t, n),
                      up = f32(w[d], t, n);
        op_swiglu(device[d], &to, &gate, &up);
    }
    same("swiglu", t * n, t, n);
    for (int d = 0; d < devices; d++) {
        struct matrix d_gate_up = f32(y[d], t, 2 * n), dy = f32(y[d] + 2 * t * n, t, n),
                      gate = f32(x[d], t, n), up = f32(w[d], t, n);
        memcpy(dy.data, x[d] + 77, t * n * sizeof(float));
        op_swiglu_bwd(device[d], &d_gate_up, &dy, &gate, &up);
    }
    same("swiglu_bwd", SIZE, t, n);
    for (int d = 0; d < devices; d++) {
        struct matrix logits = f32(y[d], t, n);
        memcpy(y[d], x[d], t * n * sizeof(float));
        op_cross_entropy(device[d], s[d], &logits, ids[d], 0.1F);
    }
    same("cross_entropy", t * n, t, n);
    for (int d = 0; d < devices; d++) {
        const struct distill how = { 0.7F, 1.3F };
        struct matrix logits = f32(y[d], t, n), theirs = f32(w[d], t, n);
        memcpy(y[d], x[d], t * n * sizeof(float));
        op_distill(device[d], y[d] + t * n, y[d] + t * n + t, &logits, &theirs, ids[d],
                   &how, 0.1F);
    }
    same("distill", t * n + 2 * t, t, n);
}

/* The largest logit: the first of equals, and -1 where one is not finite. */
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
            struct matrix logits = f32(cases[i].v, 1, 5);
            op_argmax(device[d], ids[d], &logits);
            CHECK_SAY(*ids[d] == cases[i].want, "argmax: case %zu is %d, want %d", i,
                      (int)*ids[d], (int)cases[i].want);
            *ids[d] = 0;
        }
}

static void
check_argmax_rows(void)
{
    static const float v[3][4] = { { 1, 3, 2, 3 },
                                   { 0, NAN, 9, 9 },
                                   { -1, -2, -1, -3 } };
    for (int d = 0; d < devices; d++) {
        struct matrix logits = f32(v[0], 3, 4);
        op_argmax(device[d], ids[d], &logits);
        CHECK(ids[d][0] == 1 && ids[d][1] == -1 && ids[d][2] == 0);
    }
}

static void
check_rope(size_t t)
{
    size_t q = t * QUERY * DIM, width = (size_t)QUERY * DIM;
    for (int d = 0; d < devices; d++) {
        struct rope r = { w[d], ids[d], QUERY, DIM, 1e-6F };
        struct matrix to = f32(y[d], t, width), in = f32(x[d], t, width),
                      grad = f32(s[d] + SIZE / 2, t, width);
        op_qk_norm_rope(device[d], &to, s[d], &in, w[d], &r);
        memcpy(grad.data, x[d] + 5, q * sizeof(float));
        op_qk_norm_rope_bwd(device[d], &grad, y[d] + q, &in, s[d], w[d], &r);
        memcpy(y[d] + q + DIM, grad.data, q * sizeof(float));
    }
    same("qk_norm_rope", 2 * q + DIM, t, DIM);
}

static void
check_attention(size_t t)
{
    size_t width = (size_t)QUERY * DIM, narrow = (size_t)KV * DIM;
    size_t q = t * width, kv = t * narrow;
    for (int bwd = 0; bwd < 2; bwd++) {
        for (int d = 0; d < devices; d++) {
            struct heads h = { t, 0, QUERY, KV, DIM, first[d], 0 };
            struct matrix to = f32(y[d], t, width), in = f32(x[d], t, width),
                          key = f32(w[d], t, narrow), value = f32(w[d] + kv, t, narrow);
            if (!bwd) {
                op_attention(device[d], &to, s[d], &in, &key, &value, &h);
                continue;
            }
            struct matrix dkey = f32(y[d] + q, t, narrow),
                          dvalue = f32(y[d] + q + kv, t, narrow),
                          dout = f32(x[d] + 55, t, width),
                          out = f32(s[d] + SIZE / 2, t, width);
            memcpy(out.data, y[d], q * sizeof(float));
            op_attention_bwd(device[d], &to, &dkey, &dvalue, &dout, &out, s[d], &in,
                             &key, &value, NULL, &h);
        }
        same(bwd ? "attention_bwd" : "attention", bwd ? q + 2 * kv : q, t, DIM);
    }
}

static void
check_compute(enum dtype compute)
{
    static const size_t widths[] = { 16, 33, 64, 97, 128 };
    enum { WIDTHS = sizeof widths / sizeof *widths };
    open_devices(compute);
    if (compute == DT_F32) {
        check_argmax();
        check_argmax_rows();
    }
    for (size_t t = 1; t <= MAX_TOKENS; t++) {
        for (int d = 0; d < devices; d++)
            for (size_t i = 0; i < t; i++) {
                ids[d][i] = (int32_t)(check_random(i) % 16);
                first[d][i] = (int32_t)(t % 3 == 0 ? i - i % 16 : 0);
            }
        for (size_t a = 0; a < WIDTHS; a++) {
            check_products(t, widths[a], widths[(a + t) % WIDTHS]);
            if (compute == DT_F32) // compute changes products only
                check_rows(t, widths[a]);
        }
        check_rope(t);
        check_attention(t);
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
