/* SPDX-License-Identifier: MIT */
/* pool: see pool.h. */
#include "lib/load/pool.h"

#include "lib/base/grow.h"

#include <stdlib.h>

/* An unused buffer, if possible one that is large enough; else a new one. */
static struct pool_buffer *
find_buffer(struct pool *pool, size_t bytes)
{
    struct pool_buffer *unused = NULL;
    for (struct pool_buffer *b = pool->v; b && b < pool->v + pool->n; b++) {
        if (!b->used && b->bytes >= bytes)
            return b;
        if (!b->used)
            unused = b;
    }
    if (unused)
        return unused;
    if (!GROW(pool->v, pool->n, pool->cap, 16))
        return NULL;
    pool->v[pool->n] = (struct pool_buffer){ 0 };
    return &pool->v[pool->n++];
}

void *
pool_alloc(struct pool *pool, size_t bytes)
{
    struct kernels *k = pool->k;
    struct pool_buffer *b = find_buffer(pool, bytes);
    if (!b) {
        err_set(k->err, ERR_MEMORY, "out of memory");
        return NULL;
    }
    if (b->bytes < bytes || !b->p) {
        if (b->p)
            kernels_free(k, b->p);
        *b = (struct pool_buffer){ kernels_alloc(k, MEMORY_WORK, bytes ? bytes : 1),
                                   bytes, false };
    }
    b->used = b->p != NULL;
    return b->p;
}

void
pool_free(struct pool *pool, void *p)
{
    for (size_t i = 0; i < pool->n && p; i++)
        if (pool->v[i].p == p)
            pool->v[i].used = false;
}

void
pool_close(struct pool *pool)
{
    for (size_t i = 0; i < pool->n; i++)
        if (pool->v[i].p)
            kernels_free(pool->k, pool->v[i].p);
    free(pool->v);
    *pool = (struct pool){ 0 };
}
