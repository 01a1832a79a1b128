/* SPDX-License-Identifier: MIT */
/* dry: a device that only counts, so that a plan is made by the very code that runs. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* An allocation: reserved addresses without memory.  The system merges adjacent ones into
 * one mapping, of which it allows 65,530: a model of 1,500 layers has more allocations. */
struct block {
    struct block *next;
    void *at;
    enum memory what;
    size_t bytes;
};

enum { BUCKETS = 1 << 12 };

struct dry {
    struct kernels k; // first
    size_t workspace; // the largest so far
    bool fp4_sums;    // were counted
    struct cpu_kind cpu;
    struct block *bucket[BUCKETS]; // by address
};

static struct block **
bucket_of(struct dry *d, const void *p)
{
    uint64_t page = (uint64_t)(uintptr_t)p >> 12;
    return &d->bucket[page * 0x9e3779b97f4a7c15 >> 52];
}

static size_t
mapped(size_t bytes)
{
    return bytes ? bytes : 1;
}

static void *
dry_alloc(struct kernels *k, enum memory what, size_t bytes)
{
    struct dry *d = (struct dry *)k;
    struct block *b = malloc(sizeof *b);
    void *p = mmap(NULL, mapped(bytes), PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!b || p == MAP_FAILED) {
        if (p != MAP_FAILED)
            munmap(p, mapped(bytes));
        free(b);
        err_set(k->err, ERR_MEMORY, "out of address space for %zu bytes", bytes);
        return NULL;
    }
    struct block **head = bucket_of(d, p);
    *b = (struct block){ *head, p, what, bytes };
    *head = b;
    usage_add(&k->usage, what, (int64_t)bytes);
    return p;
}

static void
dry_free(struct kernels *k, void *p)
{
    struct block **at = bucket_of((struct dry *)k, p);
    while ((*at)->at != p)
        at = &(*at)->next;
    struct block *b = *at;
    *at = b->next;
    usage_add(&k->usage, b->what, -(int64_t)b->bytes);
    munmap(p, mapped(b->bytes));
    free(b);
}

static void
dry_close(struct kernels *k)
{
    struct dry *d = (struct dry *)k;
    for (size_t i = 0; i < BUCKETS; i++)
        while (d->bucket[i])
            dry_free(k, d->bucket[i]->at);
    free(d);
}

static int
dry_download(struct kernels *k, void *to, const void *from, size_t bytes)
{
    (void)k, (void)from;
    memset(to, 0, bytes);
    return 0;
}

/* The workspace of all operations, which grows and stays. */
static void
need(struct kernels *k, size_t bytes)
{
    struct dry *d = (struct dry *)k;
    if (bytes <= d->workspace)
        return;
    usage_add(&k->usage, MEMORY_WORK, (int64_t)(bytes - d->workspace));
    d->workspace = bytes;
}

static void
dry_linear(struct kernels *k, size_t n, const struct matrix *y, const struct matrix *x,
           const struct matrix *w, const struct matrix *c)
{
    struct dry *d = (struct dry *)k;
    bool fp4 = x->dtype == DT_NVFP4;
    (void)y, (void)c;
    if (fp4 && !d->fp4_sums)
        usage_add(&k->usage, MEMORY_WORK, (int64_t)k->is.fp4_sums);
    d->fp4_sums |= fp4;
    for (size_t i = 0; i < n && k->is.host; i++)
        need(k, fp4 ? cpu_linear_fp4_workspace(&d->cpu, &w[i], x->rows)
                    : cpu_linear_workspace(&d->cpu, &w[i], x->rows));
}

static void
dry_linear_dx(struct kernels *k, size_t n, const struct matrix *dx,
              const struct matrix *dy, const struct matrix *w, const struct matrix *c)
{
    (void)dy, (void)c;
    for (size_t i = 0; i < n && k->is.host; i++)
        need(k, gemm_workspace(dx->rows, w[i].cols, w[i].rows));
}

static void
dry_linear_dw(struct kernels *k, size_t n, const struct matrix *dw,
              const struct matrix *dy, const struct matrix *x, bool add)
{
    (void)dy, (void)add;
    for (size_t i = 0; i < n && k->is.host; i++)
        need(k, gemm_workspace(dw[i].rows, dw[i].cols, x->rows));
}

static void
dry_attention(struct kernels *k, const struct matrix *out, float *lse,
              const struct matrix *q, const struct matrix *key,
              const struct matrix *value, const struct heads *h)
{
    (void)out, (void)lse, (void)q, (void)key, (void)value;
    if (k->is.host)
        need(k, cpu_attention_workspace(&((struct dry *)k)->cpu, h));
}

static void
dry_attention_bwd(struct kernels *k, const struct matrix *dq, const struct matrix *dkey,
                  const struct matrix *dvalue, const struct matrix *dout,
                  const struct matrix *out, const float *lse, const struct matrix *q,
                  const struct matrix *key, const struct matrix *value, float *work,
                  const struct heads *h)
{
    (void)dq, (void)dkey, (void)dvalue, (void)dout, (void)out, (void)lse, (void)q;
    (void)key, (void)value, (void)work;
    if (k->is.host)
        need(k, cpu_attention_bwd_workspace(&((struct dry *)k)->cpu, h));
    else if (k->is.attention_workspace)
        need(k, k->is.attention_workspace(h));
}

static const struct ops dry_ops = {
    .close = dry_close,
    .alloc = dry_alloc,
    .free = dry_free,
    .download = dry_download,
    .linear = dry_linear,
    .linear_dx = dry_linear_dx,
    .linear_dw = dry_linear_dw,
    .attention = dry_attention,
    .attention_bwd = dry_attention_bwd,
};

struct kernels *
kernels_dry(const struct device *like, const struct cpu_kind *cpu, struct err *err)
{
    struct dry *d = calloc(1, sizeof *d);
    if (!d) {
        err_set(err, ERR_MEMORY, "out of memory for a plan");
        return NULL;
    }
    d->k = (struct kernels){ .op = &dry_ops, .is = *like, .err = err, .dry = true };
    d->cpu = *cpu;
    usage_add(&d->k.usage, MEMORY_OTHER, (int64_t)like->fixed);
    return &d->k;
}
