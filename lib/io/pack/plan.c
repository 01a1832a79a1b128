/* SPDX-License-Identifier: MIT */
/* plan: which tensors the output holds, in what order and type, and where their bytes
 * come from.
 *
 * Candidates are the selected tensors of all inputs under their new names, a later
 * input's in place of an earlier one's.  Then the head of a tied model is settled, and
 * the target makes items of them: as they are, like a reference, or as a checkpoint.
 */
#include "lib/io/pack/plan.h"
#include "lib/io/pack/random.h"

#include "lib/core/json.h"
#include "lib/format/dialect.h"

#include <assert.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

struct candidates {
    struct candidate *v;
    size_t n, cap;
    struct names names;
};

static struct candidate *
candidate_named(const struct candidates *all, const char *name)
{
    int64_t i = names_find(&all->names, slice_of(name));
    assert(i < 0 || all->v);
    return i < 0 || all->v[i].dropped ? NULL : &all->v[i];
}

int
plan_no_memory(struct plan *p)
{
    return err_set(p->err, ERR_MEMORY, "out of memory for the plan");
}

/* What the output is used to. */
static const struct traits *
target(const struct plan *p)
{
    return writer_traits(p->c->to);
}

/* Whether all inputs are already what is written: then only what was asked for changes. */
static bool
rewrites(const struct plan *p)
{
    for (size_t i = 0; i < p->n_inputs; i++)
        if (strcmp(store_kind(&p->inputs[i].store), p->c->to) != 0)
            return false;
    return p->n_inputs > 0;
}

/* ---- reading ------------------------------------------------------------------------- */

static bool
wishes_wide(const struct plan *p)
{
    enum dtype_wish w = p->c->dtype;
    return w == WISH_F16 || w == WISH_BF16 || w == WISH_F32;
}

/* Whether entries of another program's NVFP4 tensors stay what they are, and with them
 * whatever serves only that program. */
static bool
keeps_foreign(const struct plan *p)
{
    const struct traits *t = target(p);
    return !t->own_pairs && !t->dialect && !t->training && !wishes_wide(p);
}

static int
open_input(struct plan *p, struct input *in, const char *path)
{
    struct store_options opt = { .guard = p->c->io->guard,
                                 .strict = p->c->strict,
                                 .whole_pairs = p->c->quantize || p->c->dequantize,
                                 .tmpdir = p->c->io->tmpdir };
    if (store_open(&in->store, path, &opt, p->err) < 0 ||
        store_load_beside(&in->store) < 0 ||
        dialect_views(&in->views, &in->store, keeps_foreign(p)) < 0)
        return -1;
    io_warn_lines(p->c->io, &in->store.warnings);
    return 0;
}

/* The configuration: --config, else that of the first input that has one. */
static int
find_config(struct plan *p)
{
    const char *from = p->c->config_path;
    struct err why = { 0 };
    if (from) {
        struct store fake = { .opt = { .guard = p->c->io->guard }, .err = p->err };
        int rc = store_load_config(&fake, from);
        if (rc == 0) {
            p->config.p = arena_copy(&p->arena, fake.config.p, fake.config.n);
            p->config.n = fake.config.n;
            if (!p->config.p)
                rc = plan_no_memory(p);
        }
        arena_free(&fake.arena);
        if (rc < 0)
            return -1;
    }
    for (size_t i = 0; i < p->n_inputs && !p->config.p; i++) {
        p->config = p->inputs[i].store.config;
        from = p->inputs[i].store.name;
    }
    if (!p->config.p)
        return 0;
    p->is_model = config_parse(&p->model, from, p->config, &why) == 0;
    // A configuration of something else is carried along, unless a model is wanted.
    if (!p->is_model && (p->c->config_path || target(p)->needs_model))
        return err_set(p->err, why.kind, "%s", why.msg);
    return 0;
}

/* ---- candidates ---------------------------------------------------------------------- */

/* The name by the first --rename that fits: one * on each side stands for one text. */
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
        const char *made = b.failed ? NULL : arena_copy(&p->arena, b.data, b.len);
        buf_free(&b);
        return made;
    }
    return name;
}

static int
add_candidate(struct plan *p, struct candidates *all, const struct candidate *c)
{
    char q[TEXT_QUOTE];
    size_t len = strlen(c->name);
    if (len == 0 || len > MAX_NAME)
        return err_set(p->err, ERR_USAGE, "--rename: makes a name of %zu bytes", len);
    int64_t old = names_find(&all->names, slice_of(c->name));
    assert(old < 0 || all->v);
    if (old >= 0) {
        struct candidate *was = &all->v[old];
        if (was->in == c->in)
            return err_set(p->err, ERR_USAGE, "--rename: two tensors become \"%s\"",
                           text_quote(q, c->name, len));
        uint64_t order = was->order, place = was->place; // it stays where it was
        *was = *c;
        was->order = order;
        was->place = place;
        return 0;
    }
    if (all->n == all->cap) {
        size_t cap = all->cap ? 2 * all->cap : 512;
        struct candidate *v = realloc(all->v, cap * sizeof *v);
        if (!v)
            return plan_no_memory(p);
        all->v = v;
        all->cap = cap;
    }
    if (names_add(&all->names, slice_of(c->name), all->n) < 0)
        return plan_no_memory(p);
    all->v[all->n] = *c;
    all->v[all->n].order = all->n;
    all->n++;
    return 0;
}

/* Order of an entry among those of all inputs. */
static uint64_t
place_in_file(const struct plan *p, const struct input *in, const struct tensor *entry)
{
    return (uint64_t)(in - p->inputs) << 40 | (uint64_t)(entry - in->store.tensors);
}

