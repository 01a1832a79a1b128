/* SPDX-License-Identifier: MIT */
/* arena: see arena.h.  Blocks of at least 64 KiB in a list, the newest first; a
 * request that does not fit the newest block opens another.  Strings are not aligned:
 * a million short names take a third of the memory that multiples of 8 would. */
#include "lib/base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 << 10, ALIGN = 8 };

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    _Alignas(ALIGN) unsigned char bytes[];
};

static void *
alloc(struct arena *a, size_t n, size_t align)
{
    if (n > SIZE_MAX / 2)
        return NULL;
    struct arena_block *b = a->head;
    if (b)
        b->used = (b->used + align - 1) & ~(align - 1); // size is a multiple, too
    if (!b || b->size - b->used < n) {
        size_t size =
            n > BLOCK_BYTES ? (n + ALIGN - 1) & ~(size_t)(ALIGN - 1) : BLOCK_BYTES;
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

void *
arena_alloc(struct arena *a, size_t n)
{
    return alloc(a, n, ALIGN);
}

char *
arena_copy(struct arena *a, const void *bytes, size_t n)
{
    char *p = n < SIZE_MAX ? alloc(a, n + 1, 1) : NULL;
    if (!p)
        return NULL;
    if (n)
        memcpy(p, bytes, n);
    p[n] = '\0';
    return p;
}

void
arena_clear(struct arena *a)
{
    struct arena_block *b = a->head;
    if (b && !b->next && b->size == BLOCK_BYTES)
        b->used = 0;
    else
        arena_free(a);
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
