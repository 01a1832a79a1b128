/* SPDX-License-Identifier: MIT */
/* names: see names.h.  Open addressing, at most half full. */
#include "lib/core/names.h"

#include "lib/core/hash.h"

#include <stdlib.h>
#include <sys/random.h>

static struct name_slot *
slot_of(const struct names *t, struct slice name)
{
    size_t i = (size_t)xxh3_64_seeded(name.p, name.n, t->seed) & (t->cap - 1);
    while (t->slot[i].name.p && !slice_eq(t->slot[i].name, name))
        i = (i + 1) & (t->cap - 1);
    return &t->slot[i];
}

int64_t
names_find(const struct names *t, struct slice name)
{
    if (t->cap == 0)
        return NAME_NONE;
    const struct name_slot *s = slot_of(t, name);
    return s->name.p ? (int64_t)s->number : NAME_NONE;
}

int
names_add(struct names *t, struct slice name, uint64_t number)
{
    if (2 * t->n >= t->cap) {
        struct names bigger = { .cap = t->cap ? 2 * t->cap : 64, .seed = t->seed };
        // Without a seed the table still works.
        if (t->cap == 0 &&
            getrandom(&bigger.seed, sizeof bigger.seed, GRND_NONBLOCK) < 0)
            bigger.seed = (uintptr_t)t;
        bigger.slot = calloc(bigger.cap, sizeof *bigger.slot);
        if (!bigger.slot)
            return NAME_NO_MEMORY;
        for (size_t i = 0; i < t->cap; i++)
            if (t->slot[i].name.p)
                *slot_of(&bigger, t->slot[i].name) = t->slot[i];
        bigger.n = t->n;
        free(t->slot);
        *t = bigger;
    }
    *slot_of(t, name) = (struct name_slot){ name, number };
    t->n++;
    return 0;
}

void
names_free(struct names *t)
{
    free(t->slot);
    *t = (struct names){ 0 };
}
