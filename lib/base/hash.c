/* SPDX-License-Identifier: MIT */
/* hash: see hash.h. */
#include "lib/base/hash.h"

#include "lib/base/sha256.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY // a state has its members
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
    memset(h->xxh, 0, sizeof *h->xxh); // also what is sent of it before it is used
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

static_assert(sizeof(XXH3_state_t) <= HASH_STATE, "hash.h");

/* Of a state only the address of the library's own constants belongs to a process. */
void
hash_put_state(const struct hash *h, uint8_t state[HASH_STATE])
{
    memset(state, 0, HASH_STATE);
    memcpy(state, h->xxh, sizeof *h->xxh);
    memset(state + offsetof(XXH3_state_t, extSecret), 0, sizeof h->xxh->extSecret);
}

/* The library trusts the counts of a state: they are places in its buffer and in its secret. */
bool
hash_take_state(struct hash *h, const uint8_t state[HASH_STATE])
{
    XXH3_state_t theirs;
    const XXH3_state_t *own = h->xxh;
    memcpy(&theirs, state, sizeof theirs);
    if (theirs.bufferedSize > sizeof theirs.buffer ||
        theirs.nbStripesSoFar > own->nbStripesPerBlock ||
        theirs.nbStripesPerBlock != own->nbStripesPerBlock ||
        theirs.secretLimit != own->secretLimit || theirs.seed != own->seed)
        return false;
    theirs.extSecret = own->extSecret;
    memcpy(h->xxh, &theirs, sizeof theirs);
    return true;
}

unsigned
hash_library(void)
{
    return XXH_versionNumber();
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
