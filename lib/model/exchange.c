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
settle_failure(struct kernels *k, const struct comm *c, int rc)
{
    if (rc < 0 && c->err->kind)
        err_set(k->err, c->err->kind, "%s", c->err->msg);
    return rc < 0 || k->err->kind ? -1 : 0;
}

/* Nothing to and from each rank for n arrays, to be filled in; NULL: the error is the device's. */
static struct transfer *
begin_exchange(struct kernels *k, const struct comm *c, size_t n)
{
    assert(n > 0 && n <= EXCHANGE_TOGETHER);
    struct transfer *t = calloc(n * c->size, sizeof *t);
    if (!t)
        err_set(k->err, ERR_MEMORY, "out of memory for an exchange");
    return t;
}

/* Put it into the device's queue. */
static int
end_exchange(struct kernels *k, struct comm *c, const struct exchange_array *a,
             size_t n, struct transfer *t)
{
    struct exchanged e[EXCHANGE_TOGETHER];
    for (size_t i = 0; i < n; i++)
        e[i] =
            (struct exchanged){ .array = (unsigned)(a[i].row * EXCHANGE_OF + a[i].of),
                                .base = a[i].p,
                                .with = t + i * c->size };
    comm_note(c);
    op_transfer(k, c->size, e, n);
    free(t);
    return settle_failure(k, c, 0);
}

/* An array's, to and from each rank. */
static void
gather_one(struct transfer *t, const struct comm *c, const struct exchange_array *a)
{
    char *bytes = a->p;
    const size_t *at = a->at;
    for (unsigned q = 0; q < c->size; q++)
        if (q != c->rank)
            t[q] = (struct transfer){ .from = bytes + at[c->rank],
                                      .send = at[c->rank + 1] - at[c->rank],
                                      .to = bytes + at[q],
                                      .receive = at[q + 1] - at[q],
                                      .there = at[c->rank] };
}

static int
gather_on_host(struct comm *c, const struct exchange_array *a, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = comm_gather(c, a[i].p, a[i].at);
    return rc;
}

int
exchange_gather(struct kernels *k, struct comm *c, const struct exchange_array *a,
                size_t n)
{
    for (size_t i = 0; i < n; i++)
        c->own_sent +=
            (c->size - 1) * (uint64_t)(a[i].at[c->rank + 1] - a[i].at[c->rank]);
    if (k->dry)
        return settle_failure(k, c, 0);
    if (k->is.host)
        return settle_failure(k, c, gather_on_host(c, a, n));
    struct transfer *t = begin_exchange(k, c, n);
    for (size_t i = 0; t && i < n; i++)
        gather_one(t + i * c->size, c, &a[i]);
    return t ? end_exchange(k, c, a, n, t) : -1;
}

int
exchange_parts(struct kernels *k, struct comm *c, const struct exchange_array *to,
               const void *from)
{
    const size_t *at = to->at;
    size_t own = at[c->rank + 1] - at[c->rank];
    c->parts_sent += at[c->size] - own;
    if (k->dry)
        return settle_failure(k, c, 0);
    if (k->is.host)
        return settle_failure(k, c, comm_exchange(c, to->p, from, at));
    struct transfer *t = begin_exchange(k, c, 1);
    for (unsigned q = 0; t && q < c->size; q++) {
        size_t send = at[q + 1] - at[q];
        if (q != c->rank)
            t[q] = (struct transfer){ .from = (const char *)from + at[q],
                                      .send = send,
                                      .to = (char *)to->p + (q - (q > c->rank)) * own,
                                      .receive = own,
                                      .there = (c->rank - (c->rank > q)) * send };
    }
    return t ? end_exchange(k, c, to, 1, t) : -1;
}
