/* SPDX-License-Identifier: MIT */
/* peers: device memory between the GPUs of several ranks, by NCCL where it is not by copies.
 *
 * libnccl is opened when ranks join by it and never before, so neither a build nor a run of one
 * GPU needs it.  Of its interface there is what is used here, declared as its manual describes
 * it.  Nothing is added by NCCL: bytes are sent and received, sums are ours, numerics.md 10. */
#include "kernels/cuda/ops.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what NCCL has ---------------------------------------------------------------- */

struct nccl_id {
    char bytes[PEERS_ID];
};
enum { NCCL_SUCCESS, NCCL_IN_PROGRESS = 7 };
enum { NCCL_INT8 = 0 }; // a type of one byte

static struct nccl {
    void *library;
    const char *(*words)(int);
    const char *(*last_words)(struct nccl_comm *); // NULL: an older one
    int (*get_id)(struct nccl_id *);
    int (*join)(struct nccl_comm **, int ranks, struct nccl_id id, int rank);
    int (*abort)(struct nccl_comm *);
    int (*state)(struct nccl_comm *, int *);
    int (*begin)(void), (*end)(void);
    int (*send)(const void *, size_t, int type, int peer, struct nccl_comm *,
                cudaStream_t);
    int (*receive)(void *, size_t, int type, int peer, struct nccl_comm *,
                   cudaStream_t);
} nccl;

/* ---- finding it ------------------------------------------------------------------- */

/* Where Python's package of it puts it, behind a directory. */
static void *
open_packaged(const char *root, const char *dirs)
{
    char pattern[1024];
    glob_t found;
    void *library = NULL;
    snprintf(pattern, sizeof pattern,
             "%s/lib/python3*/%s-packages/nvidia/nccl/lib/libnccl.so.2", root, dirs);
    if (glob(pattern, 0, NULL, &found) != 0)
        return NULL;
    for (size_t i = found.gl_pathc; i-- > 0 && !library;) // the newest Python first
        library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    return library;
}

