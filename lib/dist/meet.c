/* SPDX-License-Identifier: MIT */
/* meet: see meet.h. */
#include "lib/dist/meet.h"

#include "lib/base/os.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* The first words of both sides. */
static const char magic[8] = "nibble 1";

struct hello {
    char magic[sizeof magic];
    uint32_t rank, size, socket;
    char job[MEET_JOB];
};

enum answer { ANSWER_YES = 1, ANSWER_OTHER_JOB, ANSWER_TAKEN };

struct reply {
    char magic[sizeof magic];
    uint32_t answer;
};

enum { FIRST_WORDS = 10 }; // seconds in which a connection must say who it is

/* ---- sockets ------------------------------------------------------------------------------ */

/* All of n bytes, to fd or from it. */
static bool
transfer(int fd, char *p, size_t n, bool sends)
{
    while (n) {
        ssize_t some = sends ? send(fd, p, n, MSG_NOSIGNAL) : recv(fd, p, n, 0);
        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            return false;
        p += some;
        n -= (size_t)some;
    }
    return true;
}

bool
meet_send(int fd, const void *p, size_t n)
{
    return transfer(fd, (char *)(uintptr_t)p, n, true); // is only read
}

bool
meet_receive(int fd, void *p, size_t n)
{
    return transfer(fd, p, n, false);
}

/* Limits how long connect, send and receive wait; 0: they wait without end. */
static void
limit_waits(int fd, double seconds)
{
    const double max = 1e9; // what time_t holds anywhere
    seconds = seconds < max ? seconds : max;
    struct timeval t = { .tv_sec = (time_t)seconds };
    t.tv_usec = (suseconds_t)((seconds - (double)t.tv_sec) * 1e6);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

/* The seconds that are left until then, at least one thousandth. */
static double
left_until(double then)
{
    double left = then - os_seconds();
    return left > 1e-3 ? left : 1e-3;
}

/* Words are short and are waited for; a host that has gone answers no probes. */
static void
settle_socket(int fd)
{
    const int on = 1, idle = 5, probes = 3;
    limit_waits(fd, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static struct addrinfo *
resolve(const struct meet *m, struct err *err)
{
    const struct addrinfo want = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    struct addrinfo *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%u", m->port);
    int rc = getaddrinfo(m->host, port, &want, &found);
    if (rc != 0)
        err_set(err, ERR_USAGE,
                "the host of rank 0, %s: %s; --rendezvous HOST:PORT names another",
                m->host, gai_strerror(rc));
    return rc == 0 ? found : NULL;
}

/* ---- rank 0 -------------------------------------------------------------------------------- */

static bool
is_loopback(const struct sockaddr *a)
{
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    return a->sa_family == AF_INET ? ntohl(v4->sin_addr.s_addr) >> 24 == 127
                                   : IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

/* Where others can reach it by that address: on this machine alone, or from all. */
static int
listen_at(const struct addrinfo *a)
{
    const int on = 1;
    struct sockaddr_storage at = { 0 };
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(&at, a->ai_addr, a->ai_addrlen);
    if (!is_loopback(a->ai_addr) && a->ai_family == AF_INET)
        ((struct sockaddr_in *)(void *)&at)->sin_addr.s_addr = INADDR_ANY;
    else if (!is_loopback(a->ai_addr))
        ((struct sockaddr_in6 *)(void *)&at)->sin6_addr = in6addr_any;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, (struct sockaddr *)&at, a->ai_addrlen) == 0 &&
        listen(fd, SOMAXCONN) == 0)
        return fd;
    int why = errno;
    if (fd >= 0)
        close(fd);
    errno = why;
    return -1;
}

int
meet_listen(unsigned *port, struct err *err)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    socklen_t n = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const struct addrinfo a = { .ai_family = AF_INET,
                                .ai_addr = (struct sockaddr *)&at,
                                .ai_addrlen = sizeof at };
    int fd = listen_at(&a);
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&at, &n) != 0)
        return err_set(err, ERR_IO, "a socket for ranks: %s", strerror(errno));
    *port = ntohs(at.sin_port);
    return fd;
}