static int
gather_inputs(struct plan *p, struct candidates *all)
{
    struct select *select = &p->c->select;
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < p->n_inputs; i++) {
        struct input *in = &p->inputs[i];
        size_t cache_scales = 0;
        for (size_t k = 0; k < in->views.n; k++) {
            const struct view *v = &in->views.v[k];
            bool left_out = v->aside && !keeps_foreign(p);
            cache_scales += left_out && !strstr(v->name, ".input_");
            if (v->entry->state || left_out)
                continue;
            if (!select_takes(select, v->name))
                continue;
            if (v->incomplete && p->is_model)
                return err_set(p->err, ERR_FORMAT,
                               "%s: \"%s\" is a part of an NVFP4 tensor that lacks "
                               "another part; -x leaves it out",
                               in->store.name, text_quote(q, v->name, v->name_len));
            struct candidate c = { .name = renamed(p, v->name),
                                   .place = place_in_file(p, in, v->entry),
                                   .in = in,
                                   .view = v,
                                   .dtype = v->dtype,
                                   .rank = v->rank,
                                   .shape = v->shape,
                                   .numel = v->numel };
            if (!c.name)
                return plan_no_memory(p);
            if (add_candidate(p, all, &c) < 0)
                return -1;
        }
        if (cache_scales)
            io_warn(p->c->io,
                    "%s: k_scale and v_scale of a quantized cache are left out, %zu "
                    "tensors",
                    in->store.name, cache_scales);
    }
    return 0;
}

/* What --init draws must be numbers of the configuration's dtype. */
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
    double most = largest[d] / RANDOM_MAX_SIGMAS;
    if (p->model.init_range > most)
        return err_set(p->err, ERR_FORMAT,
                       "%s: initializer_range: %g makes weights that %s cannot hold, "
                       "expected at most %g",
                       file, p->model.init_range, dtype_name(d), most);
    return 0;
}

static int
gather_table(struct plan *p, struct candidates *all)
{
    struct select *select = &p->c->select;
    if (check_init(p) < 0)
        return -1;
    if (table_open(&p->table, &p->model, !p->model.tied, p->err) < 0)
        return -1;
    p->init_range = p->model.init_range;
    for (size_t i = 0; i < p->table.n; i++) {
        const struct row *r = &p->table.row[i];
        if (!select_takes(select, r->name))
            continue;
        struct candidate c = { .name = renamed(p, r->name),
                               .row = r,
                               .row_number = (uint32_t)i,
                               .dtype = p->model.dtype,
                               .rank = r->rank,
                               .shape = r->shape,
                               .numel = r->numel };
        if (!c.name)
            return plan_no_memory(p);
        if (add_candidate(p, all, &c) < 0)
            return -1;
    }
    return 0;
}

static int
check_unused(struct plan *p)
{
    const char *glob = select_unused(&p->c->select);
    char q[TEXT_QUOTE];
    if (glob)
        return err_set(p->err, ERR_USAGE, "no tensor matches \"%s\"",
                       text_quote(q, glob, strlen(glob)));
    for (size_t i = 0; i < p->c->n_renames; i++)
        if (!p->c->rename[i].hit)
            return err_set(
                p->err, ERR_USAGE, "--rename: no tensor matches \"%s\"",
                text_quote(q, p->c->rename[i].old, strlen(p->c->rename[i].old)));
    return 0;
}

/* ---- the head of a tied model ---------------------------------------------------------- */

/* 1: payloads equal in dtype, shape and bytes; 0: not; -1. */
static int
same_tensor(struct plan *p, const struct candidate *a, const struct candidate *b)
{
    if (a->dtype != b->dtype || a->dtype == DT_NVFP4 || a->rank != b->rank ||
        memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) != 0)
        return 0;
    if (!a->in || !b->in)
        return a->row == b->row;
    return values_same_bytes(&a->in->store, a->view->entry, &b->in->store,
                             b->view->entry, p->err);
}

/* `with` in place of n bytes of the configuration. */
static int
replace_in_config(struct plan *p, size_t at, size_t n, const char *with)
{
    struct buf b = { 0 };
    buf_add(&b, p->config.p, at);
    buf_str(&b, with);
    buf_add(&b, p->config.p + at + n, p->config.n - at - n);
    int rc = buf_ok(&b, p->err);
    if (rc == 0) {
        p->config = (struct slice){ arena_copy(&p->arena, b.data, b.len), b.len };
        if (!p->config.p)
            rc = plan_no_memory(p);
    }
    buf_free(&b);
    return rc;
}

/* Another value for a member of the configuration; the rest of the text stays.  1, or 0
 * if there is no such member; -1. */
static int
set_member(struct plan *p, const char *name, const char *value)
{
    struct json j;
    struct slice key, raw;
    json_open(&j, "config", 0, p->config, &p->arena, p->err);
    json_object(&j);
    while (json_key(&j, &key) > 0) {
        if (json_skip(&j, &raw) < 0)
            return -1;
        if (slice_is(key, name))
            return replace_in_config(p, (size_t)(raw.p - p->config.p), raw.n, value) < 0
                       ? -1
                       : 1;
    }
    return p->err->kind ? -1 : 0;
}

/* One more member at the end of the configuration, on a line of its own if they are on
 * lines. */
