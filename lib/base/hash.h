/* SPDX-License-Identifier: MIT */
/* hash: XXH3-128 (content hashes) and SHA-256 (agreement with sha256sum). */
#ifndef NIBBLE_BASE_HASH_H
#define NIBBLE_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hash_kind { HASH_XXH3, HASH_SHA256 };
enum { XXH3_BYTES = 16, SHA256_BYTES = 32, HASH_MAX = 32 };

/* A running hash.  hash_begin may run out of memory (NULL); hash_end frees it
 * and writes XXH3_BYTES or SHA256_BYTES; hash_end(h, NULL) only frees. */
struct hash;
struct hash *hash_begin(enum hash_kind kind);
void hash_add(struct hash *h, const void *bytes, size_t n);
void hash_end(struct hash *h, uint8_t *digest);
size_t hash_bytes(enum hash_kind kind);

/* An XXH3-128 that goes on in another process: its state so far, and h with that state instead of
 * its own.  Both have a library of the same number.  hash_take_state refuses what no state can be:
 * false, and h is as it was. */
enum { HASH_STATE = 640 };
void hash_put_state(const struct hash *h, uint8_t state[HASH_STATE]);
bool hash_take_state(struct hash *h, const uint8_t state[HASH_STATE]);
unsigned hash_library(void);

/* Canonical XXH3-128, seed 0, of bytes at hand. */
void xxh3_128(uint8_t digest[XXH3_BYTES], const void *bytes, size_t n);
/* XXH3 64 bits, for tables in memory. */
uint64_t xxh3_64(const void *bytes, size_t n);
uint64_t xxh3_64_seeded(const void *bytes, size_t n, uint64_t seed);

/* out has 2 * n + 1 chars. */
void hash_hex(char *out, const uint8_t *digest, size_t n);

#endif
