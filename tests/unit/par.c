/* SPDX-License-Identifier: MIT */
/* par: each item once, workers by number, the error of the lowest item. */
#include "lib/core/par.h"

#include "tests/unit/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

enum { ITEMS = 100 };

struct job {
    atomic_uint calls[ITEMS];
    unsigned threads;
    atomic_bool wrong; // a worker or an item out of range
    size_t bad[4];     // items that fail
    unsigned n_bad;
    size_t slow; // the item that fails late
};

static int
count(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct job *job = ctx;
    if (i >= ITEMS || (worker > 0 && worker >= job->threads))
        atomic_store(&job->wrong, true);
    else
        atomic_fetch_add(&job->calls[i], 1);
    if (i == job->slow) {
        struct timespec nap = { .tv_nsec = 20000000 };
        nanosleep(&nap, NULL);
    }
    for (unsigned k = 0; k < job->n_bad; k++)
        if (job->bad[k] == i)
            return err_set(err, ERR_FORMAT, "item %zu", i);
    return 0;
}

static void
check_all(unsigned threads, size_t n)
{
    struct job job = { .threads = threads, .slow = ITEMS };
    struct err err = { 0 };
    CHECK(par_for(threads, n, count, &job, &err) == 0 && err.kind == ERR_NONE);
    CHECK(!atomic_load(&job.wrong));
    for (size_t i = 0; i < ITEMS; i++)
        CHECK_SAY(atomic_load(&job.calls[i]) == (i < n),
                  "%u threads, %zu items: item %zu", threads, n, i);
}

/* The lowest of several failures, though a later one is heard first. */
static void
check_errors(unsigned threads)
{
    struct job job = {
        .threads = threads, .bad = { 70, 41, 40, 99 }, .n_bad = 4, .slow = 40
    };
    struct err err = { 0 };
    CHECK(par_for(threads, ITEMS, count, &job, &err) == -1);
    CHECK_SAY(strcmp(err.msg, "item 40") == 0, "%u threads: %s", threads, err.msg);
    CHECK_ERR(err, ERR_FORMAT, "item 40");
    for (size_t i = 0; i <= 40; i++)
        CHECK_SAY(atomic_load(&job.calls[i]) == 1,
                  "%u threads: item %zu below the error", threads, i);
    CHECK(!atomic_load(&job.wrong));

    // After an error nothing is done, and the error stays.
    struct job none = { .threads = threads, .slow = ITEMS };
    struct err first = err;
    CHECK(par_for(threads, ITEMS, count, &none, &err) == -1);
    CHECK(atomic_load(&none.calls[0]) == 0 && memcmp(&first, &err, sizeof err) == 0);
}

int
main(void)
{
    for (unsigned threads = 1; threads <= 9; threads++) {
        for (size_t n = 0; n <= ITEMS; n = n < 10 ? n + 1 : n * 3 + 10)
            check_all(threads, n);
        check_all(threads, ITEMS);
        check_errors(threads);
    }
    CHECK(par_cpus() >= 1);
    return check_end();
}
