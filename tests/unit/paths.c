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
        struct kernels *k = device[d] = kernels_cpu(compute, (enum isa)i, 2, &err);
        NEED(k);
        float **all[] = { &x[d], &w[d], &y[d], &s[d] };
        for (int n = 0; n < 4; n++)
            NEED((*all[n] = k->alloc(k, ROOM * sizeof(float))));
        NEED((ids[d] = k->alloc(k, MOST_TOKENS * sizeof(int32_t))));
        NEED((first[d] = k->alloc(k, MOST_TOKENS * sizeof(int32_t))));
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
            k->release(k, all[n]);
        k->close(k);
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

static void
check_products(size_t t, size_t out, size_t in)
{
    for (int pass = 0; pass < 3; pass++) {
        clear(ROOM);
        for (int d = 0; d < devices; d++) {
            struct kernels *k = device[d];
            struct weight m = { .dtype = DT_F32, .values = w[d], .out = out, .in = in };
            if (pass == 0)
                k->linear(k, y[d], x[d], &m, t, NULL);
            else if (pass == 1)
                k->linear_dx(k, y[d], x[d], &m, t, NULL);
            else
                k->linear_dw(k, &(struct grad){ y[d], DT_F32 }, x[d], w[d], out, in, t,
                             false);
        }
        same(pass == 0 ? "linear" : pass == 1 ? "linear_dx" : "linear_dw", ROOM, t, in);
    }
}

static void
check_rows(size_t t, size_t n)
{
    clear(ROOM);
    for (int d = 0; d < devices; d++)
        device[d]->norm(device[d], y[d], s[d], x[d], w[d], t, n, 1e-6F);
    same("norm", t * n, t, n);
    for (int d = 0; d < devices; d++)
        device[d]->norm_dx(device[d], y[d], y[d] + ROOM / 2, y[d] + t * n, x[d] + 99,
                           x[d], s[d], w[d], t, n, y[d]);
    same("norm_dx", ROOM, t, n);
    for (int d = 0; d < devices; d++)
        device[d]->swiglu(device[d], y[d], x[d], w[d], t * n);
    same("swiglu", t * n, t, n);
    for (int d = 0; d < devices; d++) {
        memcpy(y[d] + 2 * t * n, x[d] + 77, t * n * sizeof(float));
        device[d]->swiglu_dx(device[d], y[d], y[d] + 2 * t * n, x[d], w[d], t, n);
    }
    same("swiglu_dx", ROOM, t, n);
    for (int d = 0; d < devices; d++) {
        memcpy(y[d], x[d], t * n * sizeof(float));
        device[d]->cross_entropy(device[d], s[d], y[d], ids[d], t, n, 0.1F);
    }
    same("cross_entropy", t * n, t, n);
}

/* The largest logit: the first of equals, and none where one is not finite. */
static void
check_best(void)
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
            device[d]->best(device[d], ids[d], cases[i].v, 5);
            CHECK_SAY(*ids[d] == cases[i].want, "best: case %zu is %d, want %d", i,
                      (int)*ids[d], (int)cases[i].want);
            *ids[d] = 0;
        }
}

static void
check_heads(size_t t)
{
    size_t q = t * QUERY * DIM, kv = t * KV * DIM;
    for (int d = 0; d < devices; d++) {
        struct turn turn = { w[d], ids[d], t, QUERY, DIM, 1e-6F, 0 };
        device[d]->turn(device[d], y[d], s[d], x[d], w[d], &turn);
        memcpy(s[d] + ROOM / 2, x[d] + 5, q * sizeof(float));
        device[d]->turn_dx(device[d], s[d] + ROOM / 2, y[d] + q, x[d], s[d], w[d],
                           &turn);
        memcpy(y[d] + q + DIM, s[d] + ROOM / 2, q * sizeof(float));
    }
    same("turn", 2 * q + DIM, t, DIM);
    for (int d = 0; d < devices; d++) {
        struct heads h = { t, 0, QUERY, KV, DIM, first[d], 0, 0 };
        device[d]->attention(device[d], y[d], s[d], x[d], w[d], w[d] + kv, &h);
    }
    same("attention", q, t, DIM);
    for (int d = 0; d < devices; d++) {
        struct heads h = { t, 0, QUERY, KV, DIM, first[d], 0, 0 };
        memcpy(s[d] + ROOM / 2, y[d], q * sizeof(float)); // out
        device[d]->attention_dx(device[d], y[d], y[d] + q, y[d] + q + kv, x[d] + 55,
                                s[d] + ROOM / 2, s[d], x[d], w[d], w[d] + kv, NULL, &h);
    }
    same("attention_dx", q + 2 * kv, t, DIM);
}

static void
check_compute(enum dtype compute)
{
    static const size_t widths[] = { 16, 33, 64, 97, 128 };
    enum { WIDTHS = sizeof widths / sizeof *widths };
    open_devices(compute);
    if (compute == DT_F32)
        check_best();
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