static int
open_listener(struct meet *m, struct err *err)
{
    if (m->listening >= 0)
        return 0;
    struct addrinfo *all = resolve(m, err);
    if (!all)
        return -1;
    m->listening = listen_at(all);
    int why = errno;
    freeaddrinfo(all);
    if (m->listening >= 0)
        return 0;
    return err_set(err, ERR_IO,
                   "rank 0 cannot listen at port %u: %s%s; --rendezvous HOST:PORT "
                   "names another",
                   m->port, strerror(why),
                   why == EADDRINUSE ? ", perhaps another run has it" : "");
}

/* Whether the process at the other end of a connection has closed it. */
static bool
has_gone(int fd)
{
    // Not by recv: bytes that the rank sent before it ended are still unread.
    struct pollfd p = { .fd = fd, .events = POLLRDHUP };
    return poll(&p, 1, 0) > 0;
}

/* A rank whose first attempt has ended, in its own process or another one, may come again. */
static enum answer
judge(const struct meet *m, const struct hello *h)
{
    if (h->size != m->size || memcmp(h->job, m->job, sizeof h->job) != 0 ||
        h->rank == 0 || h->rank >= m->size || h->socket >= MEET_SOCKETS)
        return ANSWER_OTHER_JOB;
    int taken = m->ends[h->rank - 1][h->socket];
    return taken >= 0 && !has_gone(taken) ? ANSWER_TAKEN : ANSWER_YES;
}

/* A connection that has not yet said who it is. */
struct guest {
    int fd;
    double until; // it must have said so
    size_t have;  // bytes of hello
    struct hello hello;
};

/* Connections that have not introduced themselves, the oldest first.  Anybody can connect and say
 * nothing, so when the table is full the oldest is closed: a rank sends its hello at once, and
 * connects again if it was closed before that was read. */
enum { GUESTS = 64 };
struct door {
    struct guest guest[GUESTS];
    unsigned n;
    unsigned long closed; // connections that were no rank of this run
};

static void
remove_guest(struct door *d, unsigned i)
{
    memmove(&d->guest[i], &d->guest[i + 1], (--d->n - i) * sizeof *d->guest);
}

static void
close_guest(struct door *d, unsigned i)
{
    close(d->guest[i].fd);
    remove_guest(d, i);
    d->closed++;
}

/* Whether it is a rank of this run, which then has its place. */
static bool
answer(struct meet *m, const struct guest *g)
{
    const struct hello *h = &g->hello;
    struct reply r = { .answer = ANSWER_OTHER_JOB };
    memcpy(r.magic, magic, sizeof magic);
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return false;
    r.answer = judge(m, h);
    if (!meet_send(g->fd, &r, sizeof r) || r.answer != ANSWER_YES)
        return false;
    int *place = &m->ends[h->rank - 1][h->socket];
    if (*place >= 0)
        close(*place);
    settle_socket(g->fd);
    *place = g->fd;
    return true;
}

/* Read what guest i has said by now; close it if it is no rank of this run. */
static void
listen_to(struct meet *m, struct door *d, unsigned i)
{
    struct guest *g = &d->guest[i];
    ssize_t n = recv(g->fd, (char *)&g->hello + g->have, sizeof g->hello - g->have,
                     MSG_DONTWAIT);
    bool silent = n < 0 && (errno == EAGAIN || errno == EINTR);
    g->have += n > 0 ? (size_t)n : 0;
    if ((silent || (n > 0 && g->have < sizeof g->hello)) && os_seconds() < g->until)
        return;
    if (g->have == sizeof g->hello && answer(m, g))
        remove_guest(d, i);
    else
        close_guest(d, i);
}

enum entry { ENTRY_NONE, ENTRY_LET_IN, ENTRY_NO_FILES };

/* Accept one connection and read its first bytes, if they are there. */
static enum entry
let_in(struct meet *m, struct door *d)
{
    int fd = accept4(m->listening, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE))
        return ENTRY_NO_FILES;
    if (fd < 0)
        return ENTRY_NONE;
    if (d->n == GUESTS)
        close_guest(d, 0);
    d->guest[d->n] = (struct guest){ .fd = fd, .until = os_seconds() + FIRST_WORDS };
    listen_to(m, d, d->n++);
    return ENTRY_LET_IN;
}

