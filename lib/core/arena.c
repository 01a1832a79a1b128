/* SPDX-License-Identifier: MIT */
/* arena: see arena.h.  Blocks of at least 64 KiB in a list, the newest first; a
 * request that does not fit the newest block opens another. */
#include "lib/core/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 << 10, ALIGN = 8 };

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    _Alignas(ALIGN) unsigned char bytes[];
};

void *
arena_alloc(struct arena *a, size_t n)
{
    if (n > SIZE_MAX / 2)
        return NULL;
    n = (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    struct arena_block *b = a->head;
    if (!b || b->size - b->used < n) {
        size_t size = n > BLOCK_BYTES ? n : BLOCK_BYTES;
        b = malloc(sizeof *b + size);
        if (!b)
            return NULL;
        b->next = a->head;
        b->used = 0;
        b->size = size;
        a->head = b;
    }
    void *p = b->bytes + b->used;
    b->used += n;
    return p;
}

char *
arena_copy(struct arena *a, const void *bytes, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    if (!p)
        return NULL;
    if (n)
        memcpy(p, bytes, n);
    p[n] = '\0';
    return p;
}

void
arena_free(struct arena *a)
{
    while (a->head) {
        struct arena_block *next = a->head->next;
        free(a->head);
        a->head = next;
    }
}
