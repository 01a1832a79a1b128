/* SPDX-License-Identifier: MIT */
/* comm_sockets: ranks that exchange words by sockets to rank 0, which passes on what is for all.
 * It is for little: votes, losses, states of hashes.
 *
 * Beside it a thread watches other sockets, so that it sees who ends while the others wait for a
 * GPU, and tells how far this rank has got: the one that lags behind when nobody gets on hangs. */
#include "lib/base/os.h"
#include "lib/dist/comm_ops.h"
#include "lib/dist/meet.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Another rank, as the thread knows it. */
struct other {
    unsigned rank;
    bool parted;    // it ends when it likes
    uint64_t calls; // that it has begun
    struct meet_pulse pulse;
    size_t have; // bytes of pulse
};

struct sockets {
    struct comm *c;
    struct meet m;
    unsigned others; // for rank 0 all, else rank 0
    struct other *other;
    struct pollfd *polled;
    struct comm_ending ending;
    pthread_t watcher;
    pthread_mutex_t sending; // pulses are not cut in two
    double idle;             // seconds since the last rank has got on
    uint64_t least;          // calls that it has begun
    atomic_ullong calls;
    atomic_bool closing;
    bool watched;
};

static struct sockets *
sockets_of(const struct comm *c)
{
    return c->own;
}

static int
words_to(const struct sockets *s, unsigned rank)
{
    return s->m.ends[rank ? rank - 1 : 0][MEET_WORDS];
}

/* ---- the thread that watches ---------------------------------------------------------------- */

static void
send_pulse(struct sockets *s, unsigned i, uint32_t kind, int status)
{
    struct meet_pulse p = { .kind = kind,
                            .status = status,
                            .calls = atomic_load(&s->calls) };
    pthread_mutex_lock(&s->sending);
    // Who does not read for so long that this does not fit is stopped, and hears nothing.
    (void)send(s->m.ends[i][MEET_WATCH], &p, sizeof p, MSG_NOSIGNAL | MSG_DONTWAIT);
    pthread_mutex_unlock(&s->sending);
}

static void
send_all(struct sockets *s, uint32_t kind, int status)
{
    for (unsigned i = 0; i < s->others; i++)
        send_pulse(s, i, kind, status);
}

/* End all ranks; words: what this one says. */
static void
end_process(struct sockets *s, int status, const char *words)
{
    send_all(s, PULSE_END, status);
    s->ending.end(status, words);
}

enum { TROUBLE = 2, APART = 3 };

/* The lowest rank that is left speaks, and others only if it does not end them. */
static void
wait_for_words(struct sockets *s)
{
    if (s->c->rank > 1)
        sleep(APART * (s->c->rank - 1));
}

static void
lose(struct sockets *s, unsigned rank)
{
    char words[128];
    snprintf(words, sizeof words,
             "rank %u has ended without a word: it was killed, or its host is gone",
             rank);
    wait_for_words(s);
    end_process(s, TROUBLE, words);
}

/* Another program has connected as that rank. */
static void
refuse_pulse(struct sockets *s, const struct other *o)
{
    char words[160];
    snprintf(words, sizeof words,
             "rank %u has sent kind %lu, status %ld: no rank sends that, so another "
             "program has connected as rank %u",
             o->rank, (unsigned long)o->pulse.kind, (long)o->pulse.status, o->rank);
    wait_for_words(s);
    end_process(s, TROUBLE, words);
}

static void
hear(struct sockets *s, struct other *o)
{
    const struct meet_pulse *p = &o->pulse;
    if (p->kind == PULSE_END && s->ending.fails_by(p->status))
        end_process(s, p->status, NULL);
    else if (p->kind == PULSE_LEAVE)
        o->parted = true;
    else if (p->kind == PULSE_BEAT)
        o->calls = p->calls;
    else
        refuse_pulse(s, o);
}

/* false: the connection has ended. */
static bool
listen_to(struct sockets *s, unsigned i)
{
    struct other *o = &s->other[i];
    for (;;) {
        ssize_t n = recv(s->m.ends[i][MEET_WATCH], (char *)&o->pulse + o->have,
                         sizeof o->pulse - o->have, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n <= 0)
            return false;
        o->have += (size_t)n;
        if (o->have < sizeof o->pulse)
            continue;
        o->have = 0;
        s->idle = s->c->rank ? 0 : s->idle; // rank 0 is there
        hear(s, o);
    }
}

