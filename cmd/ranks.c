/* SPDX-License-Identifier: MIT */
/* ranks: see ranks.h. */
#include "cmd/ranks.h"

#include "cmd/cmd.h"
#include "lib/core/num.h"
#include "lib/core/text.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- launchers --------------------------------------------------------------------------- */

/* The variables by which a process knows its rank. */
struct launcher {
    const char *name, *rank, *size;
    const char *local; // ranks on this machine, or NULL
    const char *other; // is there, too; or NULL
};

/* The first that fits: an mpirun within a job of Slurm is mpirun.  A script of Slurm's has a rank
 * before srun has started anything, but no step. */
static const struct launcher launchers[] = {
    { "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
      "OMPI_COMM_WORLD_LOCAL_SIZE", NULL },
    { "torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR" },
    { "srun", "SLURM_PROCID", "SLURM_NTASKS", NULL, "SLURM_STEP_ID" },
    { "mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", NULL },
};

/* A number of the environment below limit; 0 if it is not there. */
static unsigned
number_of(const char *name, unsigned limit)
{
    const char *text = getenv(name);
    char q[TEXT_QUOTE];
    uint64_t v = 0;
    if (text && (!num_u64(&v, text) || v >= limit))
        misuse("%s=%s in the environment: want a number below %u", name,
               text_quote(q, text, strlen(text)), limit);
    return (unsigned)v;
}

/* ---- this process ------------------------------------------------------------------------- */

enum { RANKS_MAX = 1 << 16 };

static struct {
    const struct launcher *launcher;
    unsigned rank, size; // as the launcher says
    unsigned local;      // 0: unknown
    bool tried, joined;  // MPI was asked; and has joined them
    bool working;        // see ranks_begin_work
    bool parting;        // all have come to the same end
    struct comm comm;
    struct err err; // of comm
} self = { .size = 1 };

unsigned
ranks_number(void)
{
    return self.rank;
}

unsigned
ranks_count(void)
{
    return self.size;
}

struct comm *
ranks_comm(void)
{
    return self.joined ? &self.comm : NULL;
}

unsigned
ranks_threads(unsigned all)
{
    unsigned each = self.local > 1 ? all / self.local : all;
    return each ? each : 1;
}

void
ranks_report(void)
{
    if (self.size > 1)
        warn("%u ranks, started by %s, on CPUs by MPI", self.size, self.launcher->name);
}

/* ---- agreement ---------------------------------------------------------------------------- */

struct vote {
    int status, signal;
};

/* All votes; dies if a rank is lost. */
static struct vote *
vote(const struct vote *own)
{
    size_t *at = cmd_alloc((size_t)self.size + 1, sizeof *at);
    struct vote *all = cmd_alloc(self.size, sizeof *all);
    for (unsigned q = 0; q <= self.size; q++)
        at[q] = q * sizeof *all;
    all[self.rank] = *own;
    self.working = true; // who fails in here cannot meet the others
    if (comm_gather(&self.comm, all, at) < 0)
        die_err(&self.err);
    self.working = false;
    free(at);
    return all;
}

/* The lowest rank that failed, or the number of ranks. */
static unsigned
first_failed(const struct vote *all)
{
    unsigned q = 0;
    while (q < self.size && all[q].status == EXIT_DONE)
        q++;
    return q;
}

/* At exit, behind all else: a launcher may end whoever is left when the first has gone. */
static void
part(void)
{
    if (self.parting)
        comm_close(&self.comm);
}

/* Whether MPI knows of all ranks that the launcher has started. */
static bool
join(void)
{
    double patience = self.comm.patience;
    self.tried = true;
    if (comm_mpi(&self.comm, &self.err) < 0 || atexit(part) != 0)
        return false;
    self.comm.patience = patience;
    self.joined = self.comm.size == self.size && self.comm.rank == self.rank;
    self.parting = !self.joined;
    return self.joined;
}

