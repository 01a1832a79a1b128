/* SPDX-License-Identifier: MIT */
/* exchange: see exchange.h. */
#include "lib/model/exchange.h"

#include <stdlib.h>

static uint8_t *
alloc(struct kernels *k, size_t bytes)
{
    uint8_t *p = malloc(bytes + 1);
    if (!p)
        err_set(k->err, ERR_MEMORY, "out of memory for an exchange");
    return p;
}

/* A failed call is an error of the device's owner, too. */
static int
settle(struct kernels *k, const struct comm *c, int rc)
{
    if (rc < 0 && c->err->kind)
        err_set(k->err, c->err->kind, "%s", c->err->msg);
    return rc < 0 || k->err->kind ? -1 : 0;
}

int
exchange_gather(struct kernels *k, struct comm *c, void *p, const size_t *at)
{
    if (k->is.host)
        return settle(k, c, comm_gather(c, p, at));
    size_t own = at[c->rank], end = at[c->rank + 1], all = at[c->size];
    uint8_t *host = alloc(k, all), *device = p;
    int rc = host ? 0 : -1;
    if (rc == 0 && end > own)
        rc = kernels_download(k, host + own, device + own, end - own);
    if (rc == 0)
        rc = comm_gather(c, host, at);
    if (rc == 0 && own)
        kernels_upload(k, device, host, own);
    if (rc == 0 && all > end)
        kernels_upload(k, device + end, host + end, all - end);
    free(host);
    return settle(k, c, rc);
}

int
exchange_parts(struct kernels *k, struct comm *c, void *to, const void *from,
               const size_t *at)
{
    if (k->is.host)
        return settle(k, c, comm_exchange(c, to, from, at));
    size_t got = (at[c->rank + 1] - at[c->rank]) * c->size, all = at[c->size];
    uint8_t *host = alloc(k, all + got);
    int rc = host ? kernels_download(k, host, from, all) : -1;
    if (rc == 0)
        rc = comm_exchange(c, host + all, host, at);
    if (rc == 0 && got)
        kernels_upload(k, to, host + all, got);
    free(host);
    return settle(k, c, rc);
}
