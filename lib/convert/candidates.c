/* SPDX-License-Identifier: MIT */
/* candidates: the tensors that the output may hold: the selected ones of all inputs under
 * their new names, where later inputs replace tensors of earlier ones; or with --init those
 * of the tensor table. */
#include "lib/convert/plan.h"

#include "lib/base/grow.h"
#include "lib/convert/random.h"

#include <assert.h>
#include <float.h>
#include <string.h>

struct candidate *
candidate_named(const struct candidates *all, const char *name)
{
    int64_t i = names_find(&all->names, slice_of(name));
    assert(i < 0 || all->v);
    return i < 0 || all->v[i].dropped ? NULL : &all->v[i];
}

/* The name by the first --rename that matches: one * on each side is the same text. */
static const char *
renamed(struct plan *p, const char *name)
{
    struct pack *c = p->c;
    for (size_t i = 0; i < c->n_renames; i++) {
        struct rename *r = &c->rename[i];
        const char *star = strchr(r->old, '*');
        size_t before = star ? (size_t)(star - r->old) : strlen(r->old);
        size_t after = star ? strlen(star + 1) : 0;
        size_t n = strlen(name);
        if (n < before + after || strncmp(name, r->old, before) != 0 ||
            (star ? strcmp(name + n - after, star + 1) != 0 : n != before))
            continue;
        struct buf b = { 0 };
        const char *to_star = strchr(r->new, '*');
        r->hit = true;
        buf_add(&b, r->new, to_star ? (size_t)(to_star - r->new) : strlen(r->new));
        if (to_star) {
            buf_add(&b, name + before, n - before - after);
            buf_str(&b, to_star + 1);
        }
        return plan_text(p, &b);
    }
    return name;
}

void
candidate_replace(struct candidate *was, const struct candidate *c)
{
    uint64_t order = was->order, place = was->place;
    *was = *c;
    was->order = order;
    was->place = place;
}

static bool
same_shape(const struct candidate *a, const struct candidate *b)
{
    return a->rank == b->rank &&
           memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0;
}

/* Remember that c, of a later input, takes the place of *was. */
static void
count_replaced(const struct candidate *was, const struct candidate *c)
{
    if (!c->in)
        return;
    c->in->replaced++;
    c->in->reshaped += !same_shape(was, c);
}

int
candidate_add(struct plan *p, struct candidates *all, const struct candidate *c)
{
    char q[TEXT_QUOTE];
    size_t len = strlen(c->name);
    if (len == 0 || len > MAX_NAME)
        return err_set(p->err, ERR_USAGE,
                       "--rename: makes a name of %zu bytes: expected 1..%d", len,
                       MAX_NAME);
    int64_t old = names_find(&all->names, slice_of(c->name));
    assert(old < 0 || all->v);
    if (old >= 0) {
        struct candidate *was = &all->v[old];
        if (was->in == c->in)
            return err_set(p->err, ERR_USAGE,
                           "--rename: two tensors would be named \"%s\"",
                           text_quote(q, c->name, len));
        count_replaced(was, c);
        candidate_replace(was, c);
        return 0;
    }
    if (!GROW(all->v, all->n, all->cap, 512))
        return plan_no_memory(p);
    if (names_add(&all->names, slice_of(c->name), all->n) < 0)
        return plan_no_memory(p);
    all->v[all->n] = *c;
    all->v[all->n].order = all->n;
    all->n++;
    if (c->in)
        c->in->added++;
    return 0;
}

uint64_t
candidate_place(const struct plan *p, const struct input *in,
                const struct tensor *entry)
{
    return (uint64_t)(in - p->inputs) << 40 | (uint64_t)(entry - in->store.tensors);
}

/* Add c, whose name is `name` before --rename. */
static int
add_renamed(struct plan *p, struct candidates *all, struct candidate c,
            const char *name)
{
    c.name = renamed(p, name);
    return c.name ? candidate_add(p, all, &c) : -1;
}

static int
add_view(struct plan *p, struct candidates *all, struct input *in, const struct view *v)
{
    char q[TEXT_QUOTE];
    if (!select_matches(&p->c->select, v->name))
        return 0;
    if (v->incomplete && p->is_model)
        return err_set(p->err, ERR_FORMAT,
                       "%s: \"%s\" is one part of an NVFP4 tensor, and another part "
                       "is missing; -x leaves it out",
                       in->store.name, text_quote(q, v->name, v->name_len));
    const struct candidate c = { .place = candidate_place(p, in, v->entry),
                                 .in = in,
                                 .view = v,
                                 .dtype = v->dtype,
                                 .rank = v->rank,
                                 .shape = v->shape,
                                 .numel = v->numel };
    return add_renamed(p, all, c, v->name);
}

