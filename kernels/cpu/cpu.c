/* SPDX-License-Identifier: MIT */
/* cpu: the CPU backend.  Rows are divided among threads in parts of fixed size, columns
 * where sums go over rows: no sum is ever cut. */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/coarse.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/sizes.h"
#include "lib/core/maths.h"
#include "lib/core/num.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* SOME: of what has no sums over parts, so that small models have work for many. */
enum { PART = 1 << 14, SOME = 1 << 12, PIECE = 1 << 10, BYTES = 1 << 18, COLUMNS = 32 };

static const struct rows_isa *const rows_table[ISA_COUNT] = {
    [ISA_SCALAR] = &rows_scalar,
#if defined __x86_64__
    [ISA_AVX2] = &rows_avx2,
    [ISA_AVX512] = &rows_avx512,
#elif defined __aarch64__
    [ISA_NEON] = &rows_neon,
#endif
};

void
cpu_for(struct cpu *c, size_t n, par_fn fn, void *ctx)
{
    team_for(c->team, n, fn, ctx, c->err);
}

/* ---- memory ------------------------------------------------------------------------ */

/* Before what is allocated. */
struct head {
    enum part part;
    uint64_t bytes;
};

enum { HEAD = 64, HUGE = 2 << 20 };

static void *
cpu_alloc(struct kernels *k, size_t bytes)
{
    struct cpu *c = (struct cpu *)k;
    char *p = NULL;
    bool big = bytes >= HUGE;
    if (bytes <= SIZE_MAX - HUGE)
        p = big ? mmap(NULL, bytes + HEAD, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                : aligned_alloc(HEAD, round_up(bytes + HEAD, HEAD));
    if (!p || p == MAP_FAILED) {
        err_set(c->err, ERR_MEMORY, "out of memory for %zu bytes", bytes);
        return NULL;
    }
    if (big)
        madvise(p, bytes + HEAD, MADV_HUGEPAGE);
    else
        memset(p, 0, bytes + HEAD);
    *(struct head *)(void *)p = (struct head){ k->part, bytes };
    kernels_count(k, k->part, (int64_t)bytes);
    return p + HEAD;
}

static void
cpu_release(struct kernels *k, void *p)
{
    if (!p)
        return;
    struct head *h = (struct head *)(void *)((char *)p - HEAD);
    kernels_count(k, h->part, -(int64_t)h->bytes);
    if (h->bytes >= HUGE)
        munmap(h, h->bytes + HEAD);
    else
        free(h);
}

static void
cpu_upload(struct kernels *k, void *to, const void *from, size_t bytes)
{
    (void)k;
    memcpy(to, from, bytes);
}

static int
cpu_download(struct kernels *k, void *to, const void *from, size_t bytes)
{
    struct cpu *c = (struct cpu *)k;
    if (c->err->kind)
        return -1;
    memcpy(to, from, bytes);
    return 0;
}

static void
cpu_close(struct kernels *k)
{
    struct cpu *c = (struct cpu *)k;
    cpu_release(k, c->room);
    team_close(c->team);
    free(c);
}

/* ---- products ------------------------------------------------------------------------ */

float *
cpu_room(struct cpu *c, size_t bytes)
{
    if (bytes > c->room_bytes) {
        enum part part = c->k.part;
        cpu_release(&c->k, c->room);
        c->k.part = PART_WORK;
        c->room = cpu_alloc(&c->k, bytes);
        c->k.part = part;
        c->room_bytes = c->room ? bytes : 0;
    }
    return c->room;
}

/* Whether operands of products are rounded to bf16. */
static bool
is_bf16(const struct cpu *c)
{
    return c->gemm->form != NULL;
}

size_t
cpu_linear_room(const struct cpu_kind *c, const struct weight *w, size_t tokens)
{
    bool bf16 = c->compute == DT_BF16;
    if (tokens <= gemv_most(c->isa, w, bf16))
        return bf16 ? tokens * w->in * sizeof(float) : 0;
    return gemm_room(tokens, w->out, w->in);
}

static void
multiply(struct cpu *c, const struct gemm *g)
{
    float *room = cpu_room(c, gemm_room(g->m, g->n, g->k));
    c->k.ledger.flops += 2.0 * (double)g->m * (double)g->n * (double)g->k;
    if (room)
        gemm_run(g, c->gemm, c->team, room, c->err);
}

static struct matrix
dense(const float *p, size_t rows, size_t cols)
{
    return (struct matrix){ .p = p, .dtype = DT_F32, .rows = rows, .cols = cols };
}

/* A weight (out, in), or turned (in, out). */
static struct matrix
as_matrix(const struct weight *w, bool turned)
{
    return (struct matrix){ .p = w->values,
                            .dtype = w->dtype,
                            .rows = turned ? 1 : w->in,
                            .cols = turned ? w->in : 1,
                            .scales = w->scales,
                            .scale2 = w->scale2 ? *w->scale2 : 1 };
}

/* c to the place of the result, to which the product is then added. */
static bool
place(struct kernels *k, void *y, const void *c, size_t n)
{
    if (c && c != y)
        k->copy(k, y, c, n * sizeof(float));
    return c != NULL;
}

static void
multiply_few(struct cpu *c, struct gemv g)
{
    const struct weight *w = g.w;
    struct weight plain = *w;
    g.bf16 = is_bf16(c);
    if (g.bf16) {
        float *room = cpu_room(c, g.tokens * w->in * sizeof *room);
        if (!room)
            return;
        gemv_narrow(room, g.x, w, g.tokens, c->isa);
        plain.scale2 = NULL; // x has it
        g.w = &plain;
        g.x = room;
    }
    gemv_run(&g, c->isa, c->team, c->err);
}

static void
multiply_coarse(struct cpu *c, const struct gemv *g)
{
    void *room = cpu_room(c, coarse_room(g->tokens, g->w->in));
    if (room)
        coarse_run(g, c->isa, c->team, room, c->err);
}

static void
cpu_linear(struct kernels *k, void *y, const void *x, const struct weight *w,
           size_t tokens, const void *c)
{
    struct cpu *cpu = (struct cpu *)k;
    bool add = place(k, y, c, tokens * w->out);
    struct gemm g = {
        .m = tokens, .n = w->out, .k = w->in, .c = y, .ldc = w->out, .add = add
    };
    struct gemv few = { .y = y, .x = x, .w = w, .tokens = tokens, .add = add };
    bool coarse = cpu->coarse && w->dtype == DT_NVFP4 && tokens <= COARSE_MOST;
    if (coarse || tokens <= gemv_most(cpu->isa, w, is_bf16(cpu))) {
        k->ledger.flops += 2.0 * (double)tokens * (double)w->out * (double)w->in;
        if (coarse)
            multiply_coarse(cpu, &few);
        else
            multiply_few(cpu, few);
        return;
    }
    g.a = dense(x, w->in, 1);
    g.b = as_matrix(w, true);
    multiply(cpu, &g);
}

static void
cpu_linear_many(struct kernels *k, void *const *y, const void *x,
                const struct weight *const *w, size_t n, size_t tokens)
{
    for (size_t i = 0; i < n; i++)
        k->linear(k, y[i], x, w[i], tokens, NULL);
}

static void
cpu_logits(struct kernels *k, float *y, const void *x, const struct weight *w,
           size_t tokens)
{
    cpu_linear(k, y, x, w, tokens, NULL);
}

static void
cpu_best(struct kernels *k, int32_t *id, const float *logits, size_t n)
{
    size_t best = 0;
    (void)k;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) {
            *id = -1;
            return;
        }
        if (logits[i] > logits[best])
            best = i;
    }
    *id = (int32_t)best;
}

