/* SPDX-License-Identifier: MIT */
/* spans: ranges in any order, with and without holes and overlaps. */
#include "lib/format/spans.h"

#include "tests/unit/check.h"

enum { MANY = 20000 };

static struct span want[MANY];

/* n ranges that touch, of 0 to 4 bytes each; some are empty. */
static uint64_t
make(size_t n, uint32_t seed)
{
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = check_random(seed * 100000 + i) % 5;
        want[i] = (struct span){ at, at + bytes, (uint32_t)i };
        at += bytes;
    }
    return at;
}

static size_t
order(size_t i, size_t n, int how, uint32_t seed)
{
    if (how == 0)
        return i;
    if (how == 1)
        return n - 1 - i;
    if (how == 2) // the middle first, then the ends by turns
        return i % 2 ? i / 2 : n - 1 - i / 2;
    return (i * 7919 + seed) % n; // n is no multiple of it
}

static void
check_tiles(size_t n, int how, uint32_t seed)
{
    struct spans x = { 0 };
    uint64_t end, bytes = make(n, seed);
    for (size_t i = 0; i < n; i++)
        NEED(spans_add(&x, want[order(i, n, how, seed)]) == 0);
    if (how == 0)
        CHECK(x.sorted == (n > 0));
    bool sorted = x.sorted; // empty ones may stand in any order
    const struct span *gap = spans_gap(&x, &end);
    CHECK_SAY(!gap && end == bytes, "%zu ranges, order %d", n, how);
    for (size_t i = 0; i < n && !sorted; i++)
        CHECK_SAY(x.v[i].begin == want[i].begin && x.v[i].at == want[i].at,
                  "%zu ranges, order %d: range %zu", n, how, i);
    spans_free(&x);
}

/* One range moved by a byte: the first that does not fit is found. */
static void
check_gap(size_t n, int how, uint32_t seed) // pre: n > 0
{
    struct spans x = { 0 };
    uint64_t end;
    make(n, seed);
    for (size_t i = 0; i < n; i++) // none is empty
        want[i] = (struct span){ 4 * i, 4 * i + 4, (uint32_t)(n - i) };
    size_t bad = n ? seed % n : 0;
    if (seed % 2)
        want[bad].begin++; // a hole
    else
        want[bad].end++; // an overlap, or more at the end
    for (size_t i = 0; i < n; i++)
        NEED(spans_add(&x, want[order(i, n, how, seed)]) == 0);
    const struct span *gap = spans_gap(&x, &end);
    if (seed % 2)
        CHECK_SAY(gap && gap->begin == 4 * bad + 1 && end == 4 * bad, "hole at %zu",
                  bad);
    else if (bad + 1 < n)
        CHECK_SAY(gap && gap->begin == 4 * bad + 4 && end == 4 * bad + 5,
                  "overlap at %zu", bad);
    else
        CHECK(!gap && end == 4 * n + 1);
    spans_free(&x);
}

int
main(void)
{
    static const size_t sizes[] = { 0, 1, 2, 3, 16, 17, 18, 100, 1000, MANY };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int how = 0; how < 4; how++)
            for (uint32_t seed = 0; seed < 8; seed++) {
                check_tiles(sizes[i], how, seed);
                if (sizes[i])
                    check_gap(sizes[i], how, seed);
            }
    return check_end();
}
