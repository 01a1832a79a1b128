/* SPDX-License-Identifier: MIT */
/* gemv: rows of a weight on all threads; the work is in gemv_kernel.c. */
#include "kernels/cpu/gemm.h"

enum {
    PART = 64, // rows of the weight: whole strips of every path
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
};

static int
part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    size_t row = i * PART, left = j->g.w->out - row;
    (void)worker;
    (void)err;
    j->run(&j->g, row, left < PART ? left : PART);
    return 0;
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
    return team_for(team, (w->out + PART - 1) / PART, part, &j, err);
}
