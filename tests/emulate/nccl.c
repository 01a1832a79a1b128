/* SPDX-License-Identifier: MIT */
/* nccl: the functions of libnccl that the backend uses, for the emulation: processes of one
 * machine send each other by sockets what a group of calls asks for, when its turn in the stream
 * comes.  The memory of the emulated device is the host's.
 *
 * NIBBLE_EMULATE_NCCL_FAIL=N: the N-th group of this process fails, in words. */
#include "tests/emulate/include/runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4 };
enum { RANKS_MAX = 64, ID_BYTES = 128, WAYS = 2, CALLS_MAX = 8 };

struct id {
    char bytes[ID_BYTES];
};

/* A call of a group, to or from a rank. */
struct call {
    char *p;
    size_t n, at;
};

/* Calls of a group. */
struct group {
    struct comm *of;
    struct call call[RANKS_MAX][WAYS]
                    [CALLS_MAX]; // send, receive; the n = 0 of a row is its end
};

struct comm {
    int rank, ranks, fd[RANKS_MAX];
    long groups;
    bool ended;
};

static struct group open_group; // of: NULL: no calls yet
static cudaStream_t stream_of_group;

int ncclGetUniqueId(struct id *id);
int ncclCommInitRank(struct comm **c, int ranks, struct id id, int rank);
int ncclCommAbort(struct comm *c);
int ncclCommGetAsyncError(struct comm *c, int *state);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *p, size_t n, int type, int peer, struct comm *c,
             cudaStream_t stream);
int ncclRecv(void *p, size_t n, int type, int peer, struct comm *c,
             cudaStream_t stream);
const char *ncclGetErrorString(int rc);
const char *ncclGetLastError(struct comm *c);

const char *
ncclGetErrorString(int rc)
{
    return rc == SUCCESS        ? "no error"
           : rc == SYSTEM_ERROR ? "unhandled system error"
                                : "invalid argument";
}

const char *
ncclGetLastError(struct comm *c)
{
    return c && c->groups < 0 ? "an emulated cable is loose\n" : "";
}

int
ncclGetUniqueId(struct id *id)
{
    memset(id, 0, sizeof *id);
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    uint64_t v = 0;
    bool ok = fd >= 0 && read(fd, &v, sizeof v) == sizeof v;
    if (fd >= 0)
        close(fd);
    snprintf(id->bytes, sizeof id->bytes, "nibble-emulated-%016llx",
             (unsigned long long)v);
    return ok ? SUCCESS : SYSTEM_ERROR;
}

/* The abstract address of a rank. */
static socklen_t
name_of(struct sockaddr_un *a, const struct id *id, int rank)
{
    *a = (struct sockaddr_un){ .sun_family = AF_UNIX };
    int n =
        snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%.40s-%d", id->bytes, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* To a rank below this one, which may come later. */
static int
reach(const struct id *id, int rank, int to)
{
    const struct timespec pause = { .tv_nsec = 5 * 1000 * 1000 };
    struct sockaddr_un a;
    socklen_t n = name_of(&a, id, to);
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return -1;
        if (connect(fd, (struct sockaddr *)&a, n) == 0)
            return write(fd, &rank, sizeof rank) == sizeof rank ? fd : -1;
        close(fd);
        nanosleep(&pause, NULL);
    }
}

static bool
join_all(struct comm *c, const struct id *id)
{
    struct sockaddr_un a;
    socklen_t n = name_of(&a, id, c->rank);
    int door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), from = 0;
    bool ok = door >= 0 && bind(door, (struct sockaddr *)&a, n) == 0 &&
              listen(door, RANKS_MAX) == 0;
    for (int q = 0; q < c->rank && ok; q++)
        ok = (c->fd[q] = reach(id, c->rank, q)) >= 0;
    for (int q = c->rank + 1; q < c->ranks && ok; q++) {
        int fd = accept4(door, NULL, NULL, SOCK_CLOEXEC);
        ok = fd >= 0 && read(fd, &from, sizeof from) == sizeof from && from > c->rank &&
             from < c->ranks;
        if (ok)
            c->fd[from] = fd;
    }
    close(door);
    for (int q = 0; q < c->ranks && ok; q++)
        if (q != c->rank)
            fcntl(c->fd[q], F_SETFL, O_NONBLOCK);
    return ok;
}

