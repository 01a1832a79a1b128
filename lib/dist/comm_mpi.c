/* SPDX-License-Identifier: MIT */
/* comm_mpi: ranks that exchange by MPI.  It is libnibble-mpi.so, which only a run of several
 * ranks opens: MPI is no part of the programs. */
#include "lib/dist/comm_ops.h"

#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE = 1 << 30 }; // bytes; MPI counts them as int

struct part {
    char *p;
    size_t n;
};

static int
fail(struct comm *c, int rc, const char *what)
{
    char words[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(rc, words, &n);
    return err_set(c->err, ERR_IO, "MPI: %s: %s", what, words);
}

/* ---- messages ---------------------------------------------------------------------------- */

struct posted {
    MPI_Request *v;
    int n;
};

static size_t
messages_of(size_t bytes)
{
    return bytes / MESSAGE + (bytes % MESSAGE > 0);
}

/* Start what sends a part to that rank, or receives it from there. */
static int
post(struct posted *posted, const struct part *part, int rank, bool send)
{
    int rc = MPI_SUCCESS;
    for (size_t at = 0; at < part->n && rc == MPI_SUCCESS; at += MESSAGE) {
        int n = (int)(part->n - at < MESSAGE ? part->n - at : MESSAGE);
        MPI_Request *r = &posted->v[posted->n++];
        rc = send ? MPI_Isend(part->p + at, n, MPI_BYTE, rank, 0, MPI_COMM_WORLD, r)
                  : MPI_Irecv(part->p + at, n, MPI_BYTE, rank, 0, MPI_COMM_WORLD, r);
    }
    return rc;
}

/* ---- patience ---------------------------------------------------------------------------- */

enum { TAG_WAITING = 1 };

/* Who waits may do so for a rank that waits itself, so each tells all, and who does not hangs.
 * Nobody waits until that is read: MPI forgets the request and sends. */
static int
say_waiting(struct comm *c, MPI_Request *told)
{
    int rc = MPI_SUCCESS;
    for (unsigned q = 0; q < c->size && rc == MPI_SUCCESS; q++) {
        if (q == c->rank)
            continue;
        rc =
            MPI_Isend(NULL, 0, MPI_BYTE, (int)q, TAG_WAITING, MPI_COMM_WORLD, &told[q]);
        if (rc == MPI_SUCCESS)
            rc = MPI_Request_free(&told[q]);
    }
    return rc;
}

/* late[q]: rank q has not said that it waits. */
static int
hear_waiting(struct comm *c, bool *late)
{
    int there = 0, rc;
    MPI_Status status;
    late[c->rank] = false;
    while ((rc = MPI_Iprobe(MPI_ANY_SOURCE, TAG_WAITING, MPI_COMM_WORLD, &there,
                            &status)) == MPI_SUCCESS &&
           there) {
        late[status.MPI_SOURCE] = false;
        MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, TAG_WAITING, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    }
    return rc;
}

/* Wait for all of it, which MPI's own wait would do for ever.  Time in which this rank itself was
 * stopped does not count. */
static int
wait_for_all(struct comm *c, struct posted *posted, MPI_Request *told, bool *late,
             bool *is_late)
{
    double waited = 0, then = MPI_Wtime(), now;
    bool said = false;
    int rc, done = 0;
    while ((rc = MPI_Testall(posted->n, posted->v, &done, MPI_STATUSES_IGNORE)) ==
               MPI_SUCCESS &&
           !done && !*is_late) {
        sched_yield();
        now = MPI_Wtime();
        waited += now - then < 1 ? now - then : 0;
        then = now;
        if (c->patience <= 0 || waited < c->patience)
            continue;
        rc = said ? MPI_SUCCESS : say_waiting(c, told);
        said = true;
        if (rc != MPI_SUCCESS || (rc = hear_waiting(c, late)) != MPI_SUCCESS)
            break;
        *is_late = waited >= comm_patience(c, late);
    }
    return rc;
}

/* ---- transfers --------------------------------------------------------------------------- */

/* Begin to send to and to receive from each other rank. */
static int
post_all(struct comm *c, struct posted *posted, const struct part *to,
         const struct part *from)
{
    int rc = MPI_SUCCESS;
    for (unsigned i = 1; i < c->size && rc == MPI_SUCCESS; i++) {
        unsigned q = (c->rank + i) % c->size;
        rc = post(posted, &from[q], (int)q, false);
        if (rc == MPI_SUCCESS)
            rc = post(posted, &to[q], (int)q, true);
    }
    return rc;
}

/* To and from each rank, the own one excepted; both know how long a part is. */
static int
transfer(struct comm *c, const struct part *to, const struct part *from)
{
    size_t messages = 1;
    bool is_late = false;
    for (unsigned q = 0; q < c->size; q++)
        messages += messages_of(to[q].n) + messages_of(from[q].n);
    // Behind those of the parts, one for each rank that is told of the wait.
    struct posted posted = { calloc(messages + c->size, sizeof *posted.v), 0 };
    bool *late = malloc(c->size * sizeof *late);
    int rc = MPI_ERR_NO_MEM;
    if (posted.v && late) {
        memset(late, true, c->size * sizeof *late);
        rc = post_all(c, &posted, to, from);
        if (rc == MPI_SUCCESS)
            rc = wait_for_all(c, &posted, posted.v + messages, late, &is_late);
    }
    if (is_late)
        comm_is_late(c, late);
    free(late);
    free(posted.v);
    if (is_late)
        return -1;
    return rc == MPI_SUCCESS ? 0 : fail(c, rc, "an exchange");
}

/* ---- calls ------------------------------------------------------------------------------- */

/* Two parts for each rank. */
static struct part *
alloc_parts(struct comm *c)
{
    struct part *parts = calloc(2 * (size_t)c->size, sizeof *parts);
    if (!parts)
        err_set(c->err, ERR_MEMORY, "out of memory for an exchange");
    return parts;
}

/* Each rank's part of p to all ranks, or to the first `to` of them. */
static int
spread(struct comm *c, char *p, const size_t *at, unsigned to)
{
    struct part *out = alloc_parts(c);
    if (!out)
        return -1;
    struct part *in = out + c->size;
    for (unsigned q = 0; q < c->size; q++) {
        if (q < to)
            out[q] = (struct part){ p + at[c->rank], at[c->rank + 1] - at[c->rank] };
        if (c->rank < to)
            in[q] = (struct part){ p + at[q], at[q + 1] - at[q] };
    }
    int rc = transfer(c, out, in);
    free(out);
    return rc;
}

static int
mpi_gather(struct comm *c, void *p, const size_t *at)
{
    return spread(c, p, at, c->size);
}

static int
mpi_collect(struct comm *c, void *p, const size_t *at)
{
    return spread(c, p, at, 1);
}

static int
mpi_pass(struct comm *c, void *to, const void *from, const size_t *at)
{
    struct part *out = alloc_parts(c), *in = out ? out + c->size : NULL;
    unsigned q = c->rank;
    if (!out)
        return -1;
    if (q + 1 < c->size) // what is sent is only read
        out[q + 1] = (struct part){ (char *)(uintptr_t)from, at[q + 1] - at[q] };
    if (q > 0)
        in[q - 1] = (struct part){ to, at[q] - at[q - 1] };
    int rc = transfer(c, out, in);
    free(out);
    return rc;
}

static int
mpi_broadcast(struct comm *c, void *p, size_t bytes)
{
    struct part *out = alloc_parts(c);
    if (!out)
        return -1;
    for (unsigned q = 1; q < c->size && c->rank == 0; q++)
        out[q] = (struct part){ p, bytes };
    if (c->rank)
        out[c->size] = (struct part){ p, bytes };
    int rc = transfer(c, out, out + c->size);
    free(out);
    return rc;
}

static int
mpi_exchange(struct comm *c, void *to, const void *from, const size_t *at)
{
    struct part *out = alloc_parts(c);
    size_t own = at[c->rank + 1] - at[c->rank];
    if (!out)
        return -1;
    struct part *in = out + c->size;
    for (unsigned q = 0; q < c->size; q++) { // what is sent is only read
        out[q] = (struct part){ (char *)(uintptr_t)from + at[q], at[q + 1] - at[q] };
        in[q] = (struct part){ to, own };
        if (q != c->rank)
            to = (char *)to + own;
    }
    int rc = transfer(c, out, in);
    free(out);
    return rc;
}

static void
mpi_abort(struct comm *c, int status)
{
    (void)c;
    MPI_Abort(MPI_COMM_WORLD, status);
}

static void
mpi_close(struct comm *c)
{
    (void)c;
    MPI_Finalize();
}

static const struct comm_ops ops = { .close = mpi_close,
                                     .abort = mpi_abort,
                                     .broadcast = mpi_broadcast,
                                     .gather = mpi_gather,
                                     .collect = mpi_collect,
                                     .pass = mpi_pass,
                                     .exchange = mpi_exchange };

/* In a step of Slurm's Open MPI asks the PMI that srun offers who the others are.  Where it offers
 * none, Open MPI 4 prints a page from each rank and exits with status 1, without a return. */
static bool
lacks_pmi(void)
{
#ifdef OPEN_MPI
    static const char *const offers[] = { "PMIX_NAMESPACE", "PMI_FD", "PMI_RANK",
                                          "OMPI_COMM_WORLD_SIZE" };
    for (size_t i = 0; i < sizeof offers / sizeof *offers; i++)
        if (getenv(offers[i]))
            return false;
    return getenv("SLURM_STEP_ID") != NULL;
#else
    return false;
#endif
}

int
nibble_mpi_open_5(struct comm *c, struct err *err)
{
    int rank = 0, size = 0, provided;
    *c = (struct comm){ .op = &ops, .err = err };
    if (lacks_pmi())
        return err_set(
            err, ERR_USAGE,
            "Open MPI finds them by a PMI, and there is none: expected mpirun or "
            "srun --mpi=pmix; for one process unset SLURM_STEP_ID");
    // Open MPI: who waits leaves its processor to those that compute.  Without it steps of a small
    // model took 740 ms instead of 3 where others used the two processors, too.
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_size(MPI_COMM_WORLD, &size);
    c->rank = (unsigned)rank;
    c->size = (unsigned)size;
    return rc == MPI_SUCCESS ? 0 : fail(c, rc, "the start");
}
