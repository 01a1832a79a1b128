/* SPDX-License-Identifier: MIT */
/* gemv: rows of a weight on all threads; gemv_kernel.c multiplies them. */
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/flush.h"
#include "kernels/cpu/sizes.h"

enum {
    PART = 64, // rows of the weight: a multiple of every strip
    MAX_ROWS = 8 * PART,
    EACH = 4,        // parts for each thread, but for is_multiplied
    MANY = 4,        // rows of x
    SMALL = 1 << 15, // weights that are not worth a second thread
};

static gemv_fn *const table[ISA_COUNT] = {
    [ISA_SCALAR] = gemv_scalar,
#if defined __x86_64__
    [ISA_AVX2] = gemv_avx2,
    [ISA_AVX512] = gemv_avx512,
#elif defined __aarch64__
    [ISA_NEON] = gemv_neon,
#endif
};

struct gemv_job {
    const struct gemv *g;
    gemv_fn *run;
    size_t part; // rows
};

/* For bf16 denormals are flushed; of NVFP4 only results, since decoding has denormal
 * operands.  Neither x nor decoded weights are denormal. */
static void
run_rows(const struct gemv_job *j, size_t row, size_t rows)
{
    bool decodes = j->g->w->dtype == DT_NVFP4;
    uint64_t mode = j->g->bf16 ? flush_begin(decodes ? FLUSH_RESULTS : FLUSH_ALL) : 0;
    j->run(j->g, row, rows);
    if (j->g->bf16)
        flush_end(mode);
}

static int
part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct gemv_job *j = ctx;
    size_t row = i * j->part;
    (void)worker;
    (void)err;
    run_rows(j, row, min(j->g->w->rows - row, j->part));
    return 0;
}

/* Whether the first lines of a part, which nothing has prefetched, cost more than threads that
 * wait for each other: where multiplications limit all the other lines. */
static bool
is_multiplied(const struct gemv *g, enum isa isa)
{
#if defined __x86_64__
    return isa == ISA_AVX512 && g->w->dtype == DT_NVFP4 && g->tokens >= MANY;
#else
    (void)g;
    (void)isa;
    return false;
#endif
}

/* Many rows at a time, since each strip prefetches for the next. */
static size_t
part_rows(const struct gemv *g, enum isa isa, unsigned threads)
{
    unsigned each = is_multiplied(g, isa) ? 1 : EACH;
    size_t rows = g->w->rows / threads / each / PART * PART;
    return rows < PART ? PART : min(rows, MAX_ROWS);
}

/* With wide vectors, reading and decoding a weight again for each few rows of x takes less
 * time than packing it; with AVX2 NVFP4 is decoded only once. */
size_t
gemv_max(enum isa isa, const struct matrix *w, bool bf16)
{
    if (bf16 && w->dtype == DT_NVFP4 && !FLUSH_APART)
        return 0;
#if defined __x86_64__
    if (isa == ISA_AVX512 || (isa == ISA_AVX2 && w->dtype == DT_NVFP4))
        return GEMV_MAX;
#endif
    (void)isa;
    return GEMV_MAX / 4;
}

void
gemv_round_x(float *out, const float *x, const struct matrix *w, size_t tokens,
             enum isa isa)
{
    uint64_t mode = flush_begin(FLUSH_ALL);
    gemm_of(isa)->round(out, x, tokens * w->cols,
                        w->dtype == DT_NVFP4 && w->scale2 ? *w->scale2 : 1);
    flush_end(mode);
}

int
gemv_run(const struct gemv *g, enum isa isa, struct par *pool, struct err *err)
{
    struct gemv_job j = { .g = g, .run = table[isa] };
    size_t out = g->w->rows;
    if (err->kind)
        return -1;
    if (out * g->w->cols <= SMALL) {
        run_rows(&j, 0, out);
        return 0;
    }
    j.part = part_rows(g, isa, par_threads(pool));
    return par_run(pool, ceil_div(out, j.part), part, &j, err);
}
