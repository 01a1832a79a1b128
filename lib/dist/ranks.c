/* SPDX-License-Identifier: MIT */
/* ranks: see ranks.h. */
#include "lib/dist/ranks.h"

#include "lib/base/num.h"
#include "lib/base/text.h"
#include "lib/dist/launcher.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- this process ------------------------------------------------------------------------- */

/* This program itself, by --gpus. */
static const struct launcher own_launcher = { .name = "--gpus" };

int
ranks_find(struct ranks *r, const struct comm_ending *ending, struct err *err)
{
    *r = (struct ranks){ .ending = *ending, .meet.listening = -1 };
    return launcher_find(&r->launcher, &r->rank, &r->size, &r->local, err);
}

const char *
ranks_launcher(const struct ranks *r)
{
    return r->launcher ? r->launcher->name : NULL;
}

struct comm *
ranks_comm(struct ranks *r)
{
    return r->joined || r->planning ? &r->comm : NULL;
}

unsigned
ranks_threads(const struct ranks *r, unsigned all)
{
    unsigned given = r->local ? launcher_cpus(r->launcher) : 0;
    unsigned each = (given ? given : all) / (r->local > 1 ? r->local : 1);
    each = each < all ? each : all; // srun may have bound each rank to its own
    return each ? each : 1;
}

int
ranks_local(const struct ranks *r, unsigned *local, struct err *err)
{
    return launcher_local(r->launcher, r->rank, local, err);
}

static void
be_launcher(struct ranks *r, unsigned n)
{
    r->launcher = &own_launcher;
    r->own = true;
    r->size = r->local = n;
}

int
ranks_start(struct ranks *r, unsigned n, struct err *err)
{
    static const char here[] = "127.0.0.1";
    be_launcher(r, n);
    r->gpus = true;
    memcpy(r->meet.host, here, sizeof here);
    if (launcher_name_own(&r->meet, err) < 0)
        return -1;
    r->meet.listening = meet_listen(&r->meet.port, err);
    return r->meet.listening < 0 ? -1 : 0;
}

void
ranks_be(struct ranks *r, unsigned rank)
{
    r->rank = rank;
    if (rank == 0)
        return;
    close(r->meet.listening);
    r->meet.listening = -1;
}

void
ranks_plan(struct ranks *r, unsigned n)
{
    be_launcher(r, n);
    comm_one(&r->comm, &r->err);
    r->comm.size = n;
    r->planning = true;
}

/* ---- agreement ---------------------------------------------------------------------------- */

/* status: 0 or that of a failure; signal: see ranks_meet. */
struct vote {
    int32_t status, signal;
};

static bool
is_vote(const struct ranks *r, const struct vote *v)
{
    return (v->status == 0 || r->ending.fails_by(v->status)) && v->signal >= 0 &&
           v->signal < NSIG;
}

static int
no_memory(struct err *err)
{
    return err_set(err, ERR_MEMORY, "out of memory for ranks");
}

/* The error of comm. */
static int
comm_failed(const struct ranks *r, struct err *err)
{
    return err_set(err, r->err.kind, "%s", r->err.msg);
}

/* Votes of all, which are not checked; to be freed.  NULL: a rank is lost. */
static struct vote *
gather_votes(struct ranks *r, const struct vote *own, struct err *err)
{
    size_t *at = calloc((size_t)r->size + 1, sizeof *at);
    struct vote *all = calloc(r->size, sizeof *all);
    bool done = at && all;
    if (!done)
        no_memory(err);
    for (unsigned q = 0; done && q <= r->size; q++)
        at[q] = q * sizeof *all;
    r->working = true; // who fails in here cannot meet the others
    if (done) {
        all[r->rank] = *own;
        done = comm_gather(&r->comm, all, at) == 0;
        if (!done)
            comm_failed(r, err);
        all[r->rank] = *own; // whatever rank 0 has sent
    }
    free(at);
    if (done) {
        r->working = false;
        return all;
    }
    free(all);
    return NULL;
}

/* The lowest rank that failed, or the number of ranks. */
static unsigned
first_failed(const struct ranks *r, const struct vote *all)
{
    unsigned q = 0;
    while (q < r->size && (!is_vote(r, &all[q]) || all[q].status == 0))
        q++;
    return q;
}

static int
failed_elsewhere(struct ranks *r, int status, struct err *err)
{
    r->status = status;
    r->parting = true; // nobody is to vote again
    return err_set(err, ERR_ELSEWHERE, "another rank has failed");
}

/* Fails if a rank has sent what is no vote.  All have received the same: the lowest of those whose
 * votes are valid says it. */