static int
add_member(struct plan *p, const char *name, const char *value)
{
    struct json j;
    struct slice key, raw = { 0 };
    struct buf b = { 0 };
    json_open(&j, "config", 0, p->config, &p->arena, p->err);
    json_object(&j);
    while (json_key(&j, &key) > 0)
        if (json_skip(&j, &raw) < 0)
            return -1;
    if (p->err->kind)
        return -1;
    // Behind the last value; in an empty object before the brace.
    size_t at = raw.p ? (size_t)(raw.p + raw.n - p->config.p) : j.pos - 1;
    bool lines = memchr(p->config.p, '\n', at) != NULL;
    buf_printf(&b, "%s%s\"%s\": %s", raw.p ? "," : "",
               lines   ? "\n  "
               : raw.p ? " "
                       : "",
               name, value);
    int rc = buf_ok(&b, p->err);
    if (rc == 0)
        rc = replace_in_config(p, at, 0, b.data);
    buf_free(&b);
    return rc;
}

static int
untie_config(struct plan *p)
{
    if (!p->is_model || !p->model.tied)
        return 0;
    p->model.tied = false;
    return set_member(p, "tie_word_embeddings", "false") < 0 ? -1 : 0;
}

/* Whether the output is an NVFP4 file because an input is one. */
static bool
head_of_nvfp4(struct plan *p, const struct candidates *all)
{
    bool some = false, two = false;
    for (size_t i = 0; i < all->n && !wishes_wide(p); i++) {
        const struct candidate *c = &all->v[i];
        some |= c->dtype == DT_NVFP4 && !c->dropped;
        two |= c->dtype == DT_NVFP4 && !c->dropped && c->view->scale2;
    }
    p->one_level = some && !two;
    return some && target(p)->own_pairs;
}

/* A copy of the embedding as lm_head.weight, if it is wanted at all. */
static int
add_head(struct plan *p, struct candidates *all, const struct candidate *embed)
{
    struct candidate head = *embed; // adding moves the list that embed points into
    struct input *in = embed->in;
    if (!select_takes(&p->c->select, TABLE_HEAD))
        return 0;
    // In an NVFP4 file it is a pair made from the embedding, like the others.
    head.quantize = head_of_nvfp4(p, all);
    head.name = TABLE_HEAD;
    head.place = UINT64_MAX;
    head.in = NULL; // so that it is not taken for a clash
    size_t n = all->n;
    if (add_candidate(p, all, &head) < 0)
        return -1;
    all->v[n].in = in;
    return 0;
}

/* Whether the pair of a head is to become plain numbers. */
static bool
widens_head(const struct plan *p)
{
    struct pack *c = p->c;
    return wishes_wide(p) &&
           (!c->dequantize || select_takes(&c->quantized, TABLE_HEAD));
}

/* Whether the pair of a head is to be quantized again: then from the embedding itself,
 * not from the rounded values of the pair. */
static bool
requantizes_head(const struct plan *p, const struct candidate *head)
{
    struct pack *c = p->c;
    if (!c->quant && !c->share)
        return false;
    return c->quantize ? select_takes(&c->quantized, TABLE_HEAD)
                       : c->seed_compat && head->view->scale2;
}

/* A pair whose place the embedding takes must say nothing else than that. */
static int
check_pair(struct plan *p, const struct candidate *head, const struct candidate *embed)
{
    int same = head_is_quantized(p, head, embed);
    if (same != 0)
        return same < 0 ? -1 : 0;
    return err_set(p->err, ERR_FORMAT,
                   "%s: " TABLE_HEAD
                   ": is not the embedding of a tied model, quantized, but "
                   "weights of its own; --untie keeps it and makes the model untied, "
                   "--tie leaves it out",
                   head->in->store.name);
}

/* A head beside the embedding of a model that is tied, or seems to be. */
static int
settle_present_head(struct plan *p, struct candidate *head,
                    const struct candidate *embed)
{
    enum head_wish wish = p->c->head;
    bool says_tied = p->is_model && p->model.tied;
    bool plain = head->dtype != DT_NVFP4;
    if (p->is_model && !p->model.tied)
        return 0;
    int same = plain ? same_tensor(p, head, embed) : 0;
    if (same < 0)
        return -1;
    if (!says_tied && !same)
        return 0; // no configuration, another tensor: untied
    if (says_tied && plain && !same && wish != HEAD_UNTIE)
        return err_set(
            p->err, ERR_FORMAT,
            "%s: differs from the embedding of a tied model; --untie keeps it "
            "and makes the model untied",
            TABLE_HEAD);
    bool copy = target(p)->head_copy && wish != HEAD_TIE;
    bool again = !plain && says_tied && requantizes_head(p, head);
    bool keep = copy && (plain || !(again || widens_head(p)));
    keep |= wish == HEAD_UNTIE;
    if (!plain && !keep && wish != HEAD_TIE && check_pair(p, head, embed) < 0)
        return -1;
    if (!keep && copy) { // a pair that has to change: the embedding in its place
        uint64_t order = head->order, place = head->place;
        *head = *embed;
        head->quantize = again;
        head->name = TABLE_HEAD;
        head->order = order;
        head->place = place;
        return 0;
    }
    if (!keep) {
        head->dropped = true;
        return 0;
    }
    return wish == HEAD_UNTIE ? untie_config(p) : 0;
}

static int
settle_head(struct plan *p, struct candidates *all)
{
    struct candidate *embed = candidate_named(all, TABLE_EMBED);
    struct candidate *head = candidate_named(all, TABLE_HEAD);
    enum head_wish wish = p->c->head;
    if (!embed)
        return 0;
    if (head)
        return settle_present_head(p, head, embed);
    if (!p->is_model || !p->model.tied || wish == HEAD_TIE)
        return 0;
    if (wish == HEAD_UNTIE)
        return add_head(p, all, embed) < 0 ? -1 : untie_config(p);
    bool makes = p->c->quantize || p->c->dtype == WISH_NVFP4; // anew, an NVFP4 file
    if (target(p)->head_copy && (!rewrites(p) || makes) && !p->c->like)
        return add_head(p, all, embed);
    return 0;
}

