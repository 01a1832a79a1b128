/* SPDX-License-Identifier: MIT */
/* coarse: see coarse.h; rows on all threads, coarse_kernel.c multiplies them. */
#include "kernels/cpu/coarse.h"

#include "kernels/cpu/sizes.h"

enum {
    ROWS = 64,       // of the weight
    EACH = 8,        // parts for each thread
    SMALL = 1 << 15, // weights that are not worth a second thread
};

static const struct {
    coarse_quantize_fn *quantize;
    coarse_rows_fn *rows;
    bool pays;
} table[ISA_COUNT] = {
    [ISA_SCALAR] = { coarse_quantize_scalar, coarse_rows_scalar, false },
#if defined __x86_64__
    [ISA_AVX2] = { coarse_quantize_avx2, coarse_rows_avx2, true },
    [ISA_AVX512] = { coarse_quantize_avx512, coarse_rows_avx512, true },
#elif defined __aarch64__
    [ISA_NEON] = { coarse_quantize_neon, coarse_rows_neon, false },
#endif
};

struct run {
    struct coarse_job job;
    coarse_rows_fn *rows;
    size_t part;
};

bool
coarse_pays(enum isa isa)
{
    return table[isa].pays;
}

size_t
coarse_workspace(size_t tokens, size_t in)
{
    return tokens * ceil_div(in, COARSE_PART) * sizeof(struct coarse);
}

static int
run_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct run *r = ctx;
    size_t row = i * r->part;
    (void)worker;
    (void)err;
    r->rows(&r->job, row, min(r->job.g->w->rows - row, r->part));
    return 0;
}

int
coarse_run(const struct gemv *g, enum isa isa, struct par *pool, void *workspace,
           struct err *err)
{
    const struct matrix *w = g->w;
    struct coarse *x = workspace;
    struct run r = { .job = { g, x, ceil_div(w->cols, COARSE_PART) },
                     .rows = table[isa].rows };
    if (err->kind)
        return -1;
    for (size_t t = 0; t < g->tokens; t++)
        table[isa].quantize(x + t * r.job.parts, g->x + t * w->cols, w->cols);
    if (w->rows * w->cols <= SMALL) {
        r.rows(&r.job, 0, w->rows);
        return 0;
    }
    r.part = w->rows / par_threads(pool) / EACH / ROWS * ROWS;
    r.part = r.part < ROWS ? ROWS : r.part;
    return par_run(pool, ceil_div(w->rows, r.part), run_part, &r, err);
}
