/* SPDX-License-Identifier: MIT */
/* adamw: parts of a tensor on all threads; the work is in adamw_kernel.c. */
#include "kernels/cpu/adamw.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops.h"

#include <math.h>

static adamw_fn *const table[ISA_COUNT] = {
    [ISA_SCALAR] = adamw_scalar,
#if defined __x86_64__
    [ISA_AVX2] = adamw_avx2,
    [ISA_AVX512] = adamw_avx512,
#elif defined __aarch64__
    [ISA_NEON] = adamw_neon,
#endif
};

struct job {
    adamw_fn *run;
    const struct adam_state *s;
    const float *grad;
    uint64_t first;
    size_t n;
    const struct adam_step *a;
};

static int
part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct job *j = ctx;
    size_t at = i * SMALL_PART, n = j->n - at < SMALL_PART ? j->n - at : SMALL_PART;
    (void)worker;
    (void)err;
    j->run(j->s, j->grad, j->first + at, n, j->a);
    if (j->a->amax) // while they are near
        cpu_grow_amax(j->a->amax, j->s->master, j->s->dtype,
                      j->first - j->s->first + at, n);
    return 0;
}

void
cpu_adamw(struct kernels *k, const struct adam_state *s, const struct matrix *grad,
          uint64_t first, size_t n, const struct adam_step *a)
{
    struct cpu *c = cpu_of(k);
    struct job j = { table[c->isa], s, grad->data, first, n, a };
    if (isnan(*a->clip))
        return;
    cpu_for(c, (n + SMALL_PART - 1) / SMALL_PART, part, &j);
}