/* ---- items ------------------------------------------------------------------------------ */

struct item *
plan_item(struct plan *p)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 512;
        struct item *v = realloc(p->item, cap * sizeof *v);
        if (!v) {
            plan_no_memory(p);
            return NULL;
        }
        p->item = v;
        p->cap = cap;
    }
    p->item[p->n] = (struct item){ 0 };
    return &p->item[p->n++];
}

/* Whether entries of NVFP4 tensors keep their names and types: always, but where our own
 * spelling is wanted and the input is something else, or the reader the seed. */
static bool
keeps_spelling(const struct plan *p)
{
    return !target(p)->own_pairs || (rewrites(p) && !p->c->seed_compat);
}

static const char *
plane_name(struct plan *p, const struct candidate *c, const struct tensor *entry,
           const char *suffix)
{
    struct buf b = { 0 };
    struct slice name = slice_of(c->name);
    bool keep = keeps_spelling(p);
    buf_add(&b, name.p, keep && slice_ends(name, ".weight") ? name.n - 7 : name.n);
    // A view is called PREFIX.weight, its entries PREFIX and what their dialect adds.
    buf_str(&b, keep ? entry->name + c->view->name_len - 7 : suffix);
    const char *made = b.failed ? NULL : arena_copy(&p->arena, b.data, b.len);
    buf_free(&b);
    return made;
}

/* One entry of an NVFP4 tensor; with like in the place, name, type and shape of that
 * one. */
static int
add_plane(struct plan *p, const struct candidate *c, const struct tensor *entry,
          const struct tensor *like, const char *suffix, enum dtype dtype)
{
    static const uint64_t one[1] = { 1 };
    struct item *it = plan_item(p);
    if (!it)
        return -1;
    const struct tensor *shape = like ? like : entry;
    bool own = !like && !keeps_spelling(p); // our spelling
    bool moved = c->place != place_in_file(p, c->in, c->view->entry);
    *it = (struct item){
        .name = like ? like->name : plane_name(p, c, entry, suffix),
        .dtype = own ? dtype : (enum dtype)shape->dtype,
        .rank = shape->rank,
        .shape = shape->shape,
        .numel = shape->numel,
        .how = HOW_COPY,
        .s = &c->in->store,
        .entry = entry,
        .view = c->view,
        .place = moved ? c->place : place_in_file(p, c->in, entry),
    };
    if (!it->name)
        return plan_no_memory(p);
    if (own && dtype == DT_F32) { // .scale2 is [1] whatever it was
        it->rank = 1;
        it->shape = one;
    }
    if (own && dtype == DT_U8 && entry->dtype == DT_F4_E2M1) { // two values a byte
        uint64_t *packed = arena_alloc(&p->arena, 2 * sizeof *packed);
        if (!packed)
            return plan_no_memory(p);
        packed[0] = entry->shape[0];
        packed[1] = entry->shape[1] / 2;
        it->shape = packed;
        it->numel /= 2;
    }
    return 0;
}

/* The tensor scale is a number above 0; one that looks as if multiplier and divisor were
 * confused is said. */
static int
check_scale2(struct plan *p, const struct candidate *c)
{
    float scale2;
    char q[TEXT_QUOTE];
    if (values_scale2(&scale2, &c->in->store, c->view, p->err) < 0)
        return -1;
    if (c->view->dialect->foreign && scale2 > 1)
        io_warn(p->c->io,
                "%s: \"%s\": its tensor scale makes values %g times larger, where a "
                "smaller "
                "one is usual: multiplier and divisor may have been confused",
                c->in->store.name, text_quote(q, c->name, strlen(c->name)),
                (double)scale2);
    return 0;
}

