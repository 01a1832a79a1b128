/* SPDX-License-Identifier: MIT */
/* arena: many small allocations that live and die together. */
#ifndef NIBBLE_BASE_ARENA_H
#define NIBBLE_BASE_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_block *head;
};

/* n bytes aligned for any scalar, contents undefined, or NULL.  n == 0 gives a
 * pointer that must not be read. */
void *arena_alloc(struct arena *a, size_t n);
/* A copy of n bytes with a NUL behind it, or NULL.  Not aligned. */
char *arena_copy(struct arena *a, const void *bytes, size_t n);
/* Forget all of it, but keep a block for what comes next. */
void arena_clear(struct arena *a);
void arena_free(struct arena *a);

#endif
