/* SPDX-License-Identifier: MIT */
/* comm: see comm.h; one rank, and the way to those of MPI. */
#include "lib/base/os.h"
#include "lib/base/plugin.h"
#include "lib/dist/comm_ops.h"

#include <string.h>

/* ---- one rank -------------------------------------------------------------------------- */

/* What is not here has nothing to do. */
static const struct comm_ops one = { 0 };

void
comm_one(struct comm *c, struct err *err)
{
    *c = (struct comm){ .op = &one, .size = 1, .err = err };
}

/* ---- MPI ------------------------------------------------------------------------------- */

int
comm_mpi(struct comm *c, struct err *err)
{
    static const struct plugin mpi = { "libnibble-mpi.so", "NIBBLE_MPI", "mpicc",
                                       true };
    char why[512];
    int (*open)(struct comm *, struct err *);
    comm_one(c, err);
    *(void **)&open = plugin_find(&mpi, "nibble_mpi_open_5", why, sizeof why);
    return open ? open(c, err) : err_set(err, ERR_USAGE, "no MPI: %s", why);
}

/* ---- calls ------------------------------------------------------------------------------ */

void
comm_close(struct comm *c)
{
    if (c->op->close)
        c->op->close(c);
    comm_one(c, c->err);
}

void
comm_abort(struct comm *c, int status)
{
    if (c->op->abort)
        c->op->abort(c, status);
}

void
comm_note(struct comm *c)
{
    if (c->op->note)
        c->op->note(c);
}

/* The end of a call that has begun then. */
static int
end_call(struct comm *c, double began, int rc)
{
    c->waited += os_seconds() - began;
    return rc;
}

int
comm_broadcast(struct comm *c, void *p, size_t bytes)
{
    if (c->err->kind)
        return -1;
    double began = os_seconds();
    return c->op->broadcast ? end_call(c, began, c->op->broadcast(c, p, bytes)) : 0;
}

int
comm_gather(struct comm *c, void *p, const size_t *at)
{
    if (c->err->kind)
        return -1;
    double began = os_seconds();
    return c->op->gather ? end_call(c, began, c->op->gather(c, p, at)) : 0;
}

int
comm_collect(struct comm *c, void *p, const size_t *at)
{
    if (c->err->kind)
        return -1;
    double began = os_seconds();
    return c->op->collect ? end_call(c, began, c->op->collect(c, p, at)) : 0;
}

int
comm_pass(struct comm *c, void *to, const void *from, const size_t *at)
{
    if (c->err->kind)
        return -1;
    double began = os_seconds();
    return c->op->pass ? end_call(c, began, c->op->pass(c, to, from, at)) : 0;
}

int
comm_exchange(struct comm *c, void *to, const void *from, const size_t *at)
{
    if (c->err->kind)
        return -1;
    double began = os_seconds();
    return c->op->exchange ? end_call(c, began, c->op->exchange(c, to, from, at)) : 0;
}