/* The entries of an NVFP4 tensor; ref: a tensor of --like that it takes the place of. */
static int
add_planes(struct plan *p, const struct candidate *c, const struct view *ref)
{
    const struct view *v = c->view;
    if (check_scale2(p, c) < 0)
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

struct item
plan_values(const struct candidate *c, const char *name, enum dtype dtype)
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

/* The candidate as one tensor of the target dtype. */
static int
add_plain(struct plan *p, const struct candidate *c, const char *name, enum dtype dtype)
{
    struct item *it = plan_item(p);
    if (!it)
        return -1;
    *it = plan_values(c, name, dtype);
    if (it->how == HOW_CONVERT && dtype == c->dtype)
        it->how = HOW_COPY;
    return c->dtype == DT_NVFP4 ? check_scale2(p, c) : 0;
}

static bool
is_wide_float(enum dtype d)
{
    return d == DT_F16 || d == DT_BF16 || d == DT_F32 || d == DT_F64;
}

/* Of the models that other programs serve: NVFP4 stays what it is, the rest is bf16 if
 * nothing else is asked for. */
static enum dtype
served_dtype(const struct plan *p, const struct candidate *c)
{
    struct slice name = slice_of(c->name);
    bool wide = is_wide_float(c->dtype);
    if (c->dtype == DT_NVFP4 && table_quantizes(name))
        return DT_NVFP4;
    if (!wide && c->dtype != DT_NVFP4)
        return c->dtype;
    if (target(p)->f32_norms && c->rank == 1)
        return DT_F32;
    bool keeps = target(p)->f32_norms ? c->dtype == DT_F16 : p->c->dtype == WISH_KEEP;
    return keeps && wide ? c->dtype : DT_BF16;
}

static enum dtype
target_dtype(const struct plan *p, const struct candidate *c)
{
    static const enum dtype wished[] = {
        [WISH_F16] = DT_F16, [WISH_BF16] = DT_BF16, [WISH_F32] = DT_F32
    };
    const struct pack *cfg = p->c;
    bool wide = is_wide_float(c->dtype);
    if (cfg->dequantize) {
        bool taken = c->dtype == DT_NVFP4 && select_takes(&p->c->quantized, c->name);
        return taken ? wished[cfg->dtype] : c->dtype;
    }
    if (wishes_wide(p))
        return wide || c->dtype == DT_NVFP4 ? wished[cfg->dtype] : c->dtype;
    if (target(p)->dialect)
        return served_dtype(p, c);
    // What only the seed's optimizer packs: floats that f16 and bf16 hold exactly.
    if (c->dtype == DT_NVFP4 && c->in && c->in->store.training.master &&
        !table_quantizes(slice_of(c->name)))
        return cfg->seed_compat || target(p)->no_bf16 ? DT_F16 : DT_BF16;
    if (cfg->seed_compat && wide)
        return DT_F16;
    if (target(p)->no_bf16 && c->dtype == DT_BF16 && !cfg->quantize)
        return DT_F16;
    return c->dtype;
}

/* A .scale of floats beside codes comes from a faulty writer; copied, it would be read
 * as bytes. */
static int
check_pair_parts(struct plan *p, const struct candidate *c)
{
    char q[TEXT_QUOTE];
    struct slice name = slice_of(c->name);
    bool codes = slice_ends(name, ".qdata"), scale = slice_ends(name, ".scale");
    if (!target(p)->own_pairs || c->dtype == DT_NVFP4)
        return 0;
    if ((scale && is_wide_float(c->dtype)) || (codes && is_wide_float(c->dtype)))
        return err_set(
            p->err, ERR_FORMAT,
            "\"%s\" is %s: no part of an NVFP4 pair, which readers would take "
            "it for",
            text_quote(q, c->name, name.n), dtype_name(c->dtype));
    return 0;
}

/* As NVFP4, from what it is. */
static int
add_quantized(struct plan *p, const struct candidate *c, const struct view *ref)
{
    if (quantize_check(p, c) < 0)
        return -1;
    p->requantizes |= c->dtype == DT_NVFP4;
    if (c->dtype == DT_NVFP4 && check_scale2(p, c) < 0)
        return -1;
    return quantize_add(p, c, true,
                        ref ? ref->dialect : view_dialect(target(p)->dialect), ref);
}

/* The activation scale of a W4A4 tensor, under the name that the target has for it. */
static int
add_input_scale(struct plan *p, const struct candidate *c)
{
    static const uint64_t one[1] = { 1 };
    const struct view_dialect *d = view_dialect(target(p)->dialect);
    const struct tensor *from = c->view->input;
    struct slice name = slice_of(c->name);
    struct buf b = { 0 };
    char q[TEXT_QUOTE];
    float f = 0;
    if (from->dtype != DT_F32 || from->numel != 1)
        return err_set(p->err, ERR_FORMAT,
                       "%s: activation scale of \"%s\": not one f32", c->in->store.name,
                       text_quote(q, name.p, name.n));
    if (values_scale(&f, &c->in->store, from, "activation", c->name, p->err) < 0)
        return -1;
    struct item *it = plan_item(p);
    if (!it)
        return -1;
    buf_add(&b, name.p, name.n - (slice_ends(name, ".weight") ? strlen(".weight") : 0));
    buf_str(&b, d->input);
    *it = (struct item){ .name = b.failed ? NULL : arena_copy(&p->arena, b.data, b.len),
                         .dtype = DT_F32,
                         .rank = d->scale2_rank,
                         .shape = one,
                         .numel = 1,
                         .how = c->view->dialect->divides == d->divides ? HOW_COPY
                                                                        : HOW_SWAPPED,
                         .s = &c->in->store,
                         .entry = from,
                         .view = c->view,
                         .place = c->place };
    buf_free(&b);
    return it->name ? 0 : plan_no_memory(p);
}

/* NVFP4 that stays what it is: with the same entries if they can be. */
static int
add_nvfp4(struct plan *p, const struct candidate *c)
{
    char q[TEXT_QUOTE];
    const struct view_dialect *d = view_dialect(target(p)->dialect);
    const struct view_dialect *from = c->view->dialect;
    if (p->c->seed_compat && c->view->scale2) {
        if (p->asked)
            return add_quantized(p, c, NULL);
        return err_set(p->err, ERR_USAGE,
                       "--compat seed: \"%s\" has two levels of scales, which the "
                       "seed's readers do not know; --quant torchao, native or sweep1 "
                       "asks for requantization",
                       text_quote(q, c->name, strlen(c->name)));
    }
    // What other programs fuse must share a scale: there all of it is looked at again.
    if (target(p)->dialect || from->blocks) {
        if (target(p)->dialect && quantize_check(p, c) < 0)
            return -1;
        return check_scale2(p, c) < 0 ? -1 : quantize_add(p, c, false, d, NULL);
    }
    return add_planes(p, c, NULL);
}

static int
add_as_is(struct plan *p, const struct candidate *c)
{
    if (check_pair_parts(p, c) < 0)
        return -1;
    if (c->quantize || quantize_wants(p, c))
        return add_quantized(p, c, NULL);
    enum dtype d = target_dtype(p, c);
    if (d != DT_NVFP4)
        return add_plain(p, c, c->name, d);
    return add_nvfp4(p, c) < 0 ? -1 : p->w4a4 ? add_input_scale(p, c) : 0;
}

/* Whether what a candidate has beside it is copied under its own name. */
static bool
keeps_input_entry(const struct plan *p, const struct candidate *c)
{
    return keeps_foreign(p) && !c->view->dialect->blocks;
}

/* The name of the fused group that a tensor belongs to; an empty text: none. */
static void
put_group(struct buf *b, const struct candidate *c)
{
    struct slice prefix;
    enum fused kind = table_fused(slice_of(c->name), &prefix);
    b->len = 0;
    if (kind == FUSED_NONE || c->dropped)
        return;
    buf_printf(b, "%d ", (int)kind);
    buf_add(b, prefix.p, prefix.n);
}

/* What a source of NVFP4 left plain stays so, unless it is a part of something fused that
 * is not: no server takes that, and quantize_group has a word to say. */
static int
settle_plain(struct plan *p, struct candidates *all)
{
    struct seen groups = { 0 };
    struct buf b = { 0 };
    int rc = 0;
    for (size_t i = 0; i < all->n && rc >= 0; i++) {
        const struct candidate *c = &all->v[i];
        if (c->dropped || c->dtype != DT_NVFP4 || !table_quantizes(slice_of(c->name)))
            continue;
        p->keeps_plain = true;
        put_group(&b, c);
        if (b.len)
            rc = seen_add(&groups, (struct slice){ b.data, b.len });
        rc = b.failed ? -1 : rc;
    }
    for (size_t i = 0; i < all->n && rc >= 0 && groups.n; i++) {
        struct candidate *c = &all->v[i];
        put_group(&b, c);
        rc = b.failed ? -1 : 0;
        c->fused =
            c->dtype != DT_NVFP4 && b.len &&
            seen_has(&groups, seen_hash(&groups, (struct slice){ b.data, b.len }));
    }
    buf_free(&b);
    seen_free(&groups);
    return rc < 0 ? plan_no_memory(p) : 0;
}

/* Whether activation scales go along: a model is W4A4 as a whole or not at all. */
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
    p->w4a4 = target(p)->dialect && with && with == nvfp4;
    if (!p->w4a4 && lost)
        io_warn(p->c->io, "%s: %zu activation scales of a W4A4 model are left out: %s",
                p->c->out, lost,
                with && target(p)->dialect
                    ? "some quantized tensors have none, so the result is weight-only"
                    : "it has no place for them");
}

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

