/* SPDX-License-Identifier: MIT */
/* ranks: see ranks.h. */
#include "cmd/cli/ranks.h"

#include "cmd/cli/cmd.h"
#include "cmd/cli/spawn.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ranks self;

/* ---- how this process ends ---------------------------------------------------------------- */

static void
part(void)
{
    ranks_part(&self);
}

/* Behind MPI's own functions for the exit, which it registers when it begins. */
static void
part_at_exit(void)
{
    static bool registered;
    if (!registered && atexit(part) != 0)
        cmd_print("out of memory at the end of ranks");
    registered = true;
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

/* An error ends this rank. */
static void
tell(int *status, const char *words)
{
    struct err err = { 0 };
    bool speaks = ranks_tell(&self, status, words, &err);
    part_at_exit();
    if (err.kind)
        *status = cmd_status(&err);
    if (speaks)
        cmd_print(err.kind ? err.msg : words);
    ranks_abort(&self, *status);
}

void
cmd_ranks_die(const struct err *err)
{
    if (err->kind == ERR_ELSEWHERE)
        exit(self.status ? self.status : EXIT_TROUBLE);
    die_err(err);
}

/* ---- begin and end -------------------------------------------------------------------------- */

/* Other ranks than 0 write nothing to standard output. */
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
    cmd_set_end(tell);
    if (self.rank > 0)
        silence_stdout();
}

struct ranks *
cmd_ranks(void)
{
    static const struct comm_ending ending = { end_here, cmd_fails_by };
    struct err err = { 0 };
    if (self.size)
        return &self;
    if (ranks_find(&self, &ending, &err) < 0)
        die_err(&err);
    if (self.size > 1)
        be_rank();
    return &self;
}

void
cmd_ranks_want_gpus(const char **device, const char *rendezvous)
{
    if (strcmp(*device, "auto") != 0 && strcmp(*device, "cuda") != 0)
        misuse("--gpus: takes GPUs from cuda:0 on: expected no --device %s", *device);
    if (rendezvous)
        misuse("--gpus: its processes find each other: expected no --rendezvous");
    *device = "cuda";
}

void
cmd_ranks_start(unsigned n, bool plan)
{
    struct err err = { 0 };
    if (self.launcher)
        misuse("--gpus: %s has started this process as rank %u of %u: expected one of "
               "the two",
               ranks_launcher(&self), self.rank, self.size);
    if (n == 1)
        return;
    if (plan) {
        ranks_plan(&self, n);
        return;
    }
    if (ranks_start(&self, n, &err) < 0)
        die_err(&err);
    ranks_be(&self, spawn_ranks(n, self.meet.listening));
    be_rank();
}

void
cmd_ranks_join(double patience, double to_come, bool gpus, const char *rendezvous)
{
    struct err err = { 0 };
    int rc = ranks_join(&self, patience, to_come, gpus, rendezvous, &err);
    if (self.tried)
        part_at_exit();
    if (rc < 0)
        cmd_ranks_die(&err);
}

void
cmd_ranks_report(void)
{
    if (self.joined)
        warn("%u ranks, started by %s, on %s", self.size, ranks_launcher(&self),
             self.gpus ? "GPUs" : "CPUs by MPI");
}

void
cmd_ranks_leave(void)
{
    struct err err = { 0 };
    if (ranks_leave(&self, &err) < 0)
        cmd_ranks_die(&err);
}