static void
listen_all(struct sockets *s)
{
    for (unsigned i = 0; i < s->others; i++) {
        if (!s->polled[i].revents || listen_to(s, i))
            continue;
        s->polled[i].fd = -1;
        if (!s->other[i].parted && !atomic_load(&s->closing))
            lose(s, s->other[i].rank);
    }
}

/* The ranks that have got least far; false: all are equally far. */
static bool
find_last(struct sockets *s, bool *last, uint64_t *least)
{
    uint64_t own = atomic_load(&s->calls), most = own;
    *least = own;
    for (unsigned i = 0; i < s->others; i++) {
        *least = s->other[i].calls < *least ? s->other[i].calls : *least;
        most = s->other[i].calls > most ? s->other[i].calls : most;
    }
    last[0] = own == *least;
    for (unsigned i = 0; i < s->others; i++)
        last[s->other[i].rank] = s->other[i].calls == *least;
    return *least < most;
}

/* Rank 0 knows of all how far they have got. */
static void
look_at_all(struct sockets *s, double seconds)
{
    bool *last = malloc(s->c->size * sizeof *last);
    struct err err = { 0 };
    struct comm said = { .err = &err, .size = s->c->size, .patience = s->c->patience };
    uint64_t least;
    if (!last)
        return;
    bool differ = find_last(s, last, &least);
    s->idle = least == s->least ? s->idle + seconds : 0;
    s->least = least;
    if (s->idle >= s->c->patience && differ) {
        comm_is_late(&said, last);
    } else if (s->idle >= s->c->patience) {
        err_set(&err, ERR_IO, "no rank has made progress for %g s (--rank-timeout)",
                s->c->patience);
    }
    free(last);
    if (err.kind)
        end_process(s, TROUBLE, err.msg);
}

/* The others hear from rank 0 alone. */
static void
look_at_first(struct sockets *s, double seconds)
{
    bool late[1] = { true };
    struct err err = { 0 };
    struct comm said = { .err = &err, .size = 1, .patience = s->c->patience };
    s->idle += seconds;
    if (s->idle < s->c->patience + APART || atomic_load(&s->closing) ||
        s->other[0].parted)
        return;
    comm_is_late(&said, late);
    wait_for_words(s);
    end_process(s, TROUBLE, err.msg);
}

static void *
watch(void *arg)
{
    struct sockets *s = arg;
    double then = os_seconds(), beaten = 0;
    while (!atomic_load(&s->closing)) {
        if (poll(s->polled, s->others, 200) > 0)
            listen_all(s);
        double now = os_seconds(), since = now - then;
        then = now;
        beaten += since;
        if (beaten < 1)
            continue;
        send_all(s, PULSE_BEAT, 0);
        // Time in which this process itself was stopped does not count.
        double seconds = beaten < 2 ? beaten : 1;
        beaten = 0;
        if (s->c->patience > 0 && s->c->rank == 0)
            look_at_all(s, seconds);
        else if (s->c->patience > 0)
            look_at_first(s, seconds);
    }
    return NULL;
}

/* ---- calls ------------------------------------------------------------------------------------ */

static void
sockets_note(struct comm *c)
{
    atomic_fetch_add(&sockets_of(c)->calls, 1);
}

/* The thread sees it, too, and says why. */
static int
lost(struct comm *c)
{
    enum { LONG = 60 };
    sleep(LONG);
    return err_set(c->err, ERR_IO, "the connection to another rank has ended");
}

static bool
give(struct comm *c, unsigned rank, const void *p, size_t n)
{
    return meet_send(words_to(sockets_of(c), rank), p, n);
}

static bool
take(struct comm *c, unsigned rank, void *p, size_t n)
{
    return meet_receive(words_to(sockets_of(c), rank), p, n);
}

static int
sockets_broadcast(struct comm *c, void *p, size_t bytes)
{
    bool ok = c->rank == 0 || take(c, 0, p, bytes);
    sockets_note(c);
    for (unsigned q = 1; q < c->size && c->rank == 0 && ok; q++)
        ok = give(c, q, p, bytes);
    return ok ? 0 : lost(c);
}

