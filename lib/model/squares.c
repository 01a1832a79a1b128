/* SPDX-License-Identifier: MIT */
/* squares: see squares.h.  Each rank sums the blocks of its parts; all add the sums of blocks. */
#include "lib/model/squares.h"

#include "lib/model/exchange.h"
#include "lib/model/gradient.h"
#include "lib/model/shard.h"

#include <stdlib.h>
#include <string.h>

static size_t
blocks_of(const struct train *t, size_t i, unsigned rank)
{
    struct span s = shard_span(&t->net.table, i, t->layout.comm->size, rank);
    return (size_t)((s.count + SQUARES_BLOCK - 1) / SQUARES_BLOCK);
}

/* Of all gradients. */
static size_t
all_blocks(const struct train *t, unsigned rank)
{
    size_t n = 0;
    for (size_t i = 0; i < t->net.table.n; i++)
        n += t->tensor[i].trained ? blocks_of(t, i, rank) : 0;
    return n;
}

int
squares_open(struct train *t)
{
    struct squares *s = &t->blocks;
    unsigned ranks = t->layout.comm->size;
    s->at = calloc((size_t)ranks + 1, sizeof *s->at);
    s->next = calloc(ranks, sizeof *s->next);
    if (!s->at || !s->next)
        return err_set(t->err, ERR_MEMORY, "out of memory for norms");
    for (unsigned q = 0; q < ranks; q++)
        s->at[q + 1] = s->at[q] + all_blocks(t, q);
    s->grad = calloc(t->net.table.n + 1, sizeof *s->grad);
    s->host = calloc(s->at[ranks] + 1, sizeof *s->host);
    s->tree = calloc(s->at[ranks] + 1, sizeof *s->tree);
    if (!s->grad || !s->host || !s->tree)
        return err_set(t->err, ERR_MEMORY, "out of memory for norms");
    for (unsigned q = 0; q <= ranks; q++)
        s->at[q] *= sizeof *s->host; // the call that it is for counts bytes
    s->device = kernels_alloc(t->net.k, MEMORY_OTHER, s->at[ranks] + sizeof *s->device);
    return s->device ? 0 : -1;
}

void
squares_close(struct train *t)
{
    struct squares *s = &t->blocks;
    kernels_free(t->net.k, s->device);
    free(s->at);
    free(s->next);
    free(s->grad);
    free(s->host);
    free(s->tree);
}

/* The sums of the own blocks of all gradients, in the order of rows.  Row 0 is the embedding, whose
 * exchange is the last and the longest: the others are summed meanwhile. */
static void
sum_blocks(struct train *t)
{
    struct squares *s = &t->blocks;
    struct kernels *k = t->net.k;
    unsigned rank = t->layout.comm->rank;
    double *own = s->device + s->at[rank] / sizeof *own;
    size_t n = 0, first = t->tensor[0].trained ? blocks_of(t, 0, rank) : 0;
    for (size_t i = 1; i < t->net.table.n; i++)
        if (t->tensor[i].trained && train_span(t, i).count)
            s->grad[n++] = t->tensor[i].grad;
    for (unsigned piece = 0; piece < TRAIN_PIECES; piece++)
        kernels_wait(k, EXCHANGE_PIECE + piece);
    op_block_squares(k, own + first, s->grad, n);
    exchange_settle(k);
    if (first)
        op_block_squares(k, own, &t->tensor[0].grad, 1);
}

/* As op_sum_squares adds its blocks. */
static double
add_neighbours(double *v, size_t n)
{
    for (; n > 1; n = n / 2 + n % 2) {
        for (size_t i = 0; i < n / 2; i++)
            v[i] = v[2 * i] + v[2 * i + 1];
        if (n % 2)
            v[n / 2] = v[n - 1];
    }
    return n ? v[0] : 0;
}

/* The sums of a tensor's blocks, which are those of the ranks' parts in their order. */
static double
add_blocks(struct train *t, size_t i)
{
    struct squares *s = &t->blocks;
    size_t n = 0;
    for (unsigned q = 0; q < t->layout.comm->size; q++) {
        size_t some = blocks_of(t, i, q);
        memcpy(s->tree + n, s->host + s->at[q] / sizeof *s->host + s->next[q],
               some * sizeof *s->tree);
        s->next[q] += some;
        n += some;
    }
    return add_neighbours(s->tree, n);
}

int
squares_measure(struct train *t)
{
    struct squares *s = &t->blocks;
    struct comm *c = t->layout.comm;
    struct kernels *k = t->net.k;
    const struct exchange_array all = { EXCHANGE_SQUARES, 0, s->device, s->at };
    sum_blocks(t);
    exchange_begin(k);
    exchange_gather(k, c, &all, 1);
    exchange_end(k, EXCHANGE_ALL);
    kernels_wait(k, EXCHANGE_ALL);
    if (k->dry)
        return 0;
    if (kernels_download(k, s->host, s->device, s->at[c->size]) < 0)
        return -1;
    memset(s->next, 0, c->size * sizeof *s->next);
    for (size_t i = 0; i < t->net.table.n; i++)
        if (t->tensor[i].trained)
            t->host_squares[i] = add_blocks(t, i);
    kernels_upload(k, t->squares, t->host_squares, t->net.table.n * sizeof *t->squares);
    return t->err->kind ? -1 : 0;
}
