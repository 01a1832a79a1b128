/* SPDX-License-Identifier: MIT */
/* head_match: whether the NVFP4 head of a tied model is its embedding, quantized.
 *
 * Files do not record what quantized a tensor, so each possible quantizer is tried: on a
 * sample first, then on the whole tensor.  The embedding beside it can be the rounded
 * form of what was quantized (f16 in a .dat made of bf16 or f32), so a block that is not
 * equal bit for bit may be that of values within half a unit of their last place. */
#include "lib/convert/plan.h"

#include "lib/base/par.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 8 }; // chunks

/* Rounding errors of the embedding: relative, and absolute for the smallest values. */
struct rounding {
    double relative, absolute;
};

struct worker {
    struct values_scratch embed, head;
    uint8_t *codes;  // of the embedding: (VALUES_CHUNK / 2)
    uint8_t *scales; // (VALUES_CHUNK / 16)
};

struct compare {
    struct values embed, head;
    struct quant_spec spec;
    struct quant_scale scale;
    struct rounding u;
    uint64_t numel;
    size_t step; // of the chunks that are compared
    float *amax; // of chunks
    struct worker *worker;
    atomic_bool differs;
};

static size_t
chunk_size(const struct compare *x, uint64_t first)
{
    uint64_t left = x->numel - first;
    return left < VALUES_CHUNK ? (size_t)left : VALUES_CHUNK;
}

/* Euclidean distance of a decoded block from 16 values. */
static double
distance(const float *v, const uint8_t *codes, uint8_t scale, float scale2)
{
    float decoded[NVFP4_BLOCK];
    double sum = 0;
    nvfp4_decode(decoded, codes, &scale, scale2, NVFP4_BLOCK);
    for (int i = 0; i < NVFP4_BLOCK; i++) {
        double d = (double)decoded[i] - (double)v[i];
        sum += d * d;
    }
    return sqrt(sum);
}

/* The same for the block that quantizing the values times `by` makes. */
static double
distance_of(const struct compare *x, const float *v, double by)
{
    float w[NVFP4_BLOCK];
    uint8_t codes[NVFP4_BLOCK / 2], scale;
    for (int i = 0; i < NVFP4_BLOCK; i++)
        w[i] = (float)((double)v[i] * by);
    nvfp4_quant(codes, &scale, w, 1, NVFP4_BLOCK, 0, &x->spec, &x->scale, NULL);
    return distance(v, codes, scale, x->scale.scale2);
}

/* Whether a block may have been made of values that were rounded to v.  If v' was
 * quantized, |head - v| <= |head - v'| + |v' - v|, and |head - v'| is no larger than what
 * quantizing costs within the rounding's reach. */
static bool
could_be(const struct compare *x, const float *v, const uint8_t *codes, uint8_t scale)
{
    double moved = 0, cost = 0;
    if (x->u.relative == 0)
        return false;
    for (int i = 0; i < NVFP4_BLOCK; i++) {
        double d = fmax(fabs((double)v[i]) * x->u.relative, x->u.absolute);
        moved += d * d;
    }
    for (int i = -1; i <= 1; i++)
        cost = fmax(cost, distance_of(x, v, 1 + i * x->u.relative));
    if (x->spec.mae) // chooses by another measure
        cost *= 2;
    return distance(v, codes, scale, x->scale.scale2) <= 1.001 * cost + 2 * sqrt(moved);
}

static int
compare_chunk(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct compare *x = ctx;
    struct worker *w = &x->worker[worker];
    uint64_t first = i * x->step * (uint64_t)VALUES_CHUNK;
    size_t n = chunk_size(x, first);
    const uint8_t *codes = w->head.bytes, *scales = w->head.scales;
    if (atomic_load(&x->differs))
        return 0;
    if (values_read(&x->embed, first, n, &w->embed, err) < 0 ||
        values_planes(&x->head, first, n, w->head.bytes, w->head.scales, &w->head,
                      err) < 0)
        return -1;
    nvfp4_quant(w->codes, w->scales, w->embed.f32, 1, n, first, &x->spec, &x->scale,
                NULL);
    for (size_t b = 0; b < n / NVFP4_BLOCK; b++) {
        size_t at = b * (NVFP4_BLOCK / 2);
        bool equal = scales[b] == w->scales[b] &&
                     memcmp(codes + at, w->codes + at, NVFP4_BLOCK / 2) == 0;
        if (!equal &&
            !could_be(x, w->embed.f32 + b * NVFP4_BLOCK, codes + at, scales[b])) {
            atomic_store(&x->differs, true);
            break;
        }
    }
    return 0;
}

static int
scan_chunk(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct compare *x = ctx;
    struct worker *w = &x->worker[worker];
    uint64_t first = i * (uint64_t)VALUES_CHUNK;
    size_t n = chunk_size(x, first), bad;
    if (values_read(&x->embed, first, n, &w->embed, err) < 0)
        return -1;
    x->amax[i] = nvfp4_amax(DT_F32, w->embed.f32, n, &bad);
    if (bad < n)
        atomic_store(&x->differs, true); // cannot be quantized
    return 0;
}

/* The embedding's largest magnitude. */
static int
scan(struct compare *x, const struct plan *p, float *amax)
{
    size_t chunks = (size_t)values_chunks(x->embed.v);
    x->amax = malloc((chunks ? chunks : 1) * sizeof *x->amax);
    if (!x->amax)
        return err_set(p->err, ERR_MEMORY, "out of memory for comparing the head");
    int rc = par_for(p->c->threads, chunks, scan_chunk, x, p->err);
    *amax = 0;
    for (size_t i = 0; rc == 0 && i < chunks; i++)
        *amax = fmaxf(*amax, x->amax[i]);
    free(x->amax);
    x->amax = NULL;
    return rc;
}