/* row: of dy. */
static void
back_to_input(struct kernels *k, void *dx, const float *dy, size_t row,
              const struct weight *w, size_t tokens, const void *c)
{
    struct gemm g = { .m = tokens, .n = w->in, .k = w->out, .c = dx, .ldc = w->in };
    g.add = place(k, dx, c, tokens * w->in);
    g.a = dense(dy, row, 1);
    g.b = as_matrix(w, false);
    multiply((struct cpu *)k, &g);
}

static void
back_to_weight(struct kernels *k, const struct grad *dw, const float *dy, size_t row,
               const void *x, size_t out, size_t in, size_t tokens, bool add)
{
    struct gemm g = {
        .m = out, .n = in, .k = tokens, .c = dw->values, .ldc = in, .add = add
    };
    g.a = dense(dy, 1, row);
    g.b = dense(x, in, 1);
    multiply((struct cpu *)k, &g);
}

static void
cpu_linear_dx(struct kernels *k, void *dx, const void *dy, const struct weight *w,
              size_t tokens, const void *c)
{
    back_to_input(k, dx, dy, w->out, w, tokens, c);
}

static void
cpu_linear_dw(struct kernels *k, const struct grad *dw, const void *dy, const void *x,
              size_t out, size_t in, size_t tokens, bool add)
{
    back_to_weight(k, dw, dy, out, x, out, in, tokens, add);
}

