/* SPDX-License-Identifier: MIT */
/* pager: see pager.h. */
#include "lib/format/pager.h"

/* BEHIND: what the reader's caller may read again, a key above all; a fault there could
 * bring 2 MB back. */
enum { AHEAD = 4 << 20, BEHIND = 256 << 10 };

void
pager_passed(void *ctx, size_t pos)
{
    struct pager *p = ctx;
    uint64_t at = p->base + pos, ahead = at + AHEAD;
    map_expect(p->map, at, ahead < p->end ? ahead : p->end);
    if (at < p->from + BEHIND)
        return;
    map_forget(p->map, p->from, at - BEHIND);
    p->from = at - BEHIND;
}

void
pager_open(struct pager *p, struct json *j, struct map *m, uint64_t base, size_t n,
           struct arena *arena, struct err *err)
{
    struct slice text = { n ? (const char *)m->data + base : "", n };
    *p = (struct pager){ .map = m, .base = base, .end = base + n, .from = base };
    json_open(j, m->name, base, text, arena, err);
    json_watch(j, pager_passed, p);
}

int
pager_has_key(const struct pager *p, const struct json *j, size_t start,
              struct slice key, size_t before)
{
    struct pager pages;
    struct json again;
    struct arena scratch = { 0 };
    struct slice k;
    int found = 0;
    pager_open(&pages, &again, p->map, p->base, j->len, &scratch, j->err);
    again.pos = start;
    json_object(&again);
    for (size_t at = again.pos; !found && at < before && json_key(&again, &k) > 0;
         at = again.pos) {
        found = at < before && slice_eq(k, key);
        json_skip(&again, NULL);
        arena_clear(&scratch);
    }
    arena_free(&scratch);
    return j->err->kind ? -1 : found;
}
