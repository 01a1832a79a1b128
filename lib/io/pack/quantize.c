/* SPDX-License-Identifier: MIT */
/* quantize: which tensors of the output are quantized, by what, and with whom they share
 * a tensor scale. */
#include "lib/io/pack/plan.h"

#include "lib/core/json.h"
#include "lib/io/quantizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *const pack_variants[] = { "modelopt", NULL };
const char *const pack_criteria[] = { "mse", "mae", NULL };
const char *const pack_shares[] = { "none", "qkv,gate_up", NULL };
const char *const pack_compats[] = { "seed", NULL };

const char *
pack_quant(size_t i)
{
    return i < QUANT_COUNT ? quant_name((enum quant)i) : NULL;
}

static const struct traits *
target(const struct plan *p)
{
    return writer_traits(p->c->to);
}

/* ---- how ------------------------------------------------------------------------------- */

/* The first input that tells how its forward pass sees weights: a checkpoint. */
static const struct quant_words *
inherited(const struct plan *p)
{
    for (size_t i = 0; i < p->n_inputs; i++)
        if (p->inputs[i].store.quant.name)
            return &p->inputs[i].store.quant;
    return NULL;
}

/* Levels of the inputs' NVFP4 projections: 1 if all have one, else 2; 0: there are none. */
static int
input_levels(const struct plan *p)
{
    int levels = 0;
    for (size_t i = 0; i < p->n_inputs; i++)
        for (size_t k = 0; k < p->inputs[i].views.n; k++) {
            const struct view *v = &p->inputs[i].views.v[k];
            if (v->dtype == DT_NVFP4 && !v->entry->state &&
                table_quantizes(slice_of(v->name)) && view_levels(v) > levels)
                levels = view_levels(v);
        }
    return levels;
}

/* The value of a key of an object, if it begins with `kind`; p == NULL: there is none. */
static struct slice
member(struct plan *p, struct slice object, const char *name, char kind)
{
    struct err why = { 0 };
    struct json j;
    struct slice key, value = { 0 };
    json_open(&j, "provenance", 0, object, &p->arena, &why);
    json_object(&j);
    while (json_key(&j, &key) > 0) {
        bool found = slice_is(key, name) && json_peek(&j) == kind;
        if (json_skip(&j, found ? &value : NULL) < 0 || found)
            break;
    }
    return value;
}

/* The quantizer that a provenance names, the file's own or one of the files that it was
 * made from; QUANT_COUNT: none. */
static enum quant
recorded_in(struct plan *p, struct slice provenance)
{
    while (provenance.p) {
        struct slice options = member(p, provenance, "options", '{');
        struct slice quoted = { 0 }, inputs = member(p, provenance, "inputs", '[');
        if (options.p)
            quoted = member(p, options, "quant", '"');
        for (size_t q = 0; quoted.p && q < QUANT_COUNT; q++) {
            struct slice word = { quoted.p + 1, quoted.n - 2 };
            if (slice_is(word, quant_name((enum quant)q)))
                return (enum quant)q;
        }
        // The first input's: [{"kind":...,"provenance":...
        const char *first = inputs.p ? memchr(inputs.p, '{', inputs.n) : NULL;
        provenance = (struct slice){ 0 };
        if (first)
            provenance = member(
                p, (struct slice){ first, inputs.n - (size_t)(first - inputs.p) },
                "provenance", '{');
    }
    return QUANT_COUNT;
}

/* What made the NVFP4 tensors of the inputs, if that is recorded. */
static enum quant
recorded(struct plan *p)
{
    enum quant q = QUANT_COUNT;
    for (size_t i = 0; i < p->n_inputs && q == QUANT_COUNT; i++)
        q = recorded_in(p, p->inputs[i].store.provenance);
    return q;
}

/* 1 if every tensor scale of the inputs' projections is 1, as a file of one level gets it
 * from a container that always has one; 0; -1. */
static int
scales_are_one(struct plan *p)
{
    for (size_t i = 0; i < p->n_inputs; i++)
        for (size_t k = 0; k < p->inputs[i].views.n; k++) {
            struct store *s = &p->inputs[i].store;
            const struct view *v = &p->inputs[i].views.v[k];
            float scale2;
            if (v->dtype != DT_NVFP4 || v->entry->state ||
                !table_quantizes(slice_of(v->name)))
                continue;
            if (values_scale2(&scale2, s, v, p->err) < 0)
                return -1;
            if (scale2 != 1)
                return 0;
        }
    return 1;
}

/* How a checkpoint that is made of NVFP4 sees its weights: with as many levels as they
 * have.  Another quantizer than theirs is worth a word: the values may change. */
