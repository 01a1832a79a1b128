/* SPDX-License-Identifier: MIT */
/* par: see par.h.
 *
 * A job is open while there may be items left.  A thread enters it by counting itself
 * into `state`, which only succeeds while it is open; the caller closes it when all items
 * are taken and waits for those inside.  So the caller never waits for a thread that
 * sleeps or that the system has not scheduled: such a thread finds a closed job and waits
 * for the next. */
#include "lib/base/par.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* state: threads inside, whether the job is open, and the number of the job. */
enum { OPEN = 1 << 16, INSIDE = OPEN - 1, NEXT = OPEN << 1 };
enum { SPINS = 4000, SPINS_PER_YIELD = 100, MAX_THREADS = 1024 };

struct par_job {
    par_fn fn;
    void *ctx;
    size_t n;
    struct err *err;
};

struct worker {
    struct par *pool;
    unsigned number;
    pthread_t thread;
};

struct par {
    unsigned threads; // with the caller's
    struct par_job job;
    _Alignas(64) atomic_uint_fast64_t state;
    _Alignas(64) atomic_size_t next;
    atomic_size_t failed; // lowest item that failed
    _Alignas(64) atomic_uint asleep;
    atomic_bool ended;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct worker *worker; // [0] is not used
};

unsigned
par_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (unsigned)CPU_COUNT(&set);
    return 1;
}

unsigned
par_threads(const struct par *p)
{
    return p->threads;
}

/* ---- items ------------------------------------------------------------------------------ */

static void
note_failure(struct par *p, size_t i, const struct err *err)
{
    pthread_mutex_lock(&p->lock);
    if (i < atomic_load(&p->failed)) {
        atomic_store(&p->failed, i);
        *p->job.err = *err;
    }
    pthread_mutex_unlock(&p->lock);
}

static void
work(struct par *p, unsigned worker)
{
    const struct par_job *j = &p->job;
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= j->n || i > atomic_load_explicit(&p->failed, memory_order_relaxed))
            return;
        struct err err;
        err.kind = ERR_NONE;
        if (j->fn(j->ctx, i, worker, &err) < 0)
            note_failure(p, i, &err);
    }
}

/* ---- threads that wait for jobs ---------------------------------------------------------- */

/* Now and then let another thread have the processor: on a busy machine it may be the one
 * that we wait for. */
static void
spin(unsigned i)
{
    if (i % SPINS_PER_YIELD == SPINS_PER_YIELD - 1) {
        sched_yield();
        return;
    }
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* Whether there is a job that is not `seen`, or the end. */
static bool
is_called(struct par *p, uint64_t seen)
{
    uint64_t s = atomic_load(&p->state);
    return atomic_load(&p->ended) || ((s & OPEN) && (s & ~(uint64_t)INSIDE) != seen);
}

static void
wait_for_job(struct par *p, uint64_t seen)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (is_called(p, seen))
            return;
        spin(i);
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->asleep, 1);
    while (!is_called(p, seen))
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->asleep, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *
serve(void *arg)
{
    struct worker *w = arg;
    struct par *p = w->pool;
    uint64_t seen = 0;
    for (;;) {
        wait_for_job(p, seen);
        if (atomic_load(&p->ended))
            return NULL;
        uint64_t s = atomic_load(&p->state);
        while ((s & OPEN) && !atomic_compare_exchange_weak(&p->state, &s, s + 1))
            continue;
        if (!(s & OPEN))
            continue;
        seen = s & ~(uint64_t)INSIDE;
        work(p, w->number);
        atomic_fetch_sub(&p->state, 1);
    }
}

/* ---- jobs ---------------------------------------------------------------------------------- */

static void
wake_sleepers(struct par *p)
{
    if (!atomic_load(&p->asleep))
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

/* Until all items are taken: others may still work on theirs. */
static void
run_job(struct par *p, struct par_job job)
{
    bool shared = job.n > 1 && p->threads > 1;
    p->job = job;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->failed, SIZE_MAX, memory_order_relaxed);
    if (shared) {
        atomic_fetch_add(&p->state, NEXT + OPEN);
        wake_sleepers(p);
    }
    work(p, 0);
    if (shared)
        atomic_fetch_sub(&p->state, OPEN);
}

static int
result(struct par *p)
{
    return atomic_load(&p->failed) != SIZE_MAX ? -1 : 0;
}

int
par_run(struct par *p, size_t n, par_fn fn, void *ctx, struct err *err)
{
    if (err->kind)
        return -1;
    run_job(p, (struct par_job){ fn, ctx, n, err });
    // What the others still work on is as short as our last item.
    for (unsigned i = 0; atomic_load(&p->state) & INSIDE; i++)
        spin(i);
    return result(p);
}

/* ---- open and close ------------------------------------------------------------------------ */

/* Signals are delivered to the thread that opened the pool, except those that an action of
 * the thread itself raises. */
static void
start_threads(struct par *p, unsigned threads)
{
    static const int own[] = { SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGPIPE, SIGXFSZ };
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    for (unsigned i = 1; i < threads; i++) {
        struct worker *w = &p->worker[i];
        *w = (struct worker){ .pool = p, .number = i };
        if (pthread_create(&w->thread, NULL, serve, w) != 0)
            break;
        p->threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

struct par *
par_open(unsigned threads, struct err *err)
{
    struct par *p = aligned_alloc(64, sizeof *p);
    threads = threads > MAX_THREADS ? MAX_THREADS : threads;
    struct worker *w = calloc(threads + 1, sizeof *w);
    if (!p || !w) {
        free(p);
        free(w);
        err_set(err, ERR_MEMORY, "out of memory for threads");
        return NULL;
    }
    *p = (struct par){ .threads = 1, .worker = w };
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    start_threads(p, threads);
    return p;
}

/* Wait until all threads have ended, with what they still work on. */
static void
join(struct par *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->ended, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (; p->threads > 1; p->threads--)
        pthread_join(p->worker[p->threads - 1].thread, NULL);
}

void
par_close(struct par *p)
{
    if (!p)
        return;
    join(p);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->worker);
    free(p);
}

/* Items may be long, so the caller does not spin for the last ones: it joins. */
int
par_for(unsigned threads, size_t n, par_fn fn, void *ctx, struct err *err)
{
    if (err->kind)
        return -1;
    struct par *p = par_open(threads < n ? threads : (unsigned)n, err);
    if (!p)
        return -1;
    run_job(p, (struct par_job){ fn, ctx, n, err });
    join(p);
    int rc = result(p);
    par_close(p);
    return rc;
}