/* Tensors that a model does not have, from files whose order means nothing: by name. */
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
    bool ordered = target(p)->model_order, stay = ordered && rewrites(p);
    if (ordered && !p->c->init)
        order_by_name(p, all);
    for (size_t i = 0; i < all->n && !stay; i++)
        all->v[i].place = ordered ? table_place(slice_of(all->v[i].name)) : 0;
    if (all->n)
        qsort(all->v, all->n, sizeof *all->v, by_place);
    for (size_t i = 0; i < all->n; i++)
        if (!all->v[i].dropped && add_as_is(p, &all->v[i]) < 0)
            return -1;
    for (size_t i = 0; i < p->n; i++)
        p->item[i].order = i;
    if (stay && !p->c->seed_compat && p->n)
        qsort(p->item, p->n, sizeof *p->item, by_item_place);
    return 0;
}

/* ---- --like ------------------------------------------------------------------------------- */

/* An NVFP4 tensor in the place of one. */
static int
like_nvfp4(struct plan *p, const struct view *ref, const struct candidate *c)
{
    char q[TEXT_QUOTE];
    bool nvfp4 = c->dtype == DT_NVFP4, one = view_levels(ref) == 1;
    text_quote(q, ref->name, ref->name_len);
    if (ref->dialect->blocks)
        return err_set(p->err, ERR_USAGE, "--like: \"%s\" is of a GGUF file", q);
    if (p->c->seed_compat && !one)
        return err_set(p->err, ERR_USAGE,
                       "--compat seed: \"%s\" has two levels of scales in the "
                       "reference, which the seed's readers do not know",
                       q);
    if (nvfp4 && view_levels(c->view) == view_levels(ref) && !c->view->dialect->blocks)
        return add_planes(p, c, ref);
    if (nvfp4 && (!one || view_levels(c->view) == 1))
        return check_scale2(p, c) < 0 ? -1
                                      : quantize_add(p, c, false, ref->dialect, ref);
    if (one && (quant_levels(p->spec.kind) == 2 || (nvfp4 && !p->asked)))
        return err_set(p->err, ERR_USAGE,
                       "--like: \"%s\" has one level of scales there, and %s two; "
                       "--quant torchao, native or sweep1 asks for one",
                       q, nvfp4 ? "the input" : p->c->quant);
    return add_quantized(p, c, ref);
}

static int
like_one(struct plan *p, const struct view *ref, struct candidate *c)
{
    char q[TEXT_QUOTE];
    text_quote(q, ref->name, ref->name_len);
    if (ref->rank != c->rank ||
        memcmp(ref->shape, c->shape, ref->rank * sizeof *ref->shape) != 0)
        return err_set(p->err, ERR_FORMAT, "--like: \"%s\" has another shape there", q);
    if (ref->dtype == DT_NVFP4)
        return like_nvfp4(p, ref, c);
    bool convertible =
        is_wide_float(ref->dtype) && (is_wide_float(c->dtype) || c->dtype == DT_NVFP4);
    if (ref->dtype != c->dtype && !convertible)
        return err_set(p->err, ERR_FORMAT, "--like: \"%s\" is %s there and %s here", q,
                       dtype_name(ref->dtype), dtype_name(c->dtype));
    return add_plain(p, c, ref->name, ref->dtype);
}

