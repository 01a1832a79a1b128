/* SPDX-License-Identifier: MIT */
/* checkpoint: the arrays of a new checkpoint: masters, from the weights, and moments, which
 * are 0. */
#include "lib/convert/plan.h"

#include "lib/load/training.h"

#include <assert.h>
#include <string.h>

/* The type of a row's weights must be one that training can begin from. */
static int
check_row(struct plan *p, const struct candidate *c, const struct row *r)
{
    unsigned long long cols = r->shape[r->rank - 1];
    if (!is_wide_float(c->dtype) && c->dtype != DT_NVFP4)
        return err_set(p->err, ERR_FORMAT,
                       "\"%s\" is %s: expected f16, bf16, f32 or nvfp4, as the "
                       "original model has them",
                       r->name, dtype_name(c->dtype));
    if (p->c->torchsharp && cols % NVFP4_BLOCK)
        return err_set(p->err, ERR_USAGE,
                       "--compat torchsharp: \"%s\" has rows of %llu columns, NVFP4 "
                       "needs a multiple of %d",
                       r->name, cols, NVFP4_BLOCK);
    return 0;
}

/* Quantized rows must consist of whole blocks. */
static int
check_columns(struct plan *p)
{
    const struct table *t = &p->weights;
    for (const struct row *r = t->row; r < t->row + t->n; r++)
        if (r->quantized && strcmp(p->c->quant, "none") != 0 &&
            r->shape[1] % NVFP4_BLOCK)
            return err_set(
                p->err, ERR_USAGE,
                "\"%s\" has rows of %llu columns, --quant %s needs a multiple "
                "of %d; --quant none trains it as it is",
                r->name, (unsigned long long)r->shape[1], p->c->quant, NVFP4_BLOCK);
    return 0;
}

/* A master in one array, or packed as NVFP4 of one level. */
static int
add_master(struct plan *p, const struct candidate *c, const struct array *a)
{
    if (!p->c->torchsharp)
        return item_plain(p, c, a->name, a->dtype);
    bool keep = c->dtype == DT_NVFP4 && view_levels(c->view) == 1;
    return quantize_add(p, c, !keep, view_dialect(NULL), NULL);
}

static int
add_moment(struct plan *p, const struct array *a)
{
    struct item *it = item_new(p);
    if (!it)
        return -1;
    *it = (struct item){ .name = a->name,
                         .dtype = a->dtype,
                         .rank = a->rank,
                         .shape = a->shape,
                         .numel = a->bytes * 8 / dtype_bits(a->dtype),
                         .how = HOW_ZERO };
    return 0;
}

static int
add_arrays(struct plan *p, struct candidates *all)
{
    const struct arrays *list = &p->arrays;
    for (const struct array *a = list->v; a < list->v + list->n; a++) {
        const struct candidate *c = candidate_named(all, p->weights.row[a->row].name);
        int rc = 0;
        assert(c);
        if (a->plane == ARRAY_MASTER)
            rc = add_master(p, c, a);
        else if (a->plane != ARRAY_MASTER_SCALE) // added with its codes
            rc = add_moment(p, a);
        if (rc < 0)
            return -1;
    }
    return 0;
}

int
plan_checkpoint(struct plan *p, struct candidates *all)
{
    struct array_layout layout;
    if (candidates_check_model(p, all) < 0)
        return -1;
    if (p->c->torchsharp && strcmp(p->c->quant, "native") != 0)
        return err_set(
            p->err, ERR_USAGE,
            "--compat torchsharp --to ckpt: packs by --quant native, not by %s",
            p->c->quant);
    if (!p->c->torchsharp && check_columns(p) < 0)
        return -1;
    for (size_t i = 0; i < p->weights.n; i++) {
        const struct row *r = &p->weights.row[i];
        if (check_row(p, candidate_named(all, r->name), r) < 0)
            return -1;
    }
    bool known = training_layout(&layout, p->c->master, p->c->moments);
    assert(known);
    (void)known;
    return arrays_open(&p->arrays, &p->weights, &layout, p->err) < 0
               ? -1
               : add_arrays(p, all);
}
