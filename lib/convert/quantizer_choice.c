/* SPDX-License-Identifier: MIT */
/* quantizer_choice: which quantizer makes NVFP4: that of the options, else of the inputs,
 * else the default. */
#include "lib/convert/plan.h"

#include "lib/base/json.h"
#include "lib/load/quantizer.h"

#include <string.h>

const char *const pack_variants[] = { "modelopt", NULL };
const char *const pack_criteria[] = { "mse", "mae", NULL };
const char *const pack_shares[] = { "none", "qkv,gate_up", NULL };

const char *
pack_quant(size_t i)
{
    return i < QUANT_COUNT ? quant_name((enum quant)i) : NULL;
}

/* The quantizer of the first input that is a checkpoint. */
static const struct quant_words *
inherited(const struct plan *p)
{
    for (size_t i = 0; i < p->n_inputs; i++)
        if (p->inputs[i].store.quant.name)
            return &p->inputs[i].store.quant;
    return NULL;
}

/* Levels of the inputs' NVFP4 projections: 1 if all have one, else 2; 0: no NVFP4. */
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

/* The value of a key of an object, if it begins with `kind`; p == NULL: not found. */
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

/* The quantizer recorded in a provenance, of the file or of those that it was made from;
 * QUANT_COUNT: not recorded. */
static enum quant
recorded_in(struct plan *p, struct slice provenance)
{
    while (provenance.p) {
        struct slice options = member(p, provenance, "options", '{');
        struct slice quoted = member(p, options, "quant", '"'); // of none: none
        struct slice inputs = member(p, provenance, "inputs", '[');
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

/* The recorded quantizer of the inputs, or QUANT_COUNT. */
static enum quant
recorded(struct plan *p)
{
    enum quant q = QUANT_COUNT;
    for (size_t i = 0; i < p->n_inputs && q == QUANT_COUNT; i++)
        q = recorded_in(p, p->inputs[i].store.provenance);
    return q;
}

/* 1 if every tensor scale of the inputs' projections is 1, as in a one-level file in a
 * container that always has one; 0; -1. */
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

/* The quantizer of a checkpoint that is made from NVFP4: one with as many levels.  A warning
 * if it is not that of the inputs, since values may change. */
static const char *
quant_of_files(struct plan *p)
{
    int levels = input_levels(p);
    enum quant made = levels ? recorded(p) : QUANT_COUNT;
    // A scale that cannot be read fails later, when its tensor is converted.
    if (levels == 2 && made < QUANT_COUNT && quant_levels(made) == 1 &&
        scales_are_one(p) > 0)
        levels = 1;
    if (made < QUANT_COUNT && quant_levels(made) != levels)
        made = QUANT_COUNT;
    const char *name = "sweep";
    if (levels == 1)
        name = made < QUANT_COUNT ? quant_name(made) : "sweep1";
    if (levels == 1)
        host_note(
            p->c->host,
            "%s: the NVFP4 tensors of the input have one level of scales, so the "
            "forward pass quantizes by %s, which has one; --quant asks for another",
            p->c->out, name);
    else if (made < QUANT_COUNT && strcmp(quant_name(made), name) != 0)
        host_note(
            p->c->host,
            "%s: the input was quantized by %s, and the forward pass quantizes by %s, "
            "which can change values; --quant %s asks for that of the input",
            p->c->out, quant_name(made), name, quant_name(made));
    return name;
}

/* Options first, then the checkpoint, then defaults. */
static void
settle_words(struct plan *p)
{
    struct pack *c = p->c;
    const struct quant_words *old = c->quant ? NULL : inherited(p);
    // A checkpoint without a quantizer does not determine how to make NVFP4.
    bool packed = c->torchsharp && plan_target(p)->training; // TorchSharp's has its own
    if (packed || (old && strcmp(old->name, "none") == 0 && !plan_target(p)->training))
        old = NULL;
    p->inherits = old != NULL;
    if (!c->quant)
        c->quant = old                                    ? old->name
                   : packed                               ? "native"
                   : c->torchsharp                        ? "torchao"
                   : p->one_level                         ? "sweep1"
                   : plan_target(p)->training && !c->init ? quant_of_files(p)
                                                          : "sweep";
    enum quant kind = quant_named(c->quant);
    bool two = kind < QUANT_COUNT && quant_levels(kind) == 2;
    bool shares = kind < QUANT_COUNT && quant_shares_scale(kind);
    if (!c->share && !old && two && plan_target(p)->dialect)
        shares = true; // servers need one scale for what they fuse
    if (!c->criterion)
        c->criterion = old ? old->criterion : "mse";
    if (!c->share)
        c->share = old && !p->asked ? old->share : shares ? "qkv,gate_up" : "none";
    if (!c->variant)
        c->variant = old ? old->variant : "";
}

/* Options that the quantizer does not have. */
static int
check_words(struct plan *p, enum quant kind)
{
    const struct pack *c = p->c;
    const char *why = NULL;
    if (*c->variant && kind != QUANT_MAX)
        why = "--variant: goes with --quant max";
    else if (strcmp(c->criterion, "mae") == 0 && kind != QUANT_4OVER6)
        why = "--criterion: goes with --quant 4over6";
    else if (c->exhaustive && !quant_sweeps(kind))
        why = "--exhaustive: goes with --quant sweep, sweep1 or sweepfp8";
    return why ? err_set(p->err, ERR_USAGE, "%s", why) : 0;
}

int
quantize_settle(struct plan *p)
{
    struct pack *c = p->c;
    p->asked = c->quant || c->share;
    bool details = c->variant || c->criterion;
    settle_words(p);
    const struct quant_words words = { c->criterion, c->quant, c->share, c->variant };
    p->spec.kind = QUANT_SWEEP;
    if (!quantizer_of(&p->spec, &p->share, &words)) // "none", of a checkpoint
        return details ? err_set(p->err, ERR_USAGE,
                                 "--variant, --criterion: go with a quantizer, and "
                                 "--quant is none")
                       : 0;
    p->spec.isa = c->host->isa;
    p->spec.exhaustive = c->exhaustive;
    return check_words(p, p->spec.kind);
}

int
quantize_check_target(struct plan *p)
{
    const struct pack *c = p->c;
    bool two = quant_levels(p->spec.kind) == 2;
    if (c->torchsharp && two)
        return err_set(
            p->err, ERR_USAGE,
            "--compat torchsharp: %s%s has two levels of scales, which TorchSharp's "
            "readers do not know; --quant torchao, native or sweep1 has one",
            c->quant, p->inherits ? " (of the checkpoint)" : "");
    if (plan_target(p)->dialect && two && !p->share)
        return err_set(p->err, ERR_USAGE,
                       "--to %s: q, k, v and gate, up of a layer must share a tensor "
                       "scale, which %s does not do%s; --share-scale qkv,gate_up asks "
                       "for it",
                       c->to, c->quant, p->inherits ? " in the checkpoint" : "");
    return 0;
}
