/* SPDX-License-Identifier: MIT */
/* plan: questions and helpers of all parts of the plan. */
#include "lib/convert/plan.h"

#include <string.h>

int
plan_no_memory(struct plan *p)
{
    return err_set(p->err, ERR_MEMORY, "out of memory for the plan");
}

const char *
plan_text(struct plan *p, struct buf *b)
{
    const char *text = b->failed ? NULL : arena_copy(&p->arena, b->data, b->len);
    if (!text)
        plan_no_memory(p);
    buf_free(b);
    return text;
}

const struct traits *
plan_target(const struct plan *p)
{
    return writer_traits(p->c->to);
}

bool
plan_rewrites(const struct plan *p)
{
    for (size_t i = 0; i < p->n_inputs; i++)
        if (strcmp(store_kind(&p->inputs[i].store), p->c->to) != 0)
            return false;
    return p->n_inputs > 0;
}

bool
plan_wishes_wide(const struct plan *p)
{
    enum dtype_wish w = p->c->dtype;
    return w == WISH_F16 || w == WISH_BF16 || w == WISH_F32;
}

bool
plan_keeps_foreign(const struct plan *p)
{
    const struct traits *t = plan_target(p);
    return !t->own_pairs && !t->dialect && !t->training && !plan_wishes_wide(p);
}

int
plan_check_globs(struct plan *p, const struct select *s)
{
    const char *glob = select_unused(s);
    char q[TEXT_QUOTE];
    return glob ? err_set(p->err, ERR_USAGE,
                          "no tensor matches \"%s\"; datcat -l lists the names",
                          text_quote(q, glob, strlen(glob)))
                : 0;
}
