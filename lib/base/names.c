/* SPDX-License-Identifier: MIT */
/* names: see names.h.  Open addressing. */
#include "lib/base/names.h"

#include "lib/base/hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

bool
name_fits(struct slice name)
{
    return name.n >= 1 && name.n <= MAX_NAME && utf8_check(name.p, name.n) == name.n &&
           !memchr(name.p, '\0', name.n);
}

/* Without a random number the tables still work. */
static uint64_t
random_seed(const void *unique)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) < (ssize_t)sizeof seed)
        seed = (uintptr_t)unique;
    return seed;
}

/* ---- indices of names --------------------------------------------------------- */

/* The slot that holds the name, or the empty one where it belongs.  Names are only
 * compared where the bits above the index agree. */
static uint32_t *
slot_of(const struct names *t, struct slice name, uint64_t hash)
{
    uint32_t low = (uint32_t)(t->cap - 1);
    size_t i = (size_t)((hash >> 32) * t->cap >> 32);
    for (;; i = (i + 1) & low) {
        uint32_t v = t->slot[i];
        if (v == 0)
            return &t->slot[i];
        if (((v ^ (uint32_t)hash) & ~low) == 0) {
            const char *have = t->name[(v & low) - 1];
            if (strlen(have) == name.n && memcmp(have, name.p, name.n) == 0)
                return &t->slot[i];
        }
    }
}

/* 0, or 1 if it is there. */
static int
put(struct names *t, struct slice name, size_t number)
{
    uint64_t hash = xxh3_64_seeded(name.p, name.n, t->seed);
    uint32_t low = (uint32_t)(t->cap - 1);
    uint32_t *slot = slot_of(t, name, hash);
    if (*slot)
        return 1;
    *slot = ((uint32_t)hash & ~low) | (uint32_t)(number + 1);
    return 0;
}

int64_t
names_find(const struct names *t, struct slice name)
{
    if (t->cap == 0)
        return NAME_NONE;
    uint32_t v = *slot_of(t, name, xxh3_64_seeded(name.p, name.n, t->seed));
    return v ? (int64_t)(v & (t->cap - 1)) - 1 : NAME_NONE;
}

/* cap: a power of two; an index and 1 must fit below it. */
static int
resize(struct names *t, size_t cap)
{
    uint32_t *slot = cap <= UINT32_MAX / 2 ? calloc(cap, sizeof *slot) : NULL;
    if (!slot)
        return NAME_NO_MEMORY;
    if (t->cap == 0)
        t->seed = random_seed(t);
    free(t->slot);
    t->slot = slot;
    t->cap = cap;
    for (size_t i = 0; i < t->n; i++)
        put(t, slice_of(t->name[i]), i);
    return 0;
}

int
names_reserve(struct names *t, size_t n)
{
    size_t cap = t->cap ? t->cap : 64;
    while (cap / 4 * 3 < n)
        cap *= 2;
    if (cap > t->cap && resize(t, cap) < 0)
        return NAME_NO_MEMORY;
    if (n > t->cap_names) {
        const char **v = realloc(t->name, n * sizeof *v);
        if (!v)
            return NAME_NO_MEMORY;
        t->name = v;
        t->cap_names = n;
    }
    return 0;
}

int
names_add(struct names *t, struct slice name, uint64_t number)
{
    assert(number == t->n && name.p[name.n] == '\0');
    if (t->n == t->cap_names && names_reserve(t, t->n ? 2 * t->n : 48) < 0)
        return NAME_NO_MEMORY;
    if (put(t, name, (size_t)number) > 0)
        return 1;
    t->name[t->n++] = name.p;
    return 0;
}

void
names_free(struct names *t)
{
    free(t->name);
    free(t->slot);
    *t = (struct names){ 0 };
}

/* ---- hashes of names ------------------------------------------------------------ */

/* By the upper bits, so that a table of twice the size is filled from front to back. */
static size_t
seen_home(const struct seen *t, uint64_t hash)
{
    return (size_t)((hash >> 32) * t->cap >> 32);
}

uint64_t
seen_hash(struct seen *t, struct slice name)
{
    if (t->seed == 0)
        t->seed = random_seed(t) | 1;
    uint64_t hash = xxh3_64_seeded(name.p, name.n, t->seed);
    hash = hash ? hash : 1;
    if (t->cap) // half of the time is waiting for this, if it is not asked for before
        __builtin_prefetch(&t->slot[seen_home(t, hash)]);
    return hash;
}

static uint64_t *
seen_slot(const struct seen *t, uint64_t hash)
{
    size_t i = seen_home(t, hash);
    while (t->slot[i] && t->slot[i] != hash)
        i = (i + 1) & (t->cap - 1);
    return &t->slot[i];
}

bool
seen_has(const struct seen *t, uint64_t hash)
{
    return t->cap && *seen_slot(t, hash);
}

int
seen_put(struct seen *t, uint64_t hash)
{
    if (10 * t->n >= 9 * t->cap) {
        struct seen bigger = { .n = t->n, .seed = t->seed };
        bigger.cap = t->cap ? 2 * t->cap : 64;
        bigger.slot = calloc(bigger.cap, sizeof *t->slot);
        if (!bigger.slot)
            return NAME_NO_MEMORY;
        for (size_t i = 0; i < t->cap; i++)
            if (t->slot[i])
                *seen_slot(&bigger, t->slot[i]) = t->slot[i];
        free(t->slot);
        *t = bigger;
    }
    uint64_t *slot = seen_slot(t, hash);
    if (*slot)
        return 1;
    *slot = hash;
    t->n++;
    return 0;
}

int
seen_add(struct seen *t, struct slice name)
{
    return seen_put(t, seen_hash(t, name));
}

void
seen_free(struct seen *t)
{
    free(t->slot);
    *t = (struct seen){ 0 };
}
