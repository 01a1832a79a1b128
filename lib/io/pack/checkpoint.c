/* SPDX-License-Identifier: MIT */
/* checkpoint: the arrays of a new checkpoint: masters, from the weights, and moments, which
 * are 0. */
#include "lib/io/pack/plan.h"

#include <assert.h>
#include <string.h>

/* An array of zeros PREFIX/NAME SUFFIX for row r, of the shape of `like`. */
static int
add_zeros(struct plan *p, const char *prefix, const struct row *r, const char *suffix,
          enum dtype dtype, const struct row *like)
{
    struct buf b = { 0 };
    struct item *it = item_new(p);
    if (!it)
        return -1;
    uint64_t *shape = arena_alloc(&p->arena, sizeof like->shape);
    buf_printf(&b, "%s/%s%s", prefix, r->name, suffix);
    *it = (struct item){ .name = plan_text(p, &b),
                         .dtype = dtype,
                         .rank = like->rank,
                         .shape = shape,
                         .numel = like->numel,
                         .how = HOW_ZERO };
    if (!shape || !it->name)
        return plan_no_memory(p);
    memcpy(shape, like->shape, sizeof like->shape);
    return 0;
}

static int
add_moments(struct plan *p, const struct row *r)
{
    const char *kind = p->c->moments;
    uint64_t groups = (r->numel + 31) / 32;
    const struct row scales = { .rank = 1, .shape = { groups }, .numel = groups };
    if (strcmp(kind, "int8") != 0) {
        enum dtype d = strcmp(kind, "f32") == 0 ? DT_F32 : DT_BF16;
        return add_zeros(p, "adam.m", r, "", d, r) < 0 ||
                       add_zeros(p, "adam.v", r, "", d, r) < 0
                   ? -1
                   : 0;
    }
    return add_zeros(p, "adam.m", r, "", DT_I8, r) < 0 ||
                   add_zeros(p, "adam.m", r, ".scale", DT_BF16, &scales) < 0 ||
                   add_zeros(p, "adam.v", r, "", DT_U8, r) < 0 ||
                   add_zeros(p, "adam.v", r, ".scale", DT_BF16, &scales) < 0
               ? -1
               : 0;
}

static int
add_master(struct plan *p, struct candidates *all, const struct row *r)
{
    struct candidate *c = candidate_named(all, r->name);
    enum dtype d = strcmp(p->c->master, "f32") == 0 ? DT_F32 : DT_BF16;
    assert(c);
    if (!is_wide_float(c->dtype) && c->dtype != DT_NVFP4)
        return err_set(p->err, ERR_FORMAT, "\"%s\" is %s, no float", r->name,
                       dtype_name(c->dtype));
    return item_plain(p, c, r->name, d);
}

/* A master of TorchSharp's packed optimizer: NVFP4 of one level. */
static int
add_torchsharp_master(struct plan *p, struct candidates *all, const struct row *r)
{
    struct candidate *c = candidate_named(all, r->name);
    assert(c);
    if (!is_wide_float(c->dtype) && c->dtype != DT_NVFP4)
        return err_set(p->err, ERR_FORMAT, "\"%s\" is %s, no float", r->name,
                       dtype_name(c->dtype));
    if (r->shape[r->rank - 1] % NVFP4_BLOCK)
        return err_set(
            p->err, ERR_USAGE,
            "--compat torchsharp: \"%s\" has rows of %llu columns, NVFP4 needs a "
            "multiple of %d",
            r->name, (unsigned long long)r->shape[r->rank - 1], NVFP4_BLOCK);
    bool keep = c->dtype == DT_NVFP4 && view_levels(c->view) == 1;
    return quantize_add(p, c, !keep, view_dialect(NULL), NULL);
}

/* One of its moments. */
static int
add_torchsharp_moment(struct plan *p, const char *prefix, const struct row *r)
{
    bool nvfp4 = strcmp(p->c->moments, "nvfp4") == 0;
    unsigned last = r->rank - 1;
    struct row codes = *r, scales = *r;
    if (!nvfp4) {
        scales.rank = 1;
        scales.numel = scales.shape[0] = r->rank == 2 ? r->shape[0] : 1;
        return add_zeros(p, prefix, r, "", DT_I8, r) < 0
                   ? -1
                   : add_zeros(p, prefix, r, ".scale", DT_F32, &scales);
    }
    codes.shape[last] /= 2;
    codes.numel /= 2;
    scales.shape[last] /= NVFP4_BLOCK;
    scales.numel /= NVFP4_BLOCK;
    return add_zeros(p, prefix, r, ".qdata", DT_U8, &codes) < 0
               ? -1
               : add_zeros(p, prefix, r, ".scale", DT_F8_E4M3, &scales);
}

/* A checkpoint for TorchSharp's packed optimizer. */
static int
plan_torchsharp(struct plan *p, struct candidates *all)
{
    const struct table *t = &p->weights;
    if (strcmp(p->c->quant, "native") != 0)
        return err_set(
            p->err, ERR_USAGE,
            "--compat torchsharp --to ckpt: packs by --quant native, not by %s",
            p->c->quant);
    for (size_t i = 0; i < t->n; i++)
        if (add_torchsharp_master(p, all, &t->row[i]) < 0)
            return -1;
    for (size_t i = 0; i < t->n; i++)
        if (add_torchsharp_moment(p, "adam.m", &t->row[i]) < 0 ||
            add_torchsharp_moment(p, "adam.v", &t->row[i]) < 0)
            return -1;
    return 0;
}

int
plan_checkpoint(struct plan *p, struct candidates *all)
{
    if (candidates_check_model(p, all) < 0)
        return -1;
    if (p->c->torchsharp)
        return plan_torchsharp(p, all);
    for (size_t i = 0; i < p->weights.n; i++) {
        const struct row *r = &p->weights.row[i];
        if (r->quantized && strcmp(p->c->quant, "none") != 0 &&
            r->shape[1] % NVFP4_BLOCK)
            return err_set(
                p->err, ERR_USAGE,
                "\"%s\" has rows of %llu columns, --quant %s needs a multiple "
                "of %d; --quant none trains it as it is",
                r->name, (unsigned long long)r->shape[1], p->c->quant, NVFP4_BLOCK);
    }
    for (size_t i = 0; i < p->weights.n; i++)
        if (add_master(p, all, &p->weights.row[i]) < 0)
            return -1;
    for (size_t i = 0; i < p->weights.n; i++)
        if (add_moments(p, &p->weights.row[i]) < 0)
            return -1;
    return 0;
}
