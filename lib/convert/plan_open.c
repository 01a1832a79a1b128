/* SPDX-License-Identifier: MIT */
/* plan_open: see plan.h. */
#include "lib/convert/plan.h"

#include <stdlib.h>
#include <string.h>

/* ---- order ----------------------------------------------------------------------- */

static int
by_place(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static int
by_name(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* If the order in the inputs has no meaning, tensors are ordered by name. */
static void
order_by_name(struct plan *p, struct candidates *all)
{
    for (size_t i = 0; i < p->n_inputs; i++)
        if (!store_traits(&p->inputs[i].store)->by_width)
            return;
    if (all->n)
        qsort(all->v, all->n, sizeof *all->v, by_name);
    for (size_t i = 0; i < all->n; i++)
        all->v[i].order = i;
}

static int
by_item_place(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static int
plan_plain(struct plan *p, struct candidates *all)
{
    // From one .dat to another every entry stays where it was.  Any other .dat of ours
    // has the order of a model, whatever the order of its source was.
    bool ordered = plan_target(p)->model_order, stay = ordered && plan_rewrites(p);
    if (ordered && !p->c->init)
        order_by_name(p, all);
    for (size_t i = 0; i < all->n && !stay; i++)
        all->v[i].place = ordered ? table_place(slice_of(all->v[i].name)) : 0;
    if (all->n)
        qsort(all->v, all->n, sizeof *all->v, by_place);
    for (size_t i = 0; i < all->n; i++)
        if (!all->v[i].dropped && target_add(p, &all->v[i]) < 0)
            return -1;
    for (size_t i = 0; i < p->n; i++)
        p->item[i].order = i;
    if (stay && !p->c->torchsharp && p->n)
        qsort(p->item, p->n, sizeof *p->item, by_item_place);
    return 0;
}

static int
plan_served(struct plan *p, struct candidates *all)
{
    return candidates_check_model(p, all) < 0 || input_scales_check(p) < 0
               ? -1
               : plan_plain(p, all);
}

/* ---- all together ---------------------------------------------------------------- */

/* Whether a candidate's activation scale is copied as an entry of its own. */
static bool
keeps_input_entry(const struct plan *p, const struct candidate *c)
{
    return plan_keeps_foreign(p) && !c->view->dialect->blocks;
}

/* Whether the output has activation scales: a model is W4A4 as a whole or not at all. */
static void
settle_w4a4(struct plan *p, const struct candidates *all)
{
    size_t nvfp4 = 0, with = 0, lost = 0;
    for (size_t i = 0; i < all->n; i++) {
        const struct candidate *c = &all->v[i];
        if (c->dropped)
            continue;
        bool has = c->in && c->dtype == DT_NVFP4 && c->view->input;
        bool made = c->quantize || quantize_wants(p, c);
        bool stays = c->dtype == DT_NVFP4 && target_dtype(p, c) == DT_NVFP4;
        nvfp4 += made || stays;
        with += has && stays && !made;
        lost += has && !keeps_input_entry(p, c);
    }
    p->w4a4 = p->has_input_scales || (plan_target(p)->dialect && with && with == nvfp4);
    if (p->has_input_scales && with)
        host_note(p->c->host,
                  "%s: activation scales are those of --input-scales, not of the "
                  "input",
                  p->c->out);
    if (!p->w4a4 && lost)
        host_note(p->c->host,
                  "%s: %zu activation scales of a W4A4 model are left out: %s",
                  p->c->out, lost,
                  with && plan_target(p)->dialect
                      ? "some quantized tensors have none, so the result is weight-only"
                      : "it has no place for them");
}

/* What TorchSharp's readers accept. */
static int
check_torchsharp(struct plan *p)
{
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < p->n; i++) {
        const struct item *it = &p->item[i];
        const char *why = NULL;
        if (it->dtype != DT_U8 && it->dtype != DT_F16 && it->dtype != DT_F32 &&
            it->dtype != DT_F8_E4M3)
            why = "has a type that they reject";
        if (it->numel > INT32_MAX || it->numel * dtype_bits(it->dtype) / 8 > INT32_MAX)
            why = "is larger than 2^31-1";
        for (const char *s = it->name; *s; s++)
            if (*s & 0x80)
                why = "has a name that is not ASCII";
        if (why)
            return err_set(p->err, ERR_USAGE, "--compat torchsharp: \"%s\" %s",
                           text_quote(q, it->name, strlen(it->name)), why);
    }
    return 0;
}

static int
plan_items(struct plan *p, struct candidates *all)
{
    const struct traits *to = plan_target(p);
    if (candidates_gather(p, all) < 0 || merge_check(p) < 0 ||
        head_settle(p, all) < 0 || quantize_settle(p) < 0 || importance_open(p) < 0 ||
        input_scales_open(p) < 0 || groups_settle_plain(p, all) < 0)
        return -1;
    settle_w4a4(p, all);
    int rc = p->has_like    ? plan_like(p, all)
             : to->training ? plan_checkpoint(p, all)
             : to->dialect  ? plan_served(p, all)
                            : plan_plain(p, all);
    if (rc < 0 || plan_check_globs(p, &p->c->quantized) < 0 ||
        importance_check_use(p) < 0 || quantize_group(p) < 0 ||
        config_text_settle(p) < 0)
        return -1;
    return p->c->torchsharp && !to->training ? check_torchsharp(p) : 0;
}

int
plan_open(struct plan *p, struct pack *c, char **paths, size_t n, struct err *err)
{
    struct candidates all = { 0 };
    *p = (struct plan){ .c = c, .err = err, .has_like = c->like != NULL };
    int rc = sources_open(p, paths, n);
    if (rc == 0)
        rc = plan_items(p, &all);
    free(all.v);
    names_free(&all.names);
    return rc;
}

void
plan_close(struct plan *p)
{
    sources_close(p);
    for (size_t i = 0; i < p->n_nvfp4; i++) {
        free(p->nvfp4[i]->scales);
        free(p->nvfp4[i]->importance);
        free(p->nvfp4[i]);
    }
    free(p->nvfp4);
    free(p->item);
    table_close(&p->table);
    table_close(&p->weights);
    arrays_close(&p->arrays);
    arena_free(&p->arena);
    *p = (struct plan){ 0 };
}
