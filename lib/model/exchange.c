/* SPDX-License-Identifier: MIT */
/* exchange: see exchange.h. */
#include "lib/model/exchange.h"

#include <assert.h>
#include <stdlib.h>

static_assert((int)EXCHANGE_EVENTS <= (int)EVENTS, "events of a device");

void
exchange_begin(struct kernels *k)
{
    kernels_record(k, EXCHANGE_READY);
    kernels_queue(k, QUEUE_EXCHANGE);
    kernels_wait(k, EXCHANGE_READY);
}

void
exchange_end(struct kernels *k, unsigned event)
{
    kernels_record(k, event);
    kernels_queue(k, QUEUE_COMPUTE);
}

void
exchange_settle(struct kernels *k)
{
    kernels_queue(k, QUEUE_EXCHANGE);
    exchange_end(k, EXCHANGE_ALL);
    kernels_wait(k, EXCHANGE_ALL);
}

void
exchange_finish(struct kernels *k)
{
    exchange_settle(k);
    kernels_exchanged(k); // waits for that wait
}

/* A failed call is an error of the device's owner, too. */
static int
settle(struct kernels *k, const struct comm *c, int rc)
{
    if (rc < 0 && c->err->kind)
        err_set(k->err, c->err->kind, "%s", c->err->msg);
    return rc < 0 || k->err->kind ? -1 : 0;
}

/* Nothing to and from each rank, to be filled in; NULL: the error is the device's. */
static struct transfer *
begin(struct kernels *k, const struct comm *c)
{
    struct transfer *t = calloc(c->size, sizeof *t);
    if (!t)
        err_set(k->err, ERR_MEMORY, "out of memory for an exchange");
    return t;
}

/* Put it into the device's queue. */
static int
end(struct kernels *k, struct comm *c, const void *base, struct transfer *t)
{
    comm_note(c);
    op_transfer(k, base, c->size, t);
    free(t);
    return settle(k, c, 0);
}

int
exchange_gather(struct kernels *k, struct comm *c, void *p, const size_t *at)
{
    c->own_sent += (c->size - 1) * (uint64_t)(at[c->rank + 1] - at[c->rank]);
    if (k->dry)
        return settle(k, c, 0);
    if (k->is.host)
        return settle(k, c, comm_gather(c, p, at));
    char *bytes = p;
    struct transfer *t = begin(k, c);
    for (unsigned q = 0; t && q < c->size; q++)
        if (q != c->rank)
            t[q] = (struct transfer){ .from = bytes + at[c->rank],
                                      .send = at[c->rank + 1] - at[c->rank],
                                      .to = bytes + at[q],
                                      .receive = at[q + 1] - at[q],
                                      .there = at[c->rank] };
    return t ? end(k, c, p, t) : -1;
}

int
exchange_parts(struct kernels *k, struct comm *c, void *to, const void *from,
               const size_t *at)
{
    size_t own = at[c->rank + 1] - at[c->rank];
    c->parts_sent += at[c->size] - own;
    if (k->dry)
        return settle(k, c, 0);
    if (k->is.host)
        return settle(k, c, comm_exchange(c, to, from, at));
    struct transfer *t = begin(k, c);
    for (unsigned q = 0; t && q < c->size; q++) {
        size_t send = at[q + 1] - at[q];
        if (q != c->rank)
            t[q] = (struct transfer){ .from = (const char *)from + at[q],
                                      .send = send,
                                      .to = (char *)to + (q - (q > c->rank)) * own,
                                      .receive = own,
                                      .there = (c->rank - (c->rank > q)) * send };
    }
    return t ? end(k, c, to, t) : -1;
}
