/* SPDX-License-Identifier: MIT */
/* tune: which of cuBLASLt's algorithms for a product is the fastest on this GPU.
 *
 *   tune [TOKENS]...      default 16384 4096 2048
 *   tune head             only those of the head
 *
 * For the products of Qwen3-4B's training: every algorithm of the library's list in turns,
 * for long enough that the chip has the clocks and heat of real work, several rounds.
 * Prints lines for kernels/cuda/tuned.h, where the first differs by more than 1 %. */
#include "kernels/kernels.h"

#include "lib/core/os.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 12, ROUNDS = 3, HIDDEN = 2560, VOCAB = 151936, HEAD_ROWS = 3328 };

enum what { LINEAR, DX, DW, DW_F32 };

struct item {
    size_t out, in;
    enum what what;
    bool add;
};

static const struct item items[] = {
    { 4096, HIDDEN, LINEAR, false }, { 1024, HIDDEN, LINEAR, false },
    { 9728, HIDDEN, LINEAR, false }, { HIDDEN, 4096, LINEAR, true },
    { HIDDEN, 9728, LINEAR, true },  { 4096, HIDDEN, DX, false },
    { 1024, HIDDEN, DX, true },      { 9728, HIDDEN, DX, true },
    { HIDDEN, 4096, DX, false },     { HIDDEN, 9728, DX, false },
    { 4096, HIDDEN, DW, false },     { 1024, HIDDEN, DW, false },
    { 9728, HIDDEN, DW, false },     { HIDDEN, 4096, DW, false },
    { HIDDEN, 9728, DW, false },
};
static const struct item head[] = {
    { VOCAB, HIDDEN, LINEAR, false },
    { VOCAB, HIDDEN, DX, false },
    { VOCAB, HIDDEN, DW_F32, true },
};

static struct kernels *gpu;
static struct err err;
static uint16_t *pool; // random bf16
static float *wide;    // a gradient
static void *room, *one;

enum { POOL = 1 << 28 };

static void
wait(void)
{
    float x;
    if (gpu->download(gpu, &x, one, sizeof x) < 0) {
        fprintf(stderr, "tune: %s\n", err.msg);
        exit(1);
    }
}

static void
run(const struct item *i, size_t tokens)
{
    bool large = i->out == VOCAB; // than the pool
    const void *values = large ? (const void *)wide : pool;
    const struct weight w = {
        .dtype = DT_NVFP4, .scale2 = one, .expanded = values, .out = i->out, .in = i->in
    };
    uint16_t *x = pool + POOL / 4, *c = pool + POOL / 4 + 4096;
    if (i->what == LINEAR)
        gpu->linear(gpu, room, x, &w, tokens, i->add ? c : NULL);
    else if (i->what == DX && large)
        gpu->linear_dx(gpu, x, room, &w, tokens, NULL);
    else if (i->what == DX)
        gpu->linear_dx(gpu, room, x, &w, tokens, i->add ? c : NULL);
    else
        gpu->linear_dw(gpu,
                       &(struct grad){ wide, i->what == DW_F32 ? DT_F32 : DT_BF16 },
                       large ? room : x, c, i->out, i->in, tokens, i->add);
}

static double
time_of(const struct item *i, size_t tokens)
{
    double flops = 2 * (double)i->out * (double)i->in * (double)tokens;
    int times = (int)(15e-3 / (flops / 6e14)) + 2; // 15 ms
    run(i, tokens);
    wait();
    double start = os_seconds();
    for (int k = 0; k < times; k++)
        run(i, tokens);
    wait();
    return (os_seconds() - start) / times * 1e6;
}

static void
tune(const struct item *i, size_t tokens, void (*choose)(struct kernels *, int))
{
    static const char *const names[] = { "TN", "NN", "NT", "NT" };
    double best[MOST];
    int at = 0;
    for (int a = 0; a < MOST; a++)
        best[a] = 1e30;
    for (int round = 0; round < ROUNDS; round++)
        for (int a = 0; a < MOST; a++) {
            choose(gpu, a);
            double us = time_of(i, tokens);
            best[a] = us < best[a] ? us : best[a];
        }
    for (int a = 1; a < MOST; a++)
        at = best[a] < best[at] ? a : at;
    double flops = 2e-6 * (double)i->out * (double)i->in * (double)tokens;
    size_t m = i->what == LINEAR ? i->out : i->in;
    size_t n = i->what < DW ? tokens : i->out, k = i->what == LINEAR ? i->in
                                                   : i->what == DX   ? i->out
                                                                     : tokens;
    printf("%s{ %s, %d, %zu, %zu, %zu, %d }, // %.0f, first %.0f\n",
           best[at] < 0.99 * best[0] ? "" : "// ", names[i->what], i->what == DW_F32, m,
           n, k, at, flops / best[at], flops / best[0]);
    fflush(stdout);
}

static void
fill_pool(void)
{
    enum { N = (1 << 20) + 7 };
    uint16_t *x = malloc((size_t)POOL * 2);
    uint32_t state = 1;
    for (size_t i = 0; i < N; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            state = state * 1664525 + 1013904223;
            sum += (float)(state >> 8) * 0x1p-24F - 0.5F;
        }
        union {
            float f;
            uint32_t bits;
        } u = { sum };
        x[i] = (uint16_t)(u.bits >> 16);
    }
    for (size_t i = N; i < POOL; i++)
        x[i] = x[i - N];
    pool = gpu->alloc(gpu, (size_t)POOL * 2);
    if (pool)
        gpu->upload(gpu, pool, x, (size_t)POOL * 2);
    free(x);
}

int
main(int argc, char **argv)
{
    static const size_t usual[] = { 16384, 4096, 2048 };
    const float half = 0.5F;
    gpu = kernels_cuda(DT_BF16, 0, &err);
    void *lib = dlopen("libnibble-cuda.so", RTLD_NOW | RTLD_NOLOAD);
    if (!lib && getenv("NIBBLE_CUDA"))
        lib = dlopen(getenv("NIBBLE_CUDA"), RTLD_NOW | RTLD_NOLOAD);
    void (*choose)(struct kernels *, int) = NULL;
    if (lib)
        *(void **)&choose = dlsym(lib, "nibble_cuda_choose");
    if (!gpu || !choose) {
        fprintf(stderr, "tune: %s\n", gpu ? "no backend to tune" : err.msg);
        return 77;
    }
    fill_pool();
    room = gpu->alloc(gpu, (size_t)HEAD_ROWS * VOCAB * 2);
    wide = gpu->alloc(gpu, (size_t)VOCAB * HIDDEN * 4);
    for (size_t i = 0; room && wide && i < 3; i++) { // random, too
        gpu->copy(gpu, (char *)room + i * POOL, pool, POOL);
        gpu->copy(gpu, (char *)wide + i * POOL, pool, POOL);
    }
    one = gpu->alloc(gpu, sizeof half);
    gpu->upload(gpu, one, &half, sizeof half);
    bool only_head = argc == 2 && strcmp(argv[1], "head") == 0;
    for (int t = 0; t < (argc > 1 ? argc - 1 : 3) && !only_head; t++) {
        size_t tokens = argc > 1 ? strtoul(argv[t + 1], NULL, 10) : usual[t];
        for (size_t i = 0; i < sizeof items / sizeof *items; i++)
            tune(&items[i], tokens, choose);
    }
    for (size_t rows = 2048; rows <= HEAD_ROWS; rows += HEAD_ROWS - 2048)
        for (size_t i = 0; i < sizeof head / sizeof *head; i++)
            tune(&head[i], rows, choose);
    gpu->close(gpu);
    return 0;
}
