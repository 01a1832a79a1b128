/* SPDX-License-Identifier: MIT */
/* items: tensors of the output, and where the bytes of each come from. */
#include "lib/convert/plan.h"

#include "lib/base/grow.h"

#include <string.h>

struct item *
item_new(struct plan *p)
{
    if (!GROW(p->item, p->n, p->cap, 512)) {
        plan_no_memory(p);
        return NULL;
    }
    p->item[p->n] = (struct item){ 0 };
    return &p->item[p->n++];
}

/* Whether entries of NVFP4 tensors keep their names and types: not if the output has our
 * own spelling and the input another one, or the reader is TorchSharp. */
static bool
keeps_spelling(const struct plan *p)
{
    return !plan_target(p)->own_pairs || (plan_rewrites(p) && !p->c->torchsharp);
}

static const char *
entry_name(struct plan *p, const struct candidate *c, const struct tensor *entry,
           const char *suffix)
{
    struct buf b = { 0 };
    struct slice name = slice_of(c->name);
    bool keep = keeps_spelling(p);
    buf_add(&b, name.p, keep && slice_ends(name, ".weight") ? name.n - 7 : name.n);
    // A view is called PREFIX.weight, its entries PREFIX and what their dialect adds.
    buf_str(&b, keep ? entry->name + c->view->name_len - 7 : suffix);
    return plan_text(p, &b);
}

/* An entry in our own spelling: .scale2 is [1], and codes are bytes of two values. */
static int
respell(struct plan *p, struct item *it, enum dtype dtype)
{
    static const uint64_t one[1] = { 1 };
    bool values = dtype == DT_U8 && it->entry->dtype == DT_F4_E2M1;
    it->dtype = dtype;
    if (dtype == DT_F32) {
        it->rank = 1;
        it->shape = one;
    }
    if (!values)
        return 0;
    uint64_t *packed = arena_alloc(&p->arena, 2 * sizeof *packed);
    if (!packed)
        return plan_no_memory(p);
    packed[0] = it->shape[0];
    packed[1] = it->shape[1] / 2;
    it->shape = packed;
    it->numel /= 2;
    return 0;
}

/* One entry of an NVFP4 tensor; like: with the name, type and shape of that one. */
static int
add_plane(struct plan *p, const struct candidate *c, const struct tensor *entry,
          const struct tensor *like, const char *suffix, enum dtype dtype)
{
    struct item *it = item_new(p);
    if (!it)
        return -1;
    const struct tensor *shape = like ? like : entry;
    bool moved = c->place != candidate_place(p, c->in, c->view->entry);
    *it = (struct item){
        .name = like ? like->name : entry_name(p, c, entry, suffix),
        .dtype = (enum dtype)shape->dtype,
        .rank = shape->rank,
        .shape = shape->shape,
        .numel = shape->numel,
        .how = HOW_COPY,
        .s = &c->in->store,
        .entry = entry,
        .view = c->view,
        .place = moved ? c->place : candidate_place(p, c->in, entry),
    };
    if (!it->name)
        return -1;
    return like || keeps_spelling(p) ? 0 : respell(p, it, dtype);
}

int
item_check_scale2(struct plan *p, const struct candidate *c)
{
    float scale2;
    char q[TEXT_QUOTE];
    if (values_scale2(&scale2, &c->in->store, c->view, p->err) < 0)
        return -1;
    if (c->view->dialect->foreign && scale2 > 1)
        host_note(p->c->host,
                  "%s: \"%s\": its tensor scale makes values %g times larger, where a "
                  "smaller one is usual: multiplier and divisor may have been confused",
                  c->in->store.name, text_quote(q, c->name, strlen(c->name)),
                  (double)scale2);
    return 0;
}

int
item_planes(struct plan *p, const struct candidate *c, const struct view *ref)
{
    const struct view *v = c->view;
    if (item_check_scale2(p, c) < 0)
        return -1;
    if (add_plane(p, c, v->entry, ref ? ref->entry : NULL, ".qdata", DT_U8) < 0 ||
        add_plane(p, c, v->scale, ref ? ref->scale : NULL, ".scale", DT_F8_E4M3) < 0)
        return -1;
    p->item[p->n - 1].how = HOW_SCALES;
    if (!v->scale2)
        return 0;
    if (add_plane(p, c, v->scale2, ref ? ref->scale2 : NULL, ".scale2", DT_F32) < 0)
        return -1;
    bool divides =
        ref ? ref->dialect->divides : keeps_spelling(p) && v->dialect->divides;
    if (divides != v->dialect->divides)
        p->item[p->n - 1].how = HOW_RECIPROCAL;
    return 0;
}

const char *
item_plane_name(struct plan *p, const char *name, const char *suffix)
{
    struct buf b = { 0 };
    size_t n = strlen(name);
    bool weight = slice_ends(slice_of(name), ".weight");
    bool doubled = !weight && strncmp(suffix, ".weight.", 8) == 0;
    buf_add(&b, name, weight ? n - strlen(".weight") : n);
    buf_str(&b, doubled ? suffix + strlen(".weight") : suffix);
    return plan_text(p, &b);
}

struct item
item_values(const struct candidate *c, const char *name, enum dtype dtype)
{
    struct item it = { .name = name,
                       .dtype = dtype,
                       .rank = c->rank,
                       .shape = c->shape,
                       .numel = c->numel,
                       .place = c->place };
    if (!c->in) {
        it.how = c->row->rank == 1 ? HOW_ONE : HOW_RANDOM;
        it.row = c->row_number;
        it.source = c->dtype;
        return it;
    }
    it.s = &c->in->store;
    it.view = c->view;
    it.entry = c->view->entry;
    it.how = HOW_CONVERT;
    return it;
}

int
item_plain(struct plan *p, const struct candidate *c, const char *name,
           enum dtype dtype)
{
    struct item *it = item_new(p);
    if (!it)
        return -1;
    *it = item_values(c, name, dtype);
    if (it->how == HOW_CONVERT && dtype == c->dtype)
        it->how = HOW_COPY;
    return c->dtype == DT_NVFP4 ? item_check_scale2(p, c) : 0;
}

int
item_input_scale(struct plan *p, const struct candidate *c)
{
    static const uint64_t one[1] = { 1 };
    const float bound = 6.0F * 448.0F; // the largest value of codes and block scales
    const struct view_dialect *d = view_dialect(plan_target(p)->dialect);
    struct item it = { .name = item_plane_name(p, c->name, d->input),
                       .dtype = DT_F32,
                       .rank = d->scale2_rank,
                       .shape = one,
                       .numel = 1,
                       .how = HOW_F32,
                       .view = c->view,
                       .place = c->place };
    float f;
    if (p->has_input_scales) {
        if (input_scales_find(p, c, &f) < 0)
            return -1;
        it.f32 = d->divides ? bound / f : f / bound;
    } else {
        if (values_input(&f, &c->in->store, c->view, p->err) < 0)
            return -1;
        it.how = c->view->dialect->divides == d->divides ? HOW_COPY : HOW_SWAPPED;
        it.s = &c->in->store;
        it.entry = c->view->input;
    }
    struct item *to = it.name ? item_new(p) : NULL;
    if (!to)
        return -1;
    *to = it;
    return 0;
}
