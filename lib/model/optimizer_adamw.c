/* SPDX-License-Identifier: MIT */
/* optimizer_adamw: AdamW with moments of f32, bf16 or 8 bits, numerics.md 7.5. */
#include "lib/model/optimizer_list.h"

#include "lib/model/train.h"

#include <string.h>

enum {
    MOMENT_GROUP = 32, // elements that share the scale of an 8-bit moment
    CHUNK = 256        // elements that a chunk of an update is a multiple of
};

/* ---- what is kept ------------------------------------------------------------------------ */

static bool
layout(struct array_layout *l, const char *master, const char *moments)
{
    static const char *const kinds[] = { "f32", "bf16", "int8" };
    bool f32 = strcmp(master, "f32") == 0;
    if (!f32 && strcmp(master, "bf16") != 0)
        return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(moments, kinds[i]) == 0) {
            *l = (struct array_layout){ .master = f32 ? DT_F32 : DT_BF16,
                                        .moments = (enum moments)i };
            return true;
        }
    return false;
}

static int
form(const struct array_layout *l, enum array_plane plane, const struct row *r,
     struct array_form *f, struct err *err)
{
    static const struct array_form scales = { ".scale", DT_BF16, MOMENT_GROUP, true };
    bool bytes = l->moments == MOMENTS_INT8;
    (void)r;
    (void)err;
    *f = (struct array_form){ "", l->moments == MOMENTS_F32 ? DT_F32 : DT_BF16, 1,
                              false };
    switch (plane) {
    case ARRAY_MASTER:
        f->dtype = l->master;
        return 1;
    case ARRAY_M:
    case ARRAY_V:
        if (bytes)
            f->dtype = plane == ARRAY_M ? DT_I8 : DT_U8;
        return 1;
    case ARRAY_M_SCALE:
    case ARRAY_V_SCALE:
        *f = scales;
        return bytes;
    default:
        return 0;
    }
}

static bool
runs_on(const struct device *is)
{
    (void)is;
    return true;
}

static void
describe(struct train_tensor *x, const struct array_layout *l, const struct row *r)
{
    (void)r;
    x->state.dtype = l->master;
    x->state.moments = l->moments;
}

static void
attach(struct train_tensor *x, enum array_plane plane, void *p)
{
    struct adam_state *s = &x->state;
    if (plane == ARRAY_MASTER)
        s->master = p;
    else if (plane == ARRAY_M)
        s->m = p;
    else if (plane == ARRAY_M_SCALE)
        s->m_scale = p;
    else if (plane == ARRAY_V)
        s->v = p;
    else
        s->v_scale = p;
}

static struct matrix
master(const struct train_tensor *x)
{
    return matrix_of(x->state.dtype, x->state.master, x->rows, x->cols);
}

/* Norms are taken as f32. */
static bool
needs_unpacked(const struct array_layout *l, const struct row *r)
{
    return r->rank == 1 && l->master != DT_F32;
}

/* ---- the update -------------------------------------------------------------------------- */

/* The span of a tensor, some rows at a time.  Its amax becomes that of all ranks' spans with the
 * quantized rows'; without those it is found when the master has been gathered. */
static void
update(struct train *t, size_t i, struct adam_step *a, struct updates *u)
{
    const struct span s = train_span(t, i);
    const struct matrix *grad = &t->tensor[i].grad;
    const struct row *r = &t->net.table.row[i];
    uint64_t chunk = t->numbers.chunk_rows * (r->rank == 2 ? r->shape[1] : 1);
    uint64_t end = s.first + s.count;
    struct adam_state state = t->tensor[i].state;
    state.first = s.first;
    a->amax = NULL;
    if (!train_parts_master(t, i))
        state.master = dtype_at(state.dtype, state.master, s.first);
    if (!train_shards(t) || train_parts_master(t, i))
        a->amax = weights_amax(&t->weights, i);
    chunk = chunk ? (chunk + CHUNK - 1) / CHUNK * CHUNK : s.count;
    for (uint64_t at = s.first; at < end; at += chunk) {
        if (u->n == UPDATES) {
            op_adamw(t->net.k, u->list, u->n);
            u->n = 0;
        }
        u->list[u->n++] =
            (struct adam_update){ state, *grad, at,
                                  (size_t)(end - at < chunk ? end - at : chunk), *a };
    }
}

const struct optimizer optimizer_adamw = {
    .name = "AdamW",
    .layout = layout,
    .form = form,
    .runs_on = runs_on,
    .describe = describe,
    .attach = attach,
    .master = master,
    .needs_unpacked = needs_unpacked,
    .update = update,
};
