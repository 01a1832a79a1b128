/* SPDX-License-Identifier: MIT */
/* gguf_vocab: the key-value pairs of a GGUF about its model: configuration, vocabulary,
 * merges, chat template.  The writer puts them into the file as they are (wmeta.gguf). */
#ifndef NIBBLE_LOAD_GGUF_VOCAB_H
#define NIBBLE_LOAD_GGUF_VOCAB_H

#include "lib/base/err.h"
#include "lib/file/guard.h"
#include "lib/format/gguf.h"
#include "lib/model/config.h"

#include <stddef.h>

/* The first tokenizer.json in one of the places, if that is a directory, else beside it:
 * *path, to be freed.  ERR_USAGE with all names that were tried if there is no such file.
 * NULL and "-" are skipped. */
int gguf_find_tokenizer(char **path, char *const *places, size_t n, struct err *err);

/* All pairs but those that the writer makes itself.  The tokenizer must be one that
 * lib/text can encode with, and fit the vocabulary of c; the chat template is that of
 * tokenizer_config.json or chat_template.jinja beside it.  Call gguf_kv_free in any
 * case. */
int gguf_vocab(struct gguf_kv *kv, const struct config *c, const char *tokenizer,
               struct guard *g, struct err *err);

#endif