static void *
open_library(char *why, size_t n)
{
    static const char *const variables[] = { "VIRTUAL_ENV", "CONDA_PREFIX" };
    static const char *const roots[] = { "/usr/local", "/usr" };
    const char *given = getenv("NIBBLE_NCCL"), *home = getenv("HOME");
    char local[512];
    void *library = dlopen(given ? given : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(why, n, "%s", dlerror());
    for (size_t i = 0; i < 2 && !library && !given; i++)
        if (getenv(variables[i]))
            library = open_packaged(getenv(variables[i]), "site");
    snprintf(local, sizeof local, "%s/.local", home ? home : "");
    if (!library && !given && home)
        library = open_packaged(local, "site");
    for (size_t i = 0; i < 2 && !library && !given; i++) {
        library = open_packaged(roots[i], "dist");
        library = library ? library : open_packaged(roots[i], "site");
    }
    return library;
}

static bool
find_all(void)
{
    const struct {
        const char *name;
        void *to;
        bool wanted;
    } functions[] = {
        { "ncclGetErrorString", &nccl.words, true },
        { "ncclGetLastError", &nccl.last_words, false },
        { "ncclGetUniqueId", &nccl.get_id, true },
        { "ncclCommInitRank", &nccl.join, true },
        { "ncclCommAbort", &nccl.abort, true },
        { "ncclCommGetAsyncError", &nccl.state, true },
        { "ncclGroupStart", &nccl.begin, true },
        { "ncclGroupEnd", &nccl.end, true },
        { "ncclSend", &nccl.send, true },
        { "ncclRecv", &nccl.receive, true },
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *f = dlsym(nccl.library, functions[i].name);
        if (!f && functions[i].wanted)
            return false;
        memcpy(functions[i].to, &f, sizeof f);
    }
    return true;
}

/* False: the reason is in why. */
static bool
open_nccl(char *why, size_t n)
{
    char reason[256] = "?";
    if (nccl.library)
        return true;
    void *library = open_library(reason, sizeof reason);
    nccl.library = library;
    if (library && find_all())
        return true;
    snprintf(why, n,
             "no NCCL, by which GPUs exchange: %s; install NVIDIA's libnccl2, or the "
             "Python package nvidia-nccl-cu%d, or set NIBBLE_NCCL to its libnccl.so.2",
             library ? "libnccl.so.2 is too old: 2.7 or later is needed" : reason,
             CUDART_VERSION / 1000);
    nccl.library = NULL;
    return false;
}

/* ---- this rank -------------------------------------------------------------------- */

enum { SPANS = 256 }; // waits whose times are not added yet, at most

struct peers {
    struct copies *copies; // NULL: by NCCL
    struct nccl_comm *comm;
    cudaEvent_t from[SPANS], to[SPANS]; // NULL: not created yet
    unsigned first, n;                  // those in use, from `first` on
    double seconds;                     // of those before
};

/* ---- errors ----------------------------------------------------------------------- */

static bool
check(struct cuda *c, int rc, const char *what)
{
    if (rc == NCCL_SUCCESS || rc == NCCL_IN_PROGRESS)
        return true;
    const char *more =
        nccl.last_words ? nccl.last_words(c->peers ? c->peers->comm : NULL) : NULL;
    size_t length = more ? strcspn(more, "\n") : 0;
    err_set(c->k.err, ERR_IO,
            "NCCL: %s: %s%s%.*s; NCCL_DEBUG=INFO prints what it does, the page about "
            "several GPUs has its settings",
            what, nccl.words(rc), length ? ": " : "", (int)length, more ? more : "");
    return false;
}

/* ---- ranks ------------------------------------------------------------------------ */

/* Entry point for kernels/cuda.c: what rank 0 hands to the others. */
extern "C" __attribute__((visibility("default"))) bool
nibble_cuda_peers_id(void *id, char *why, size_t n)
{
    if (!open_nccl(why, n))
        return false;
    int rc = nccl.get_id((struct nccl_id *)id);
    if (rc != NCCL_SUCCESS)
        snprintf(why, n, "NCCL: an id for the ranks: %s", nccl.words(rc));
    return rc == NCCL_SUCCESS;
}

static bool
begin_peers(struct cuda *c)
{
    c->peers = (struct peers *)calloc(1, sizeof *c->peers);
    if (!c->peers)
        err_set(c->k.err, ERR_MEMORY, "out of memory for ranks");
    return c->peers && cuda_check(c, cudaSetDevice(c->device), "cudaSetDevice");
}

bool
cuda_join_copies(struct kernels *k, const struct company *of, char *why, size_t n)
{
    struct cuda *c = cuda_of(k);
    struct copies *copies = cuda_copies_join(c, of, why, n);
    if (copies && begin_peers(c))
        c->peers->copies = copies;
    return copies != NULL;
}

void
cuda_join(struct kernels *k, unsigned rank, unsigned ranks, const void *id)
{
    struct cuda *c = cuda_of(k);
    struct nccl_id copy;
    char why[512];
    memcpy(&copy, id, sizeof copy);
    if (!open_nccl(why, sizeof why))
        err_set(k->err, ERR_USAGE, "%s", why);
    else if (begin_peers(c))
        check(c, nccl.join(&c->peers->comm, (int)ranks, copy, (int)rank), "the start");
}

static int
post_array(struct cuda *c, unsigned ranks, const struct transfer *t)
{
    int rc = NCCL_SUCCESS;
    for (unsigned q = 0; q < ranks && rc == NCCL_SUCCESS; q++) {
        if (t[q].send)
            rc = nccl.send(t[q].from, t[q].send, NCCL_INT8, (int)q, c->peers->comm,
                           c->q.stream);
        if (t[q].receive && rc == NCCL_SUCCESS)
            rc = nccl.receive(t[q].to, t[q].receive, NCCL_INT8, (int)q, c->peers->comm,
                              c->q.stream);
    }
    return rc;
}

/* All of it at once: a rank may wait for another one only for what that one sends now. */
static int
post(struct cuda *c, unsigned ranks, const struct exchanged *e, size_t n)
{
    int rc = nccl.begin(), ended;
    for (size_t i = 0; i < n && rc == NCCL_SUCCESS; i++)
        rc = post_array(c, ranks, e[i].with);
    ended = nccl.end();
    return rc == NCCL_SUCCESS ? ended : rc;
}

/* ---- waiting ---------------------------------------------------------------------- */

/* Add the time of the oldest wait, which ends before. */
static void
add_span(struct cuda *c)
{
    struct peers *p = c->peers;
    unsigned i = p->first;
    float ms = 0;
    if (cuda_check(c, cudaEventSynchronize(p->to[i]), "an exchange") &&
        cuda_check(c, cudaEventElapsedTime(&ms, p->from[i], p->to[i]), "its time"))
        p->seconds += (double)ms / 1000;
    p->first = (i + 1) % SPANS;
    p->n--;
}

void
cuda_peers_wait(struct cuda *c, bool begins)
{
    struct peers *p = c->peers;
    if (!p || !cuda_ready(c))
        return;
    if (begins && p->n == SPANS)
        add_span(c);
    unsigned i = (p->first + p->n) % SPANS;
    cudaEvent_t *e = begins ? &p->from[i] : &p->to[i];
    if (*e || cuda_check(c, cudaEventCreate(e), "cudaEventCreate"))
        cuda_check(c, cudaEventRecord(*e, c->q.stream), "cudaEventRecord");
    p->n += !begins && cuda_ready(c);
    if (!begins)
        cuda_mark(c, "wait for an exchange");
}

double
cuda_exchanged(struct kernels *k)
{
    struct cuda *c = cuda_of(k);
    while (c->peers && c->peers->n)
        add_span(c);
    return c->peers ? c->peers->seconds : 0;
}

static void
transfer_by_nccl(struct cuda *c, unsigned ranks, const struct exchanged *e, size_t n)
{
    int state = NCCL_SUCCESS;
    if (check(c, nccl.state(c->peers->comm, &state), "the state of an exchange") &&
        check(c, state, "an exchange before"))
        check(c, post(c, ranks, e, n), "an exchange");
}

void
cuda_transfer(struct kernels *k, unsigned ranks, const struct exchanged *e, size_t n)
{
    struct cuda *c = cuda_of(k);
    c->q.early = NOT_EARLY;
    if (c->peers->copies)
        cuda_copies_transfer(c, c->peers->copies, e, n);
    else
        transfer_by_nccl(c, ranks, e, n);
    cuda_mark(c, "exchange");
}

/* All is done where all is well.  What is not must not be waited for: NCCL is told so; a queue that
 * waits for a copy ends with the process, which does not come here after an error. */
void
cuda_peers_close(struct cuda *c)
{
    struct peers *p = c->peers;
    if (!p)
        return;
    if (p->comm)
        nccl.abort(p->comm);
    cuda_copies_close(p->copies);
    for (int i = 0; i < SPANS; i++) {
        if (p->from[i])
            cudaEventDestroy(p->from[i]);
        if (p->to[i])
            cudaEventDestroy(p->to[i]);
    }
    free(p);
    c->peers = NULL;
}
