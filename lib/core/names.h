/* SPDX-License-Identifier: MIT */
/* names: which number a name has. */
#ifndef NIBBLE_CORE_NAMES_H
#define NIBBLE_CORE_NAMES_H

#include "lib/core/text.h"

#include <stdint.h>

struct names {
    struct name_slot {
        struct slice name; // borrowed; p == NULL: empty
        uint64_t number;
    } * slot;
    size_t n, cap;
    uint64_t seed; // of the hash, random: names cannot be chosen to collide
};

enum { NAME_NONE = -1, NAME_NO_MEMORY = -2 };

/* The number of the name, or NAME_NONE. */
int64_t names_find(const struct names *t, struct slice name);
/* Give a name that is not there a number: 0, or NAME_NO_MEMORY. */
int names_add(struct names *t, struct slice name, uint64_t number);
void names_free(struct names *t);

#endif