static int
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
            return err_set(p->err, ERR_FORMAT, "--like: \"%s\" stands there only",
                           text_quote(q, v->name, v->name_len));
        c->taken = true;
        if (like_one(p, v, c) < 0)
            return -1;
    }
    for (size_t i = 0; i < all->n; i++) {
        struct candidate *c = &all->v[i];
        bool copy = embed && strcmp(c->name, TABLE_HEAD) == 0 && !c->taken &&
                    !c->dropped && same_tensor(p, c, embed) > 0;
        if (!c->taken && !c->dropped && !copy)
            return err_set(p->err, ERR_FORMAT, "--like: \"%s\" is not in %s",
                           text_quote(q, c->name, strlen(c->name)), ref->store.name);
    }
    return 0;
}

/* ---- whole models --------------------------------------------------------------------------- */

static int
need_model(struct plan *p)
{
    if (p->is_model)
        return 0;
    return err_set(p->err, ERR_USAGE,
                   "--to %s: no configuration: looked for --config, then inside the "
                   "input, in its sidecar, and for config.json beside it",
                   p->c->to);
}

/* Every tensor of the configuration and no other. */
static int
check_complete(struct plan *p, struct candidates *all)
{
    char q[TEXT_QUOTE];
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
                           "\"%s\" does not have the shape that the configuration says",
                           r->name);
        c->taken = true;
    }
    for (size_t i = 0; i < all->n; i++)
        if (!all->v[i].taken && !all->v[i].dropped)
            return err_set(p->err, ERR_FORMAT,
                           "\"%s\" is no tensor of the configuration",
                           text_quote(q, all->v[i].name, strlen(all->v[i].name)));
    return 0;
}

/* ---- checkpoints -------------------------------------------------------------------------- */

/* A state of a row's tensor, of the shape of another row. */
static int
add_zeros(struct plan *p, const char *prefix, const struct row *r, const char *suffix,
          enum dtype dtype, const struct row *like)
{
    struct buf b = { 0 };
    struct item *it = plan_item(p);
    if (!it)
        return -1;
    uint64_t *shape = arena_alloc(&p->arena, sizeof like->shape);
    buf_printf(&b, "%s/%s%s", prefix, r->name, suffix);
    *it = (struct item){ .name = b.failed ? NULL : arena_copy(&p->arena, b.data, b.len),
                         .dtype = dtype,
                         .rank = like->rank,
                         .shape = shape,
                         .numel = like->numel,
                         .how = HOW_ZERO };
    buf_free(&b);
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
    return add_plain(p, c, r->name, d);
}

/* A tensor as the seed's packed optimizer keeps it: every one is NVFP4 of one level. */
static int
add_seed_master(struct plan *p, struct candidates *all, const struct row *r)
{
    struct candidate *c = candidate_named(all, r->name);
    assert(c);
    if (!is_wide_float(c->dtype) && c->dtype != DT_NVFP4)
        return err_set(p->err, ERR_FORMAT, "\"%s\" is %s, no float", r->name,
                       dtype_name(c->dtype));
    if (r->shape[r->rank - 1] % NVFP4_BLOCK)
        return err_set(p->err, ERR_USAGE,
                       "--compat seed: \"%s\" has rows of %llu columns, NVFP4 needs a "
                       "multiple of %d",
                       r->name, (unsigned long long)r->shape[r->rank - 1], NVFP4_BLOCK);
    bool keep = c->dtype == DT_NVFP4 && view_levels(c->view) == 1;
    return quantize_add(p, c, !keep, view_dialect(NULL), NULL);
}

/* One of its moments, which are 0. */
static int
add_seed_moment(struct plan *p, const char *prefix, const struct row *r)
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

/* numerics.md 7.4. */
static int
plan_seed_ckpt(struct plan *p, struct candidates *all)
{
    const struct table *t = &p->weights;
    if (strcmp(p->c->quant, "native") != 0)
        return err_set(p->err, ERR_USAGE,
                       "--compat seed --to ckpt: packs by --quant native, not by %s",
                       p->c->quant);
    for (size_t i = 0; i < t->n; i++)
        if (add_seed_master(p, all, &t->row[i]) < 0)
            return -1;
    for (size_t i = 0; i < t->n; i++)
        if (add_seed_moment(p, "adam.m", &t->row[i]) < 0 ||
            add_seed_moment(p, "adam.v", &t->row[i]) < 0)
            return -1;
    return 0;
}

