/* SPDX-License-Identifier: MIT */
/* nearest: see nearest.h. */
#include "lib/base/nearest.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Edit distance of the n letters of a from b: insertions, deletions, changes and swaps of
 * neighbours; SIZE_MAX if either is too long. */
static size_t
distance(const char *a, size_t n, const char *b)
{
    enum { MAX_LETTERS = 32 };
    size_t row[3][MAX_LETTERS + 1]; // of a's prefixes: two before, one before, this
    size_t m = strlen(b);
    if (n > MAX_LETTERS || m > MAX_LETTERS)
        return SIZE_MAX;
    for (size_t k = 0; k <= m; k++)
        row[0][k] = k;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = row[i % 3], *last = row[(i + 2) % 3], *older = row[(i + 1) % 3];
        now[0] = i;
        for (size_t k = 1; k <= m; k++) {
            size_t d = last[k - 1] + (a[i - 1] != b[k - 1]);
            d = last[k] + 1 < d ? last[k] + 1 : d;
            d = now[k - 1] + 1 < d ? now[k - 1] + 1 : d;
            bool swapped =
                i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1];
            now[k] = swapped && older[k - 2] + 1 < d ? older[k - 2] + 1 : d;
        }
    }
    return row[n % 3][m];
}

struct nearest
nearest_to(const char *text, size_t n)
{
    enum { LONG = 8 };
    return (struct nearest){ text, n, NULL, (n < LONG ? 1 : 2) + 1 };
}

void
nearest_try(struct nearest *x, const char *word)
{
    enum { BEGINNING = 4 }; // letters that may stand for the whole word
    bool begins = x->n >= BEGINNING && strncmp(word, x->text, x->n) == 0;
    size_t d = begins ? 1 : distance(x->text, x->n, word);
    if (d < x->distance && d < x->n) {
        x->distance = d;
        x->word = word;
    }
}
