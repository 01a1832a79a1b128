/* SPDX-License-Identifier: MIT */
/* launcher: see launcher.h. */
#include "lib/dist/launcher.h"

#include "lib/base/buf.h"
#include "lib/base/hash.h"
#include "lib/base/num.h"
#include "lib/base/text.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* The first that fits: an mpirun or mpiexec within a job of Slurm, whose own processes srun may have
 * started, is the launcher.  A script of Slurm's has a rank before srun has started anything, but no
 * step.  A step's number of tasks is not SLURM_NTASKS: salloc's shell may be a step of one task, in
 * which that is the number of the allocation. */
static const struct launcher launchers[] = {
    { .name = "mpirun",
      .rank = "OMPI_COMM_WORLD_RANK",
      .size = "OMPI_COMM_WORLD_SIZE",
      .local = "OMPI_COMM_WORLD_LOCAL_SIZE",
      .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
      .job = { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid" } },
    { .name = "torchrun",
      .rank = "RANK",
      .size = "WORLD_SIZE",
      .local = "LOCAL_WORLD_SIZE",
      .local_rank = "LOCAL_RANK",
      .other = "MASTER_ADDR",
      .job = { "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT" } },
    { .name = "mpiexec",
      .rank = "PMI_RANK",
      .size = "PMI_SIZE",
      .local = "MPI_LOCALNRANKS",
      .local_rank = "MPI_LOCALRANKID",
      .other = "MPI_LOCALNRANKS",
      .job = { "PMI_JOBID", "HYDRA_JOBID" } },
    { .name = "srun",
      .rank = "SLURM_PROCID",
      .size = "SLURM_STEP_NUM_TASKS",
      .locals = "SLURM_GTIDS",
      .local_rank = "SLURM_LOCALID",
      .cpus = "SLURM_CPUS_ON_NODE",
      .other = "SLURM_STEP_ID",
      .job = { "SLURM_JOB_ID", "SLURM_STEP_ID" } },
    { .name = "mpiexec",
      .rank = "PMI_RANK",
      .size = "PMI_SIZE",
      .job = { "PMI_JOBID", "HYDRA_JOBID" } },
};

enum { RANKS_MAX = 1 << 16 };

/* A number of the environment below limit; 0 if it is not there. */
static int
number_of(const char *name, unsigned limit, unsigned *number, struct err *err)
{
    const char *text = getenv(name);
    char q[TEXT_QUOTE];
    uint64_t v = 0;
    if (text && (!num_u64(&v, text) || v >= limit))
        return err_set(err, ERR_USAGE,
                       "%s=\"%s\" in the environment: want a number below %u", name,
                       text_quote(q, text, strlen(text)), limit);
    *number = (unsigned)v;
    return 0;
}

/* How many a list has, as 4,5,6; 0 if it is not there. */
static unsigned
count_of(const char *name)
{
    const char *list = getenv(name);
    unsigned n = list && *list ? 1 : 0;
    for (; n && *list; list++)
        n += *list == ',';
    return n;
}

/* The command was typed in a shell on the terminal that srun --pty gives to its first task: the
 * shell's variables are those of the task, whose companions have most likely ended.  A shell gives
 * the terminal to what is typed; a task, or what a script runs, has it from its task's beginning. */
static bool
typed_in_task(void)
{
    const char *text = getenv("SLURM_TASK_PID");
    uint64_t task = 0;
    if (!getenv("SLURM_PTY_PORT") || !text || !num_u64(&task, text) || task > INT_MAX)
        return false;
    int tty = open("/dev/tty", O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (tty < 0)
        return false;
    bool foreground = tcgetpgrp(tty) == getpgrp();
    close(tty);
    pid_t group = getpgid((pid_t)task);
    return foreground && group > 0 && group != getpgrp();
}

static bool
fits(const struct launcher *l)
{
    return getenv(l->rank) && getenv(l->size) && (!l->other || getenv(l->other)) &&
           (strcmp(l->name, "srun") != 0 || !typed_in_task());
}

static int
read_numbers(const struct launcher *l, unsigned *rank, unsigned *size, unsigned *local,
             struct err *err)
{
    if (number_of(l->size, RANKS_MAX, size, err) < 0)
        return -1;
    if (*size == 0)
        *size = 1;
    if (number_of(l->rank, *size, rank, err) < 0)
        return -1;
    if (l->locals)
        *local = count_of(l->locals);
    return l->local ? number_of(l->local, RANKS_MAX, local, err) : 0;
}

int
launcher_find(const struct launcher **l, unsigned *rank, unsigned *size,
              unsigned *local, struct err *err)
{
    size_t i = 0, n = sizeof launchers / sizeof *launchers;
    *l = NULL;
    *rank = *local = 0;
    *size = 1;
    while (i < n && !fits(&launchers[i]))
        i++;
    if (i == n)
        return 0;
    if (read_numbers(&launchers[i], rank, size, local, err) < 0)
        return -1;
    if (*size > 1)
        *l = &launchers[i];
    return 0;
}

unsigned
launcher_cpus(const struct launcher *l)
{
    const char *text = l && l->cpus ? getenv(l->cpus) : NULL;
    uint64_t n = 0;
    return text && num_u64(&n, text) && n < RANKS_MAX ? (unsigned)n : 0;
}

int
launcher_local(const struct launcher *l, unsigned rank, unsigned *local,
               struct err *err)
{
    *local = rank;
    if (!l || !l->local_rank || !getenv(l->local_rank))
        return 0;
    return number_of(l->local_rank, RANKS_MAX, local, err);
}

/* ---- where rank 0 is ------------------------------------------------------------------------ */

enum { PORTS = 1 << 16 };
/* Ports are chosen by the run's name, below the ports that systems give away. */
enum { FIRST_PORT = 12000, CHOSEN_PORTS = 16000 };

/* The first n bytes of text as the host of m. */
static bool
set_host(struct meet *m, const char *text, size_t n)
{
    if (n == 0 || n >= sizeof m->host)
        return false;
    memcpy(m->host, text, n);
    m->host[n] = '\0';
    return true;
}

int
launcher_take_place(struct meet *m, const char *given, struct err *err)
{
    const char *colon = strrchr(given, ':'), *host = given;
    char q[TEXT_QUOTE];
    uint64_t port = 0;
    size_t n = colon ? (size_t)(colon - given) : 0;
    if (n > 1 && *given == '[' && colon[-1] == ']') { // of IPv6
        host++;
        n -= 2;
    }
    if (!colon || !num_u64(&port, colon + 1) || port == 0 || port >= PORTS ||
        !set_host(m, host, n))
        return err_set(err, ERR_USAGE, "--rendezvous: %s: expected HOST:PORT of rank 0",
                       text_quote(q, given, strlen(given)));
    m->port = (unsigned)port;
    return 0;
}

/* A host that a launcher names. */
static int
take_host(struct meet *m, const char *host, size_t n, struct err *err)
{
    char q[TEXT_QUOTE];
    if (set_host(m, host, n))
        return 0;
    return err_set(err, ERR_USAGE, "the host of rank 0, \"%s\": want 1 to %zu bytes",
                   text_quote(q, host, n), sizeof m->host - 1);
}

/* Torchrun's agent listens at the port that it tells, if its workers are to use its store. */
static int
take_master(struct meet *m, struct err *err)
{
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    const char *named = getenv("MASTER_ADDR"), *host = named ? named : "";
    if (number_of("MASTER_PORT", PORTS - 1, &m->port, err) < 0)
        return -1;
    if (agent && strcmp(agent, "True") == 0)
        m->port++;
    return take_host(m, host, strlen(host), err);
}

/* The first of Slurm's list of hosts: a,b or a[03-07,9],b or a. */
static int
take_first(struct meet *m, const char *list, struct err *err)
{
    size_t name = strcspn(list, "[,");
    if (list[name] != '[')
        return take_host(m, list, name, err);
    const char *first = list + name + 1;
    size_t number = strcspn(first, "-,]"), end = strcspn(list, "]");
    const char *behind = list[end] ? list + end + 1 : "";
    size_t more = strcspn(behind, ",");
    struct buf whole = { 0 };
    buf_add(&whole, list, name);
    buf_add(&whole, first, number);
    buf_add(&whole, behind, more);
    int rc = whole.failed ? err_set(err, ERR_MEMORY, "out of memory")
                          : take_host(m, whole.data, whole.len, err);
    buf_free(&whole);
    return rc;
}

static unsigned
port_of(const char *job)
{
    unsigned h = 0;
    for (; *job; job++)
        h = h * 31 + (unsigned char)*job;
    return FIRST_PORT + h % CHOSEN_PORTS;
}

/* A name that is too long is replaced by its hash, since names of two jobs may differ at the end. */
static int
name_job(struct meet *m, const struct launcher *l, struct err *err)
{
    const char *a = l->job[0] ? getenv(l->job[0]) : NULL;
    const char *b = l->job[1] ? getenv(l->job[1]) : NULL;
    uint8_t digest[XXH3_BYTES];
    struct buf name = { 0 };
    buf_printf(&name, "%s %s %s", l->name, a ? a : "", b ? b : "");
    if (name.failed)
        return err_set(err, ERR_MEMORY, "out of memory");
    memset(m->job, 0, sizeof m->job);
    if (name.len < sizeof m->job) {
        memcpy(m->job, name.data, name.len);
    } else {
        xxh3_128(digest, name.data, name.len);
        hash_hex(m->job, digest, sizeof digest);
    }
    buf_free(&name);
    return 0;
}

int
launcher_name_own(struct meet *m, struct err *err)
{
    uint8_t secret[(sizeof m->job - 1) / 2];
    if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret)
        return err_set(err, ERR_IO, "random bytes for the name of the run:");
    hash_hex(m->job, secret, sizeof secret);
    return 0;
}

int
launcher_place(struct meet *m, const struct launcher *l, const char *given,
               bool one_host, struct err *err)
{
    static const char here[] = "127.0.0.1";
    const char *hosts = getenv("SLURM_STEP_NODELIST");
    hosts = hosts ? hosts : getenv("SLURM_NODELIST");
    if (name_job(m, l, err) < 0)
        return -1;
    m->port = port_of(m->job);
    if (given)
        return launcher_take_place(m, given, err);
    if (getenv("MASTER_ADDR") && getenv("MASTER_PORT"))
        return take_master(m, err);
    if (one_host)
        return take_host(m, here, strlen(here), err);
    if (hosts && strcmp(l->name, "srun") == 0)
        return take_first(m, hosts, err);
    return err_set(err, ERR_USAGE,
                   "%s does not say at which host rank 0 is: expected --rendezvous "
                   "HOST:PORT",
                   l->name);
}