static const char *
quant_of_files(struct plan *p)
{
    int levels = input_levels(p);
    enum quant made = levels ? recorded(p) : QUANT_COUNT;
    // A scale that cannot be read is an error of its tensor's conversion, too.
    if (levels == 2 && made < QUANT_COUNT && quant_levels(made) == 1 &&
        scales_are_one(p) > 0)
        levels = 1;
    if (made < QUANT_COUNT && quant_levels(made) != levels)
        made = QUANT_COUNT;
    const char *name = "sweep";
    if (levels == 1)
        name = made < QUANT_COUNT ? quant_name(made) : "sweep1";
    if (levels == 1)
        io_warn(p->c->io,
                "%s: the NVFP4 tensors of the input have one level of scales, so the "
                "forward pass quantizes by %s, which has one; --quant asks for another",
                p->c->out, name);
    else if (made < QUANT_COUNT && strcmp(quant_name(made), name) != 0)
        io_warn(
            p->c->io,
            "%s: the input was quantized by %s, and the forward pass quantizes by %s, "
            "which can change values; --quant %s asks for that of the input",
            p->c->out, quant_name(made), name, quant_name(made));
    return name;
}

/* Options first, then what a checkpoint says, then defaults. */
static void
settle_words(struct plan *p)
{
    struct pack *c = p->c;
    const struct quant_words *old = c->quant ? NULL : inherited(p);
    // A checkpoint that trains without a quantizer does not say how to make NVFP4.
    bool packed = c->seed_compat && target(p)->training; // the seed's has its own
    if (packed || (old && strcmp(old->name, "none") == 0 && !target(p)->training))
        old = NULL;
    p->inherits = old != NULL;
    if (!c->quant)
        c->quant = old                               ? old->name
                   : packed                          ? "native"
                   : c->seed_compat                  ? "torchao"
                   : p->one_level                    ? "sweep1"
                   : target(p)->training && !c->init ? quant_of_files(p)
                                                     : "sweep";
    enum quant kind = quant_named(c->quant);
    bool two = kind < QUANT_COUNT && quant_levels(kind) == 2;
    bool shares = kind < QUANT_COUNT && quant_shares_scale(kind);
    if (!c->share && !old && two && target(p)->dialect)
        shares = true; // servers take one scale for what they fuse
    if (!c->criterion)
        c->criterion = old ? old->criterion : "mse";
    if (!c->share)
        c->share = old && !p->asked ? old->share : shares ? "qkv,gate_up" : "none";
    if (!c->variant)
        c->variant = old ? old->variant : "";
}

/* What a quantizer does not have cannot be asked of it. */
static int
check_words(struct plan *p, enum quant kind)
{
    const struct pack *c = p->c;
    bool sweeps = kind == QUANT_SWEEP || kind == QUANT_SWEEP1;
    const char *why = NULL;
    if (*c->variant && kind != QUANT_MAX)
        why = "--variant: goes with --quant max";
    else if (strcmp(c->criterion, "mae") == 0 && kind != QUANT_4OVER6)
        why = "--criterion: goes with --quant 4over6";
    else if (c->exhaustive && !sweeps)
        why = "--exhaustive: goes with --quant sweep or sweep1";
    return why ? err_set(p->err, ERR_USAGE, "%s", why) : 0;
}

int
quantize_settle(struct plan *p)
{
    struct pack *c = p->c;
    p->asked = c->quant || c->share;
    bool told = c->variant || c->criterion; // how, if not by what
    settle_words(p);
    const struct quant_words words = { c->criterion, c->quant, c->share, c->variant };
    p->spec.kind = QUANT_SWEEP;
    if (!quantizer_of(&p->spec, &p->share, &words)) // a checkpoint trains without
        return told ? err_set(p->err, ERR_USAGE,
                              "--variant, --criterion: there is no quantizer")
                    : 0;
    p->spec.isa = c->io->isa;
    p->spec.exhaustive = c->exhaustive;
    return check_words(p, p->spec.kind);
}

/* What the target cannot hold is said when the first tensor is to be quantized. */
static int
check_target(struct plan *p)
{
    const struct pack *c = p->c;
    bool two = quant_levels(p->spec.kind) == 2;
    if (c->seed_compat && two)
        return err_set(p->err, ERR_USAGE,
                       "--compat seed: %s%s has two levels of scales, which the seed's "
                       "readers do not know; --quant torchao, native or sweep1 has one",
                       c->quant, p->inherits ? " (of the checkpoint)" : "");
    if (target(p)->dialect && two && !p->share)
        return err_set(p->err, ERR_USAGE,
                       "--to %s: q, k, v and gate, up of a layer must share a tensor "
                       "scale, which %s does not do%s; --share-scale qkv,gate_up asks "
                       "for it",
                       c->to, c->quant, p->inherits ? " in the checkpoint" : "");
    return 0;
}