static int
check_votes(struct ranks *r, const struct vote *all, struct err *err)
{
    unsigned bad = 0, speaker = 0;
    while (bad < r->size && is_vote(r, &all[bad]))
        bad++;
    if (bad == r->size)
        return 0;
    while (!is_vote(r, &all[speaker]))
        speaker++;
    if (speaker != r->rank)
        return failed_elsewhere(r, 0, err);
    r->parting = true;
    return err_set(err, ERR_USAGE,
                   "rank %u has sent status %ld, signal %ld: no rank sends that, so "
                   "another program has connected as rank %u",
                   bad, (long)all[bad].status, (long)all[bad].signal, bad);
}

int
ranks_meet(struct ranks *r, int *signal, struct err *err)
{
    const struct vote own = { .signal = *signal };
    if (!r->joined)
        return 0;
    struct vote *all = gather_votes(r, &own, err);
    if (!all)
        return -1;
    int rc = check_votes(r, all, err);
    unsigned first = first_failed(r, all);
    if (rc == 0 && first < r->size)
        rc = failed_elsewhere(r, all[first].status, err);
    for (unsigned q = r->size; rc == 0 && q-- > 0;)
        *signal = all[q].signal ? all[q].signal : *signal;
    free(all);
    return rc;
}

int
ranks_wait(struct ranks *r, struct err *err)
{
    int none = 0;
    return ranks_meet(r, &none, err);
}

/* ---- the same of all ----------------------------------------------------------------------- */

/* The value in a line of n bytes, behind its name and a tab; empty if there is no line. */
static struct slice
value_of(const char *line, size_t n)
{
    size_t name = strcspn(line, "\t\n");
    return name < n ? (struct slice){ line + name + 1, n - name - 1 } : slice_of("");
}

/* Refuse the first line that differs.  Ranks of one version have the same names in the same
 * order, and the version comes first.  Both texts end in NUL; that of rank 0 may have any bytes. */
static int
compare(const char *facts, const char *theirs, struct err *err)
{
    while (*facts) {
        size_t n = strcspn(facts, "\n"), m = strcspn(theirs, "\n");
        struct slice own = value_of(facts, n), other = value_of(theirs, m);
        char q[TEXT_QUOTE]; // the text of another process may have any bytes
        if (n != m || memcmp(facts, theirs, n) != 0 || theirs[m] != facts[n])
            return err_set(err, ERR_USAGE,
                           "%.*s: %.*s here, rank 0 has %s: ranks must be alike",
                           (int)strcspn(facts, "\t\n"), facts, (int)own.n, own.p,
                           text_quote(q, other.p, other.n));
        facts += n + (facts[n] == '\n');
        theirs += m + (theirs[m] == '\n');
    }
    return 0;
}

enum { FACTS_MAX = 1 << 20 }; // bytes; they are a few lines

/* Receive what rank 0 has, and compare. */
static int
compare_facts(struct ranks *r, const struct buf *facts, uint64_t n, struct err *err)
{
    char *theirs = calloc((size_t)n + 1, 1);
    if (!theirs)
        return no_memory(err);
    if (r->rank == 0 && n)
        memcpy(theirs, facts->data, (size_t)n);
    int rc = 0; // a rank that is lost is heard of where all meet
    if (comm_broadcast(&r->comm, theirs, (size_t)n) == 0)
        rc = compare(facts->data ? facts->data : "", theirs, err);
    free(theirs);
    return rc;
}

int
ranks_compare(struct ranks *r, const struct buf *facts, struct err *err)
{
    uint64_t n = facts->len;
    int rc = 0;
    if (!r->joined)
        return 0;
    if (facts->failed)
        return no_memory(err);
    if (ranks_wait(r, err) < 0)
        return -1;
    if (comm_broadcast(&r->comm, &n, sizeof n) == 0 && n > FACTS_MAX) {
        r->working = true; // what is at that port does not vote
        return err_set(err, ERR_USAGE,
                       "rank 0 has sent %llu bytes of facts to compare: no rank sends "
                       "that, so another program has its port",
                       (unsigned long long)n);
    }
    if (!r->err.kind)
        rc = compare_facts(r, facts, n, err);
    return rc < 0 ? rc : ranks_wait(r, err);
}

/* ---- begin ----------------------------------------------------------------------------------- */

static bool
join_sockets(struct ranks *r)
{
    if (meet_all(&r->meet, &r->err) < 0 ||
        comm_sockets(&r->comm, &r->meet, r->comm.patience, &r->ending, &r->err) < 0)
        return false;
    return r->joined = true;
}

