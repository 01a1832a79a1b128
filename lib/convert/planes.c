/* SPDX-License-Identifier: MIT */
/* planes: codes, scales and tensor scale of NVFP4 tensors that are made here. */
#include "lib/convert/produce.h"

#include "lib/base/par.h"
#include "lib/nvfp4/feedback.h"
#include "lib/nvfp4/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int
not_finite(const struct producer *x, uint64_t index, const void *values, size_t at,
           enum dtype dtype, struct err *err)
{
    char q[TEXT_QUOTE];
    const struct item *it = x->it;
    bool wide = dtype == DT_F32;
    uint32_t bits =
        wide ? ((const uint32_t *)values)[at] : ((const uint16_t *)values)[at];
    return err_set(err, ERR_FORMAT, "%s: \"%s\": element %llu is not finite: %s 0x%0*x",
                   item_source(it),
                   text_quote(q, item_source_name(it), strlen(item_source_name(it))),
                   (unsigned long long)index, dtype_name(dtype), wide ? 8 : 4, bits);
}

/* Largest magnitude of a chunk. */
static int
scan_chunk(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct producer *x = ctx;
    struct values_scratch *w = &x->scratch[worker];
    uint64_t first = i * (uint64_t)VALUES_CHUNK;
    size_t n = producer_chunk(x, i), bad;
    enum dtype d;
    const void *values = producer_read(x, i, w, &d, err);
    if (!values)
        return -1;
    x->amax[i] = nvfp4_amax(d, values, n, &bad);
    return bad < n ? not_finite(x, first + bad, values, bad, d, err) : 0;
}

/* The largest magnitude of a tensor, by the CPU. */
static int
scan_values(struct producer *x, struct nvfp4 *t)
{
    if (producer_begin(x, &t->source) < 0)
        return -1;
    size_t chunks = (size_t)producer_chunks(x);
    free(x->amax);
    x->amax = malloc((chunks ? chunks : 1) * sizeof *x->amax);
    if (!x->amax)
        return err_set(x->p->err, ERR_MEMORY, "out of memory for quantizing");
    if (par_for(x->threads, chunks, scan_chunk, x, x->p->err) < 0)
        return -1;
    t->amax = 0;
    for (size_t i = 0; i < chunks; i++)
        t->amax = fmaxf(t->amax, x->amax[i]);
    return 0;
}

static bool
on_gpu(const struct producer *x, const struct nvfp4 *t)
{
    return x->pool.k && t->quantize && t->source.numel && !x->p->c->hessian;
}

/* The first of the two passes: the largest magnitudes of the tensor and of those that it
 * shares its scale with.  next: its second pass follows. */
static int
scan(struct producer *x, struct nvfp4 *t, bool next)
{
    for (t = t->group; t; t = t->next) {
        if (t->scanned)
            continue;
        bool gpu = on_gpu(x, t);
        if (gpu && planes_gpu_amax(x, t, next) < 0)
            return -1;
        // The CPU finds which value is not finite.
        if ((!gpu || isnan(t->amax)) && scan_values(x, t) < 0)
            return -1;
        t->scanned = true;
    }
    return 0;
}

static int
find_scale(struct producer *x, struct nvfp4 *t, bool next)
{
    float amax = 0;
    x->spec = x->p->spec;
    x->spec.source = t->source.view ? t->source.view->dtype : t->source.source;
    if (scan(x, t, next) < 0)
        return -1;
    for (const struct nvfp4 *u = t->group; u; u = u->next)
        amax = fmaxf(amax, u->amax);
    x->scale = nvfp4_scale(&x->spec, amax);
    return 0;
}

/* n values of t from element `first` on. */
static void
quantize(const struct producer *x, const struct nvfp4 *t, uint8_t *codes,
         uint8_t *scales, const float *values, size_t n, uint64_t first,
         struct quant_error *e)
{
    struct quant_spec spec = x->spec;
    size_t column = (size_t)(first % t->cols);
    if (t->importance)
        spec.column_weight = t->importance + column;
    if (t->factor)
        nvfp4_feedback(codes, scales, values, n, column, (size_t)t->cols, t->factor,
                       x->spec.kind, &x->scale, e);
    else
        nvfp4_quant(codes, scales, values, 1, n, first, &spec, &x->scale, e);
}

