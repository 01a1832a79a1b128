/* SPDX-License-Identifier: MIT */
/* edit: messages that a user types at a terminal: with editing and history by libedit where the
 * program was built with it, else as the terminal gives them.
 *
 * A message is a line.  It goes on in the next one if it ends in a single backslash; a paste that the
 * terminal marks as one (bracketed paste) is a part of one message, whatever lines it has.
 *
 * Standard input is a terminal; the prompt is shown on standard error.  There is one at a time:
 * it has the handlers of signals. */
#ifndef NIBBLE_CMD_GENERATE_EDIT_H
#define NIBBLE_CMD_GENERATE_EDIT_H

#include "cmd/cli/cmd.h"

#include <signal.h>

struct edit;

/* What edits lines, as the words of an option's help: the name is that of i == 0. */
const char *edit_name(size_t i);
/* Set by Ctrl-C, which does not end the program from edit_open to edit_close. */
extern volatile sig_atomic_t edit_interrupted;

/* history: a file that earlier messages are read from and new ones are appended to; NULL: no file.
 * Returns NULL with *err. */
struct edit *edit_open(const struct cmd *c, const char *history, struct err *err);
/* 1 with the next message, NUL-terminated and good until the call after it; 0 at the end, -1 with
 * *err.  Line ends behind it are removed.  Ctrl-C discards what was typed. */
int edit_message(struct edit *e, struct slice *message, struct err *err);
void edit_close(struct edit *e);

#endif
