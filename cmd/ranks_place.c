/* SPDX-License-Identifier: MIT */
/* ranks_place: see ranks_place.h. */
#include "cmd/ranks_place.h"

#include "cmd/cmd.h"
#include "lib/core/num.h"
#include "lib/core/text.h"

#include <stdlib.h>
#include <string.h>

/* The first that fits: an mpirun within a job of Slurm is mpirun.  A script of Slurm's has a rank
 * before srun has started anything, but no step. */
static const struct launcher launchers[] = {
    { "mpirun",
      "OMPI_COMM_WORLD_RANK",
      "OMPI_COMM_WORLD_SIZE",
      "OMPI_COMM_WORLD_LOCAL_SIZE",
      "OMPI_COMM_WORLD_LOCAL_RANK",
      NULL,
      { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid" } },
    { "torchrun",
      "RANK",
      "WORLD_SIZE",
      "LOCAL_WORLD_SIZE",
      "LOCAL_RANK",
      "MASTER_ADDR",
      { "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT" } },
    { "srun",
      "SLURM_PROCID",
      "SLURM_NTASKS",
      NULL,
      "SLURM_LOCALID",
      "SLURM_STEP_ID",
      { "SLURM_JOB_ID", "SLURM_STEP_ID" } },
    { "mpiexec",
      "PMI_RANK",
      "PMI_SIZE",
      "MPI_LOCALNRANKS",
      "MPI_LOCALRANKID",
      NULL,
      { "PMI_JOBID", "HYDRA_JOBID" } },
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
        misuse("%s=%s in the environment: want a number below %u", name,
               text_quote(q, text, strlen(text)), limit);
    return (unsigned)v;
}

const struct launcher *
launcher_find(unsigned *rank, unsigned *size, unsigned *local)
{
    *rank = *local = 0;
    *size = 1;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *l = &launchers[i];
        if (!getenv(l->rank) || !getenv(l->size) || (l->other && !getenv(l->other)))
            continue;
        unsigned n = number_of(l->size, RANKS_MAX);
        *rank = number_of(l->rank, n ? n : 1);
        if (l->local)
            *local = number_of(l->local, RANKS_MAX);
        *size = n ? n : 1;
        return n > 1 ? l : NULL;
    }
    return NULL;
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

static void
name_job(struct meet *m, const struct launcher *l)
{
    const char *a = l->job[0] ? getenv(l->job[0]) : NULL;
    const char *b = l->job[1] ? getenv(l->job[1]) : NULL;
    memset(m->job, 0, sizeof m->job);
    snprintf(m->job, sizeof m->job, "%s %s %s", l->name, a ? a : "", b ? b : "");
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
