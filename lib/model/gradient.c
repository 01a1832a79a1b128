/* SPDX-License-Identifier: MIT */
/* gradient: see gradient.h; numerics.md section 10. */
#include "lib/model/gradient.h"

#include "lib/model/exchange.h"
#include "lib/model/shard.h"

#include <assert.h>
#include <stdlib.h>

static_assert((int)EXCHANGE_PIECE + (int)TRAIN_OWN == (int)EXCHANGE_OWN, "events");

/* Elements of a matrix from `first` on as one row. */
static struct matrix
elements(const struct matrix *m, size_t first, size_t n)
{
    return matrix_of(m->dtype, dtype_at(m->dtype, m->data, first), 1, n);
}

/* at[0 .. size] counts elements: make it count their bytes. */
static void
to_bytes(size_t *at, unsigned size, enum dtype dtype)
{
    for (unsigned q = 0; q <= size; q++)
        at[q] *= dtype_bits(dtype) / 8;
}

/* What the ranks' passes gave for this rank's part, in the order of ranks, which is that of
 * passes; where ranks hold whole gradients all get all parts behind the last pass. */
static void
add_ranks(struct train *t, size_t i)
{
    struct comm *c = t->layout.comm;
    const struct matrix *sum = &t->tensor[i].grad, *pass = &t->net.t[i].grad;
    size_t *at = t->part;
    shard_parts(at, &t->net.table, i, c->size);
    size_t first = at[c->rank], n = at[c->rank + 1] - first;
    struct matrix own = elements(sum, train_shards(t) ? 0 : first, n),
                  here = elements(pass, first, n),
                  others = matrix_of(pass->dtype, t->received, c->size - 1, n);
    to_bytes(at, c->size, pass->dtype);
    struct kernels *k = t->net.k;
    struct exchange_array received = { EXCHANGE_RECEIVED, 0, t->received, at };
    if (t->err->kind || exchange_parts(k, c, &received, pass->data) < 0)
        return;
    for (unsigned q = 0; q < c->size && n; q++)
        t->term[q] = q == c->rank ? here : matrix_rows(&others, q - (q > c->rank), 1);
    if (n)
        op_sum(k, &own, c->size, t->term, !t->first_pass);
    if (!t->last_pass || train_shards(t))
        return;
    shard_parts(at, &t->net.table, i, c->size);
    to_bytes(at, c->size, sum->dtype);
    struct exchange_array all = { EXCHANGE_SUM, i, sum->data, at };
    exchange_gather(k, c, &all, 1);
}

int
gradient_lost(struct train *t)
{
    return err_set(t->err, t->layout.comm->err->kind, "%s", t->layout.comm->err->msg);
}

void
gradient_begin(void *ctx, size_t i)
{
    struct train *t = ctx;
    unsigned piece = t->tensor[i].piece;
    if (piece == TRAIN_OWN && t->own_free)
        return;
    t->own_free = t->own_free || piece == TRAIN_OWN;
    kernels_wait(t->net.k, EXCHANGE_PIECE + piece);
}

void
gradient_add(void *ctx, size_t i)
{
    struct train *t = ctx;
    if (!t->layout.comm) {
        op_sum(t->net.k, &t->tensor[i].grad, 1, &t->net.t[i].grad, !t->first_pass);
        return;
    }
    exchange_begin(t->net.k);
    add_ranks(t, i);
    exchange_end(t->net.k, EXCHANGE_PIECE + t->tensor[i].piece);
}

size_t
gradient_received(const struct train *t, unsigned rank)
{
    const struct comm *c = t->layout.comm;
    size_t most = 0;
    for (size_t i = 0; i < t->net.table.n && c; i++) {
        const struct matrix *pass = &t->net.t[i].grad;
        struct span s = shard_span(&t->net.table, i, c->size, rank);
        size_t bytes = (size_t)s.count * dtype_bits(pass->dtype) / 8;
        if (pass->data && bytes > most)
            most = bytes;
    }
    return c ? most * (c->size - 1) : 0;
}

int
gradient_open(struct train *t)
{
    const struct comm *c = t->layout.comm;
    if (!c)
        return 0;
    t->part = calloc((size_t)c->size + 1, sizeof *t->part);
    t->term = calloc(c->size, sizeof *t->term);
    if (!t->part || !t->term)
        return err_set(t->err, ERR_MEMORY, "out of memory for a training");
    t->received =
        kernels_alloc(t->net.k, MEMORY_GRADIENTS, gradient_received(t, c->rank));
    return t->received ? 0 : -1;
}
