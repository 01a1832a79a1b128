/* SPDX-License-Identifier: MIT */
/* delayed: see delayed.h; numerics.md section 9. */
#include "lib/model/delayed.h"

#include "lib/model/gradient.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of n values each; by the device, but for those of all ranks. */
static int
alloc_delayed(struct train *t, struct net_delayed *d)
{
    struct kernels *k = t->net.k;
    size_t n = train_n_magnitudes(t), bytes = n * sizeof(float);
    d->magnitude = calloc(n, sizeof(float));
    d->host = calloc(n * train_ranks(t), sizeof(float));
    if (!d->magnitude || !d->host)
        return err_set(t->err, ERR_MEMORY, "out of memory for scales");
    d->scaled = kernels_alloc(k, MEMORY_OTHER, bytes);
    d->found.amax = kernels_alloc(k, MEMORY_OTHER, bytes);
    d->found.lost = kernels_alloc(k, MEMORY_OTHER, sizeof *d->found.lost);
    return d->found.lost ? 0 : -1;
}

size_t
train_n_magnitudes(const struct train *t)
{
    return (size_t)t->net.c.layers * NET_FP8;
}

int
delayed_open(struct train *t)
{
    if (!t->net.fp8 || !t->layout.delayed)
        return 0;
    t->net.delayed = calloc(1, sizeof *t->net.delayed);
    if (!t->net.delayed)
        return err_set(t->err, ERR_MEMORY, "out of memory for scales");
    return alloc_delayed(t, t->net.delayed);
}

void
delayed_close(struct train *t)
{
    struct net_delayed *d = t->net.delayed;
    if (!d)
        return;
    kernels_free(t->net.k, d->scaled);
    kernels_free(t->net.k, d->found.amax);
    kernels_free(t->net.k, d->found.lost);
    free(d->magnitude);
    free(d->host);
    free(d);
    t->net.delayed = NULL;
}

void
delayed_begin(struct train *t)
{
    struct net_delayed *d = t->net.delayed;
    size_t n = train_n_magnitudes(t), bytes = n * sizeof(float);
    if (!d)
        return;
    for (size_t i = 0; i < n; i++)
        d->host[i] = DELAYED_MARGIN * d->magnitude[i];
    kernels_upload(t->net.k, d->scaled, d->host, bytes);
    op_zero(t->net.k, d->found.amax, bytes);
    op_zero(t->net.k, d->found.lost, sizeof *d->found.lost);
}

int
delayed_read_clipped(struct train *t, uint64_t *clipped)
{
    struct net_delayed *d = t->net.delayed;
    *clipped = 0;
    if (!d)
        return 0;
    int rc = kernels_download(t->net.k, clipped, d->found.lost, sizeof *clipped);
    op_zero(t->net.k, d->found.lost, sizeof *clipped);
    return rc;
}

/* This rank's magnitudes are among those of all. */
static int
gather_magnitudes(struct train *t, size_t bytes)
{
    if (train_ranks(t) == 1)
        return 0;
    for (unsigned q = 0; q <= train_ranks(t); q++)
        t->part[q] = q * bytes;
    return comm_gather(t->layout.comm, t->net.delayed->host, t->part) < 0
               ? gradient_lost(t)
               : 0;
}

int
delayed_keep(struct train *t)
{
    struct net_delayed *d = t->net.delayed;
    size_t n = train_n_magnitudes(t), bytes = n * sizeof(float);
    unsigned ranks = train_ranks(t), rank = ranks > 1 ? t->layout.comm->rank : 0;
    if (!d)
        return 0;
    if (kernels_download(t->net.k, d->host + rank * n, d->found.amax, bytes) < 0 ||
        gather_magnitudes(t, bytes) < 0)
        return -1;
    memcpy(d->magnitude, d->host, bytes);
    for (size_t i = n; i < ranks * n; i++)
        if (d->host[i] > d->magnitude[i % n])
            d->magnitude[i % n] = d->host[i];
    // A value that is not finite may come to nothing, in a part that no loss depends on.
    for (size_t i = 0; i < n; i++)
        if (!isfinite(d->magnitude[i]))
            d->magnitude[i] = 0;
    return 0;
}