/* An error, of options perhaps, ends this rank: tell the others, who then end, too. */
static void
fail(int *status, const char *words)
{
    const struct vote own = { .status = *status };
    if (self.parting || self.working || (!self.tried && !join()) || !self.joined) {
        cmd_print(words);
        if (self.working)
            comm_abort(&self.comm, *status);
        return;
    }
    struct vote *all = vote(&own);
    unsigned first = first_failed(all);
    *status = all[first].status;
    if (first == self.rank)
        cmd_print(words);
    free(all);
    self.parting = true;
}

int
ranks_meet(int signal)
{
    const struct vote own = { .signal = signal };
    if (!self.joined)
        return signal;
    struct vote *all = vote(&own);
    unsigned first = first_failed(all);
    if (first < self.size) {
        int status = all[first].status;
        self.parting = true;
        exit(status);
    }
    for (unsigned q = self.size; q-- > 0;)
        signal = all[q].signal ? all[q].signal : signal;
    free(all);
    return signal;
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
 * order, and the version comes first. */
static void
compare(const char *facts, const char *theirs)
{
    while (*facts) {
        size_t n = strcspn(facts, "\n"), m = strcspn(theirs, "\n");
        struct slice own = value_of(facts, n), other = value_of(theirs, m);
        if (n != m || memcmp(facts, theirs, n) != 0)
            die(EXIT_TROUBLE, "%.*s: %.*s here, rank 0 has %.*s: ranks must be alike",
                (int)strcspn(facts, "\t\n"), facts, (int)own.n, own.p, (int)other.n,
                other.p);
        facts += n + 1;
        theirs += m + 1;
    }
}

void
ranks_compare(const struct buf *facts)
{
    uint64_t n = facts->len;
    if (!self.joined)
        return;
    if (facts->failed)
        die(EXIT_MEMORY, "out of memory");
    ranks_meet(0);
    if (comm_broadcast(&self.comm, &n, sizeof n) == 0) {
        char *theirs = cmd_alloc((size_t)n + 1, 1);
        if (self.rank == 0 && n)
            memcpy(theirs, facts->data, (size_t)n);
        if (comm_broadcast(&self.comm, theirs, (size_t)n) == 0)
            compare(facts->data ? facts->data : "", theirs);
        free(theirs);
    }
    ranks_meet(0);
}

/* ---- begin and end -------------------------------------------------------------------------- */

/* Of other ranks nothing goes to standard output. */
static void
silence_stdout(void)
{
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0)
        die(EXIT_TROUBLE, "/dev/null:");
    close(fd);
}

void
ranks_begin(void)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *l = &launchers[i];
        if (!getenv(l->rank) || !getenv(l->size) || (l->other && !getenv(l->other)))
            continue;
        self.launcher = l;
        self.size = number_of(l->size, RANKS_MAX);
        self.rank = number_of(l->rank, self.size ? self.size : 1);
        if (l->local)
            self.local = number_of(l->local, RANKS_MAX);
        break;
    }
    if (self.size < 2) {
        self.size = 1;
        return;
    }
    cmd_set_rank(self.rank);
    cmd_set_end(fail);
    if (self.rank > 0)
        silence_stdout();
}

void
ranks_join(double patience)
{
    self.comm.patience = patience;
    if (self.size == 1 || join())
        return;
    if (self.err.kind)
        die(cmd_status(&self.err), "%u ranks, started by %s: %s", self.size,
            self.launcher->name, self.err.msg);
    // It is so for all, but there may be no others: the environment may be left over.
    if (self.rank == 0 || self.comm.size == 1)
        die(EXIT_TROUBLE,
            "the environment says that %s has started %u ranks, MPI knows of %u: for "
            "ranks on CPUs start with the mpirun of the MPI that this was built with, "
            "or srun --mpi=pmix; for one process unset the launcher's variables",
            self.launcher->name, self.size, self.comm.size);
    exit(EXIT_TROUBLE);
}

void
ranks_begin_work(void)
{
    self.working = self.joined;
}

void
ranks_end_work(void)
{
    self.working = false;
}

void
ranks_leave(void)
{
    if (!self.joined)
        return;
    ranks_meet(0);
    self.parting = true;
}