static int
plan_ckpt(struct plan *p, struct candidates *all)
{
    if (need_model(p) < 0 || check_complete(p, all) < 0)
        return -1;
    if (p->c->seed_compat)
        return plan_seed_ckpt(p, all);
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

/* ---- models for other programs -------------------------------------------------------------- */

static int
plan_served(struct plan *p, struct candidates *all)
{
    if (need_model(p) < 0 || check_complete(p, all) < 0)
        return -1;
    return plan_plain(p, all);
}

/* Whether an input holds another program's NVFP4 tensors. */
static bool
has_foreign(const struct plan *p)
{
    for (size_t i = 0; i < p->n_inputs; i++)
        for (size_t k = 0; k < p->inputs[i].views.n; k++) {
            const struct view *v = &p->inputs[i].views.v[k];
            if (v->dtype == DT_NVFP4 && v->dialect->foreign)
                return true;
        }
    return false;
}

/* Whether what the configuration says of quantization is true of the output: a copy of
 * one input, or of a part of it. */
static bool
keeps_claims(const struct plan *p)
{
    bool copy =
        keeps_foreign(p) && p->n_inputs == 1 && !p->has_like && p->c->n_renames == 0;
    for (size_t i = 0; i < p->n && copy; i++)
        copy = p->item[i].how == HOW_COPY || p->item[i].how == HOW_SCALES;
    return copy;
}

/* The configuration without what it says of quantization, if that is not true any more. */
static int
plain_config(struct plan *p)
{
    struct buf b = { 0 };
    if (keeps_claims(p) || !(p->is_model || has_foreign(p)))
        return 0;
    if (!p->config.p ||
        !memmem(p->config.p, p->config.n, "\"quantization_config\"", 21))
        return 0;
    int rc = dialect_plain_config(&b, p->config, p->err);
    if (rc == 0) {
        p->config = (struct slice){ arena_copy(&p->arena, b.data, b.len), b.len };
        rc = p->config.p ? 0 : plan_no_memory(p);
    }
    buf_free(&b);
    return rc;
}

/* The type that the output's floats have for those who load them: as transformers has it,
 * that of the embedding, else the most frequent one; NVFP4 and its scales do not count.
 * DT_NONE: there are none. */
static enum dtype
main_dtype(const struct plan *p)
{
    uint64_t count[DT_COUNT] = { 0 };
    enum dtype most = DT_NONE;
    for (size_t i = 0; i < p->n; i++) {
        const struct item *it = &p->item[i];
        bool plane = it->nvfp4 || (it->view && it->view->dtype == DT_NVFP4 &&
                                   it->how != HOW_CONVERT);
        if (!is_wide_float(it->dtype) || plane)
            continue;
        if (strcmp(it->name, TABLE_EMBED) == 0)
            return it->dtype;
        count[it->dtype] += it->numel;
        if (most == DT_NONE || count[it->dtype] > count[most])
            most = it->dtype;
    }
    return most;
}

/* config.json of a directory is what others load the weights by: with the type that they
 * are written in. */
static int
name_dtype(struct plan *p)
{
    static const char *const names[DT_COUNT] = { [DT_F16] = "\"float16\"",
                                                 [DT_BF16] = "\"bfloat16\"",
                                                 [DT_F32] = "\"float32\"",
                                                 [DT_F64] = "\"float64\"" };
    const char *name = names[main_dtype(p)];
    if (!p->c->directory || !p->config.p || !name)
        return 0;
    int old = set_member(p, "torch_dtype", name);
    int new = old < 0 ? -1 : set_member(p, "dtype", name);
    if (new < 0)
        return -1;
    return old || new ? 0 : add_member(p, "torch_dtype", name);
}

/* ---- all together ------------------------------------------------------------------------- */

/* What the seed's readers can take: formats of 1.4. */
static int
check_seed(struct plan *p)
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
            return err_set(p->err, ERR_USAGE, "--compat seed: \"%s\" %s",
                           text_quote(q, it->name, strlen(it->name)), why);
    }
    return 0;
}

/* An -s of nvquant that named nothing. */
static int
check_quantized(struct plan *p)
{
    const char *glob = select_unused(&p->c->quantized);
    char q[TEXT_QUOTE];
    if (glob)
        return err_set(p->err, ERR_USAGE, "no tensor matches \"%s\"",
                       text_quote(q, glob, strlen(glob)));
    return 0;
}

static int
plan_items(struct plan *p, struct candidates *all)
{
    if ((p->c->init ? gather_table(p, all) : gather_inputs(p, all)) < 0 ||
        check_unused(p) < 0 || settle_head(p, all) < 0 || quantize_settle(p) < 0)
        return -1;
    if (settle_plain(p, all) < 0)
        return -1;
    settle_w4a4(p, all);
    int rc = p->has_like           ? plan_like(p, all)
             : target(p)->training ? plan_ckpt(p, all)
             : target(p)->dialect  ? plan_served(p, all)
                                   : plan_plain(p, all);
    if (rc == 0)
        rc = check_quantized(p);
    if (rc == 0)
        rc = quantize_group(p);
    if (rc == 0)
        rc = plain_config(p);
    if (rc == 0)
        rc = name_dtype(p);
    return rc == 0 && p->c->seed_compat && !target(p)->training ? check_seed(p) : rc;
}

int
plan_open(struct plan *p, struct pack *c, char **paths, size_t n, struct err *err)
{
    struct candidates all = { 0 };
    *p = (struct plan){ .c = c, .err = err, .has_like = c->like != NULL };
    p->inputs = calloc(n + 1, sizeof *p->inputs);
    if (!p->inputs)
        return plan_no_memory(p);
    for (; p->n_inputs < n; p->n_inputs++)
        if (open_input(p, &p->inputs[p->n_inputs], paths[p->n_inputs]) < 0) {
            p->n_inputs++; // so that it is closed
            return -1;
        }
    if (c->like && open_input(p, &p->inputs[n], c->like) < 0)
        return -1;
    int rc = find_config(p);
    if (rc == 0)
        rc = plan_items(p, &all);
    free(all.v);
    names_free(&all.names);
    return rc;
}

void
plan_close(struct plan *p)
{
    for (size_t i = 0; p->inputs && i < p->n_inputs + p->has_like; i++) {
        views_close(&p->inputs[i].views);
        store_close(&p->inputs[i].store);
    }
    for (size_t i = 0; i < p->n_nvfp4; i++) {
        free(p->nvfp4[i]->scales);
        free(p->nvfp4[i]);
    }
    free(p->nvfp4);
    free(p->inputs);
    free(p->item);
    table_close(&p->table);
    table_close(&p->weights);
    arena_free(&p->arena);
    *p = (struct plan){ 0 };
}
