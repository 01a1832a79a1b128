/* SPDX-License-Identifier: MIT */
/* par: see par.h.  Threads live for one call: the items are chunks of megabytes, so
 * starting them costs nothing that could be measured. */
#include "lib/core/par.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

struct job {
    par_fn fn;
    void *ctx;
    size_t n;
    atomic_size_t next;
    atomic_size_t failed; // lowest item that failed, n if none
    pthread_mutex_t lock; // for err
    struct err *err;
};

struct worker {
    struct job *job;
    unsigned number;
    pthread_t thread;
};

static void
note_failure(struct job *job, size_t i, const struct err *err)
{
    pthread_mutex_lock(&job->lock);
    if (i < atomic_load(&job->failed)) {
        atomic_store(&job->failed, i);
        *job->err = *err;
    }
    pthread_mutex_unlock(&job->lock);
}

static void *
work(void *arg)
{
    struct worker *w = arg;
    struct job *job = w->job;
    for (;;) {
        size_t i = atomic_fetch_add(&job->next, 1);
        if (i >= job->n || i > atomic_load(&job->failed))
            return NULL;
        struct err err = { 0 };
        if (job->fn(job->ctx, i, w->number, &err) < 0)
            note_failure(job, i, &err);
    }
}

int
par_for(unsigned threads, size_t n, par_fn fn, void *ctx, struct err *err)
{
    if (err->kind)
        return -1;
    if (threads > n)
        threads = (unsigned)n;
    struct job job = { .fn = fn, .ctx = ctx, .n = n, .err = err };
    atomic_init(&job.next, 0);
    atomic_init(&job.failed, n);
    pthread_mutex_init(&job.lock, NULL);
    struct worker self = { .job = &job };
    struct worker *others = threads > 1 ? calloc(threads - 1, sizeof *others) : NULL;
    unsigned started = 0;
    // A thread that cannot be started is one fewer, not a failure.
    for (; others && started < threads - 1; started++) {
        others[started] = (struct worker){ .job = &job, .number = started + 1 };
        if (pthread_create(&others[started].thread, NULL, work, &others[started]) != 0)
            break;
    }
    work(&self);
    for (unsigned i = 0; i < started; i++)
        pthread_join(others[i].thread, NULL);
    free(others);
    pthread_mutex_destroy(&job.lock);
    return atomic_load(&job.failed) < n ? -1 : 0;
}

unsigned
par_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (unsigned)CPU_COUNT(&set);
    return 1;
}
