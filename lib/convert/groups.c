/* SPDX-License-Identifier: MIT */
/* groups: tensors that servers fuse into one GEMM, and that share a tensor scale: q, k and
 * v, or gate and up, of a layer. */
#include "lib/convert/plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The name of the fused group of a tensor; empty: it is in no group. */
static struct slice
group_key(struct buf *b, const char *name)
{
    struct slice prefix;
    enum fused kind = table_fused(slice_of(name), &prefix);
    b->len = 0;
    if (kind != FUSED_NONE) {
        buf_printf(b, "%d ", (int)kind);
        buf_add(b, prefix.p, prefix.n);
    }
    return (struct slice){ b->data, b->len };
}

/* Projections that an NVFP4 source has as floats stay floats, unless others of their group
 * are NVFP4: no server supports that, so they are quantized or refused. */
int
groups_settle_plain(struct plan *p, struct candidates *all)
{
    struct seen groups = { 0 };
    struct buf b = { 0 };
    int rc = 0;
    for (size_t i = 0; i < all->n && rc >= 0; i++) {
        const struct candidate *c = &all->v[i];
        if (c->dropped || c->dtype != DT_NVFP4 || !table_quantizes(slice_of(c->name)))
            continue;
        p->keeps_plain = true;
        struct slice key = group_key(&b, c->name);
        if (key.n)
            rc = seen_add(&groups, key);
        rc = b.failed ? -1 : rc;
    }
    for (size_t i = 0; i < all->n && rc >= 0 && groups.n; i++) {
        struct candidate *c = &all->v[i];
        struct slice key = group_key(&b, c->name);
        rc = b.failed ? -1 : 0;
        c->fused = c->dtype != DT_NVFP4 && !c->dropped && key.n &&
                   seen_has(&groups, seen_hash(&groups, key));
    }
    buf_free(&b);
    seen_free(&groups);
    return rc < 0 ? plan_no_memory(p) : 0;
}

/* 1 if tensors of the group that keep their codes have different scales, or if only some
 * keep them; 0; -1. */
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

/* One tensor scale for a group that has several: by quantizing again, if that was asked
 * for. */
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
    return quantize_check_target(p);
}

/* The first tensor of each group. */
struct leaders {
    struct names names;
    struct nvfp4 **of; // by number of the name
};

static int
join(struct plan *p, struct leaders *leaders, size_t i)
{
    assert(leaders->of);
    struct nvfp4 *t = p->nvfp4[i];
    struct buf b = { 0 };
    if (!plan_target(p)->dialect && !(p->share && t->quantize))
        return 0;
    struct slice name = group_key(&b, t->name);
    if (!name.n && !b.failed)
        return 0;
    name.p = plan_text(p, &b);
    if (!name.p)
        return -1;
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
    for (size_t i = 0; i < p->n_nvfp4 && rc == 0 && plan_target(p)->dialect; i++)
        if (p->nvfp4[i]->group == p->nvfp4[i])
            rc = unite(p, p->nvfp4[i]);
    names_free(&leaders.names);
    free(leaders.of);
    return rc;
}
