/* SPDX-License-Identifier: MIT */
/* pool: device buffers for reuse, since a GPU is slow to allocate. */
#ifndef NIBBLE_LOAD_POOL_H
#define NIBBLE_LOAD_POOL_H

#include "kernels/kernels.h"

struct pool {
    struct kernels *k;
    struct pool_buffer {
        void *p;
        size_t bytes;
        bool used;
    } * v;
    size_t n, cap;
};

/* A buffer of at least that size, not cleared; NULL: k->err is set. */
void *pool_alloc(struct pool *pool, size_t bytes);
/* Back to the pool; p may be NULL. */
void pool_free(struct pool *pool, void *p);
void pool_close(struct pool *pool);

#endif
