/* SPDX-License-Identifier: MIT */
/* copies: device memory between the GPUs of ranks of one host, by their copy engines.
 *
 * NCCL's kernels take multiprocessors from products that run at the same time; a copy takes
 * none.  Each rank maps the memory that the others receive into, by CUDA's IPC, and copies
 * there in its own queue.  Two flags of each pair of ranks order that: READY, the receiver's
 * memory may be overwritten, and DONE, it has been.  Both are the number of a transfer, which
 * all ranks make in the same order, and are in the memory of the rank that waits for them. */
#include "kernels/cuda/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum flag { READY, DONE, FLAGS };
enum { WHY = 128, AT_LEAST = 0 }; // CU_STREAM_WAIT_VALUE_GEQ, of numbers that may wrap

/* Where memory is, for other processes. */
struct place {
    cudaIpcMemHandle_t allocation;
    size_t at; // in it
};

/* Of the driver: an address, a value and how. */
typedef int flag_fn(cudaStream_t, unsigned long long, uint32_t, unsigned);

struct copies {
    struct company of;
    flag_fn *write, *wait;
    uint32_t *flags; // (FLAGS, ranks) which each of them writes
    char **there;    // (ranks) theirs
    uint32_t n;      // transfers so far
    char ***arrays;  // (n_arrays, ranks) of the others, as mapped here; NULL: not yet
    unsigned n_arrays;
};

/* ---- memory of others --------------------------------------------------------------- */

static cudaError_t
place_of(const void *allocation, const void *p, struct place *to)
{
    to->at = (size_t)((const char *)p - (const char *)allocation);
    return cudaIpcGetMemHandle(&to->allocation, (void *)(uintptr_t)allocation);
}

static cudaError_t
map(const struct place *from, char **p)
{
    void *allocation = NULL;
    cudaError_t e = cudaIpcOpenMemHandle(&allocation, from->allocation,
                                         cudaIpcMemLazyEnablePeerAccess);
    *p = e == cudaSuccess ? (char *)allocation + from->at : NULL;
    return e;
}

/* Have a place for an array's. */
static bool
grow(struct copies *p, unsigned array)
{
    unsigned n = 2 * array + 1;
    if (array < p->n_arrays)
        return true;
    char ***more = (char ***)realloc(p->arrays, n * sizeof *more);
    if (!more)
        return false;
    memset(more + p->n_arrays, 0, (n - p->n_arrays) * sizeof *more);
    p->arrays = more;
    p->n_arrays = n;
    return true;
}

#define WITHOUT " (NIBBLE_EXCHANGE=nccl exchanges without it)"

/* Where an array of the others is.  The first time all hosts tell each other. */
static char **
reach(struct cuda *c, struct copies *p, const struct exchanged *e)
{
    unsigned ranks = p->of.ranks, own = p->of.rank;
    if (e->array < p->n_arrays && p->arrays[e->array])
        return p->arrays[e->array];
    struct place *all = (struct place *)calloc(ranks, sizeof *all);
    char **there = (char **)calloc(ranks, sizeof *there);
    if (!all || !there || !grow(p, e->array))
        err_set(c->k.err, ERR_MEMORY, "out of memory for ranks");
    else if (cuda_check(c, place_of(cuda_allocation(c, e->base), e->base, &all[own]),
                        "cudaIpcGetMemHandle" WITHOUT) &&
             p->of.gather(p->of.ctx, all, sizeof *all))
        for (unsigned q = 0; q < ranks; q++)
            if (q != own)
                cuda_check(c, map(&all[q], &there[q]), "cudaIpcOpenMemHandle" WITHOUT);
    free(all);
    if (cuda_ready(c))
        return p->arrays[e->array] = there;
    free(there);
    return NULL;
}

/* ---- copies ------------------------------------------------------------------------- */

static bool
check(struct cuda *c, int rc, const char *what)
{
    if (rc != 0)
        err_set(c->k.err, ERR_IO, "cuda:%d: %s: CUDA error %d", c->device, what, rc);
    return rc == 0;
}