int
ncclCommInitRank(struct comm **c, int ranks, struct id id, int rank)
{
    if (ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks)
        return INVALID_ARGUMENT;
    *c = calloc(1, sizeof **c);
    if (!*c)
        return SYSTEM_ERROR;
    (*c)->rank = rank;
    (*c)->ranks = ranks;
    return join_all(*c, &id) ? SUCCESS : SYSTEM_ERROR;
}

int
ncclCommAbort(struct comm *c)
{
    for (int q = 0; q < c->ranks; q++)
        if (q != c->rank)
            close(c->fd[q]);
    c->ended = true; // its groups may still be in a stream
    return SUCCESS;
}

int
ncclCommGetAsyncError(struct comm *c, int *state)
{
    (void)c;
    *state = SUCCESS;
    return SUCCESS;
}

int
ncclGroupStart(void)
{
    open_group = (struct group){ 0 };
    return SUCCESS;
}

static int
add(void *p, size_t n, int type, int peer, struct comm *c, cudaStream_t stream,
    bool receive)
{
    struct group *g = &open_group;
    int i = 0;
    if (type != 0 || peer < 0 || peer >= c->ranks || peer == c->rank ||
        (g->of && stream != stream_of_group))
        return INVALID_ARGUMENT;
    while (i < CALLS_MAX && g->call[peer][receive][i].n)
        i++;
    if (i == CALLS_MAX)
        return INVALID_ARGUMENT;
    g->of = c;
    g->call[peer][receive][i] = (struct call){ p, n, 0 };
    stream_of_group = stream;
    return SUCCESS;
}

int
ncclSend(const void *p, size_t n, int type, int peer, struct comm *c,
         cudaStream_t stream)
{
    return add((void *)(uintptr_t)p, n, type, peer, c, stream, false);
}

int
ncclRecv(void *p, size_t n, int type, int peer, struct comm *c, cudaStream_t stream)
{
    return add(p, n, type, peer, c, stream, true);
}

/* The first of a row that is not done; NULL: none. */
static struct call *
current(struct call *row)
{
    for (int i = 0; i < CALLS_MAX; i++)
        if (row[i].at < row[i].n)
            return &row[i];
    return NULL;
}

/* Some of a row; false: the other process is gone. */
static bool
advance(int fd, struct call *row, bool receive)
{
    struct call *k = current(row);
    if (!k)
        return true;
    ssize_t n = receive ? recv(fd, k->p + k->at, k->n - k->at, 0)
                        : send(fd, k->p + k->at, k->n - k->at, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0)
        return false;
    k->at += (size_t)n;
    return true;
}

/* What is left of a group: its sockets to wait for. */
static nfds_t
remaining(struct group *g, struct pollfd *p)
{
    nfds_t n = 0;
    for (int q = 0; q < g->of->ranks; q++) {
        short events = (short)((current(g->call[q][0]) ? POLLOUT : 0) |
                               (current(g->call[q][1]) ? POLLIN : 0));
        if (events)
            p[n++] = (struct pollfd){ .fd = g->of->fd[q], .events = events };
    }
    return n;
}

/* All calls of a group. */
static void
run(void *with)
{
    struct group *g = with;
    struct pollfd p[RANKS_MAX];
    nfds_t n;
    while (!g->of->ended && (n = remaining(g, p)) > 0) {
        bool ok = poll(p, n, -1) >= 0 || errno == EINTR;
        for (int q = 0; q < g->of->ranks; q++)
            for (int receive = 0; receive < WAYS; receive++)
                ok = ok && advance(g->of->fd[q], g->call[q][receive], receive != 0);
        if (!ok) // as NCCL waits for one that has gone: for ever
            for (;;)
                pause();
    }
}

int
ncclGroupEnd(void)
{
    struct comm *c = open_group.of;
    const char *fail = getenv("NIBBLE_EMULATE_NCCL_FAIL");
    if (!c)
        return SUCCESS;
    if (fail && ++c->groups == strtol(fail, NULL, 10)) {
        c->groups = -1;
        return SYSTEM_ERROR;
    }
    // This library does not see those of the one that has opened it.
    emulate_put_fn *put;
    memcpy(&put, stream_of_group, sizeof put);
    put(stream_of_group, run, &open_group, sizeof open_group);
    open_group = (struct group){ 0 };
    return SUCCESS;
}
