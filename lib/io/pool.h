/* SPDX-License-Identifier: MIT */
/* pool: device memory that is used again: a GPU takes longer to allocate than to fill it. */
#ifndef NIBBLE_IO_POOL_H
#define NIBBLE_IO_POOL_H

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

/* At least so many bytes, of any content; NULL: k->err is set. */
void *pool_alloc(struct pool *pool, size_t bytes);
/* Another pool_alloc may have it; NULL: nothing happens. */
void pool_free(struct pool *pool, void *p);
void pool_close(struct pool *pool);

#endif
