/* SPDX-License-Identifier: MIT */
/* elsewhere: options and values of other programs that people type, and what they are here.
 *
 * The table has words of transformers, TRL, axolotl, Unsloth, llama.cpp, vLLM and of the
 * TorchSharp scripts.  Capitals, hyphens and underscores make no difference.
 */
#ifndef NIBBLE_CMD_CLI_ELSEWHERE_H
#define NIBBLE_CMD_CLI_ELSEWHERE_H

#include "cmd/cli/option.h"
#include "lib/base/buf.h"

/* Append what the option is in program c: "unknown option: here it is --lr X: ..." or "no such option
 * here: ...".  name has n bytes, with its hyphens.  False if the table does not have it. */
bool elsewhere_option(struct buf *out, const struct cmd *c, const char *name, size_t n);
/* Append what a value of one of our options is here: "here it is f16" or "unknown here: ...".  False if the
 * table does not have it. */
bool elsewhere_value(struct buf *out, const char *program, const char *option,
                     const char *value);
/* Copy the n bytes of name, with small letters and hyphens, and a NUL behind them. */
void elsewhere_fold(char *to, const char *name, size_t n);

#endif
