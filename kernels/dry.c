/* SPDX-License-Identifier: MIT */
/* dry: a device that only counts, so that a plan is made by the very code that runs. */
#include "kernels/kernels.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* An allocation: addresses that nothing stands behind.  Neighbours of them are one mapping
 * to the system, which allows 65,530: a model of 1,500 layers has more allocations. */
struct block {
    struct block *next;
    void *at;
    enum part part;
    size_t bytes;
};

enum { BUCKETS = 1 << 12 };

struct dry {
    struct kernels k; // first
    size_t room;      // that operations work in, the largest so far
    bool sums;        // of products of NVFP4 with NVFP4 were counted
    struct cpu_kind cpu;
    struct block *bucket[BUCKETS]; // by address
    struct err *err;
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
dry_alloc(struct kernels *k, size_t bytes)
{
    struct dry *d = (struct dry *)k;
    struct block *b = malloc(sizeof *b);
    void *p = mmap(NULL, mapped(bytes), PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!b || p == MAP_FAILED) {
        if (p != MAP_FAILED)
            munmap(p, mapped(bytes));
        free(b);
        err_set(d->err, ERR_MEMORY, "no addresses for %zu bytes", bytes);
        return NULL;
    }
    struct block **head = bucket_of(d, p);
    *b = (struct block){ *head, p, k->part, bytes };
    *head = b;
    kernels_count(k, k->part, (int64_t)bytes);
    return p;
}

static void
dry_release(struct kernels *k, void *p)
{
    if (!p)
        return;
    struct block **at = bucket_of((struct dry *)k, p);
    while ((*at)->at != p)
        at = &(*at)->next;
    struct block *b = *at;
    *at = b->next;
    kernels_count(k, b->part, -(int64_t)b->bytes);
    munmap(p, mapped(b->bytes));
    free(b);
}

static void
dry_close(struct kernels *k)
{
    struct dry *d = (struct dry *)k;
    for (size_t i = 0; i < BUCKETS; i++)
        while (d->bucket[i])
            dry_release(k, d->bucket[i]->at);
    free(d);
}

static int
dry_download(struct kernels *k, void *to, const void *from, size_t bytes)
{
    (void)from;
    memset(to, 0, bytes);
    return ((struct dry *)k)->err->kind ? -1 : 0;
}

static void
dry_copy(struct kernels *k, void *to, const void *from, size_t bytes)
{
    (void)k, (void)to, (void)from, (void)bytes;
}

/* Memory of all operations, which grows and stays. */
static void
need(struct dry *d, size_t room)
{
    if (room <= d->room)
        return;
    kernels_count(&d->k, PART_WORK, (int64_t)(room - d->room));
    d->room = room;
}

/* room: what a CPU works in for it. */
static void
count_product(struct kernels *k, size_t room, size_t m, size_t n, size_t of)
{
    if (k->is.host)
        need((struct dry *)k, room);
    k->ledger.flops += 2.0 * (double)m * (double)n * (double)of;
}

static void
dry_linear(struct kernels *k, void *y, const void *x, const struct weight *w,
           size_t tokens, const void *c)
{
    const struct dry *d = (struct dry *)k;
    (void)y, (void)x, (void)c;
    count_product(k, cpu_linear_room(&d->cpu, w, tokens), tokens, w->out, w->in);
}

static void
dry_linear_dx(struct kernels *k, void *dx, const void *dy, const struct weight *w,
              size_t tokens, const void *c)
{
    (void)dx, (void)dy, (void)c;
    count_product(k, gemm_room(tokens, w->in, w->out), tokens, w->in, w->out);
}

static void
dry_linear_many(struct kernels *k, void *const *y, const void *x,
                const struct weight *const *w, size_t n, size_t tokens)
{
    for (size_t i = 0; i < n; i++)
        k->linear(k, y[i], x, w[i], tokens, NULL);
}

static void
dry_linear_dw(struct kernels *k, const struct grad *dw, const void *dy, const void *x,
              size_t out, size_t in, size_t tokens, bool add)
{
    (void)dw, (void)dy, (void)x, (void)add;
    count_product(k, gemm_room(out, in, tokens), out, in, tokens);
}

static void
dry_linear_many_dx(struct kernels *k, void *dx, const void *dy,
                   const struct weight *const *w, size_t n, size_t tokens,
                   const void *c)
{
    for (size_t i = 0; i < n; i++)
        k->linear_dx(k, dx, dy, w[i], tokens, c);
}

static void
dry_linear_many_dw(struct kernels *k, const struct grad *const *dw, const void *dy,
                   const void *x, const struct weight *const *w, size_t n,
                   size_t tokens, bool add)
{
    for (size_t i = 0; i < n; i++)
        k->linear_dw(k, dw[i], dy, x, w[i]->out, w[i]->in, tokens, add);
}

static void
dry_quantize_rows(struct kernels *k, const struct packed_rows *to, const void *x,
                  const struct quant_spec *spec)
{
    (void)k, (void)to, (void)x, (void)spec;
}

static void
dry_unpack_rows(struct kernels *k, void *y, const struct packed_rows *x)
{
    (void)k, (void)y, (void)x;
}

static void
dry_linear_fp4(struct kernels *k, void *y, const struct packed_rows *x,
               const struct weight *w, const void *c)
{
    struct dry *d = (struct dry *)k;
    (void)y, (void)c;
    if (!d->sums)
        kernels_count(k, PART_WORK, (int64_t)k->is.sums);
    d->sums = true;
    count_product(k, cpu_linear_fp4_room(&d->cpu, w, x->rows), x->rows, w->out, w->in);
}

static void
dry_tile(struct kernels *k, uint8_t *tiles, const uint8_t *scales, size_t rows,
         size_t blocks)
{
    (void)k, (void)tiles, (void)scales, (void)rows, (void)blocks;
}

static void
dry_logits(struct kernels *k, float *y, const void *x, const struct weight *w,
           size_t tokens)
{
    dry_linear(k, y, x, w, tokens, NULL);
}

static void
dry_best(struct kernels *k, int32_t *id, const float *logits, size_t n)
{
    (void)k, (void)id, (void)logits, (void)n;
}

static void
dry_embed(struct kernels *k, void *y, const struct weight *w, const int32_t *ids,
          size_t tokens)
{
    (void)k, (void)y, (void)w, (void)ids, (void)tokens;
}

static void
dry_embed_dw(struct kernels *k, float *dw, const void *dy, const int32_t *ids,
             size_t tokens, size_t in)
{
    (void)k, (void)dw, (void)dy, (void)ids, (void)tokens, (void)in;
}

static void
dry_norm(struct kernels *k, void *y, float *scale, const void *x, const float *gain,
         size_t rows, size_t n, float eps)
{
    (void)k, (void)y, (void)scale, (void)x, (void)gain, (void)rows, (void)n, (void)eps;
}

static void
dry_norm_dx(struct kernels *k, void *dx, float *dgain, void *y, const void *dy,
            const void *x, const float *scale, const float *gain, size_t rows, size_t n,
            const void *c)
{
    (void)k, (void)dx, (void)dgain, (void)y, (void)dy, (void)x, (void)scale;
    (void)gain, (void)rows, (void)n, (void)c;
}

static void
dry_turn(struct kernels *k, void *y, float *scale, const void *x, const float *gain,
         const struct turn *t)
{
    (void)k, (void)y, (void)scale, (void)x, (void)gain, (void)t;
}

static void
dry_turn_dx(struct kernels *k, void *d, float *dgain, const void *x, const float *scale,
            const float *gain, const struct turn *t)
{
    (void)k, (void)d, (void)dgain, (void)x, (void)scale, (void)gain, (void)t;
}

/* Two products of a triangle of scores, as if all tokens were one document. */
static double
attention_flops(const struct heads *h)
{
    double keys = (double)h->past + 0.5 * (double)h->tokens;
    return 4.0 * (double)h->tokens * keys * (double)h->query * (double)h->dim;
}

static void
dry_attention(struct kernels *k, void *out, float *lse, const void *q, const void *key,
              const void *value, const struct heads *h)
{
    struct dry *d = (struct dry *)k;
    (void)out, (void)lse, (void)q, (void)key, (void)value;
    if (k->is.host)
        need(d, cpu_attention_room(&d->cpu, h));
    k->ledger.flops += attention_flops(h);
}

static void
dry_attention_dx(struct kernels *k, void *dq, void *dkey, void *dvalue,
                 const void *dout, const void *out, const float *lse, const void *q,
                 const void *key, const void *value, float *work, const struct heads *h)
{
    (void)dq, (void)dkey, (void)dvalue, (void)dout, (void)out, (void)lse, (void)q;
    (void)key, (void)value, (void)work;
    struct dry *d = (struct dry *)k;
    if (k->is.host)
        need(d, cpu_attention_dx_room(&d->cpu, h));
    else if (k->is.attention_room)
        need(d, k->is.attention_room(h));
    k->ledger.flops += 2 * attention_flops(h);
}

static void
dry_swiglu(struct kernels *k, void *y, const void *gate, const void *up, size_t n)
{
    (void)k, (void)y, (void)gate, (void)up, (void)n;
}

static void
dry_swiglu_dx(struct kernels *k, void *both, void *d, const void *gate, const void *up,
              size_t tokens, size_t n)
{
    (void)k, (void)both, (void)d, (void)gate, (void)up, (void)tokens, (void)n;
}

static void
dry_zero(struct kernels *k, void *p, size_t bytes)
{
    (void)k, (void)p, (void)bytes;
}

static void
dry_gather(struct kernels *k, void *y, const void *x, const int32_t *index, size_t rows,
           size_t n)
{
    (void)k, (void)y, (void)x, (void)index, (void)rows, (void)n;
}

static void
dry_convert(struct kernels *k, float *y, const void *x, enum dtype dtype, size_t n)
{
    (void)k, (void)y, (void)x, (void)dtype, (void)n;
}

static void
dry_cross_entropy(struct kernels *k, float *loss, void *logits, const int32_t *label,
                  size_t rows, size_t vocab, float scale)
{
    (void)k, (void)loss, (void)logits, (void)label, (void)rows, (void)vocab;
    (void)scale;
}

static void
dry_l1(struct kernels *k, float *loss, void *dx, float *dw, const void *x,
       const struct weight *w, const int32_t *label, size_t rows, float scale)
{
    (void)k, (void)loss, (void)dx, (void)dw, (void)x, (void)w, (void)label;
    (void)rows, (void)scale;
}

static void
dry_amax(struct kernels *k, float *out, const void *values, enum dtype dtype, size_t n)
{
    (void)k, (void)out, (void)values, (void)dtype, (void)n;
}

static void
dry_quantize(struct kernels *k, const struct packed *to, const void *values,
             enum dtype dtype, size_t rows, size_t cols, const float *amax, size_t n,
             const struct quant_spec *spec)
{
    (void)k, (void)to, (void)values, (void)dtype, (void)rows, (void)cols, (void)amax;
    (void)n, (void)spec;
}

static void
dry_sum_squares(struct kernels *k, double *out, const struct grad *g, const size_t *n,
                size_t count)
{
    (void)k, (void)out, (void)g, (void)n, (void)count;
}

static void
dry_clip(struct kernels *k, float *out, const double *squares, float given, float limit,
         double most, const float *before)
{
    (void)k, (void)out, (void)squares, (void)given, (void)limit, (void)most;
    (void)before;
}

static void
dry_adamw(struct kernels *k, const struct adam_state *s, const struct grad *grad,
          uint64_t first, size_t n, const struct adam_step *a)
{
    (void)k, (void)s, (void)grad, (void)first, (void)n, (void)a;
}

static void
dry_seed_adamw(struct kernels *k, const struct seed_state *s, const struct grad *grad,
               size_t first, size_t n, const struct adam_step *a)
{
    (void)k, (void)s, (void)grad, (void)first, (void)n, (void)a;
}

static void
dry_seed_values(struct kernels *k, float *y, const struct seed_state *s)
{
    (void)k, (void)y, (void)s;
}

struct kernels *
kernels_dry(const struct device *like, const struct cpu_kind *cpu, struct err *err)
{
    struct dry *d = calloc(1, sizeof *d);
    if (!d) {
        err_set(err, ERR_MEMORY, "out of memory for a plan");
        return NULL;
    }
    d->err = err;
    d->cpu = *cpu;
    d->k = (struct kernels){ .is = *like,
                             .close = dry_close,
                             .alloc = dry_alloc,
                             .release = dry_release,
                             .upload = dry_copy,
                             .copy = dry_copy,
                             .download = dry_download,
                             .linear = dry_linear,
                             .linear_many = dry_linear_many,
                             .linear_dx = dry_linear_dx,
                             .linear_dw = dry_linear_dw,
                             .linear_many_dx = dry_linear_many_dx,
                             .linear_many_dw = dry_linear_many_dw,
                             .quantize_rows = dry_quantize_rows,
                             .unpack_rows = dry_unpack_rows,
                             .linear_fp4 = dry_linear_fp4,
                             .tile = dry_tile,
                             .logits = dry_logits,
                             .best = dry_best,
                             .embed = dry_embed,
                             .embed_dw = dry_embed_dw,
                             .norm = dry_norm,
                             .norm_dx = dry_norm_dx,
                             .turn = dry_turn,
                             .turn_dx = dry_turn_dx,
                             .attention = dry_attention,
                             .attention_dx = dry_attention_dx,
                             .swiglu = dry_swiglu,
                             .swiglu_dx = dry_swiglu_dx,
                             .zero = dry_zero,
                             .gather = dry_gather,
                             .scatter = dry_gather,
                             .convert = dry_convert,
                             .cross_entropy = dry_cross_entropy,
                             .l1 = dry_l1,
                             .amax = dry_amax,
                             .quantize = dry_quantize,
                             .sum_squares = dry_sum_squares,
                             .clip = dry_clip,
                             .adamw = dry_adamw };
    if (like->host) { // as on the CPU, which alone has it
        d->k.seed_adamw = dry_seed_adamw;
        d->k.seed_values = dry_seed_values;
    }
    kernels_count(&d->k, PART_OTHER, (int64_t)like->fixed);
    return &d->k;
}
