/* SPDX-License-Identifier: MIT */
/* start: start the command as it would start without memguard, and pass signals on. */
#ifndef NIBBLE_CMD_MEMGUARD_START_H
#define NIBBLE_CMD_MEMGUARD_START_H

#include "cmd/memguard/tree.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Inherited state, which the command gets back. */
struct inherited {
    struct sigaction actions[NSIG];
    sigset_t mask;
    bool closed[3]; // standard descriptors
};

/* Call it before anything is changed. */
void start_note(struct inherited *in);
/* Block the signals of `waited`; from here on wait_signal takes them. */
void start_block(sigset_t *waited);

/* Start the command.  Its pid, or -1 with *error: errno of an exec that failed (then
 * `execs` is true) or of a fork. */
pid_t start_command(const struct inherited *in, char *const *command, struct tree *t,
                    bool *execs, int *error);

/* A child in our process group that reports the signals it got.  Signals to the whole group
 * (from a terminal, timeout(1), a service manager) reach the command, too; passing them on
 * would double them, and a second SIGTERM means "at once" to trainstep.  pid -1: there is none. */
struct witness {
    pid_t pid;
    int fd;
    double saw[NSIG]; // when it got each signal last
};
void witness_start(struct witness *w);
/* Whether it got that signal just now. */
bool witness_saw(struct witness *w, int sig);

#endif