/* To rank q, and from it. */
static void
put_flag(struct cuda *c, const struct copies *p, enum flag flag, unsigned q)
{
    uint32_t *at = (uint32_t *)p->there[q] + flag * p->of.ranks + p->of.rank;
    check(c, p->write(c->q.stream, (uintptr_t)at, p->n, 0), "cuStreamWriteValue32");
}

static void
await_flag(struct cuda *c, const struct copies *p, enum flag flag, unsigned q)
{
    const uint32_t *at = p->flags + flag * p->of.ranks + q;
    check(c, p->wait(c->q.stream, (uintptr_t)at, p->n, AT_LEAST),
          "cuStreamWaitValue32");
}

/* To rank q. */
static void
copy(struct cuda *c, struct copies *p, const struct exchanged *e, size_t n, unsigned q)
{
    await_flag(c, p, READY, q);
    for (size_t i = 0; i < n && cuda_ready(c); i++) {
        const struct transfer *t = &e[i].with[q];
        if (t->send)
            cuda_check(c,
                       cudaMemcpyAsync(p->arrays[e[i].array][q] + t->there, t->from,
                                       t->send, cudaMemcpyDeviceToDevice, c->q.stream),
                       "a copy to another GPU");
    }
    put_flag(c, p, DONE, q);
}

/* Whether this rank sends to rank q; or receives from it. */
static bool
deals(const struct exchanged *e, size_t n, unsigned q, bool sends)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += sends ? e[i].with[q].send : e[i].with[q].receive;
    return bytes > 0;
}

void
cuda_copies_transfer(struct cuda *c, struct copies *p, const struct exchanged *e,
                     size_t n)
{
    unsigned ranks = p->of.ranks;
    for (size_t i = 0; i < n; i++)
        if (!reach(c, p, &e[i]))
            return;
    p->n++;
    for (unsigned q = 0; q < ranks && cuda_ready(c); q++)
        if (deals(e, n, q, false))
            put_flag(c, p, READY, q);
    // Each begins with the next rank: else all would send to one.
    for (unsigned i = 1; i < ranks && cuda_ready(c); i++)
        if (deals(e, n, (p->of.rank + i) % ranks, true))
            copy(c, p, e, n, (p->of.rank + i) % ranks);
    for (unsigned q = 0; q < ranks && cuda_ready(c); q++)
        if (deals(e, n, q, false))
            await_flag(c, p, DONE, q);
}

/* ---- who can ------------------------------------------------------------------------ */

/* What a rank tells the others. */
struct self {
    char host[64], bus[32];
    char why[WHY - 32]; // it does not copy; empty: it can
    struct place flags;
};

const char *
cuda_copies_refused(void)
{
    const char *chosen = getenv("NIBBLE_EXCHANGE"), *off = getenv("NCCL_P2P_DISABLE");
    if (chosen && strcmp(chosen, "nccl") == 0)
        return "NIBBLE_EXCHANGE is nccl";
    return off && strcmp(off, "0") != 0 ? "NCCL_P2P_DISABLE is set" : NULL;
}

static bool
find_driver(struct copies *p)
{
    void *write = cuda_driver_function("cuStreamWriteValue32_v2");
    void *wait = cuda_driver_function("cuStreamWaitValue32_v2");
    memcpy(&p->write, &write, sizeof write);
    memcpy(&p->wait, &wait, sizeof wait);
    return write && wait;
}

/* The start of the host's system, which no other host shares. */
static void
name_host(char *name, size_t n)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f || !fgets(name, (int)n, f))
        gethostname(name, n - 1);
    if (f)
        fclose(f);
}

