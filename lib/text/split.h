/* SPDX-License-Identifier: MIT */
/* split: the pre-tokenizer, the one regular expression of the Qwen family by hand:
 *
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}
 *   | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 */
#ifndef NIBBLE_TEXT_SPLIT_H
#define NIBBLE_TEXT_SPLIT_H

#include <stddef.h>

/* The regular expression as it stands in tokenizer.json. */
extern const char split_regex[];

/* Length of the piece that a text begins with.  pre: n > 0, valid UTF-8. */
size_t split_piece(const char *text, size_t n);

#endif
