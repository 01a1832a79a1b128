/* SPDX-License-Identifier: MIT */
/* pair: the CPU and a GPU side by side.  The CPU's operations are the truth: they get the
 * GPU's inputs, rounded as its activations are, and what comes out is compared.
 *
 * Without a GPU a program says so and ends with 77: not run. */
#ifndef NIBBLE_TESTS_GPU_PAIR_H
#define NIBBLE_TESTS_GPU_PAIR_H

#include "kernels/kernels.h"
#include "lib/core/num.h"
#include "lib/core/os.h"
#include "tests/unit/check.h"

#include <math.h>

static struct kernels *cpu, *gpu;
static struct err pair_err;

enum {
    PAIR_NOT_RUN = 77,
    PAIR_SMALL = 1 << 19,
    PAIR_FEW = 8, // tokens that our own kernels multiply: GEMV_MOST of kernels/cuda
};

/* --small: without what is large, and with fewer of what is like another, for tools that
 * make a GPU a hundred times as slow.  What changes is which cases there are, not what they
 * check. */
static bool pair_small;
/* --tiny: fewer still, for what makes it ten thousand times as slow: tests/emulate. */
static bool pair_tiny;
/* --few: of these none that racecheck does not get through. */
static bool pair_few;

static inline bool
pair_option(int argc, char **argv, const char *word)
{
    return argc > 1 && strcmp(argv[1], word) == 0;
}

static inline void
pair_options(int argc, char **argv)
{
    pair_few = pair_option(argc, argv, "--few");
    pair_tiny = pair_few || pair_option(argc, argv, "--tiny");
    pair_small = pair_tiny || pair_option(argc, argv, "--small");
}

/* With NIBBLE_GPU_CASES set, each case as it begins: what a slow tool is at. */
static inline void
pair_begins(const char *name)
{
    if (getenv("NIBBLE_GPU_CASES"))
        fprintf(stderr, "%.1f s: %s\n", os_seconds(), name);
}

/* Whether a case of that many numbers is to be run. */
static inline bool
pair_takes(size_t numbers)
{
    return !pair_small || numbers <= PAIR_SMALL;
}

/* Open both; act: what the GPU's activations are. */
static inline void
pair_open(enum dtype act)
{
    const struct device is = kernels_cuda_device(act, false);
    if (kernels_cuda_count() == 0) {
        kernels_cuda(&is, 0, &pair_err);
        printf("not run: there is no GPU%s%s\n", *pair_err.msg ? "; " : "",
               pair_err.msg);
        exit(PAIR_NOT_RUN);
    }
    cpu = kernels_cpu(DT_F32, isa_best(), 8, &pair_err);
    gpu = kernels_cuda(&is, 0, &pair_err);
    if (!cpu || !gpu)
        printf("%s\n", pair_err.msg);
    NEED(cpu && gpu);
}

static inline void
pair_close(void)
{
    CHECK_SAY(pair_err.kind == ERR_NONE, "%s", pair_err.msg);
    gpu->close(gpu);
    cpu->close(cpu);
    pair_err = (struct err){ 0 };
}

/* Numbers on the GPU as a type, from f32. */
static inline void *
pair_put(const float *x, enum dtype dtype, size_t n)
{
    void *p = gpu->alloc(gpu, n * dtype_bits(dtype) / 8);
    NEED(p);
    if (dtype == DT_F32) {
        gpu->upload(gpu, p, x, n * sizeof *x);
        return p;
    }
    uint16_t *half = malloc(n * sizeof *half + 1);
    NEED(half);
    for (size_t i = 0; i < n; i++)
        half[i] = dtype == DT_BF16 ? num_to_bf16(x[i]) : num_to_f16(x[i]);
    gpu->upload(gpu, p, half, n * sizeof *half);
    free(half);
    return p;
}

static inline void *
pair_bytes(const void *x, size_t bytes)
{
    void *p = gpu->alloc(gpu, bytes);
    NEED(p);
    gpu->upload(gpu, p, x, bytes);
    return p;
}

/* Memory of the GPU that no operation may leave as it is: NaN in any float type. */
static inline void *
pair_poisoned(size_t bytes)
{
    uint8_t *host = malloc(bytes + 1);
    NEED(host);
    memset(host, 0xff, bytes);
    void *p = pair_bytes(host, bytes);
    free(host);
    return p;
}

/* And back: n numbers as f32; free them. */
static inline float *
pair_get(const void *p, enum dtype dtype, size_t n)
{
    float *x = malloc(n * sizeof *x + 1);
    NEED(x);
    if (dtype == DT_F32) {
        CHECK(gpu->download(gpu, x, p, n * sizeof *x) == 0);
        return x;
    }
    uint16_t *half = malloc(n * sizeof *half + 1);
    NEED(half);
    CHECK(gpu->download(gpu, half, p, n * sizeof *half) == 0);
    for (size_t i = 0; i < n; i++)
        x[i] = dtype == DT_BF16 ? num_from_bf16(half[i]) : num_from_f16(half[i]);
    free(half);
    return x;
}

enum { PAIR_PERIOD = (1 << 20) + 7 }; // of random numbers: more would only take time

/* Like random numbers, the same every time: about normal, times size; rounded as dtype. */
static inline float *
pair_random(size_t n, float size, enum dtype dtype, uint32_t seed)
{
    float *x = malloc(n * sizeof *x + 1);
    const uint32_t key[2] = { seed, 17 };
    NEED(x);
    for (size_t i = 0; i < n && i < PAIR_PERIOD; i++) {
        uint32_t c[4] = { (uint32_t)i, (uint32_t)(i >> 32), 0, 0 }, out[4];
        philox4x32(out, c, key);
        float sum = 0;
        for (int k = 0; k < 4; k++)
            sum += (float)(out[k] >> 8) * 0x1p-24F - 0.5F;
        x[i] = sum * 1.7320508F * size;
        if (dtype == DT_BF16)
            x[i] = num_from_bf16(num_to_bf16(x[i]));
    }
    for (size_t i = PAIR_PERIOD; i < n; i++)
        x[i] = x[i - PAIR_PERIOD];
    return x;
}

/* |found - want| / |want| over all; NaN counts as infinitely far. */
static inline double
pair_off(const float *found, const float *want, size_t n)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)found[i] - (double)want[i];
        if (isnan(d))
            return INFINITY;
        off += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return size > 0 ? sqrt(off / size) : off > 0 ? INFINITY : 0;
}

#define PAIR_NEAR(what, found, want, n, limit)                                         \
    do {                                                                               \
        double off_ = pair_off(found, want, n);                                        \
        CHECK_SAY(off_ <= (limit), "%s: off by %g, at most %g is right", what, off_,   \
                  (double)(limit));                                                    \
    } while (0)

#endif
