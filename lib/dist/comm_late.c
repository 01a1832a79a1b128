/* SPDX-License-Identifier: MIT */
/* comm_late: the end of a rank's patience with others, for all that implement comm.h. */
#include "lib/dist/comm_ops.h"

#include <stdio.h>

/* The lowest rank that is late. */
static unsigned
first_late(const struct comm *c, const bool *late)
{
    unsigned q = 0;
    while (q + 1 < c->size && !late[q])
        q++;
    return q;
}

/* Who waits has HEAR seconds to say so.  Then the lowest of them speaks, and ends the others before
 * they do. */
double
comm_patience(const struct comm *c, const bool *late)
{
    enum { HEAR = 2, APART = 3 };
    unsigned before = 0;
    for (unsigned q = 0; q < c->rank; q++)
        before += !late[q];
    return c->patience + HEAR + APART * before;
}

int
comm_is_late(struct comm *c, const bool *late)
{
    unsigned others = 0, first = first_late(c, late);
    char more[32] = "";
    for (unsigned q = first + 1; q < c->size; q++)
        others += late[q];
    if (others)
        snprintf(more, sizeof more, ", nor from %u others", others);
    return err_set(
        c->err, ERR_IO,
        "rank %u hangs: nothing has come from it for %g s (--rank-timeout)%s", first,
        c->patience, more);
}
