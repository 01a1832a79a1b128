/* SPDX-License-Identifier: MIT */
/* team: every item is worked on once, the error of the lowest item is kept, and threads
 * that sleep are woken, for any number of threads. */
#include "kernels/cpu/team.h"

#include "tests/unit/check.h"

#include <stdatomic.h>

enum { MOST = 300 };

struct job {
    atomic_int calls[MOST];
    unsigned size; // of the team
    size_t bad;    // this item and those after it fail
};

static int
count(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct job *j = ctx;
    CHECK(worker < j->size);
    atomic_fetch_add(&j->calls[i], 1);
    return i < j->bad ? 0 : err_set(err, ERR_IO, "item %zu", i);
}

static void
check_team(unsigned threads)
{
    static const size_t sizes[] = { 0, 1, 2, 3, 17, MOST };
    struct err err = { 0 };
    struct team *t = team_open(threads, &err);
    NEED(t);
    CHECK(team_size(t) == threads);
    for (int round = 0; round < 3000; round++) {
        size_t n = sizes[round % 6];
        struct job j = { .size = threads, .bad = MOST };
        if (round % 500 == 499)
            usleep(3000); // long enough to sleep
        CHECK(team_for(t, n, count, &j, &err) == 0);
        for (size_t i = 0; i < MOST; i++)
            CHECK(j.calls[i] == (i < n));
    }
    for (int round = 0; round < 100; round++) {
        struct job j = { .size = threads, .bad = 5 };
        err = (struct err){ 0 };
        CHECK(team_for(t, 20, count, &j, &err) == -1);
        CHECK_ERR(err, ERR_IO, "item 5");
        CHECK(team_for(t, 20, count, &j, &err) == -1 && j.calls[0] == 1);
    }
    team_close(t);
}

int
main(void)
{
    for (unsigned threads = 1; threads <= 5; threads++)
        check_team(threads);
    struct err err = { 0 };
    for (int i = 0; i < 100; i++) // nothing to do at all
        team_close(team_open(3, &err));
    team_close(NULL);
    return check_end();
}
