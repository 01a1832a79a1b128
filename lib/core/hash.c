/* SPDX-License-Identifier: MIT */
/* hash: see hash.h. */
#include "lib/core/hash.h"

#include "lib/core/sha256.h"

#include <stdlib.h>
#include <xxhash.h>
/* The plain functions of the library are built for the oldest x86-64; this header puts
 * those that ask the CPU in their place (83 against 18 GB/s on an EPYC 9005). */
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

struct hash {
    enum hash_kind kind;
    XXH3_state_t *xxh;
    struct sha256 sha;
};

size_t
hash_bytes(enum hash_kind kind)
{
    return kind == HASH_XXH3 ? XXH3_BYTES : SHA256_BYTES;
}

struct hash *
hash_begin(enum hash_kind kind)
{
    struct hash *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->kind = kind;
    if (kind == HASH_SHA256) {
        sha256_init(&h->sha);
        return h;
    }
    h->xxh = XXH3_createState(); // aligned to 64 by the library
    if (!h->xxh) {
        free(h);
        return NULL;
    }
    XXH3_128bits_reset(h->xxh);
    return h;
}

void
hash_add(struct hash *h, const void *bytes, size_t n)
{
    if (n == 0)
        return;
    if (h->kind == HASH_XXH3)
        XXH3_128bits_update(h->xxh, bytes, n);
    else
        sha256_add(&h->sha, bytes, n);
}

void
hash_end(struct hash *h, uint8_t *digest)
{
    if (!h)
        return;
    if (digest && h->kind == HASH_XXH3) {
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, XXH3_128bits_digest(h->xxh));
        for (size_t i = 0; i < sizeof c.digest; i++)
            digest[i] = c.digest[i];
    } else if (digest) {
        sha256_end(&h->sha, digest);
    }
    XXH3_freeState(h->xxh);
    free(h);
}

void
xxh3_128(uint8_t digest[XXH3_BYTES], const void *bytes, size_t n)
{
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits(bytes, n));
    for (size_t i = 0; i < sizeof c.digest; i++)
        digest[i] = c.digest[i];
}

uint64_t
xxh3_64(const void *bytes, size_t n)
{
    return XXH3_64bits(bytes, n);
}

uint64_t
xxh3_64_seeded(const void *bytes, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, n, seed);
}

void
hash_hex(char *out, const uint8_t *digest, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = hex[digest[i] >> 4];
        out[2 * i + 1] = hex[digest[i] & 15];
    }
    out[2 * n] = '\0';
}