static void
describe(struct cuda *c, struct copies *p, struct self *own)
{
    size_t bytes = FLAGS * p->of.ranks * sizeof *p->flags;
    const char *why = cuda_copies_refused();
    name_host(own->host, sizeof own->host);
    if (!why && !find_driver(p))
        why = "the driver has no flags in streams";
    if (!why &&
        (cudaMalloc(&p->flags, bytes) != cudaSuccess ||
         cudaMemset(p->flags, 0, bytes) != cudaSuccess ||
         cudaStreamSynchronize(NULL) != cudaSuccess ||
         cudaDeviceGetPCIBusId(own->bus, sizeof own->bus, c->device) != cudaSuccess ||
         place_of(p->flags, p->flags, &own->flags) != cudaSuccess))
        why = "its memory cannot be shared with other processes";
    snprintf(own->why, sizeof own->why, "%s", why ? why : "");
}

bool
cuda_has_nvlink(int from, int to)
{
    int atomics = 0;
    return cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported,
                                     from, to) == cudaSuccess &&
           atomics;
}

/* The flags of another rank.  Why it cannot be reached; NULL: it is. */
static const char *
reach_rank(struct cuda *c, const struct self *own, const struct self *other,
           char **flags)
{
    int device = 0;
    if (strcmp(own->host, other->host) != 0)
        return "it is on another host";
    if (cudaDeviceGetByPCIBusId(&device, other->bus) != cudaSuccess)
        return "its GPU is not visible to the others";
    if (!cuda_has_nvlink(c->device, device))
        return "no NVLink leads to its GPU";
    return map(&other->flags, flags) == cudaSuccess ? NULL
                                                    : "its memory cannot be mapped";
}

/* Texts of other ranks may lack their end. */
static void
end_texts(struct self *of)
{
    of->host[sizeof of->host - 1] = '\0';
    of->bus[sizeof of->bus - 1] = '\0';
    of->why[sizeof of->why - 1] = '\0';
}

/* Whether all ranks can; each tells the others what it has found. */
static bool
agree(struct cuda *c, struct copies *p, struct self *all, char (*found)[WHY])
{
    unsigned own = p->of.rank;
    const char *none = NULL;
    describe(c, p, &all[own]);
    if (!p->of.gather(p->of.ctx, all, sizeof *all))
        return false;
    for (unsigned q = 0; q < p->of.ranks && !none; q++) {
        end_texts(&all[q]);
        none = all[q].why[0] ? all[q].why
               : q == own    ? NULL
                             : reach_rank(c, &all[own], &all[q], &p->there[q]);
        if (none)
            snprintf(found[own], WHY, "rank %u: %s", q, none);
    }
    return p->of.gather(p->of.ctx, found, WHY);
}

/* The first reason that a rank found against it, in `found`; NULL: none.  In an error: "". */
static const char *
first_found(struct cuda *c, struct copies *p, struct self *all, char (*found)[WHY])
{
    if (!agree(c, p, all, found))
        return "";
    for (unsigned q = 0; q < p->of.ranks; q++) {
        found[q][WHY - 1] = '\0';
        if (found[q][0])
            return found[q];
    }
    return NULL;
}

struct copies *
cuda_copies_join(struct cuda *c, const struct company *of, char *why, size_t n)
{
    struct copies *p = (struct copies *)calloc(1, sizeof *p);
    struct self *all = (struct self *)calloc(of->ranks, sizeof *all);
    char(*found)[WHY] = (char(*)[WHY])calloc(of->ranks, WHY);
    char **there = (char **)calloc(of->ranks, sizeof *there);
    bool joined = false;
    if (p && all && found && there) {
        p->of = *of;
        p->there = there;
        const char *none = first_found(c, p, all, found);
        snprintf(why, n, "%s", none ? none : "");
        joined = !none;
    } else {
        err_set(c->k.err, ERR_MEMORY, "out of memory for ranks");
        free(there);
    }
    if (!joined) {
        cudaGetLastError(); // of what cannot be done
        cuda_copies_close(p);
    }
    free(all);
    free(found);
    return joined ? p : NULL;
}

/* What is mapped ends with the process. */
void
cuda_copies_close(struct copies *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < p->n_arrays; i++)
        free(p->arrays[i]);
    free(p->arrays);
    free(p->there);
    cudaFree(p->flags);
    free(p);
}
