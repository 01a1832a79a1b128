/* SPDX-License-Identifier: MIT */
/* adamw: a tensor on all threads; adamw_kernel.c updates its elements. */
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

struct adamw_job {
    adamw_fn *run;
    const struct adam_state *s;
    const float *grad;
    uint64_t first;
    const struct adam_step *a;
};

static void
update(const void *ctx, size_t at, size_t end)
{
    const struct adamw_job *j = ctx;
    j->run(j->s, j->grad, j->first + at, end - at, j->a);
    if (j->a->amax) // while the master is in the cache
        cpu_grow_amax(j->a->amax, j->s->master, j->s->dtype,
                      j->first - j->s->first + at, end - at);
}

void
cpu_adamw(struct kernels *k, const struct adam_update *u, size_t count)
{
    struct cpu *c = cpu_of(k);
    for (; count; count--, u++) {
        struct adamw_job j = { table[c->isa], &u->state, u->grad.data, u->first,
                               &u->step };
        if (!isnan(*u->step.clip))
            cpu_for_ranges(c, u->n, SMALL_PART, update, &j);
    }
}
