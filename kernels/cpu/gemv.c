/* SPDX-License-Identifier: MIT */
/* gemv: rows of a weight on all threads; the work is in gemv_kernel.c. */
#include "kernels/cpu/gemm.h"

enum {
    PART = 64, // rows of the weight: whole strips of every path
    MOST = 8 * PART,
    EACH = 4, // parts for each thread
    SMALL = 1 << 15,
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

struct job {
    struct gemv g;
    gemv_fn *run;
    size_t part; // rows
};

static int
part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    size_t row = i * j->part, left = j->g.w->out - row;
    (void)worker;
    (void)err;
    j->run(&j->g, row, left < j->part ? left : j->part);
    return 0;
}

/* Many rows, since a strip fetches what the next one needs. */
static size_t
part_rows(size_t out, unsigned threads)
{
    size_t rows = out / threads / EACH / PART * PART;
    return rows < PART ? PART : rows > MOST ? MOST : rows;
}

/* Where vectors are wide a weight is read and decoded again for each four rows of x in
 * less time than it takes to pack it. */
size_t
gemv_most(enum isa isa)
{
#if defined __x86_64__
    if (isa == ISA_AVX512)
        return GEMV_MOST;
#endif
    (void)isa;
    return GEMV_MOST / 4;
}

int
gemv_run(float *y, const float *x, const struct weight *w, size_t rows, bool add,
         enum isa isa, struct team *team, struct err *err)
{
    struct job j = { .g = { y, x, w, rows, add }, .run = table[isa] };
    if (err->kind)
        return -1;
    if (w->out * w->in <= SMALL) {
        j.run(&j.g, 0, w->out);
        return 0;
    }
    j.part = part_rows(w->out, team_size(team));
    return team_for(team, (w->out + j.part - 1) / j.part, part, &j, err);
}