/* A sum goes on where the one before has ended: the numbers of one product, of f32. */
static void
cpu_linear_many_dx(struct kernels *k, void *dx, const void *dy,
                   const struct weight *const *w, size_t n, size_t tokens,
                   const void *c)
{
    const float *from = dy;
    size_t row = kernels_outs(w, n);
    for (size_t i = 0; i < n; from += w[i]->out, i++)
        back_to_input(k, dx, from, row, w[i], tokens, i ? dx : c);
}

static void
cpu_linear_many_dw(struct kernels *k, const struct grad *const *dw, const void *dy,
                   const void *x, const struct weight *const *w, size_t n,
                   size_t tokens, bool add)
{
    const float *from = dy;
    size_t row = kernels_outs(w, n);
    for (size_t i = 0; i < n; from += w[i]->out, i++)
        back_to_weight(k, dw[i], from, row, x, w[i]->out, w[i]->in, tokens, add);
}

/* ---- embedding ------------------------------------------------------------------------- */

static float
weight_at(const struct weight *w, size_t i)
{
    switch (w->dtype) {
    case DT_BF16:
        return num_from_bf16(((const uint16_t *)w->values)[i]);
    case DT_F16:
        return num_from_f16(((const uint16_t *)w->values)[i]);
    default:
        return ((const float *)w->values)[i];
    }
}

/* n numbers from element `at` on, as floats. */
static void
read_floats(const struct cpu *c, float *y, const void *x, enum dtype dtype, size_t at,
            size_t n)
{
    const struct matrix m = { .p = x, .dtype = dtype };
    gemm_of(c->isa)->read(y, &m, at, n);
}

static void
cpu_embed(struct kernels *k, void *y, const struct weight *w, const int32_t *ids,
          size_t tokens)
{
    struct cpu *c = (struct cpu *)k;
    for (size_t t = 0; t < tokens; t++)
        read_floats(c, (float *)y + t * w->in, w->values, w->dtype,
                    (size_t)ids[t] * w->in, w->in);
}

static void
cpu_embed_dw(struct kernels *k, float *dw, const void *dy, const int32_t *ids,
             size_t tokens, size_t in)
{
    struct cpu *c = (struct cpu *)k;
    for (size_t t = 0; t < tokens; t++)
        c->rows->axpy(dw + (size_t)ids[t] * in, 1, (const float *)dy + t * in, in);
}

/* ---- norms ------------------------------------------------------------------------------ */

struct norm_job {
    const struct cpu *c;
    float *y, *scale, *dx, *dgain;
    const float *x, *gain, *dy, *kept;
    size_t rows, n, part;
    size_t heads, row; // that many rows are a row of dx and dy
    float eps;
    bool add;
};

/* Where row r of dx and dy begins. */
static size_t
at_gradient(const struct norm_job *j, size_t r)
{
    return r / j->heads * j->row + r % j->heads * j->n;
}