static int
make_nvfp4(struct producer *x, struct chunk *c, uint64_t first, size_t n,
           struct values_scratch *w, struct err *err)
{
    struct nvfp4 *t = x->nvfp4;
    uint8_t *codes = c->out, *scales = t->scales + first / NVFP4_BLOCK;
    if (t->quantize) {
        if (producer_floats(x, first, n, w, NULL, err) < 0)
            return -1;
        quantize(x, t, codes, scales, w->f32, n, first, x->measure ? &c->error : NULL);
    } else if (values_planes(&x->values, first, n, codes, scales, w, err) < 0) {
        return -1;
    }
    producer_settle_zeros(t->dialect, codes, scales, n / NVFP4_BLOCK);
    c->bytes = n / 2;
    if (t->dialect->blocks) { // n is a multiple of their size, as rows are
        nvfp4_gguf_pack(w->bytes, codes, scales, n);
        c->bytes = n / NVFP4_GGUF_BLOCK * NVFP4_GGUF_BYTES;
        memcpy(codes, w->bytes, c->bytes);
    }
    return 0;
}

/* The tensor scale of an NVFP4 tensor that keeps its codes: the same bits, unless
 * multiplier becomes divisor or the other way round. */
static int
kept_scale2(struct producer *x, const struct item *it, const struct nvfp4 *t)
{
    const struct view *v = t->source.view;
    float f = 1;
    if (producer_begin(x, &t->source) < 0 ||
        (v->scale2 &&
         values_scale(&f, t->source.s, v->scale2, "tensor", t->name, x->p->err) < 0))
        return -1;
    x->it = it;
    bool same = !v->scale2 || v->dialect->divides == t->dialect->divides;
    return producer_scale(x, same ? f : scale_swapped(v->dialect, f));
}

/* Codes and scales of t, into t->scales and unless `discard` into the file. */
static int
make_planes(struct producer *x, struct nvfp4 *t, bool discard)
{
    if (!t->scales)
        t->scales = malloc((size_t)(t->source.numel / NVFP4_BLOCK) + NVFP4_BLOCK);
    if (!t->scales)
        return err_set(x->p->err, ERR_MEMORY, "out of memory for quantizing");
    bool gpu = on_gpu(x, t);
    if ((t->quantize && find_scale(x, t, true) < 0) ||
        (!gpu && producer_begin(x, &t->source) < 0))
        return -1;
    if (t->quantize && x->p->c->hessian && !(t->factor = importance_factor(x->p, t)))
        return -1;
    t->error = (struct quant_error){ 0 };
    x->it = &t->source;
    x->nvfp4 = t;
    x->discard = discard;
    int rc = gpu ? planes_gpu_make(x) : producer_convert(x, make_nvfp4);
    free(t->factor);
    t->factor = NULL;
    x->nvfp4 = NULL;
    x->discard = false;
    t->made = true;
    return rc;
}

static int
write_scales(struct producer *x, struct nvfp4 *t)
{
    size_t n = (size_t)(t->source.numel / NVFP4_BLOCK);
    if (!t->made && make_planes(x, t, true) < 0)
        return -1;
    if (producer_write(x, t->scales, n) < 0)
        return -1;
    t->scales_written = true;
    free(t->scales); // codes that come later make them again
    t->scales = NULL;
    return 0;
}

int
producer_plane(struct producer *x, const struct item *it)
{
    struct nvfp4 *t = it->nvfp4;
    switch (it->plane) {
    case PLANE_CODES:
        if (make_planes(x, t, false) < 0)
            return -1;
        if (t->dialect->blocks || t->scales_written) {
            free(t->scales);
            t->scales = NULL;
        }
        return 0;
    case PLANE_SCALES:
        return write_scales(x, t);
    default: // PLANE_SCALE2
        if (!t->quantize)
            return kept_scale2(x, it, t);
        if (find_scale(x, t, false) < 0)
            return -1;
        x->it = it;
        return producer_scale(x, t->dialect->divides ? 1 / x->scale.scale2
                                                     : x->scale.scale2);
    }
}
