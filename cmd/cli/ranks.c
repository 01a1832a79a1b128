/* SPDX-License-Identifier: MIT */
/* ranks: see ranks.h. */
#include "cmd/cli/ranks.h"

#include "cmd/cli/cmd.h"
#include "cmd/cli/ranks_place.h"
#include "cmd/cli/spawn.h"
#include "kernels/kernels.h"
#include "lib/dist/meet.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- this process ------------------------------------------------------------------------- */

enum { RANKS_MAX = 1 << 16 };

/* This program itself, by --gpus. */
static const struct launcher own_launcher = { .name = "--gpus" };

static struct {
    const struct launcher *launcher;
    unsigned rank, size; // as the launcher says
    unsigned local;      // ranks of this machine; 0: unknown
    bool gpus;           // each has one, and words go by sockets, not by MPI
    struct meet meet;    // where to, if there are GPUs
    bool tried, joined;  // they were asked to join; and have done so
    bool planning;       // there is one process, which plans for all
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
    return self.joined || self.planning ? &self.comm : NULL;
}

unsigned
ranks_threads(unsigned all)
{
    unsigned given = self.local ? launcher_cpus(self.launcher) : 0;
    unsigned each = (given ? given : all) / (self.local > 1 ? self.local : 1);
    each = each < all ? each : all; // srun may have bound each rank to its own
    return each ? each : 1;
}

void
ranks_report(void)
{
    if (self.joined)
        warn("%u ranks, started by %s, on %s", self.size, self.launcher->name,
             self.gpus ? "GPUs" : "CPUs by MPI");
}

/* ---- agreement ---------------------------------------------------------------------------- */

/* status: EXIT_DONE or that of a failure; signal: see ranks_meet. */
struct vote {
    int32_t status, signal;
};

static bool
is_vote(const struct vote *v)
{
    return (v->status == EXIT_DONE || cmd_fails_by(v->status)) && v->signal >= 0 &&
           v->signal < NSIG;
}

/* All votes, which are not checked; dies if a rank is lost. */
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
    all[self.rank] = *own; // whatever rank 0 has sent
    free(at);
    return all;
}

/* The lowest rank that failed, or the number of ranks. */
static unsigned
first_failed(const struct vote *all)
{
    unsigned q = 0;
    while (q < self.size && (!is_vote(&all[q]) || all[q].status == EXIT_DONE))
        q++;
    return q;
}

/* End if a rank has sent what is no vote.  All have received the same: the lowest of those whose
 * votes are valid says it. */
static void
check_votes(const struct vote *all)
{
    unsigned bad = 0, speaker = 0;
    while (bad < self.size && is_vote(&all[bad]))
        bad++;
    if (bad == self.size)
        return;
    while (!is_vote(&all[speaker]))
        speaker++;
    self.parting = true; // nobody is to vote again
    if (speaker == self.rank)
        die(EXIT_TROUBLE,
            "rank %u has sent status %ld, signal %ld: no rank sends that, so another "
            "program has connected as rank %u",
            bad, (long)all[bad].status, (long)all[bad].signal, bad);
    exit(EXIT_TROUBLE);
}

/* At exit, behind all else: a launcher may end whoever is left when the first has gone. */
static void
part(void)
{
    if (self.parting)
        comm_close(&self.comm);
}

/* From the thread that watches the others. */
static void
end_here(int status, const char *words)
{
    if (words)
        cmd_print(words);
    guard_end(&cmd_guard);
    _exit(status);
}

static bool
join_sockets(void)
{
    static const struct comm_ending ending = { end_here, cmd_fails_by };
    if (meet_all(&self.meet, &self.err) < 0 ||
        comm_sockets(&self.comm, &self.meet, self.comm.patience, &ending, &self.err) <
            0 ||
        atexit(part) != 0)
        return false;
    return self.joined = true;
}

/* Whether MPI knows of all ranks that the launcher has started. */
static bool
join_mpi(void)
{
    double patience = self.comm.patience;
    if (comm_mpi(&self.comm, &self.err) < 0 || atexit(part) != 0)
        return false;
    self.comm.patience = patience;
    self.joined = self.comm.size == self.size && self.comm.rank == self.rank;
    self.parting = !self.joined;
    return self.joined;
}

static bool
join(void)
{
    self.tried = true;
    return self.gpus ? join_sockets() : join_mpi();
}

/* What a rank says that fails before it has joined the others, and cannot join them by MPI. */
struct last_words {
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
        end_here(last->status, last->words);
    return NULL;
}

/* Join, in order to fail together.  MPI begins when all begin it, which ranks with GPUs never
 * do: then this rank ends alone, and its launcher ends the others. */