static int
norm_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct norm_job *j = ctx;
    (void)worker;
    (void)err;
    for (size_t r = i * j->part; r < j->rows && r < (i + 1) * j->part; r++) {
        const float *x = j->x + r * j->n;
        float mean = j->c->rows->dot(x, x, j->n) / (float)j->n;
        float scale = 1 / sqrtf(mean + j->eps);
        j->c->rows->norm(j->y + r * j->n, x, scale, j->gain, j->n);
        j->scale[r] = scale;
    }
    return 0;
}

static void
cpu_norm(struct kernels *k, void *y, float *scale, const void *x, const float *gain,
         size_t rows, size_t n, float eps)
{
    struct cpu *c = (struct cpu *)k;
    struct norm_job j = { .c = c,
                          .y = y,
                          .scale = scale,
                          .x = x,
                          .gain = gain,
                          .rows = rows,
                          .n = n,
                          .part = SOME / n + 1,
                          .eps = eps };
    cpu_for(c, (rows + j.part - 1) / j.part, norm_part, &j);
}

static int
norm_dx_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct norm_job *j = ctx;
    (void)worker;
    (void)err;
    for (size_t r = i * j->part; r < j->rows && r < (i + 1) * j->part; r++) {
        size_t at = at_gradient(j, r);
        j->c->rows->norm_dx(j->dx + at, j->dy + at, j->x + r * j->n, j->kept[r],
                            j->gain, j->n, j->add);
        if (j->y)
            j->c->rows->norm(j->y + r * j->n, j->x + r * j->n, j->kept[r], j->gain,
                             j->n);
    }
    return 0;
}

/* Rows in order, for some columns. */
static int
norm_dgain_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct norm_job *j = ctx;
    size_t from = i * COLUMNS, n = from + COLUMNS < j->n ? COLUMNS : j->n - from;
    (void)worker;
    (void)err;
    for (size_t r = 0; r < j->rows; r++)
        j->c->rows->gain_dx(j->dgain + from, j->dy + at_gradient(j, r) + from,
                            j->x + r * j->n + from, j->kept[r], n);
    return 0;
}

/* The gain's gradient first: dx may be where dy is. */
static void
run_norm_dx(struct cpu *c, struct norm_job *j)
{
    j->c = c;
    j->part = SOME / j->n + 1;
    if (j->dgain)
        cpu_for(c, (j->n + COLUMNS - 1) / COLUMNS, norm_dgain_part, j);
    cpu_for(c, (j->rows + j->part - 1) / j->part, norm_dx_part, j);
}

static void
cpu_norm_dx(struct kernels *k, void *dx, float *dgain, void *y, const void *dy,
            const void *x, const float *scale, const float *gain, size_t rows, size_t n,
            const void *add)
{
    struct norm_job j = { .y = y,
                          .dx = dx,
                          .dgain = dgain,
                          .dy = dy,
                          .x = x,
                          .kept = scale,
                          .gain = gain,
                          .rows = rows,
                          .n = n,
                          .heads = 1,
                          .row = n,
                          .add = add != NULL };
    run_norm_dx((struct cpu *)k, &j);
}

/* ---- the rest ----------------------------------------------------------------------------- */

struct rope_job {
    const struct cpu *c;
    float *x;
    const float *table;
    const int32_t *position;
    size_t tokens, heads, dim, row, part;
    bool back;
};

static int
rope_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct rope_job *j = ctx;
    size_t half = j->dim / 2;
    (void)worker;
    (void)err;
    for (size_t t = i * j->part; t < j->tokens && t < (i + 1) * j->part; t++) {
        const float *cosine = j->table + (size_t)j->position[t] * j->dim;
        for (size_t h = 0; h < j->heads; h++) {
            float *x = j->x + t * j->row + h * j->dim;
            j->c->rows->rotate(x, x + half, cosine, cosine + half,
                               j->back ? -1.0F : 1.0F, half);
        }
    }
    return 0;
}

