/* SPDX-License-Identifier: MIT */
/* unknown: options that a program does not have, and what was meant by them.
 *
 * The table of elsewhere.h comes first.  A guess is made only when it is close: one or two letters
 * are wrong, or the words of an option are all there.
 */
#ifndef NIBBLE_CMD_CLI_UNKNOWN_H
#define NIBBLE_CMD_CLI_UNKNOWN_H

#include "cmd/cli/option.h"

/* Misuse: getopt_long has returned what ('?' or ':') for argv[optind - 1] or a letter in
 * argv[optind]. */
_Noreturn void unknown_option(const struct cmd *c, int what, char **argv);
/* getopt_long has returned got for an option, perhaps by an abbreviation or by a first letter:
 * misuse if the whole word is an option of another program (--quant, -ngl). */
void unknown_check(const struct cmd *c, int got, char **argv);

#endif
