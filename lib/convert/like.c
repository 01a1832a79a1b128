/* SPDX-License-Identifier: MIT */
/* like: an output with the names, types and order of the file of --like. */
#include "lib/convert/plan.h"

#include <string.h>

/* The candidate for an NVFP4 tensor of the reference. */
static int
like_nvfp4(struct plan *p, const struct view *ref, const struct candidate *c)
{
    char q[TEXT_QUOTE];
    bool nvfp4 = c->dtype == DT_NVFP4, one = view_levels(ref) == 1;
    text_quote(q, ref->name, ref->name_len);
    if (ref->dialect->blocks)
        return err_set(p->err, ERR_USAGE,
                       "--like: \"%s\": the reference is a GGUF file: expected a .dat",
                       q);
    if (p->c->torchsharp && !one)
        return err_set(p->err, ERR_USAGE,
                       "--compat torchsharp: \"%s\" has two levels of scales in the "
                       "reference, which TorchSharp's readers do not know",
                       q);
    if (nvfp4 && view_levels(c->view) == view_levels(ref) && !c->view->dialect->blocks)
        return item_planes(p, c, ref);
    if (nvfp4 && (!one || view_levels(c->view) == 1))
        return item_check_scale2(p, c) < 0
                   ? -1
                   : quantize_add(p, c, false, ref->dialect, ref);
    if (one && (quant_levels(p->spec.kind) == 2 || (nvfp4 && !p->asked)))
        return err_set(
            p->err, ERR_USAGE,
            "--like: \"%s\" has one level of scales in the reference, and %s two; "
            "--quant torchao, native or sweep1 asks for one",
            q, nvfp4 ? "the input" : p->c->quant);
    return target_quantized(p, c, ref);
}

static int
like_one(struct plan *p, const struct view *ref, struct candidate *c)
{
    char q[TEXT_QUOTE];
    text_quote(q, ref->name, ref->name_len);
    if (ref->rank != c->rank ||
        memcmp(ref->shape, c->shape, ref->rank * sizeof *ref->shape) != 0)
        return err_set(
            p->err, ERR_FORMAT,
            "--like: \"%s\" has another shape in the reference than in the input", q);
    if (ref->dtype == DT_NVFP4)
        return like_nvfp4(p, ref, c);
    bool convertible =
        is_wide_float(ref->dtype) && (is_wide_float(c->dtype) || c->dtype == DT_NVFP4);
    if (ref->dtype != c->dtype && !convertible)
        return err_set(p->err, ERR_FORMAT,
                       "--like: \"%s\" is %s in the reference and %s in the input", q,
                       dtype_name(ref->dtype), dtype_name(c->dtype));
    return item_plain(p, c, ref->name, ref->dtype);
}

int
plan_like(struct plan *p, struct candidates *all)
{
    struct input *ref = &p->inputs[p->n_inputs];
    struct candidate *embed = candidate_named(all, TABLE_EMBED);
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < ref->views.n; i++) {
        const struct view *v = &ref->views.v[i];
        struct candidate *c = candidate_named(all, v->name);
        if (v->entry->state)
            continue;
        if (!c && strcmp(v->name, TABLE_HEAD) == 0 && !(p->is_model && !p->model.tied))
            c = embed;
        if (!c)
            return err_set(p->err, ERR_FORMAT,
                           "--like: \"%s\" is in the reference, but not in the input",
                           text_quote(q, v->name, v->name_len));
        c->used = true;
        if (like_one(p, v, c) < 0)
            return -1;
    }
    for (size_t i = 0; i < all->n; i++) {
        struct candidate *c = &all->v[i];
        bool copy = embed && strcmp(c->name, TABLE_HEAD) == 0 && !c->used &&
                    !c->dropped && candidate_same(p, c, embed) > 0;
        if (!c->used && !c->dropped && !copy)
            return err_set(
                p->err, ERR_FORMAT,
                "--like: \"%s\" is in the input, but not in %s; -x leaves it out",
                text_quote(q, c->name, strlen(c->name)), ref->store.name);
    }
    return 0;
}