static void
rotate(struct cpu *c, float *x, const struct turn *t, size_t row, bool back)
{
    struct rope_job j = { c,        x,      t->table, t->position, t->tokens,
                          t->heads, t->dim, row,      0,           back };
    j.part = SOME / (t->heads * t->dim) + 1;
    cpu_for(c, (t->tokens + j.part - 1) / j.part, rope_part, &j);
}

static void
cpu_turn(struct kernels *k, void *y, float *scale, const void *x, const float *gain,
         const struct turn *t)
{
    cpu_norm(k, y, scale, x, gain, t->tokens * t->heads, t->dim, t->eps);
    rotate((struct cpu *)k, y, t, t->heads * t->dim, false);
}

static void
cpu_turn_dx(struct kernels *k, void *d, float *dgain, const void *x, const float *scale,
            const float *gain, const struct turn *t)
{
    size_t row = turn_row(t);
    struct norm_job j = { .dx = d,
                          .dgain = dgain,
                          .dy = d,
                          .x = x,
                          .kept = scale,
                          .gain = gain,
                          .rows = t->tokens * t->heads,
                          .n = t->dim,
                          .heads = t->heads,
                          .row = row };
    rotate((struct cpu *)k, d, t, row, true);
    run_norm_dx((struct cpu *)k, &j);
}

struct pair_job {
    const struct cpu *c;
    float *y, *both;
    const float *gate, *up;
    size_t n;          // of a row; forward all is one row
    size_t rows, part; // rows, and those of a part
};

static int
swiglu_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct pair_job *j = ctx;
    size_t at = i * SOME, n = j->n - at < SOME ? j->n - at : SOME;
    (void)worker;
    (void)err;
    j->c->rows->swiglu(j->y + at, j->gate + at, j->up + at, n);
    return 0;
}

/* y is where its gradient is: a piece of it waits until that was used. */
static int
swiglu_dx_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct pair_job *j = ctx;
    size_t t = i * j->part, to = least(t + j->part, j->rows);
    float y[PIECE];
    (void)worker;
    (void)err;
    for (; t < to; t++)
        for (size_t k = 0; k < j->n; k += PIECE) {
            size_t n = j->n - k < PIECE ? j->n - k : PIECE, at = t * j->n + k;
            float *both = j->both + 2 * t * j->n + k;
            j->c->rows->swiglu(y, j->gate + at, j->up + at, n);
            j->c->rows->swiglu_dx(both, both + j->n, j->gate + at, j->up + at,
                                  j->y + at, n);
            memcpy(j->y + at, y, n * sizeof *y);
        }
    return 0;
}

static void
cpu_swiglu(struct kernels *k, void *y, const void *gate, const void *up, size_t n)
{
    struct cpu *c = (struct cpu *)k;
    struct pair_job j = { .c = c, .y = y, .gate = gate, .up = up, .n = n };
    cpu_for(c, (n + SOME - 1) / SOME, swiglu_part, &j);
}

static void
cpu_swiglu_dx(struct kernels *k, void *both, void *d, const void *gate, const void *up,
              size_t tokens, size_t n)
{
    struct cpu *c = (struct cpu *)k;
    struct pair_job j = { .c = c,
                          .y = d,
                          .both = both,
                          .gate = gate,
                          .up = up,
                          .n = n,
                          .rows = tokens,
                          .part = SOME / n + 1 };
    cpu_for(c, parts(tokens, j.part), swiglu_dx_part, &j);
}

/* Bytes, or floats, that lie together. */
struct flat {
    const struct cpu *c;
    char *y;
    const char *x; // NULL: zeros
    size_t n;
    enum dtype dtype; // to convert
};

static int
copy_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct flat *j = ctx;
    size_t at = i * BYTES, n = j->n - at < BYTES ? j->n - at : BYTES;
    (void)worker;
    (void)err;
    if (j->x)
        memcpy(j->y + at, j->x + at, n);
    else
        memset(j->y + at, 0, n);
    return 0;
}

