/* SPDX-License-Identifier: MIT */
/* defaults: files of the model: generation_config.json, and the hash of the tokenizer that a
 * checkpoint was trained with. */
#ifndef NIBBLE_INFER_DEFAULTS_H
#define NIBBLE_INFER_DEFAULTS_H

#include "lib/infer/session.h"

/* Values of generation_config.json where no option was given. */
int defaults_read(struct session *s);
/* The path of a file in the model's directory or beside the model. */
int defaults_beside(struct buf *path, const struct session *s, const char *leaf);

/* Whether a checkpoint holds the hash of another tokenizer. */
int defaults_tokenizer(struct session *s, const uint8_t sha256[SHA256_BYTES],
                       bool *other);

#endif