/* Whether MPI knows of all ranks that the launcher has started. */
static bool
join_mpi(struct ranks *r)
{
    double patience = r->comm.patience;
    if (comm_mpi(&r->comm, &r->err) < 0)
        return false;
    r->comm.patience = patience;
    r->joined = r->comm.size == r->size && r->comm.rank == r->rank;
    r->parting = !r->joined;
    return r->joined;
}

static bool
join(struct ranks *r)
{
    r->tried = true;
    return r->gpus ? join_sockets(r) : join_mpi(r);
}

/* It is so for all, but there may be no others: the environment may be left over. */
static int
refuse_mpi(struct ranks *r, struct err *err)
{
    if (r->rank != 0 && r->comm.size != 1)
        return failed_elsewhere(r, 0, err);
    return err_set(
        err, ERR_USAGE,
        "the environment says that %s has started %u ranks, MPI knows of %u: for "
        "ranks on CPUs start with the mpirun of the MPI that this was built with, "
        "or srun --mpi=pmix; for one process unset the launcher's variables",
        r->launcher->name, r->size, r->comm.size);
}

int
ranks_join(struct ranks *r, double patience, double to_come, bool gpus,
           const char *rendezvous, struct err *err)
{
    r->comm.patience = patience;
    r->meet.patience = to_come;
    // Checked also where it is not used.
    if (rendezvous && launcher_take_place(&r->meet, rendezvous, err) < 0)
        return -1;
    if (r->size == 1 || r->planning)
        return 0;
    if (gpus && !r->gpus &&
        launcher_place(&r->meet, r->launcher, rendezvous, r->local == r->size, err) < 0)
        return -1;
    r->gpus = gpus;
    r->meet.rank = r->rank;
    r->meet.size = r->size;
    if (join(r))
        return 0;
    if (r->err.kind)
        return err_set(err, r->err.kind, "%u ranks, started by %s: %s", r->size,
                       r->launcher->name, r->err.msg);
    return refuse_mpi(r, err);
}

/* ---- end ------------------------------------------------------------------------------------- */

/* The words of a rank that fails before it has joined the others, and cannot join them by MPI. */
struct last_words {
    const struct comm_ending *ending;
    int status;
    const char *words;
    atomic_bool over; // they have been printed, or need not be
};

static void *
say_later(void *arg)
{
    struct last_words *last = arg;
    enum { TO_JOIN = 5 }; // seconds
    sleep(TO_JOIN);
    if (!atomic_exchange(&last->over, true))
        last->ending->end(last->status, last->words);
    return NULL;
}

/* Join, in order to fail together.  MPI begins when all begin it, which ranks with GPUs never
 * do: then this rank ends alone, and its launcher ends the others. */
static bool
join_late(struct ranks *r, int status, const char *words)
{
    enum { TO_COME = 10 }; // seconds
    pthread_t thread;
    if (r->meet.patience <= 0)
        r->meet.patience = TO_COME;
    if (r->gpus)
        return join(r);
    struct last_words *last = calloc(1, sizeof *last); // the thread has it to the end
    if (!last)
        return false;
    last->ending = &r->ending;
    last->status = status;
    last->words = words;
    if (pthread_create(&thread, NULL, say_later, last) != 0) {
        free(last);
        return false;
    }
    bool joined = join(r);
    if (atomic_exchange(&last->over, true))
        pause(); // the thread ends this process
    pthread_detach(thread);
    return joined;
}

bool
ranks_tell(struct ranks *r, int *status, const char *words, struct err *err)
{
    const struct vote own = { .status = *status };
    if (r->parting || r->working || (!r->tried && !join_late(r, *status, words)) ||
        !r->joined)
        return true;
    struct vote *all = gather_votes(r, &own, err);
    if (!all)
        return true;
    unsigned first = first_failed(r, all);
    if (first < r->rank)
        *status = all[first].status;
    free(all);
    r->parting = true;
    return first >= r->rank;
}

void
ranks_abort(struct ranks *r, int status)
{
    if (r->working)
        comm_abort(&r->comm, status);
}

void
ranks_begin_work(struct ranks *r)
{
    r->working = r->joined;
}

void
ranks_end_work(struct ranks *r)
{
    r->working = false;
}

int
ranks_leave(struct ranks *r, struct err *err)
{
    if (!r->joined)
        return 0;
    if (ranks_wait(r, err) < 0)
        return -1;
    r->parting = true;
    return 0;
}

void
ranks_part(struct ranks *r)
{
    if (r->parting && r->comm.op)
        comm_close(&r->comm);
}