static void
cpu_copy(struct kernels *k, void *to, const void *from, size_t bytes)
{
    struct cpu *c = (struct cpu *)k;
    struct flat j = { c, to, from, bytes, DT_NONE };
    cpu_for(c, (bytes + BYTES - 1) / BYTES, copy_part, &j);
}

static void
cpu_zero(struct kernels *k, void *p, size_t bytes)
{
    struct cpu *c = (struct cpu *)k;
    struct flat j = { c, p, NULL, bytes, DT_NONE };
    cpu_for(c, (bytes + BYTES - 1) / BYTES, copy_part, &j);
}

static void
cpu_gather(struct kernels *k, void *y, const void *x, const int32_t *index, size_t rows,
           size_t n)
{
    (void)k;
    for (size_t r = 0; r < rows; r++)
        memcpy((float *)y + r * n, (const float *)x + (size_t)index[r] * n,
               n * sizeof(float));
}

static void
cpu_scatter(struct kernels *k, void *y, const void *x, const int32_t *index,
            size_t rows, size_t n)
{
    (void)k;
    for (size_t r = 0; r < rows; r++)
        memcpy((float *)y + (size_t)index[r] * n, (const float *)x + r * n,
               n * sizeof(float));
}

static int
convert_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct flat *j = ctx;
    size_t at = i * SOME, n = j->n - at < SOME ? j->n - at : SOME;
    (void)worker;
    (void)err;
    read_floats(j->c, (float *)(void *)j->y + at, j->x, j->dtype, at, n);
    return 0;
}

static void
cpu_convert(struct kernels *k, float *y, const void *x, enum dtype dtype, size_t n)
{
    struct cpu *c = (struct cpu *)k;
    struct flat j = { c, (char *)y, x, n, dtype };
    cpu_for(c, (n + SOME - 1) / SOME, convert_part, &j);
}

struct loss_job {
    const struct cpu *c;
    float *loss, *logits;
    const int32_t *label;
    size_t vocab;
    float scale;
};

static int
loss_row(void *ctx, size_t r, unsigned worker, struct err *err)
{
    const struct loss_job *j = ctx;
    float *row = j->logits + r * j->vocab;
    int32_t label = j->label[r];
    (void)worker;
    (void)err;
    if (label < 0) {
        j->loss[r] = 0;
        memset(row, 0, j->vocab * sizeof *row);
        return 0;
    }
    float most = j->c->rows->most(row, j->vocab), target = row[label];
    float sum = j->c->rows->exp_sum(row, most, j->vocab);
    float share = j->scale / sum;
    j->loss[r] = (float)maths_log((double)sum) + (most - target);
    j->c->rows->stretch(row, share, j->vocab);
    row[label] -= j->scale;
    return 0;
}

static void
cpu_cross_entropy(struct kernels *k, float *loss, void *logits, const int32_t *label,
                  size_t rows, size_t vocab, float scale)
{
    struct cpu *c = (struct cpu *)k;
    struct loss_job j = { c, loss, logits, label, vocab, scale };
    cpu_for(c, rows, loss_row, &j);
}

static void
cpu_l1(struct kernels *k, float *loss, void *dx, float *dw, const void *x,
       const struct weight *w, const int32_t *label, size_t rows, float scale)
{
    size_t n = w->in;
    float share = scale / (float)n, *out = dx;
    const float *in = x;
    (void)k;
    for (size_t r = 0; r < rows; r++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) {
            size_t at = (size_t)label[r] * n + i;
            float off = in[r * n + i] - weight_at(w, at);
            float d = off > 0 ? share : off < 0 ? -share : 0;
            sum += fabs((double)off);
            if (out)
                out[r * n + i] = d;
            if (dw)
                dw[at] -= d;
        }
        loss[r] = (float)(sum / (double)n);
    }
}

/* ---- weights and gradients ----------------------------------------------------------------- */

