/* SPDX-License-Identifier: MIT */
/* optimizer_torchsharp: TorchSharp's packed optimizer, numerics.md 7.4: weights are NVFP4 of one
 * level, moments are, too, or 8-bit integers with a scale for each row. */
#include "lib/model/optimizer_list.h"

#include "lib/model/train.h"

#include <string.h>

static const struct array_form nvfp4_codes = { ".qdata", DT_U8, 2, false };
static const struct array_form nvfp4_scales = { ".scale", DT_F8_E4M3, NVFP4_BLOCK,
                                                false };
static const struct array_form row_codes = { "", DT_I8, 1, false };
static const struct array_form row_scales = { ".scale", DT_F32, 0, true };

static bool
layout(struct array_layout *l, const char *master, const char *moments)
{
    bool nvfp4 = strcmp(moments, "nvfp4") == 0;
    if (strcmp(master, "nvfp4") != 0 || (!nvfp4 && strcmp(moments, "int8") != 0))
        return false;
    *l = (struct array_layout){ .optimizer = OPTIMIZER_TORCHSHARP,
                                .packed = true,
                                .torchsharp =
                                    nvfp4 ? TORCHSHARP_NVFP4 : TORCHSHARP_INT8 };
    return true;
}

static int
form(const struct array_layout *l, enum array_plane plane, const struct row *r,
     struct array_form *f, struct err *err)
{
    bool scales =
        plane == ARRAY_MASTER_SCALE || plane == ARRAY_M_SCALE || plane == ARRAY_V_SCALE;
    bool by_rows = plane >= ARRAY_M && l->torchsharp == TORCHSHARP_INT8;
    uint64_t cols = r->shape[r->rank - 1];
    if (plane == ARRAY_MASTER && cols % NVFP4_BLOCK)
        return err_set(
            err, ERR_USAGE,
            "%s: rows of %llu columns cannot be packed: expected a multiple of %d",
            r->name, (unsigned long long)cols, NVFP4_BLOCK);
    if (by_rows)
        *f = scales ? row_scales : row_codes;
    else
        *f = scales ? nvfp4_scales : nvfp4_codes;
    return 1;
}

static bool
runs_on(const struct device *is)
{
    return is->torchsharp;
}

static void
describe(struct train_tensor *x, const struct array_layout *l, const struct row *r)
{
    (void)r;
    x->torchsharp.moments = l->torchsharp;
    x->torchsharp.rows = x->rows;
    x->torchsharp.cols = x->cols;
}

static void
attach(struct train_tensor *x, enum array_plane plane, void *p)
{
    struct torchsharp_state *s = &x->torchsharp;
    void **const at[ARRAY_PLANES] = { &s->w.q,      &s->w.scales, &s->m.q,
                                      &s->m.scales, &s->v.q,      &s->v.scales };
    *at[plane] = p;
}

static struct matrix
master(const struct train_tensor *x)
{
    const struct torchsharp_state *s = &x->torchsharp;
    struct matrix m = matrix_of(DT_NVFP4, s->w.q, x->rows, x->cols);
    m.scales = s->w.scales;
    return m;
}

/* Products take packed projections; all else is unpacked for them. */
static bool
needs_unpacked(const struct array_layout *l, const struct row *r)
{
    (void)l;
    return !r->quantized;
}

/* Some rows at a time. */
static void
update(struct train *t, size_t i, struct adam_step *a, struct updates *u)
{
    const struct torchsharp_state *s = &t->tensor[i].torchsharp;
    size_t chunk = t->numbers.chunk_rows ? t->numbers.chunk_rows : s->rows;
    (void)u;
    for (size_t at = 0; at < s->rows; at += chunk)
        op_torchsharp_adamw(t->net.k, s, &t->tensor[i].grad, at,
                            s->rows - at < chunk ? s->rows - at : chunk, a);
}

const struct optimizer optimizer_torchsharp = {
    .name = "TorchSharp's packed optimizer",
    .layout = layout,
    .form = form,
    .runs_on = runs_on,
    .describe = describe,
    .attach = attach,
    .master = master,
    .needs_unpacked = needs_unpacked,
    .update = update,
};
