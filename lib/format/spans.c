/* SPDX-License-Identifier: MIT */
/* spans: see spans.h. */
#include "lib/format/spans.h"

#include "lib/base/grow.h"

#include <stdlib.h>
#include <sys/random.h>

enum { SMALL = 16 };

int
spans_add(struct spans *x, struct span one)
{
    if (!GROW(x->v, x->n, x->cap, 64))
        return -1;
    uint64_t end = x->n ? x->v[x->n - 1].end : 0;
    x->sorted = (x->sorted || x->n == 0) && one.begin == end;
    x->v[x->n++] = one;
    return 0;
}

static bool
before(const struct span *a, const struct span *b)
{
    if (a->begin != b->begin)
        return a->begin < b->begin;
    if (a->end != b->end)
        return a->end < b->end;
    return a->at < b->at;
}

static void
sort_small(struct span *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        struct span one = v[i];
        size_t k = i;
        for (; k > 0 && before(&one, &v[k - 1]); k--)
            v[k] = v[k - 1];
        v[k] = one;
    }
}

/* Partition v around v[pivot]: none of the first i is larger, none of the rest is
 * smaller.  Returns i: 0 < i < n. */
static size_t
split(struct span *v, size_t n, size_t pivot)
{
    struct span p = v[pivot], t;
    v[pivot] = v[0]; // so that both sides get one
    v[0] = p;
    for (size_t i = 0, k = n - 1;; i++, k--) {
        while (before(&v[i], &p))
            i++;
        while (before(&p, &v[k]))
            k--;
        if (i >= k)
            return k + 1;
        t = v[i];
        v[i] = v[k];
        v[k] = t;
    }
}

/* Quicksort, since qsort of the C library allocates as much memory again.  Pivots are
 * random, so that no file can be made slow. */
static void
sort(struct span *v, size_t n, uint64_t *random) // NOLINT(misc-no-recursion): log2(n)
{
    while (n > SMALL) {
        *random = *random * 6364136223846793005 + 1442695040888963407;
        size_t i = split(v, n, (size_t)((*random >> 32) % n));
        if (i < n - i) { // the smaller part first: the stack stays small
            sort(v, i, random);
            v += i;
            n -= i;
        } else {
            sort(v + i, n - i, random);
            n = i;
        }
    }
    sort_small(v, n);
}

const struct span *
spans_gap(struct spans *x, uint64_t *end)
{
    uint64_t random;
    if (!x->sorted && getrandom(&random, sizeof random, GRND_NONBLOCK) < 0)
        random = (uintptr_t)x;
    if (!x->sorted)
        sort(x->v, x->n, &random);
    *end = 0;
    for (size_t i = 0; i < x->n; i++) {
        if (x->v[i].begin != *end)
            return &x->v[i];
        *end = x->v[i].end;
    }
    return NULL;
}

void
spans_free(struct spans *x)
{
    free(x->v);
    *x = (struct spans){ 0 };
}
