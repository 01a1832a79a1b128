/* SPDX-License-Identifier: MIT */
/* head: what becomes of the head of a tied model. */
#include "lib/convert/plan.h"

#include <string.h>

/* Whether the output has NVFP4 because the inputs have. */
static bool
head_of_nvfp4(struct plan *p, const struct candidates *all)
{
    bool some = false, two = false;
    for (size_t i = 0; i < all->n && !plan_wishes_wide(p); i++) {
        const struct candidate *c = &all->v[i];
        some |= c->dtype == DT_NVFP4 && !c->dropped;
        two |= c->dtype == DT_NVFP4 && !c->dropped && c->view->scale2;
    }
    p->one_level = some && !two;
    return some && plan_target(p)->own_pairs;
}

/* Add a copy of the embedding as lm_head.weight, if that is selected. */
static int
add_head(struct plan *p, struct candidates *all, const struct candidate *embed)
{
    struct candidate head = *embed; // candidate_add may move *embed
    struct input *in = embed->in;
    if (!select_matches(&p->c->select, TABLE_HEAD))
        return 0;
    // In an NVFP4 file it is quantized like the projections.
    head.quantize = head_of_nvfp4(p, all);
    head.name = TABLE_HEAD;
    head.place = UINT64_MAX;
    head.in = NULL; // or it would clash with the embedding's input
    size_t n = all->n;
    if (candidate_add(p, all, &head) < 0)
        return -1;
    all->v[n].in = in;
    return 0;
}

/* Whether an NVFP4 head is to become floats. */
static bool
widens_head(const struct plan *p)
{
    struct pack *c = p->c;
    return plan_wishes_wide(p) &&
           (!c->dequantize || select_matches(&c->quantized, TABLE_HEAD));
}

/* Whether an NVFP4 head is to be quantized again: then from the embedding, not from its own
 * rounded values. */
static bool
requantizes_head(const struct plan *p, const struct candidate *head)
{
    struct pack *c = p->c;
    if (!c->quant && !c->share)
        return false;
    return c->quantize ? select_matches(&c->quantized, TABLE_HEAD)
                       : c->torchsharp && head->view->scale2;
}

/* An NVFP4 head that is replaced by the embedding must be the embedding, quantized. */
static int
check_pair(struct plan *p, const struct candidate *head, const struct candidate *embed)
{
    int same = head_is_quantized(p, head, embed);
    if (same != 0)
        return same < 0 ? -1 : 0;
    return err_set(p->err, ERR_FORMAT,
                   "%s: " TABLE_HEAD
                   ": is not the embedding of a tied model as a quantizer makes it "
                   "without --importance, but weights of its own; --untie keeps it and "
                   "makes the model untied, --tie leaves it out",
                   head->in->store.name);
}

/* A head and an embedding of a model that is tied, or seems to be. */
static int
settle_present_head(struct plan *p, struct candidate *head,
                    const struct candidate *embed)
{
    enum head_wish wish = p->c->head;
    bool says_tied = p->is_model && p->model.tied;
    bool plain = head->dtype != DT_NVFP4;
    if (p->is_model && !p->model.tied)
        return 0;
    int same = plain ? candidate_same(p, head, embed) : 0;
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
    bool copy = plan_target(p)->head_copy && wish != HEAD_TIE;
    bool again = !plain && says_tied && requantizes_head(p, head);
    bool keep = copy && (plain || !(again || widens_head(p)));
    keep |= wish == HEAD_UNTIE;
    if (!plain && !keep && wish != HEAD_TIE && check_pair(p, head, embed) < 0)
        return -1;
    if (!keep && copy) { // the embedding in its place
        candidate_replace(head, embed);
        head->quantize = again;
        head->name = TABLE_HEAD;
        return 0;
    }
    head->dropped = !keep;
    return keep && wish == HEAD_UNTIE ? config_text_untie(p) : 0;
}

int
head_settle(struct plan *p, struct candidates *all)
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
        return add_head(p, all, embed) < 0 ? -1 : config_text_untie(p);
    bool makes = p->c->quantize || p->c->dtype == WISH_NVFP4; // a new NVFP4 file
    if (plan_target(p)->head_copy && (!plan_rewrites(p) || makes) && !p->c->like)
        return add_head(p, all, embed);
    return 0;
}