static struct rounding
rounding_of(enum dtype d, enum quant kind)
{
    struct rounding u = { 0 };
    if (d == DT_F16)
        u = (struct rounding){ 0x1p-11, 0x1p-25 };
    else if (d == DT_BF16)
        u = (struct rounding){ 0x1p-9, 0 };
    // These two round to bf16 in between, which can add one unit of it.
    if (u.relative > 0 && (kind == QUANT_TORCHAO || kind == QUANT_NATIVE))
        u.relative += 0x1p-8;
    return u;
}

/* Use the head's tensor scale, if it can be that of the embedding. */
static bool
settle_scale(struct compare *x, float amax)
{
    x->scale = nvfp4_scale(&x->spec, amax);
    double ratio = (double)x->head.scale2 / (double)x->scale.scale2;
    if (ratio == 1)
        return true;
    if (fabs(ratio - 1) > 2 * x->u.relative)
        return false;
    x->scale = nvfp4_scale(&x->spec, (float)((double)amax * ratio));
    x->scale.scale2 = x->head.scale2;
    return true;
}

/* 1: all sampled chunks agree, 0: one does not, -1: the error is set. */
static int
agrees(struct compare *x, const struct plan *p, size_t chunks, size_t step)
{
    atomic_store(&x->differs, false);
    x->step = step;
    if (par_for(p->c->threads, (chunks + step - 1) / step, compare_chunk, x, p->err) <
        0)
        return -1;
    return !atomic_load(&x->differs);
}

static int
made_by(struct compare *x, const struct plan *p, float amax,
        const struct quant_spec *spec)
{
    size_t chunks = (size_t)values_chunks(x->embed.v);
    size_t step = chunks / SAMPLE + 1;
    x->spec = *spec;
    x->spec.isa = p->c->host->isa;
    x->u = rounding_of(x->embed.v->dtype, spec->kind);
    if (!settle_scale(x, amax))
        return 0;
    int rc = step > 1 ? agrees(x, p, chunks, step) : 1;
    return rc > 0 ? agrees(x, p, chunks, 1) : rc;
}

/* Most likely quantizers first. */
static int
try_all(struct compare *x, const struct plan *p, float amax)
{
    static const struct quant_spec specs[] = {
        { .kind = QUANT_SWEEP },
        { .kind = QUANT_TORCHAO },
        { .kind = QUANT_NATIVE, .source = DT_F16 },
        { .kind = QUANT_NATIVE, .source = DT_BF16 },
        { .kind = QUANT_NATIVE, .source = DT_F32 },
        { .kind = QUANT_SWEEP1 },
        { .kind = QUANT_MAX },
        { .kind = QUANT_MAX, .modelopt = true },
        { .kind = QUANT_4OVER6 },
        { .kind = QUANT_4OVER6, .mae = true },
        { .kind = QUANT_SWEEPFP8 },
        { .kind = QUANT_SWEEP, .exhaustive = true },
        { .kind = QUANT_SWEEP1, .exhaustive = true },
        { .kind = QUANT_SWEEPFP8, .exhaustive = true },
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof specs / sizeof *specs; i++)
        if (quant_levels(specs[i].kind) == view_levels(x->head.v))
            rc = made_by(x, p, amax, &specs[i]);
    return rc;
}

static int
workers_open(struct compare *x, const struct plan *p)
{
    x->worker = calloc(p->c->threads, sizeof *x->worker);
    bool bad = !x->worker;
    for (unsigned i = 0; i < p->c->threads && !bad; i++) {
        struct worker *w = &x->worker[i];
        w->codes = malloc(VALUES_CHUNK / 2);
        w->scales = malloc(VALUES_CHUNK / NVFP4_BLOCK);
        bad = !w->codes || !w->scales || values_scratch(&w->embed, p->err) < 0 ||
              values_scratch(&w->head, p->err) < 0;
    }
    return bad ? err_set(p->err, ERR_MEMORY, "out of memory for comparing the head")
               : 0;
}

static void
workers_close(struct compare *x, const struct plan *p)
{
    for (unsigned i = 0; x->worker && i < p->c->threads; i++) {
        struct worker *w = &x->worker[i];
        values_scratch_free(&w->embed);
        values_scratch_free(&w->head);
        free(w->codes);
        free(w->scales);
    }
    free(x->worker);
}

int
head_is_quantized(const struct plan *p, const struct candidate *head,
                  const struct candidate *embed)
{
    struct compare x = { .numel = embed->numel };
    float amax;
    if (embed->rank != 2 ||
        memcmp(head->shape, embed->shape, 2 * sizeof(uint64_t)) != 0 ||
        values_kind(embed->dtype) != VALUES_F32)
        return 0;
    int rc = -1;
    if (values_open(&x.embed, &embed->in->store, embed->view, p->c->host->isa,
                    p->err) == 0 &&
        values_open(&x.head, &head->in->store, head->view, p->c->host->isa, p->err) ==
            0 &&
        workers_open(&x, p) == 0 && scan(&x, p, &amax) == 0)
        rc = atomic_load(&x.differs) ? 0 : try_all(&x, p, amax);
    workers_close(&x, p);
    return rc;
}