/* By bits, of which those of NaN are the largest: the order of threads does not matter. */
void
cpu_grow_amax(float *amax, const void *values, enum dtype dtype, uint64_t first,
              size_t n)
{
    size_t bad;
    const char *from = (const char *)values + first * dtype_bits(dtype) / 8;
    float most = nvfp4_amax(dtype, from, n, &bad), old;
    if (bad < n)
        most = NAN;
    __atomic_load(amax, &old, __ATOMIC_RELAXED);
    while (num_bits_f32(most) > num_bits_f32(old) &&
           !__atomic_compare_exchange(amax, &old, &most, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED))
        ;
}

struct amax_job {
    float *out;
    const void *values;
    enum dtype dtype;
    size_t n;
};

static int
amax_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct amax_job *j = ctx;
    size_t at = i * SOME, n = j->n - at < SOME ? j->n - at : SOME;
    (void)worker;
    (void)err;
    cpu_grow_amax(j->out, j->values, j->dtype, at, n);
    return 0;
}

static void
cpu_amax(struct kernels *k, float *out, const void *values, enum dtype dtype, size_t n)
{
    struct amax_job j = { out, values, dtype, n };
    *out = 0;
    cpu_for((struct cpu *)k, (n + SOME - 1) / SOME, amax_part, &j);
}

struct quantize_job {
    struct cpu *c;
    const struct packed *to;
    const uint8_t *values;
    enum dtype dtype;
    size_t rows, cols, part;
    const struct quant_spec *spec;
    struct quant_scale scale;
};

static int
quantize_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct quantize_job *j = ctx;
    size_t row = i * j->part, rows = j->rows - row < j->part ? j->rows - row : j->part;
    size_t at = row * j->cols, n = rows * j->cols;
    const uint8_t *from = j->values + at * dtype_bits(j->dtype) / 8;
    float *x = NULL;
    (void)worker;
    if (j->dtype != DT_F32) {
        if (!(x = malloc(n * sizeof *x)))
            return err_set(err, ERR_MEMORY, "out of memory for quantizing");
        read_floats(j->c, x, from, j->dtype, 0, n);
    }
    nvfp4_quant(j->to->codes + at / 2, j->to->scales + at / NVFP4_BLOCK,
                x ? x : (const float *)(const void *)from, rows, j->cols, at, j->spec,
                &j->scale, NULL);
    free(x);
    return 0;
}

static void
cpu_quantize(struct kernels *k, const struct packed *to, const void *values,
             enum dtype dtype, size_t rows, size_t cols, const float *amax, size_t n,
             const struct quant_spec *spec)
{
    struct cpu *c = (struct cpu *)k;
    struct quant_spec mine = *spec;
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = isnan(amax[i]) || amax[i] > most ? amax[i] : most;
    if (isnan(most)) {
        *to->scale2 = most;
        return;
    }
    mine.isa = c->isa;
    mine.source = dtype;
    struct quantize_job j = { .c = c,
                              .to = to,
                              .values = values,
                              .dtype = dtype,
                              .rows = rows,
                              .cols = cols,
                              .spec = &mine,
                              .scale = nvfp4_scale(&mine, most) };
    j.part = (SOME / cols + 1 + 15) / 16 * 16; // whole square blocks
    *to->scale2 = j.scale.scale2;
    cpu_for(c, (rows + j.part - 1) / j.part, quantize_part, &j);
}

struct squares_job {
    const struct cpu *c;
    const float *x;
    size_t n;
    double *sum; // of each part
};

static int
squares_part(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct squares_job *j = ctx;
    size_t at = i * PART, n = j->n - at < PART ? j->n - at : PART;
    (void)worker;
    (void)err;
    j->sum[i] = j->c->rows->squares(j->x + at, n);
    return 0;
}

static void
squares_of(struct cpu *c, double *out, const struct grad *g, size_t n)
{
    size_t parts = (n + PART - 1) / PART;
    struct squares_job j = { c, g->values, n, malloc((parts + 1) * sizeof(double)) };
    *out = 0;
    if (!j.sum) {
        err_set(c->err, ERR_MEMORY, "out of memory for a norm");
        return;
    }
    cpu_for(c, parts, squares_part, &j);
    for (size_t i = 0; i < parts; i++)
        *out += j.sum[i];
    free(j.sum);
}