/* Accept the connections that wait, some at a time. */
static int
let_all_in(struct meet *m, struct door *d, struct err *err)
{
    enum entry e = ENTRY_LET_IN;
    for (unsigned i = 0; i < GUESTS && e != ENTRY_NONE; i++) {
        e = let_in(m, d);
        if (e == ENTRY_NO_FILES && d->n == 0)
            return err_set(err, ERR_IO,
                           "rank 0 cannot accept the connections of %u ranks: %s; "
                           "ulimit -n allows more",
                           m->size, strerror(errno));
        if (e == ENTRY_NO_FILES)
            close_guest(d, 0);
    }
    return 0;
}

/* Wait for a connection, or for the first words of one. */
static int
attend(struct meet *m, struct door *d, double seconds, struct err *err)
{
    struct pollfd p[GUESTS + 1] = { { .fd = m->listening, .events = POLLIN } };
    for (unsigned i = 0; i < d->n; i++)
        p[i + 1] = (struct pollfd){ .fd = d->guest[i].fd, .events = POLLIN };
    int wait = seconds < 1 ? (int)(seconds * 1000) + 1 : 1000;
    if (poll(p, d->n + 1, wait) < 0)
        return 0;
    for (unsigned i = d->n; i-- > 0;)
        listen_to(m, d, i);
    return p[0].revents ? let_all_in(m, d, err) : 0;
}

/* The lowest rank that has not come, or the number of ranks. */
static unsigned
missing(const struct meet *m)
{
    unsigned q = 1;
    while (q < m->size && m->ends[q - 1][MEET_WORDS] >= 0 &&
           m->ends[q - 1][MEET_WATCH] >= 0)
        q++;
    return q;
}

static int
report_missing(const struct meet *m, const struct door *d, struct err *err)
{
    enum { NAMED = 16 };
    char names[256], others[96] = "";
    size_t n = 0;
    unsigned gone = 0;
    for (unsigned q = 1; q < m->size; q++) {
        if (m->ends[q - 1][MEET_WORDS] >= 0 && m->ends[q - 1][MEET_WATCH] >= 0)
            continue;
        if (gone < NAMED)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%u", gone ? ", " : "",
                                  q);
        gone++;
    }
    if (d->closed)
        snprintf(others, sizeof others,
                 "; %lu other connections were closed, which were no rank of this run",
                 d->closed);
    return err_set(
        err, ERR_IO,
        "%u of %u ranks have not connected within %g s (--rank-timeout): rank %s%s%s",
        gone, m->size, m->patience, names, gone > NAMED ? ", ..." : "", others);
}

static int
await(struct meet *m, struct err *err)
{
    struct door d = { .n = 0 };
    int rc = 0;
    double began = os_seconds(), left = 0;
    while (rc == 0 && missing(m) < m->size &&
           (left = began + m->patience - os_seconds()) > 0)
        rc = attend(m, &d, left, err);
    while (d.n)
        close_guest(&d, d.n - 1);
    return rc == 0 && missing(m) < m->size ? report_missing(m, &d, err) : rc;
}

/* The others need not say that they have lost rank 0. */
static void
dismiss(const struct meet *m, int status)
{
    const struct meet_pulse end = { .kind = PULSE_END, .status = status };
    for (unsigned q = 1; q < m->size; q++)
        if (m->ends[q - 1][MEET_WATCH] >= 0)
            meet_send(m->ends[q - 1][MEET_WATCH], &end, sizeof end);
}

static int
lead(struct meet *m, struct err *err)
{
    enum { TROUBLE = 2 };
    int rc = open_listener(m, err);
    if (rc == 0) {
        // A connection may have ended between poll and accept.
        fcntl(m->listening, F_SETFL, O_NONBLOCK);
        rc = await(m, err);
    }
    if (rc < 0)
        dismiss(m, TROUBLE);
    if (m->listening >= 0)
        close(m->listening);
    m->listening = -1;
    return rc;
}

/* ---- the others ---------------------------------------------------------------------------- */

/* Wait before the next attempt, longer each time. */
static void
pause_between(unsigned attempts)
{
    const unsigned FIRST_MS = 50, LAST_MS = 1000;
    unsigned ms = attempts < 5 ? FIRST_MS << attempts : LAST_MS;
    const struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

static int
connect_to(const struct addrinfo *a, double until)
{
    for (; a; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0)
            limit_waits(fd, left_until(until)); // of a host that drops packets
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            return fd;
        if (fd >= 0)
            close(fd);
    }
    return -1;
}

