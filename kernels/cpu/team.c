/* SPDX-License-Identifier: MIT */
/* team: see team.h.
 *
 * A job is open while there may be items left.  A thread enters it by counting itself
 * into `state`, which only succeeds while it is open; the caller closes it when all items
 * are taken and waits for those inside.  So nobody waits for a thread that sleeps or that
 * the system has not let run: it finds a closed job and waits for the next. */
#include "kernels/cpu/team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* state: threads inside, whether the job is open, and the number of the job. */
enum { OPEN = 1 << 16, INSIDE = OPEN - 1, NEXT = OPEN << 1 };
enum { SPINS = 4000, YIELD = 100, MOST = 1024 };

struct job {
    par_fn fn;
    void *ctx;
    size_t n;
    struct err *err;
};

struct member {
    struct team *team;
    unsigned number;
    pthread_t thread;
};

struct team {
    unsigned size;
    struct job job;
    _Alignas(64) atomic_uint_fast64_t state;
    _Alignas(64) atomic_size_t next;
    atomic_size_t failed; // lowest item that failed
    _Alignas(64) atomic_uint asleep;
    atomic_bool ended;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct member *member;
};

/* Now and then let another thread have the processor: on a busy machine it may be the one
 * that we wait for. */
static void
pause_a_little(unsigned i)
{
    if (i % YIELD == YIELD - 1) {
        sched_yield();
        return;
    }
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static void
note_failure(struct team *t, size_t i, const struct err *err)
{
    pthread_mutex_lock(&t->lock);
    if (i < atomic_load(&t->failed)) {
        atomic_store(&t->failed, i);
        *t->job.err = *err;
    }
    pthread_mutex_unlock(&t->lock);
}

static void
work(struct team *t, unsigned worker)
{
    const struct job *j = &t->job;
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
        if (i >= j->n || i > atomic_load_explicit(&t->failed, memory_order_relaxed))
            return;
        struct err err;
        err.kind = ERR_NONE;
        if (j->fn(j->ctx, i, worker, &err) < 0)
            note_failure(t, i, &err);
    }
}

/* Whether there is anything to do but to wait on. */
static bool
called(struct team *t, uint64_t seen)
{
    uint64_t s = atomic_load(&t->state);
    return atomic_load(&t->ended) || ((s & OPEN) && (s & ~(uint64_t)INSIDE) != seen);
}

/* Until there is a job that is not `seen`, or the end. */
static void
wait_for_work(struct team *t, uint64_t seen)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (called(t, seen))
            return;
        pause_a_little(i);
    }
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->asleep, 1);
    while (!called(t, seen))
        pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&t->asleep, 1);
    pthread_mutex_unlock(&t->lock);
}

static void *
serve(void *arg)
{
    struct member *m = arg;
    struct team *t = m->team;
    uint64_t seen = 0;
    for (;;) {
        wait_for_work(t, seen);
        if (atomic_load(&t->ended))
            return NULL;
        uint64_t s = atomic_load(&t->state);
        while ((s & OPEN) && !atomic_compare_exchange_weak(&t->state, &s, s + 1))
            continue;
        if (!(s & OPEN))
            continue;
        seen = s & ~(uint64_t)INSIDE;
        work(t, m->number);
        atomic_fetch_sub(&t->state, 1);
    }
}

unsigned
team_size(const struct team *t)
{
    return t->size;
}

static void
wake_sleepers(struct team *t)
{
    if (!atomic_load(&t->asleep))
        return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

/* Until no one else is inside.  What they still work on is as long as our last item. */
static void
wait_for_others(struct team *t)
{
    for (unsigned i = 0; atomic_load(&t->state) & INSIDE; i++)
        pause_a_little(i);
}

int
team_for(struct team *t, size_t n, par_fn fn, void *ctx, struct err *err)
{
    if (err->kind)
        return -1;
    t->job = (struct job){ fn, ctx, n, err };
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store_explicit(&t->failed, SIZE_MAX, memory_order_relaxed);
    bool shared = n > 1 && t->size > 1;
    if (shared) {
        atomic_fetch_add(&t->state, NEXT + OPEN);
        wake_sleepers(t);
    }
    work(t, 0);
    if (shared) {
        atomic_fetch_sub(&t->state, OPEN);
        wait_for_others(t);
    }
    return atomic_load(&t->failed) != SIZE_MAX ? -1 : 0;
}

/* Signals are the business of the thread that opened the team, but for those that say
 * what this very thread did. */
static void
start(struct team *t, unsigned threads)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGFPE);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (unsigned i = 1; i < threads; i++) {
        struct member *m = &t->member[i];
        *m = (struct member){ .team = t, .number = i };
        if (pthread_create(&m->thread, NULL, serve, m) != 0)
            break;
        t->size++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

struct team *
team_open(unsigned threads, struct err *err)
{
    struct team *t = aligned_alloc(64, sizeof *t);
    threads = threads > MOST ? MOST : threads;
    struct member *m = calloc(threads + 1, sizeof *m);
    if (!t || !m) {
        free(t);
        free(m);
        err_set(err, ERR_MEMORY, "out of memory for threads");
        return NULL;
    }
    *t = (struct team){ .size = 1, .member = m };
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    start(t, threads);
    return t;
}

void
team_close(struct team *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->ended, true);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    for (unsigned i = 1; i < t->size; i++)
        pthread_join(t->member[i].thread, NULL);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t->member);
    free(t);
}
