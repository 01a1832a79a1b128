/* SPDX-License-Identifier: MIT */
/* start: the command begins as it would without memguard, and signals find it. */
#ifndef NIBBLE_CMD_MEMGUARD_START_H
#define NIBBLE_CMD_MEMGUARD_START_H

#include "cmd/memguard/tree.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* What we were given: what the command must find again. */
struct inherited {
    struct sigaction actions[NSIG];
    sigset_t mask;
    bool closed[3]; // standard descriptors
};

/* Before anything is changed. */
void start_note(struct inherited *in);
/* From here on the signals of `waited` are taken by wait_signal only. */
void start_block(sigset_t *waited);

/* Start the command.  Its pid, or -1 with *error: errno of an exec that failed (then
 * `execs` is true) or of a fork. */
pid_t start_command(const struct inherited *in, char *const *command, struct tree *t,
                    bool *execs, int *error);

/* A child in our process group that says which signals it got.  Whoever signals the
 * whole group (a terminal, timeout(1), a service manager) reaches the command, too;
 * passing that on would make two of one, and a second SIGTERM means "at once" to
 * trainstep.  -1: there is none. */
struct witness {
    pid_t pid;
    int fd;
    double saw[NSIG]; // when it got each signal last
};
void witness_start(struct witness *w);
/* Whether it got that signal, too, about now. */
bool witness_saw(struct witness *w, int sig);

#endif
