/* SPDX-License-Identifier: MIT */
/* ranks_place: see ranks_place.h. */
#include "cmd/cli/ranks_place.h"

#include "cmd/cli/cmd.h"
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
static unsigned
number_of(const char *name, unsigned limit)
{
    const char *text = getenv(name);
    char q[TEXT_QUOTE];
    uint64_t v = 0;
    if (text && (!num_u64(&v, text) || v >= limit))
        misuse("%s=\"%s\" in the environment: want a number below %u", name,
               text_quote(q, text, strlen(text)), limit);
    return (unsigned)v;
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

const struct launcher *
launcher_find(unsigned *rank, unsigned *size, unsigned *local)
{
    *rank = *local = 0;
    *size = 1;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *l = &launchers[i];
        if (!fits(l))
            continue;
        unsigned n = number_of(l->size, RANKS_MAX);
        *rank = number_of(l->rank, n ? n : 1);
        if (l->local)
            *local = number_of(l->local, RANKS_MAX);
        else if (l->locals)
            *local = count_of(l->locals);
        *size = n ? n : 1;
        return n > 1 ? l : NULL;
    }
    return NULL;
}

unsigned
launcher_cpus(const struct launcher *l)
{
    const char *text = l && l->cpus ? getenv(l->cpus) : NULL;
    uint64_t n = 0;
    return text && num_u64(&n, text) && n < RANKS_MAX ? (unsigned)n : 0;
}

unsigned
launcher_local(const struct launcher *l, unsigned rank)
{
    bool says = l && l->local_rank && getenv(l->local_rank);
    return says ? number_of(l->local_rank, RANKS_MAX) : rank;
}

/* ---- where rank 0 is ------------------------------------------------------------------------ */

enum { PORTS = 1 << 16 };
/* Ports are chosen by the run's name, below the ports that systems give away. */
enum { FIRST_PORT = 12000, CHOSEN_PORTS = 16000 };

static bool
split_place(char *given, char **host, uint64_t *port)
{
    char *colon = strrchr(given, ':');
    if (!colon || !num_u64(port, colon + 1) || *port == 0 || *port >= PORTS)
        return false;
    *colon = '\0';
    *host = given;
    if (*given == '[' && colon[-1] == ']') { // of IPv6
        colon[-1] = '\0';
        *host = given + 1;
    }
    return **host != '\0';
}

void
launcher_take_place(struct meet *m, const char *given)
{
    char *host = NULL, q[TEXT_QUOTE];
    uint64_t port = 0;
    if (!split_place(cmd_copy(given), &host, &port))
        misuse("--rendezvous: %s: expected HOST:PORT of rank 0",
               text_quote(q, given, strlen(given)));
    m->host = host;
    m->port = (unsigned)port;
}

/* Torchrun's agent listens at the port that it tells, if its workers are to use its store. */
static void
take_master(struct meet *m)
{
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    m->host = getenv("MASTER_ADDR");
    m->port = number_of("MASTER_PORT", PORTS - 1);
    if (agent && strcmp(agent, "True") == 0)
        m->port++;
}

/* The first of Slurm's list of hosts: a,b or a[03-07,9],b or a. */
static char *
first_host(const char *list)
{
    char *host = cmd_copy(list);
    size_t name = strcspn(host, "[,");
    if (host[name] != '[') {
        host[name] = '\0';
        return host;
    }
    size_t number = strcspn(host + name + 1, "-,]");
    size_t end = strcspn(host, "]");
    const char *behind = host[end] ? host + end + 1 : "";
    size_t more = strcspn(behind, ",");
    memmove(host + name, host + name + 1, number);
    memmove(host + name + number, behind, more);
    host[name + number + more] = '\0';
    return host;
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
static void
name_job(struct meet *m, const struct launcher *l)
{
    const char *a = l->job[0] ? getenv(l->job[0]) : NULL;
    const char *b = l->job[1] ? getenv(l->job[1]) : NULL;
    uint8_t digest[XXH3_BYTES];
    struct buf name = { 0 };
    buf_printf(&name, "%s %s %s", l->name, a ? a : "", b ? b : "");
    if (name.failed)
        die(EXIT_MEMORY, "out of memory");
    memset(m->job, 0, sizeof m->job);
    if (name.len < sizeof m->job) {
        memcpy(m->job, name.data, name.len);
    } else {
        xxh3_128(digest, name.data, name.len);
        hash_hex(m->job, digest, sizeof digest);
    }
    buf_free(&name);
}

void
launcher_name_own(struct meet *m)
{
    uint8_t secret[(sizeof m->job - 1) / 2];
    if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret)
        die(EXIT_TROUBLE, "random bytes for the name of the run:");
    hash_hex(m->job, secret, sizeof secret);
}

void
launcher_place(struct meet *m, const struct launcher *l, const char *given,
               bool one_host)
{
    const char *hosts = getenv("SLURM_STEP_NODELIST");
    hosts = hosts ? hosts : getenv("SLURM_NODELIST");
    name_job(m, l);
    m->port = port_of(m->job);
    if (given)
        launcher_take_place(m, given);
    else if (getenv("MASTER_ADDR") && getenv("MASTER_PORT"))
        take_master(m);
    else if (one_host)
        m->host = "127.0.0.1";
    else if (hosts && strcmp(l->name, "srun") == 0)
        m->host = first_host(hosts);
    else
        misuse("%s does not say at which host rank 0 is: expected --rendezvous "
               "HOST:PORT",
               l->name);
}