/* Rank 0 may begin later. */
static int
reach(const struct meet *m, double until, struct err *err)
{
    int fd = -1;
    struct addrinfo *all = resolve(m, err);
    while (all && (fd = connect_to(all, until)) < 0 && os_seconds() < until)
        pause_between(0);
    if (all && fd < 0)
        err_set(err, ERR_IO,
                "rank 0 is not at %s:%u: no process has listened there for %g s "
                "(--rank-timeout)",
                m->host, m->port, m->patience);
    if (all)
        freeaddrinfo(all);
    return fd;
}

/* The end of an introduction.  It is UNHEARD if no answer came or the connection was closed. */
enum outcome { OUTCOME_MET, OUTCOME_UNHEARD, OUTCOME_REFUSED };

static enum outcome
introduce(const struct meet *m, int fd, unsigned which, double until, struct err *err)
{
    struct hello h = { .rank = m->rank, .size = m->size, .socket = which };
    struct reply r;
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.job, m->job, sizeof h.job);
    limit_waits(fd, left_until(until));
    if (!meet_send(fd, &h, sizeof h) || !meet_receive(fd, &r, sizeof r))
        return OUTCOME_UNHEARD;
    if (memcmp(r.magic, magic, sizeof magic) != 0)
        err_set(err, ERR_IO,
                "%s:%u answers, but not as rank 0 does: another program has that port; "
                "--rendezvous HOST:PORT names another",
                m->host, m->port);
    else if (r.answer == ANSWER_TAKEN)
        err_set(err, ERR_USAGE, "%s:%u: another process is rank %u already", m->host,
                m->port, m->rank);
    else if (r.answer != ANSWER_YES)
        err_set(err, ERR_USAGE,
                "%s:%u is rank 0 of another run; --rendezvous HOST:PORT names another "
                "port",
                m->host, m->port);
    else
        settle_socket(fd);
    return r.answer == ANSWER_YES && !err->kind ? OUTCOME_MET : OUTCOME_REFUSED;
}

/* Rank 0 closes connections that it has not heard in time where many others come: try again. */
static int
follow_by(struct meet *m, unsigned which, double until, struct err *err)
{
    enum outcome o = OUTCOME_UNHEARD;
    for (unsigned attempts = 0; o == OUTCOME_UNHEARD; attempts++) {
        int fd = reach(m, until, err);
        if (fd < 0)
            return -1;
        m->ends[0][which] = fd;
        o = introduce(m, fd, which, until, err);
        if (o != OUTCOME_UNHEARD)
            break;
        close(fd);
        m->ends[0][which] = -1;
        if (os_seconds() >= until)
            return err_set(err, ERR_IO,
                           "%s:%u accepts connections, but has not answered as rank 0 "
                           "does within %g s (--rank-timeout): perhaps another program "
                           "has that port; --rendezvous HOST:PORT names another",
                           m->host, m->port, m->patience);
        pause_between(attempts);
    }
    return o == OUTCOME_MET ? 0 : -1;
}

static int
follow(struct meet *m, struct err *err)
{
    double until = os_seconds() + m->patience;
    for (unsigned which = 0; which < MEET_SOCKETS; which++)
        if (follow_by(m, which, until, err) < 0)
            return -1;
    return 0;
}

/* ---- both ----------------------------------------------------------------------------------- */

void
meet_close(struct meet *m)
{
    for (unsigned q = 0; m->ends && q + 1 < (m->rank ? 2 : m->size); q++)
        for (unsigned which = 0; which < MEET_SOCKETS; which++)
            if (m->ends[q][which] >= 0)
                close(m->ends[q][which]);
    free(m->ends);
    m->ends = NULL;
}

int
meet_all(struct meet *m, struct err *err)
{
    m->ends = malloc(m->size * sizeof *m->ends);
    if (!m->ends)
        return err_set(err, ERR_MEMORY, "out of memory for ranks");
    for (unsigned q = 0; q < m->size; q++)
        for (unsigned which = 0; which < MEET_SOCKETS; which++)
            m->ends[q][which] = -1;
    int rc = m->rank ? follow(m, err) : lead(m, err);
    if (rc < 0)
        meet_close(m);
    return rc;
}