static void
cpu_sum_squares(struct kernels *k, double *out, const struct grad *g, const size_t *n,
                size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (g[i].values)
            squares_of((struct cpu *)k, &out[i], &g[i], n[i]);
}

static void
cpu_clip(struct kernels *k, float *out, const double *squares, float given, float limit,
         double most, const float *before)
{
    double norm = sqrt(*squares), c = (double)given;
    (void)k;
    if (limit > 0)
        c = fmin(1, (double)limit / (norm + 1e-6));
    *out = norm * c <= most && !(before && isnan(*before)) ? (float)c : NAN;
}

enum { LOGITS = 1 << 25 };

const struct device kernels_cpu_device = {
    .name = "cpu", .act = DT_F32, .grad = DT_F32, .logits = LOGITS, .host = true
};

bool
kernels_cpu_pairs(enum isa isa)
{
    return gemm_has_pairs(isa);
}

struct kernels *
kernels_cpu(enum dtype compute, enum isa isa, unsigned threads, struct err *err)
{
    struct cpu *c = calloc(1, sizeof *c);
    if (!c) {
        err_set(err, ERR_MEMORY, "out of memory");
        return NULL;
    }
    *c = (struct cpu){ .isa = isa, .rows = rows_table[isa], .err = err };
    c->gemm = compute == DT_BF16 ? gemm_bf16_of(isa) : gemm_of(isa);
    if (!(c->team = team_open(threads, err))) {
        free(c);
        return NULL;
    }
    c->k = (struct kernels){ .is = kernels_cpu_device,
                             .route = "cpu f32 1",
                             .close = cpu_close,
                             .alloc = cpu_alloc,
                             .release = cpu_release,
                             .upload = cpu_upload,
                             .copy = cpu_copy,
                             .download = cpu_download,
                             .linear = cpu_linear,
                             .linear_many = cpu_linear_many,
                             .linear_dx = cpu_linear_dx,
                             .linear_dw = cpu_linear_dw,
                             .linear_many_dx = cpu_linear_many_dx,
                             .linear_many_dw = cpu_linear_many_dw,
                             .quantize_rows = cpu_quantize_rows,
                             .unpack_rows = cpu_unpack_rows,
                             .linear_fp4 = cpu_linear_fp4,
                             .tile = cpu_tile,
                             .logits = cpu_logits,
                             .best = cpu_best,
                             .embed = cpu_embed,
                             .embed_dw = cpu_embed_dw,
                             .norm = cpu_norm,
                             .norm_dx = cpu_norm_dx,
                             .turn = cpu_turn,
                             .turn_dx = cpu_turn_dx,
                             .attention = cpu_attention,
                             .attention_dx = cpu_attention_dx,
                             .swiglu = cpu_swiglu,
                             .swiglu_dx = cpu_swiglu_dx,
                             .zero = cpu_zero,
                             .gather = cpu_gather,
                             .scatter = cpu_scatter,
                             .convert = cpu_convert,
                             .cross_entropy = cpu_cross_entropy,
                             .l1 = cpu_l1,
                             .amax = cpu_amax,
                             .quantize = cpu_quantize,
                             .sum_squares = cpu_sum_squares,
                             .clip = cpu_clip,
                             .adamw = cpu_adamw,
                             .seed_adamw = cpu_seed_adamw,
                             .seed_values = cpu_seed_values };
    if (compute == DT_BF16)
        snprintf(c->k.route, sizeof c->k.route, "cpu bf16 1");
    return &c->k;
}

bool
kernels_cpu_coarse_pays(enum isa isa)
{
    return coarse_pays(isa);
}

void
kernels_cpu_coarse(struct kernels *k)
{
    struct cpu *c = (struct cpu *)k;
    size_t n = strlen(k->route);
    c->coarse = true;
    snprintf(k->route + n, sizeof k->route - n, " coarse 1");
}
