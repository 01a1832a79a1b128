/* SPDX-License-Identifier: MIT */
/* names: numbers of names, and names that were seen before, against what the loop that
 * makes them knows. */
#include "lib/base/names.h"

#include "lib/base/arena.h"
#include "tests/unit/check.h"

enum { MANY = 200000 };

static char text[MANY][8];

static struct slice
name(size_t i)
{
    return slice_of(text[i]);
}

static void
check_numbers(void)
{
    struct names t = { 0 };
    CHECK(names_find(&t, name(0)) == NAME_NONE);
    for (size_t i = 0; i < MANY / 2; i++)
        CHECK_SAY(names_add(&t, name(i), i) == 0, "name %zu", i);
    for (size_t i = 0; i < MANY; i++)
        CHECK_SAY(names_find(&t, name(i)) == (i < MANY / 2 ? (int64_t)i : NAME_NONE),
                  "name %zu", i);
    CHECK(names_add(&t, name(7), t.n) == 1 && t.n == MANY / 2);
    // Slices need no NUL to be looked for, and may hold one.
    CHECK(names_find(&t, (struct slice){ "n12345", 4 }) == 123);
    CHECK(names_find(&t, (struct slice){ "n12\0", 4 }) == NAME_NONE);
    CHECK(names_find(&t, (struct slice){ "", 0 }) == NAME_NONE);
    CHECK(names_add(&t, (struct slice){ "", 0 }, t.n) == 0);
    CHECK(names_find(&t, (struct slice){ "", 0 }) == MANY / 2);
    names_free(&t);
    CHECK(names_find(&t, name(0)) == NAME_NONE);
}

static void
check_reserve(void)
{
    struct names t = { 0 };
    CHECK(names_reserve(&t, 0) == 0 && names_reserve(&t, 1000) == 0);
    size_t cap = t.cap;
    for (size_t i = 0; i < 1000; i++)
        CHECK(names_add(&t, name(i), i) == 0);
    CHECK(t.cap == cap && 4 * t.n <= 3 * t.cap);
    CHECK(names_reserve(&t, 10) == 0 && t.cap == cap);
    for (size_t i = 0; i < 2000; i++)
        CHECK(names_find(&t, name(i)) == (i < 1000 ? (int64_t)i : NAME_NONE));
    names_free(&t);
}

static void
check_seen(void)
{
    struct seen t = { 0 };
    CHECK(!seen_has(&t, 1));
    for (size_t i = 0; i < MANY; i++) {
        CHECK_SAY(seen_add(&t, name(i)) == 0, "name %zu", i);
        CHECK_SAY(seen_add(&t, name(i / 2)) == 1, "name %zu again", i / 2);
    }
    CHECK(t.n == MANY && t.n <= t.cap);
    for (size_t i = 0; i < MANY; i++)
        CHECK_SAY(seen_has(&t, seen_hash(&t, name(i))), "name %zu", i);
    CHECK(seen_add(&t, (struct slice){ "", 0 }) == 0);
    CHECK(seen_add(&t, (struct slice){ "", 0 }) == 1);
    seen_free(&t);
    // Hashes that belong to the last slots go round to the first.
    for (uint64_t i = 0; i < 50; i++)
        CHECK(seen_put(&t, UINT64_MAX - i) == 0);
    for (uint64_t i = 0; i < 60; i++)
        CHECK(seen_has(&t, UINT64_MAX - i) == (i < 50));
    seen_free(&t);
}

/* Names are kept in an arena: any number of bytes, at places that do for any scalar. */
static void
check_arena(void)
{
    static const size_t sizes[] = { 0,     1,     7,     8,      9,     4000,
                                    65527, 65528, 65529, 65535,  65536, 65537,
                                    65544, 70001, 1,     200000, 8,     65536 };
    struct arena a = { 0 };
    char *at[sizeof sizes / sizeof *sizes] = { NULL };
    for (int round = 0; round < 3; round++) {
        size_t n = round < 2 ? sizeof sizes / sizeof *sizes : 6; // those fill no block
        for (size_t i = 0; i < n; i++) {
            at[i] = arena_alloc(&a, sizes[i]);
            NEED(at[i]);
            CHECK_SAY((uintptr_t)at[i] % 8 == 0, "%zu bytes at %p", sizes[i],
                      (void *)at[i]);
            memset(at[i], (int)i, sizes[i]);
            CHECK(strcmp(arena_copy(&a, "name", 4), "name") == 0);
        }
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < sizes[i]; k++)
                NEED(at[i][k] == (char)i);
        arena_clear(&a);
    }
    // What was forgotten is used again, from its beginning.
    CHECK(arena_alloc(&a, 1) == at[0]);
    arena_free(&a);
}

int
main(void)
{
    for (size_t i = 0; i < MANY; i++)
        snprintf(text[i], sizeof text[i], "n%zu", i);
    check_numbers();
    check_reserve();
    check_seen();
    check_arena();
    return check_end();
}
