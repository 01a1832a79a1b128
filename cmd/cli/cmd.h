/* SPDX-License-Identifier: MIT */
/* cmd: what all commands share: messages, exit codes, signals, checked output. */
#ifndef NIBBLE_CMD_CLI_CMD_H
#define NIBBLE_CMD_CLI_CMD_H

#include "cmd/cli/option.h"
#include "lib/base/err.h"
#include "lib/base/host.h"
#include "lib/base/isa.h"
#include "lib/base/json.h"
#include "lib/file/guard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum cmd_exit {
    EXIT_DONE = 0,
    EXIT_NO = 1, // the answer is no: differs, does not verify
    EXIT_TROUBLE = 2,
    EXIT_MEMORY = 3,
    EXIT_NONFINITE = 4,
    EXIT_PREEMPTED = 75,
};

extern struct guard cmd_guard;

/* Set the program's name, install the signal handlers. */
void cmd_begin(struct cmd *c);
const char *cmd_program(void); // its name
const char *cmd_version(void);
/* Die of that signal after removing temporary files; safe in handlers. */
_Noreturn void cmd_die_by_signal(int sig);

/* One of several processes: other ranks than 0 have their number in their messages, and do not
 * warn, since they would say what rank 0 says. */
void cmd_set_rank(unsigned rank);
/* Called with the words of what ends this program, which it may print, and the exit status, which
 * it may change. */
typedef void cmd_end_fn(int *status, const char *words);
void cmd_set_end(cmd_end_fn *fn);
void cmd_print(const char *words);

/* One line "name: words" on stderr, then the end.  A final colon appends strerror. */
_Noreturn void die(int status, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Misuse: what was expected; exit 2. */
_Noreturn void misuse(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Lines of library warnings, each with the program's name before it. */
void warn_lines(const struct buf *lines);
int cmd_status(const struct err *err);
/* Whether a program of ours that does not succeed can have that exit status. */
bool cmd_fails_by(int status);
_Noreturn void die_err(const struct err *err);

/* The fastest instruction set that this CPU and NIBBLE_ISA allow. */
enum isa cmd_isa(void);

/* stdout, flushed and checked: a full disk ends with 2. */
void cmd_close_stdout(void);
/* Binary data does not go to a terminal. */
void cmd_refuse_terminal(void);
/* Write a buffer of text to stdout and empty it.  On a terminal control characters are
 * escaped. */
void cmd_flush(struct buf *b);
/* n zeroed items, or the end of the program; free them. */
void *cmd_alloc(size_t n, size_t size) __attribute__((returns_nonnull));
/* -o OUT is missing, perhaps because OUT was given as an operand. */
_Noreturn void cmd_refuse_without_output(int n_operands, char **operand);
/* The operand is missing, named as in the synopsis. */
_Noreturn void cmd_refuse_without(const char *operand, const struct cmd *c);
/* A copy of a string for the life of the program. */
char *cmd_copy(const char *text);

/* This program as the host of the libraries; c->quiet and the like are settled by now. */
const struct host *cmd_host(const struct cmd *c);
/* This program as the host of the libraries, with `isa` in place of what NIBBLE_ISA says: a program
 * that computes nothing does not read that variable. */
const struct host *cmd_host_of(const struct cmd *c, enum isa isa);

/* A progress line is on the terminal; messages clear it, and so must all other output to the
 * terminal. */
void progress_shown(void);
void progress_clear(void);

#endif
