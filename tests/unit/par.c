/* SPDX-License-Identifier: MIT */
/* par: each item once, workers by number, the error of the lowest item, threads that sleep
 * are woken; for threads of one call and for those of a pool. */
#include "lib/base/par.h"

#include "tests/unit/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

enum { ITEMS = 300, MAX_THREADS = 9 };

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
    if (i >= ITEMS || worker >= job->threads)
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

/* On a pool, or on threads of this call. */
static int
run(struct par *pool, struct job *job, size_t n, struct err *err)
{
    return pool ? par_run(pool, n, count, job, err)
                : par_for(job->threads, n, count, job, err);
}

static void
check_all(struct par *pool, unsigned threads, size_t n)
{
    struct job job = { .threads = threads, .slow = ITEMS };
    struct err err = { 0 };
    CHECK(run(pool, &job, n, &err) == 0 && err.kind == ERR_NONE);
    CHECK(!atomic_load(&job.wrong));
    for (size_t i = 0; i < ITEMS; i++)
        CHECK_SAY(atomic_load(&job.calls[i]) == (i < n),
                  "%u threads, %zu items: item %zu", threads, n, i);
}

/* The lowest of several failures, though a later one is noted first. */
static void
check_errors(struct par *pool, unsigned threads)
{
    struct job job = {
        .threads = threads, .bad = { 70, 41, 40, 99 }, .n_bad = 4, .slow = 40
    };
    struct err err = { 0 };
    CHECK(run(pool, &job, ITEMS, &err) == -1);
    CHECK_SAY(strcmp(err.msg, "item 40") == 0, "%u threads: %s", threads, err.msg);
    CHECK_ERR(err, ERR_FORMAT, "item 40");
    for (size_t i = 0; i <= 40; i++)
        CHECK_SAY(atomic_load(&job.calls[i]) == 1,
                  "%u threads: item %zu below the error", threads, i);
    CHECK(!atomic_load(&job.wrong));

    // After an error nothing is done, and the error stays.
    struct job none = { .threads = threads, .slow = ITEMS };
    struct err first = err;
    CHECK(run(pool, &none, ITEMS, &err) == -1);
    CHECK(atomic_load(&none.calls[0]) == 0 && first.kind == err.kind &&
          strcmp(first.msg, err.msg) == 0);
}

static void
check_threads(struct par *pool, unsigned threads)
{
    for (size_t n = 0; n <= ITEMS; n = n < 10 ? n + 1 : n * 3 + 10)
        check_all(pool, threads, n);
    check_all(pool, threads, ITEMS);
    check_errors(pool, threads);
}

/* Many short jobs, some after a pause that is long enough to sleep. */
static void
check_pool(unsigned threads)
{
    static const size_t sizes[] = { 0, 1, 2, 3, 17, ITEMS };
    struct err err = { 0 };
    struct par *pool = par_open(threads, &err);
    NEED(pool);
    CHECK(par_threads(pool) == threads);
    check_threads(pool, threads);
    for (int round = 0; round < 3000; round++) {
        if (round % 500 == 499)
            usleep(3000);
        check_all(pool, threads, sizes[round % 6]);
    }
    for (int round = 0; round < 100; round++) {
        struct job job = { .threads = threads, .bad = { 5, 6 }, .n_bad = 2 };
        job.slow = ITEMS;
        err = (struct err){ 0 };
        CHECK(par_run(pool, 20, count, &job, &err) == -1);
        CHECK_ERR(err, ERR_FORMAT, "item 5");
    }
    par_close(pool);
}

int
main(void)
{
    struct err err = { 0 };
    for (unsigned threads = 1; threads <= MAX_THREADS; threads++)
        check_threads(NULL, threads);
    for (unsigned threads = 1; threads <= 5; threads++)
        check_pool(threads);
    for (int i = 0; i < 100; i++) // a pool without a job
        par_close(par_open(3, &err));
    par_close(NULL);
    CHECK(par_cpus() >= 1);
    return check_end();
}
