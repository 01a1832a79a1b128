/* SPDX-License-Identifier: MIT */
/* gguf_vocab: the key-value pairs by which a GGUF tells of its model: configuration,
 * vocabulary, merges, chat template.  The writer puts them into the file as they are
 * (wmeta.gguf). */
#ifndef NIBBLE_IO_GGUF_VOCAB_H
#define NIBBLE_IO_GGUF_VOCAB_H

#include "lib/core/err.h"
#include "lib/core/guard.h"
#include "lib/format/gguf.h"
#include "lib/model/config.h"

#include <stddef.h>

/* The first tokenizer.json that stands in one of the places, if that is a directory, or
 * beside it: *path, to be freed.  ERR_USAGE with all names that were tried if there is
 * none.  An empty list and "-" are no places. */
int gguf_find_tokenizer(char **path, char *const *places, size_t n, struct err *err);

/* All pairs but those that the writer makes itself.  The tokenizer must be one of the
 * family that encode() knows and fit the vocabulary of c; a chat template is taken from
 * tokenizer_config.json or chat_template.jinja beside it.  gguf_kv_free is right
 * whatever happened. */
int gguf_vocab(struct gguf_kv *kv, const struct config *c, const char *tokenizer,
               struct guard *g, struct err *err);

#endif
