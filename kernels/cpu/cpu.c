/* SPDX-License-Identifier: MIT */
/* cpu: threads and memory, which all operations use. */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/sizes.h"
#include "lib/base/num.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- threads ----------------------------------------------------------------------- */

void
cpu_for(struct cpu *c, size_t n, par_fn fn, void *ctx)
{
    par_run(c->pool, n, fn, ctx, c->k.err);
}

struct ranges {
    cpu_range_fn *fn;
    const void *ctx;
    size_t n, size;
};

static int
run_range(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct ranges *r = ctx;
    (void)worker;
    (void)err;
    r->fn(r->ctx, i * r->size, min((i + 1) * r->size, r->n));
    return 0;
}

void
cpu_for_ranges(struct cpu *c, size_t n, size_t size, cpu_range_fn *fn, const void *ctx)
{
    struct ranges r = { fn, ctx, n, size };
    cpu_for(c, ceil_div(n, size), run_range, &r);
}

/* ---- memory ------------------------------------------------------------------------ */

/* Lies before each allocation. */
struct head {
    enum memory what;
    uint64_t bytes;
};

enum { HEAD = 64, HUGE = 2 << 20 };

void *
cpu_alloc(struct kernels *k, enum memory what, size_t bytes)
{
    char *p = NULL;
    bool big = bytes >= HUGE;
    if (bytes <= SIZE_MAX - HUGE)
        p = big ? mmap(NULL, bytes + HEAD, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                : aligned_alloc(HEAD, round_up(bytes + HEAD, HEAD));
    if (!p || p == MAP_FAILED) {
        err_set(k->err, ERR_MEMORY, "out of memory for %zu bytes", bytes);
        return NULL;
    }
    if (big)
        madvise(p, bytes + HEAD, MADV_HUGEPAGE);
    else
        memset(p, 0, bytes + HEAD);
    *(struct head *)(void *)p = (struct head){ what, bytes };
    usage_add(&k->usage, what, (int64_t)bytes);
    return p + HEAD;
}

void
cpu_free(struct kernels *k, void *p)
{
    struct head *h = (struct head *)(void *)((char *)p - HEAD);
    usage_add(&k->usage, h->what, -(int64_t)h->bytes);
    if (h->bytes >= HUGE)
        munmap(h, h->bytes + HEAD);
    else
        free(h);
}

float *
cpu_workspace(struct cpu *c, size_t bytes)
{
    if (bytes > c->workspace_bytes) {
        if (c->workspace)
            cpu_free(&c->k, c->workspace);
        c->workspace = cpu_alloc(&c->k, MEMORY_WORK, bytes);
        c->workspace_bytes = c->workspace ? bytes : 0;
    }
    return c->workspace;
}