static int
gather_inputs(struct plan *p, struct candidates *all)
{
    for (size_t i = 0; i < p->n_inputs; i++) {
        struct input *in = &p->inputs[i];
        size_t cache_scales = 0;
        for (size_t k = 0; k < in->views.n; k++) {
            const struct view *v = &in->views.v[k];
            bool left_out = v->aside && !plan_keeps_foreign(p);
            cache_scales += left_out && !strstr(v->name, ".input_");
            if (!v->entry->state && !left_out && add_view(p, all, in, v) < 0)
                return -1;
        }
        if (cache_scales)
            host_note(p->c->host,
                      "%s: k_scale and v_scale of a quantized cache are left out, %zu "
                      "tensors",
                      in->store.name, cache_scales);
    }
    return 0;
}

/* What --init draws must fit into the configuration's dtype. */
static int
check_init(struct plan *p)
{
    static const double largest[DT_COUNT] = {
        [DT_F16] = 65504, [DT_BF16] = 0x1.fep127, [DT_F32] = FLT_MAX
    };
    char q[TEXT_QUOTE];
    if (!p->is_model)
        return err_set(p->err, ERR_USAGE, "--init: needs --config FILE");
    const char *file = text_quote(q, p->c->config_path, strlen(p->c->config_path));
    enum dtype d = p->model.dtype;
    if (d == DT_NONE)
        return err_set(p->err, ERR_FORMAT,
                       "%s: torch_dtype: --init expects bfloat16, float16 or float32",
                       file);
    double limit = largest[d] / RANDOM_MAX_SIGMAS;
    if (p->model.init_range > limit)
        return err_set(p->err, ERR_FORMAT,
                       "%s: initializer_range: %g makes weights that %s cannot hold, "
                       "expected at most %g",
                       file, p->model.init_range, dtype_name(d), limit);
    return 0;
}

static int
gather_table(struct plan *p, struct candidates *all)
{
    if (check_init(p) < 0 ||
        table_open(&p->table, &p->model, !p->model.tied, p->err) < 0)
        return -1;
    p->init_range = p->model.init_range;
    for (size_t i = 0; i < p->table.n; i++) {
        const struct row *r = &p->table.row[i];
        const struct candidate c = { .row = r,
                                     .row_number = (uint32_t)i,
                                     .dtype = p->model.dtype,
                                     .rank = r->rank,
                                     .shape = r->shape,
                                     .numel = r->numel };
        if (select_matches(&p->c->select, r->name) &&
            add_renamed(p, all, c, r->name) < 0)
            return -1;
    }
    return 0;
}

static int
check_renames(struct plan *p)
{
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < p->c->n_renames; i++)
        if (!p->c->rename[i].hit)
            return err_set(
                p->err, ERR_USAGE, "--rename: no tensor matches \"%s\"",
                text_quote(q, p->c->rename[i].old, strlen(p->c->rename[i].old)));
    return 0;
}

int
candidates_gather(struct plan *p, struct candidates *all)
{
    if ((p->c->init ? gather_table(p, all) : gather_inputs(p, all)) < 0 ||
        plan_check_globs(p, &p->c->select) < 0)
        return -1;
    return check_renames(p);
}

int
candidate_same(struct plan *p, const struct candidate *a, const struct candidate *b)
{
    if (a->dtype != b->dtype || a->dtype == DT_NVFP4 || !same_shape(a, b))
        return 0;
    if (!a->in || !b->in)
        return a->row == b->row;
    return values_same_bytes(&a->in->store, a->view->entry, &b->in->store,
                             b->view->entry, p->err);
}

int
candidates_check_model(struct plan *p, struct candidates *all)
{
    char q[TEXT_QUOTE];
    if (!p->is_model)
        return err_set(
            p->err, ERR_USAGE,
            "--to %s: no configuration: looked for --config, then inside "
            "the input, in INPUT.json, which is written with a .dat, and for "
            "config.json beside it",
            p->c->to);
    if (table_open(&p->weights, &p->model, !p->model.tied, p->err) < 0)
        return -1;
    for (size_t i = 0; i < p->weights.n; i++) {
        const struct row *r = &p->weights.row[i];
        struct candidate *c = candidate_named(all, r->name);
        if (!c)
            return err_set(p->err, ERR_FORMAT, "\"%s\" is missing", r->name);
        if (c->rank != r->rank ||
            memcmp(c->shape, r->shape, r->rank * sizeof *r->shape) != 0)
            return err_set(p->err, ERR_FORMAT,
                           "\"%s\" has another shape than the configuration asks "
                           "for, which is that of --config, of the file or beside it; "
                           "--config FILE names another",
                           r->name);
        c->used = true;
    }
    for (size_t i = 0; i < all->n; i++)
        if (!all->v[i].used && !all->v[i].dropped)
            return err_set(
                p->err, ERR_FORMAT,
                "\"%s\": the configuration has no such tensor; -x leaves it out",
                text_quote(q, all->v[i].name, strlen(all->v[i].name)));
    return 0;
}
