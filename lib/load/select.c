/* SPDX-License-Identifier: MIT */
/* select: see select.h. */
#include "lib/load/select.h"

#include <fnmatch.h>

bool
select_add(struct select *s, bool exclude, const char *pattern)
{
    size_t *n = exclude ? &s->n_out : &s->n_in;
    if (*n == MAX_GLOBS)
        return false;
    struct glob *list = exclude ? s->out : s->in;
    list[(*n)++] = (struct glob){ pattern, false };
    return true;
}

bool
select_matches(struct select *s, const char *name)
{
    bool in = s->n_in == 0;
    for (size_t i = 0; i < s->n_in; i++)
        if (fnmatch(s->in[i].pattern, name, 0) == 0)
            in = s->in[i].hit = true;
    for (size_t i = 0; i < s->n_out && in; i++)
        if (fnmatch(s->out[i].pattern, name, 0) == 0)
            in = false;
    return in;
}

const char *
select_unused(const struct select *s)
{
    for (size_t i = 0; i < s->n_in; i++)
        if (!s->in[i].hit)
            return s->in[i].pattern;
    return NULL;
}