static bool
join_late(int status, const char *words)
{
    static struct last_words last;
    enum { TO_COME = 10 }; // seconds
    pthread_t thread;
    if (self.meet.patience <= 0)
        self.meet.patience = TO_COME;
    if (self.gpus)
        return join();
    last = (struct last_words){ .status = status, .words = words };
    if (pthread_create(&thread, NULL, say_later, &last) != 0)
        return false;
    bool joined = join();
    if (atomic_exchange(&last.over, true))
        pause(); // the thread ends this process
    return joined;
}

/* An error, of options perhaps, ends this rank: tell the others, who then end, too. */
static void
fail(int *status, const char *words)
{
    const struct vote own = { .status = *status };
    if (self.parting || self.working || (!self.tried && !join_late(*status, words)) ||
        !self.joined) {
        cmd_print(words);
        if (self.working)
            comm_abort(&self.comm, *status);
        return;
    }
    struct vote *all = vote(&own);
    unsigned first = first_failed(all);
    if (first < self.rank)
        *status = all[first].status;
    else
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
    check_votes(all);
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
 * order, and the version comes first.  Both texts end in NUL; that of rank 0 may have any bytes. */
static void
compare(const char *facts, const char *theirs)
{
    while (*facts) {
        size_t n = strcspn(facts, "\n"), m = strcspn(theirs, "\n");
        struct slice own = value_of(facts, n), other = value_of(theirs, m);
        char q[TEXT_QUOTE]; // the text of another process may have any bytes
        if (n != m || memcmp(facts, theirs, n) != 0 || theirs[m] != facts[n])
            die(EXIT_TROUBLE, "%.*s: %.*s here, rank 0 has %s: ranks must be alike",
                (int)strcspn(facts, "\t\n"), facts, (int)own.n, own.p,
                text_quote(q, other.p, other.n));
        facts += n + (facts[n] == '\n');
        theirs += m + (theirs[m] == '\n');
    }
}

enum { FACTS_MAX = 1 << 20 }; // bytes; they are a few lines

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
        if (n > FACTS_MAX) {
            self.working = true; // what is at that port does not vote
            die(EXIT_TROUBLE,
                "rank 0 has sent %llu bytes of facts to compare: no rank sends that, "
                "so another program has its port",
                (unsigned long long)n);
        }
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

/* One of several, from here on. */
static void
be_rank(void)
{
    cmd_set_rank(self.rank);
    cmd_set_end(fail);
    if (self.rank > 0)
        silence_stdout();
}

void
ranks_begin(void)
{
    self.meet.listening = -1;
    self.launcher = launcher_find(&self.rank, &self.size, &self.local);
    if (self.size > 1)
        be_rank();
}

void
ranks_want_gpus(const char **device, const char *rendezvous)
{
    if (strcmp(*device, "auto") != 0 && strcmp(*device, "cuda") != 0)
        misuse("--gpus: takes GPUs from cuda:0 on: expected no --device %s", *device);
    if (rendezvous)
        misuse("--gpus: its processes find each other: expected no --rendezvous");
    *device = "cuda";
}

void
ranks_start(unsigned n, bool plan)
{
    if (self.launcher)
        misuse("--gpus: %s has started this process as rank %u of %u: expected one of "
               "the two",
               self.launcher->name, self.rank, self.size);
    if (n == 1)
        return;
    self.launcher = &own_launcher;
    self.size = self.local = n;
    if (plan) {
        comm_one(&self.comm, &self.err);
        self.comm.size = n;
        self.planning = true;
        return;
    }
    self.gpus = true;
    launcher_name_own(&self.meet);
    self.meet.host = "127.0.0.1";
    self.meet.listening = meet_listen(&self.meet.port, &self.err);
    if (self.meet.listening < 0)
        die_err(&self.err);
    self.rank = spawn_ranks(n, self.meet.listening);
    if (self.rank) {
        close(self.meet.listening);
        self.meet.listening = -1;
    }
    be_rank();
}

/* It is so for all, but there may be no others: the environment may be left over. */
static _Noreturn void
refuse_mpi(void)
{
    if (self.rank == 0 || self.comm.size == 1)
        die(EXIT_TROUBLE,
            "the environment says that %s has started %u ranks, MPI knows of %u: for "
            "ranks on CPUs start with the mpirun of the MPI that this was built with, "
            "or srun --mpi=pmix; for one process unset the launcher's variables",
            self.launcher->name, self.size, self.comm.size);
    exit(EXIT_TROUBLE);
}

void
ranks_join(double patience, double to_come, bool gpus, const char *rendezvous)
{
    self.comm.patience = patience;
    self.meet.patience = to_come;
    if (rendezvous) // also where it is not used
        launcher_take_place(&self.meet, rendezvous);
    if (self.size == 1 || self.planning)
        return;
    if (gpus && !self.gpus)
        launcher_place(&self.meet, self.launcher, rendezvous, self.local == self.size);
    self.gpus = gpus;
    self.meet.rank = self.rank;
    self.meet.size = self.size;
    if (join())
        return;
    if (self.err.kind)
        die(cmd_status(&self.err), "%u ranks, started by %s: %s", self.size,
            self.launcher->name, self.err.msg);
    refuse_mpi();
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

static int
choose_gpu(void)
{
    char why[512];
    int n = kernels_cuda_count(why, sizeof why);
    unsigned local = launcher_local(self.launcher, self.rank);
    if (self.joined && n == 0 && self.launcher == &own_launcher)
        die(EXIT_TROUBLE, "%s: %s", self.launcher->name, why);
    if (!self.joined || n < 2)
        return 0;
    if (local >= (unsigned)n)
        die(EXIT_TROUBLE,
            "there is no GPU for it: this machine has %d, and it is rank %u here, from "
            "0 "
            "on: expected at most a rank a GPU",
            n, local);
    return (int)local;
}

static void
check_gpu(int number)
{
    char name[64];
    size_t *at = cmd_alloc((size_t)self.size + 1, sizeof *at);
    uint8_t(*all)[GPU_UUID] = cmd_alloc(self.size, sizeof *all);
    static const uint8_t unknown[GPU_UUID];
    for (unsigned q = 0; q <= self.size; q++)
        at[q] = q * sizeof *all;
    ranks_meet(0);
    kernels_cuda_identity(number, all[self.rank], name, sizeof name);
    if (self.joined && comm_gather(&self.comm, all, at) < 0)
        die_err(&self.err);
    for (unsigned q = 0; q < self.rank; q++)
        if (memcmp(all[q], unknown, GPU_UUID) != 0 &&
            memcmp(all[q], all[self.rank], GPU_UUID) == 0)
            die(EXIT_TROUBLE,
                "cuda:%d is the GPU of rank %u, too: expected another for each: "
                "--device cuda:N, or what the launcher shows to each rank",
                number, q);
    free(all);
    free(at);
    ranks_meet(0);
}

void
ranks_settle_gpu(const char *device, int *number)
{
    if (!strchr(device, ':'))
        *number = choose_gpu();
    check_gpu(*number);
}

/* For struct company: ctx is that of the device. */
static bool
gather(void *ctx, void *all, size_t each)
{
    struct kernels *k = ctx;
    size_t *at = calloc((size_t)self.size + 1, sizeof *at);
    if (!at) {
        err_set(k->err, ERR_MEMORY, "out of memory for ranks");
        return false;
    }
    for (unsigned q = 0; q <= self.size; q++)
        at[q] = q * each;
    int rc = comm_gather(&self.comm, all, at);
    free(at);
    if (rc < 0)
        err_set(k->err, self.err.kind, "%s", self.err.msg);
    return rc == 0;
}

static void
check_exchange(void)
{
    const char *way = getenv("NIBBLE_EXCHANGE");
    char q[TEXT_QUOTE];
    if (way && *way && strcmp(way, "copies") != 0 && strcmp(way, "nccl") != 0)
        die(EXIT_TROUBLE,
            "NIBBLE_EXCHANGE=\"%s\": want copies or nccl, by which ranks exchange",
            text_quote(q, way, strlen(way)));
}

void
ranks_join_gpus(struct kernels *k, bool verbose)
{
    const struct company all = { self.rank, self.size, gather, k };
    uint8_t id[PEERS_ID] = { 0 };
    char why[512] = "";
    if (!self.joined || !self.gpus)
        return;
    check_exchange();
    ranks_meet(0);
    ranks_begin_work();
    int copies = kernels_join_copies(k, &all, why, sizeof why);
    if (copies < 0)
        die_err(k->err);
    ranks_end_work();
    if (verbose && copies)
        warn("GPUs exchange by copies into each other's memory");
    else if (verbose)
        warn("GPUs exchange by NCCL; not by copies: %s", why);
    if (copies)
        return;
    if (self.rank == 0 && !kernels_cuda_peers_id(id, why, sizeof why))
        die(EXIT_TROUBLE, "%s", why);
    ranks_meet(0);
    ranks_begin_work();
    if (comm_broadcast(&self.comm, id, sizeof id) < 0)
        die_err(&self.err);
    if (kernels_join(k, self.rank, self.size, id) < 0)
        die_err(k->err);
    ranks_end_work();
}

/* ---- work -------------------------------------------------------------------------------------- */

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