/* ---- which ----------------------------------------------------------------------------- */

static bool
is_float(enum dtype d)
{
    return d == DT_F16 || d == DT_BF16 || d == DT_F32;
}

bool
quantize_wants(const struct plan *p, const struct candidate *c)
{
    const struct pack *k = p->c;
    struct select *select = &p->c->quantized;
    bool by_name = c->rank == 2 && table_quantizes(slice_of(c->name));
    if (c->dtype == DT_NVFP4) // done already, unless something else is asked for
        return k->quantize && p->asked && select_takes(select, c->name) &&
               (select->n_in || by_name);
    if (k->quantize)
        return select_takes(select, c->name) && (select->n_in || by_name);
    if (target(p)->dialect)
        return by_name && !table_is_head(slice_of(c->name)) &&
               (!p->keeps_plain || c->fused || k->dtype == WISH_NVFP4);
    return k->dtype == WISH_NVFP4 && by_name;
}

int
quantize_check(struct plan *p, const struct candidate *c)
{
    char q[TEXT_QUOTE];
    unsigned unit = target(p)->nvfp4_columns ? target(p)->nvfp4_columns : NVFP4_BLOCK;
    const char *where = c->in ? c->in->store.name : "--init";
    text_quote(q, c->name, strlen(c->name));
    if (!is_float(c->dtype) && c->dtype != DT_NVFP4)
        return err_set(p->err, ERR_FORMAT,
                       "%s: \"%s\" is %s, and f16, bf16 or f32 can be quantized", where,
                       q, dtype_name(c->dtype));
    if (c->rank != 2)
        return err_set(p->err, ERR_FORMAT,
                       "%s: \"%s\" is %u-dimensional, and what is quantized has two "
                       "dimensions",
                       where, q, c->rank);
    if (c->shape[1] % unit || c->shape[1] == 0)
        return err_set(p->err, ERR_FORMAT,
                       "%s: \"%s\" has rows of %llu columns, expected a multiple of %u",
                       where, q, (unsigned long long)c->shape[1], unit);
    return check_target(p);
}

/* ---- planes ------------------------------------------------------------------------------ */

static struct nvfp4 *
new_nvfp4(struct plan *p)
{
    if (p->n_nvfp4 == p->cap_nvfp4) {
        size_t cap = p->cap_nvfp4 ? 2 * p->cap_nvfp4 : 256;
        struct nvfp4 **v = realloc(p->nvfp4, cap * sizeof(struct nvfp4 *));
        if (!v)
            return NULL;
        p->nvfp4 = v;
        p->cap_nvfp4 = cap;
    }
    struct nvfp4 *t = calloc(1, sizeof *t);
    if (t)
        p->nvfp4[p->n_nvfp4++] = t;
    return t;
}

/* X.weight and a suffix that begins behind X; other names keep all of theirs. */
static const char *
plane_name(struct plan *p, const char *name, const char *suffix)
{
    struct buf b = { 0 };
    size_t n = strlen(name);
    bool weight = slice_ends(slice_of(name), ".weight");
    bool doubled = !weight && strncmp(suffix, ".weight.", 8) == 0;
    buf_add(&b, name, weight ? n - strlen(".weight") : n);
    buf_str(&b, doubled ? suffix + strlen(".weight") : suffix);
    const char *made = b.failed ? NULL : arena_copy(&p->arena, b.data, b.len);
    buf_free(&b);
    return made;
}

static int
add_plane(struct plan *p, struct nvfp4 *t, const struct candidate *c,
          enum view_plane plane, const struct tensor *ref, enum dtype dtype,
          unsigned per_value, const char *suffix)
{
    struct item *it = plan_item(p);
    uint64_t *shape = arena_alloc(&p->arena, 2 * sizeof *shape);
    if (!it || !shape)
        return plan_no_memory(p);
    bool one = plane == PLANE_SCALE2;
    unsigned last = c->rank - 1;
    shape[0] = one ? 1 : c->shape[0];
    shape[1] = 1;
    shape[last] = one ? 1 : c->shape[last] / per_value;
    *it = (struct item){ .name = ref ? ref->name : plane_name(p, c->name, suffix),
                         .dtype = ref ? (enum dtype)ref->dtype : dtype,
                         .rank = ref   ? ref->rank
                                 : one ? t->dialect->scale2_rank
                                       : c->rank,
                         .shape = ref ? ref->shape : shape,
                         .numel = ref ? ref->numel : shape[0] * shape[1],
                         .how = HOW_NVFP4,
                         .nvfp4 = t,
                         .plane = plane,
                         .place = c->place };
    return it->name ? 0 : plan_no_memory(p);
}

