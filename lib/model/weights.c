/* SPDX-License-Identifier: MIT */
/* weights: see weights.h. */
#include "lib/model/weights.h"

#include "lib/core/num.h"
#include "lib/nvfp4/codec.h"
#include "lib/nvfp4/tiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How many rows from i on share a tensor scale. */
static size_t
group(const struct weights *w, size_t i)
{
    const struct table *t = &w->n->table;
    struct slice first, next;
    enum fused kind = table_fused(slice_of(t->row[i].name), &first);
    size_t n = 1;
    if (!w->share || kind == FUSED_NONE)
        return 1;
    while (i + n < t->n && table_fused(slice_of(t->row[i + n].name), &next) == kind &&
           next.n == first.n && t->row[i + n].layer == t->row[i].layer)
        n++;
    return n;
}

/* Bytes of expanded, up to where the next one of a group may be. */
static uint64_t
expanded_room(const struct weights *w, size_t i)
{
    return round_up(w->n->table.row[i].numel * sizeof(uint16_t), TABLE_ALIGN);
}

/* What a group has together: the multiplier, and expanded behind each other, so that a
 * product may take them as one matrix. */
static void
take_shared(struct weights *w, size_t i, size_t n)
{
    struct kernels *k = w->n->k;
    struct packed *p = &w->packed[i];
    uint64_t bytes = 0;
    for (size_t m = i; m < i + n; m++)
        bytes += expanded_room(w, m);
    p->scale2 = k->alloc(k, sizeof *p->scale2);
    if (w->expand)
        p->expanded = k->alloc(k, (size_t)bytes);
    for (size_t m = i + 1; m < i + n; m++, p++) {
        p[1].scale2 = p->scale2;
        if (p->expanded)
            p[1].expanded = (char *)p->expanded + expanded_room(w, m - 1);
    }
}

static int
take_packed(struct weights *w, size_t i)
{
    struct kernels *k = w->n->k;
    const struct row *r = &w->n->table.row[i];
    struct packed *p = &w->packed[i];
    size_t n = (size_t)r->numel;
    if (r->shape[1] % NVFP4_BLOCK)
        return err_set(
            w->n->err, ERR_USAGE,
            "%s: rows of %llu columns cannot be quantized: no multiple of %d", r->name,
            (unsigned long long)r->shape[1], NVFP4_BLOCK);
    bool native = w->n->activations && k->is.fp4 == FP4_NATIVE;
    if (!w->expand || native) {
        p->codes = k->alloc(k, n / 2);
        p->scales = k->alloc(k, n / NVFP4_BLOCK);
    }
    if (native)
        p->tiles = k->alloc(
            k, tiles_bytes((size_t)r->shape[0], (size_t)r->shape[1] / NVFP4_BLOCK));
    if (w->n->err->kind)
        return -1;
    w->n->t[i].w = (struct weight){ .dtype = DT_NVFP4,
                                    .values = p->codes,
                                    .scales = p->scales,
                                    .scale2 = p->scale2,
                                    .expanded = p->expanded,
                                    .tiles = p->tiles,
                                    .out = (size_t)r->shape[0],
                                    .in = (size_t)r->shape[1] };
    return 0;
}

int
weights_open(struct weights *w, struct net *n, const struct quant_spec *quant,
             bool share, bool expand)
{
    *w = (struct weights){
        .n = n, .quantize = quant != NULL, .expand = expand, .share = share
    };
    if (quant)
        w->spec = *quant;
    w->packed = calloc(n->table.n, sizeof *w->packed);
    w->host = calloc(n->table.n, sizeof *w->host);
    w->known = calloc(n->table.n, sizeof *w->known);
    if (!w->packed || !w->host || !w->known)
        return err_set(n->err, ERR_MEMORY, "out of memory for weights");
    n->k->part = PART_WEIGHTS;
    w->amax = n->k->alloc(n->k, n->table.n * sizeof *w->amax);
    int rc = w->amax ? 0 : -1;
    for (size_t i = 0, m = 1; i < n->table.n && quant; i += m) {
        m = group(w, i);
        if (n->table.row[i].quantized)
            take_shared(w, i, m);
    }
    for (size_t i = 0; i < n->table.n && quant && rc == 0; i++)
        if (n->table.row[i].quantized)
            rc = take_packed(w, i);
    return rc;
}

void
weights_close(struct weights *w)
{
    if (!w->n)
        return;
    struct kernels *k = w->n->k;
    for (size_t i = 0, m = 1; w->packed && i < w->n->table.n; i += m) {
        m = group(w, i);
        k->release(k, w->packed[i].scale2);
        k->release(k, w->packed[i].expanded);
    }
    for (size_t i = 0; w->packed && i < w->n->table.n; i++) {
        k->release(k, w->packed[i].codes);
        k->release(k, w->packed[i].scales);
        k->release(k, w->packed[i].tiles);
    }
    k->release(k, w->amax);
    free(w->packed);
    free(w->host);
    free(w->known);
    *w = (struct weights){ 0 };
}

/* Row i of the table, with the largest of n amax; tiles once there are scales. */
static void
make(struct weights *w, size_t i, const void *values, enum dtype dtype,
     const float *amax, size_t n)
{
    struct kernels *k = w->n->k;
    const struct packed *to = &w->packed[i];
    const uint64_t *shape = w->n->table.row[i].shape;
    size_t rows = (size_t)shape[0], cols = (size_t)shape[1];
    k->quantize(k, to, values, dtype, rows, cols, amax, n, &w->spec);
    if (to->tiles)
        k->tile(k, to->tiles, to->scales, rows, cols / NVFP4_BLOCK);
}

void
weights_begin(struct weights *w)
{
    size_t n = w->n->table.n;
    w->n->k->zero(w->n->k, w->amax, n * sizeof *w->amax);
    memset(w->known, 0, n * sizeof *w->known);
}

float *
weights_amax(struct weights *w, size_t i)
{
    w->known[i] = true;
    return &w->amax[i];
}

int
weights_make(struct weights *w, const void *const *values, enum dtype dtype)
{
    struct kernels *k = w->n->k;
    const struct table *t = &w->n->table;
    for (size_t i = 0; i < t->n; i++)
        if (values[i] && !w->known[i])
            k->amax(k, &w->amax[i], values[i], dtype, (size_t)t->row[i].numel);
    for (size_t i = 0, n = 1; i < t->n; i += n) {
        n = group(w, i);
        for (size_t m = i; m < i + n; m++)
            if (w->packed[m].scale2 && values[m])
                make(w, m, values[m], dtype, &w->amax[i], n);
    }
    memset(w->known, 0, t->n * sizeof *w->known);
    return w->n->err->kind ? -1 : 0;
}

const struct row *
weights_odd(const struct table *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->row[i].quantized && (t->row[i].shape[0] % FP4_NATIVE_UNIT ||
                                    t->row[i].shape[1] % FP4_NATIVE_UNIT))
            return &t->row[i];
    return NULL;
}

int
weights_check(struct weights *w, size_t *row)
{
    struct kernels *k = w->n->k;
    size_t n = w->n->table.n;
    *row = n;
    if (k->download(k, w->host, w->amax, n * sizeof *w->host) < 0)
        return -1;
    for (size_t i = n; i-- > 0;)
        if (isnan(w->host[i]))
            *row = i;
    return 0;
}