static int
sockets_collect(struct comm *c, void *p, const size_t *at)
{
    char *bytes = p;
    bool ok = true;
    sockets_note(c);
    if (c->rank)
        ok = give(c, 0, bytes + at[c->rank], at[c->rank + 1] - at[c->rank]);
    for (unsigned q = 1; q < c->size && c->rank == 0 && ok; q++)
        ok = take(c, q, bytes + at[q], at[q + 1] - at[q]);
    return ok ? 0 : lost(c);
}

static int
sockets_gather(struct comm *c, void *p, const size_t *at)
{
    if (sockets_collect(c, p, at) < 0)
        return -1;
    return sockets_broadcast(c, (char *)p + at[0], at[c->size] - at[0]);
}

/* Rank 0 has all of it before it gives any: who does not take yet gives. */
static bool
pass_on(struct comm *c, const void *from, const size_t *at)
{
    char *all = malloc(at[c->size] + 1);
    bool ok = all != NULL;
    if (!ok)
        err_set(c->err, ERR_MEMORY, "out of memory for what ranks hand on");
    for (unsigned q = 1; q + 1 < c->size && ok; q++)
        ok = take(c, q, all + at[q], at[q + 1] - at[q]);
    for (unsigned q = 0; q + 1 < c->size && ok; q++)
        ok = give(c, q + 1, q ? all + at[q] : from, at[q + 1] - at[q]);
    free(all);
    return ok;
}

static int
sockets_pass(struct comm *c, void *to, const void *from, const size_t *at)
{
    unsigned q = c->rank;
    bool ok = true;
    sockets_note(c);
    if (q == 0)
        ok = pass_on(c, from, at);
    else
        ok = give(c, 0, from, at[q + 1] - at[q]) && take(c, 0, to, at[q] - at[q - 1]);
    return ok ? 0 : c->err->kind ? -1 : lost(c);
}

static void
sockets_abort(struct comm *c, int status)
{
    send_all(sockets_of(c), PULSE_END, status);
}

static void
free_sockets(struct sockets *s)
{
    meet_close(&s->m);
    free(s->other);
    free(s->polled);
    pthread_mutex_destroy(&s->sending);
    free(s);
}

static void
sockets_close(struct comm *c)
{
    struct sockets *s = sockets_of(c);
    send_all(s, PULSE_LEAVE, 0);
    atomic_store(&s->closing, true);
    pthread_join(s->watcher, NULL);
    free_sockets(s);
}

static const struct comm_ops ops = { .close = sockets_close,
                                     .abort = sockets_abort,
                                     .note = sockets_note,
                                     .broadcast = sockets_broadcast,
                                     .gather = sockets_gather,
                                     .collect = sockets_collect,
                                     .pass = sockets_pass };

/* Signals are for the thread that trains. */
static bool
start_watching(struct sockets *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    bool started = pthread_create(&s->watcher, NULL, watch, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

int
comm_sockets(struct comm *c, const struct meet *m, double patience,
             const struct comm_ending *ending, struct err *err)
{
    struct sockets *s = calloc(1, sizeof *s);
    unsigned others = m->rank ? 1 : m->size - 1;
    *c = (struct comm){ .op = &ops,
                        .own = s,
                        .rank = m->rank,
                        .size = m->size,
                        .patience = patience,
                        .err = err };
    if (s) {
        s->c = c;
        s->m = *m;
        s->ending = *ending;
        s->others = others;
        s->other = calloc(others, sizeof *s->other);
        s->polled = calloc(others, sizeof *s->polled);
        pthread_mutex_init(&s->sending, NULL);
    }
    for (unsigned i = 0; s && s->other && s->polled && i < others; i++) {
        s->other[i].rank = m->rank ? 0 : i + 1;
        s->polled[i] =
            (struct pollfd){ .fd = m->ends[i][MEET_WATCH], .events = POLLIN };
    }
    if (s && s->other && s->polled && start_watching(s))
        return 0;
    return err_set(err, ERR_MEMORY, "out of memory for ranks");
}