int
quantize_add(struct plan *p, const struct candidate *c, bool quantize,
             const struct view_dialect *dialect, const struct view *ref)
{
    struct nvfp4 *t = new_nvfp4(p);
    if (!t)
        return plan_no_memory(p);
    int levels = quantize ? quant_levels(p->spec.kind) : view_levels(c->view);
    *t = (struct nvfp4){ .name = c->name,
                         .source = plan_values(c, c->name, DT_F32),
                         .dialect = dialect,
                         .quantize = quantize,
                         .cols = c->shape[c->rank - 1],
                         .group = t };
    bool has_scale2 = ref ? ref->scale2 != NULL : levels == 2 || dialect->foreign;
    if (dialect->blocks) { // codes and scales are one entry
        if (add_plane(p, t, c, PLANE_CODES, NULL, DT_NVFP4_GGUF, 1, dialect->codes) < 0)
            return -1;
    } else if (add_plane(p, t, c, PLANE_CODES, ref ? ref->entry : NULL, DT_U8, 2,
                         dialect->codes) < 0 ||
               add_plane(p, t, c, PLANE_SCALES, ref ? ref->scale : NULL, DT_F8_E4M3,
                         NVFP4_BLOCK, dialect->scale) < 0) {
        return -1;
    }
    return has_scale2 ? add_plane(p, t, c, PLANE_SCALE2, ref ? ref->scale2 : NULL,
                                  DT_F32, 1, dialect->scale2)
                      : 0;
}

/* ---- groups ------------------------------------------------------------------------------- */

/* 1 if a kept tensor of the group has another scale than the first kept one, or if some
 * are kept and some are not; -1. */
static int
disagrees(struct plan *p, const struct nvfp4 *group)
{
    const struct nvfp4 *kept = NULL;
    float scale2 = 0;
    bool mixed = false;
    for (const struct nvfp4 *t = group; t; t = t->next) {
        float own;
        if (t->quantize) {
            mixed = true;
            continue;
        }
        if (values_scale2(&own, t->source.s, t->source.view, p->err) < 0)
            return -1;
        if (kept && own != scale2)
            return 1;
        kept = t;
        scale2 = own;
    }
    return kept && mixed;
}

/* The tensors of a group that wants one scale, where they have several: made anew, if that
 * was asked for. */
static int
unite(struct plan *p, struct nvfp4 *group)
{
    char q[TEXT_QUOTE];
    int differ = disagrees(p, group);
    if (differ <= 0)
        return differ;
    if (!p->asked)
        return err_set(p->err, ERR_USAGE,
                       "\"%s\" and those that are fused with it have tensor scales of "
                       "their own, and %s takes one for all; --quant or --share-scale "
                       "asks for requantization",
                       text_quote(q, group->name, strlen(group->name)), p->c->to);
    for (struct nvfp4 *t = group; t; t = t->next)
        t->quantize = p->requantizes = true;
    return check_target(p);
}

/* The first tensor of each group, by number of its name. */
struct leaders {
    struct names names;
    struct nvfp4 **of;
};

static int
join(struct plan *p, struct leaders *leaders, size_t i)
{
    assert(leaders->of);
    struct nvfp4 *t = p->nvfp4[i];
    struct slice prefix;
    struct buf b = { 0 };
    enum fused kind = table_fused(slice_of(t->name), &prefix);
    if (kind == FUSED_NONE || (!target(p)->dialect && !(p->share && t->quantize)))
        return 0;
    buf_printf(&b, "%d ", (int)kind);
    buf_add(&b, prefix.p, prefix.n);
    char *key = b.failed ? NULL : arena_copy(&p->arena, b.data, b.len);
    struct slice name = { key, b.len };
    buf_free(&b);
    if (!key)
        return plan_no_memory(p);
    int64_t leader = names_find(&leaders->names, name);
    if (leader == NAME_NONE) {
        leaders->of[leaders->names.n] = t;
        return names_add(&leaders->names, name, leaders->names.n) < 0
                   ? plan_no_memory(p)
                   : 0;
    }
    t->group = leaders->of[leader];
    t->next = t->group->next; // the order within a group does not matter
    t->group->next = t;
    return 0;
}

int
quantize_group(struct plan *p)
{
    if (p->n_nvfp4 == 0)
        return 0;
    struct leaders leaders = { .of = calloc(p->n_nvfp4, sizeof(struct nvfp4 *)) };
    int rc = leaders.of ? 0 : plan_no_memory(p);
    for (size_t i = 0; i < p->n_nvfp4 && rc == 0; i++)
        rc = join(p, &leaders, i);
    for (size_t i = 0; i < p->n_nvfp4 && rc == 0 && target(p)->dialect; i++)
        if (p->nvfp4[i]->group == p->nvfp4[i])
            rc = unite(p, p->nvfp4[i]);
    names_free(&leaders.names);
    free(leaders.of);
    return rc;
}
