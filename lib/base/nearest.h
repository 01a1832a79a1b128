/* SPDX-License-Identifier: MIT */
/* nearest: which of some words a misspelled one may mean. */
#ifndef NIBBLE_BASE_NEAREST_H
#define NIBBLE_BASE_NEAREST_H

#include <stddef.h>

struct nearest {
    const char *text; // (n) the misspelled word
    size_t n;
    const char *word; // the nearest so far, or NULL
    size_t distance;
};

/* One of the n letters may be wrong, two of eight or more; four or more may be the beginning of a
 * word. */
struct nearest nearest_to(const char *text, size_t n);
/* Offer a word, which is kept as it is. */
void nearest_try(struct nearest *x, const char *word);

#endif
