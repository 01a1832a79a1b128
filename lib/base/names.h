/* SPDX-License-Identifier: MIT */
/* names: the indices of names; and, in less memory, whether a name was there before.
 *
 * Both hash with a random seed: a file cannot choose names that collide.
 */
#ifndef NIBBLE_BASE_NAMES_H
#define NIBBLE_BASE_NAMES_H

#include "lib/base/text.h"

#include <stdbool.h>
#include <stdint.h>

enum { NAME_NONE = -1, NAME_NO_MEMORY = -2 };
enum { MAX_NAME = 64 << 10 };

/* Whether a tensor or file may have that name: 1 to MAX_NAME bytes, UTF-8 without
 * NUL. */
bool name_fits(struct slice name);

struct names {
    const char **name; // (n) by index; borrowed, NUL-terminated
    uint32_t *slot;    // (cap) index + 1, below some bits of the hash; 0: empty
    size_t n, cap_names, cap;
    uint64_t seed;
};

/* The index of the name, or NAME_NONE. */
int64_t names_find(const struct names *t, struct slice name);
/* Add a name: 0; 1 if it is there, and stays as it is; or NAME_NO_MEMORY.  Indices are
 * in order: number == t->n.  name has a NUL behind it, none inside. */
int names_add(struct names *t, struct slice name, uint64_t number);
/* Reserve memory for n in all: 0, or NAME_NO_MEMORY. */
int names_reserve(struct names *t, size_t n);
void names_free(struct names *t);

/* Names by nothing but 64 bits of their hash: 9 to 18 bytes each. */
struct seen {
    uint64_t *slot; // (cap) 0: empty
    size_t n, cap;
    uint64_t seed;
};

/* Put a name in: 0; 1 if one of the same hash is there, which is the same name but for
 * one case in 2^64 / n: look at the names to be sure; or NAME_NO_MEMORY. */
int seen_add(struct seen *t, struct slice name);
/* The same in two steps, for something to do in between: the first asks for the memory
 * that the second needs.  The hash is never 0; the seed is made on first use. */
uint64_t seen_hash(struct seen *t, struct slice name);
int seen_put(struct seen *t, uint64_t hash);
bool seen_has(const struct seen *t, uint64_t hash);
void seen_free(struct seen *t);

#endif
