/* SPDX-License-Identifier: MIT */
/* tokenizer: byte-level BPE from a tokenizer.json, as Qwen3 has it.
 *
 * Owns the vocabulary, the merges and the added tokens.  Refuses everything that is not
 * of this family (another normaliser, pre-tokenizer, model or decoder) rather than
 * giving other ids than the reference.
 *
 * A struct tokenizer is read-only once open and may be used by many threads; what a
 * thread needs for itself (buffers, the cache of pieces) is a struct encoder.
 */
#ifndef NIBBLE_TEXT_TOKENIZER_H
#define NIBBLE_TEXT_TOKENIZER_H

#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "lib/base/hash.h"
#include "lib/base/text.h"
#include "lib/file/guard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;
struct encoder;

enum { TOKEN_NONE = UINT32_MAX };

/* Load a tokenizer.json.  NULL with *err; messages name file and byte. */
struct tokenizer *tokenizer_open(const char *path, struct guard *g, struct err *err);
void tokenizer_close(struct tokenizer *t);

/* SHA-256 of the file's bytes: names the tokenizer in .tok files and checkpoints. */
void tokenizer_sha256(const struct tokenizer *t, uint8_t digest[SHA256_BYTES]);
/* 1 + the highest id. */
uint32_t tokenizer_vocab(const struct tokenizer *t);
/* The id of an added token by its text ("<|im_end|>"), or TOKEN_NONE. */
uint32_t tokenizer_added(const struct tokenizer *t, const char *text);
/* Bytes of a token: borrowed; p == NULL for an id that has none. */
struct slice tokenizer_bytes(const struct tokenizer *t, uint32_t id);

/* Growing list of ids. */
struct ids {
    uint32_t *v;
    size_t n, cap;
    bool failed; // an allocation failed: see ids_ok
};
void ids_add(struct ids *l, uint32_t id);
void ids_append(struct ids *l, const uint32_t *v, size_t n);
int ids_ok(const struct ids *l, struct err *err);
void ids_free(struct ids *l);

struct encoder *encoder_open(const struct tokenizer *t, struct err *err);
void encoder_close(struct encoder *e);

/* Append the ids of a text that is valid UTF-8 (the caller has checked).
 * parse_special: added tokens inside the text are recognised, leftmost-longest, before
 * normalisation; without it text is text.  -1 only for want of memory. */
int encode(struct encoder *e, struct ids *out, struct slice text, bool parse_special,
           struct err *err);

/* Append the bytes of ids; an id without a token: -1, with its position. */
int decode(const struct tokenizer *t, struct buf *out, const uint32_t *ids, size_t n,
           struct err *err);

/* A decoder for streams: never emits part of a UTF-8 character.  decode_push appends
 * what is complete; decode_finish appends what is left, as it is. */
struct decoder {
    const struct tokenizer *t;
    char held[4];
    unsigned n_held;
};
int decode_push(struct decoder *d, struct buf *out, uint32_t id, struct err *err);
void decode_finish(struct decoder *d, struct buf *out);

#endif
