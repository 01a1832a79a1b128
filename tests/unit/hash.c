/* SPDX-License-Identifier: MIT */
/* hash: XXH3 against values of xxhsum 0.8.1 (-H2 and -H3 of check_byte's pattern),
 * SHA-256 against the published vectors and Python's hashlib, both in pieces, and the
 * fast block function of SHA-256 against the portable one. */
#include "lib/base/hash.h"

#include "lib/base/sha256.h"
#include "tests/unit/check.h"

enum { LONGEST = 1048577 };

static uint8_t pattern[LONGEST];

static const struct {
    size_t n;
    const char *xxh3_128;
    uint64_t xxh3_64;
} sums[] = {
    { 0, "99aa06d3014798d86001c324468d497f", 0x2d06800538d394c2 },
    { 1, "a6cd5e9392000f6ac44bdff4074eecdb", 0xc44bdff4074eecdb },
    { 3, "656e81c56e41fe02c3489259e968ad9e", 0xc3489259e968ad9e },
    { 4, "ab5c3e7474d809db81a65295de8e7dde", 0xd3d60c1519014e89 },
    { 8, "e4b9dd0b66ff3c50ebabbd0695002ff6", 0xb88dee77f6bf6980 },
    { 9, "82ddc95bc76007671c69c3f04aaed08c", 0x03688dcad730d826 },
    { 16, "ddf6c1254d70f76794eaa17b20756f46", 0x9da23836adf2be1e },
    { 17, "263f67af63088041735fe434ded90c3c", 0xf34c3c9cf5a112d1 },
    { 128, "381610c474b8adfb2dfb73305de1f91a", 0x4c659b745f435148 },
    { 129, "4e05eed4427255d51f8b5092c9ba3be8", 0xb85222b83902b6e5 },
    { 240, "17ffe035d71c1ec8e6bf81617aad6c4a", 0xd6dfbf67b0675b54 },
    { 241, "29bc1e9cffb6d79bc614c8c3575348c1", 0xc614c8c3575348c1 },
    { 256, "a811eb0f2c5fed9d031c99a649cf3c5e", 0x031c99a649cf3c5e },
    { 512, "95299d59b8a7aaadeafe02afa18954b0", 0xeafe02afa18954b0 },
    { 1024, "2a26921cd62d1bad1e28332b5ac3dfa0", 0x1e28332b5ac3dfa0 },
    { 1025, "c30c4fb57ab2dcf9634288c9f20aca18", 0x634288c9f20aca18 },
    { 4096, "b02e211615c74664ce4c5a3bc979de5f", 0xce4c5a3bc979de5f },
    { 100000, "c423b811b22d7c74f1a0c1185a2c2f71", 0xf1a0c1185a2c2f71 },
    { 1048577, "95478077ca79b88a6534f6d34275f436", 0x6534f6d34275f436 },
};

static const struct {
    const char *text, *want;
} sha[] = {
    { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
    { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
    { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
    { "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopq"
      "kl"
      "mnopqrlmnopqrsmnopqrstnopqrstu",
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1" },
};

static const char *
hex_of(const uint8_t *digest, size_t n)
{
    static char hex[2 * HASH_MAX + 1];
    hash_hex(hex, digest, n);
    return hex;
}

/* The hash of n bytes of the pattern, fed in pieces of 1, 2, ..., piece bytes. */
static void
pieces(uint8_t *digest, enum hash_kind kind, const uint8_t *p, size_t n, size_t piece)
{
    struct hash *h = hash_begin(kind);
    NEED(h);
    for (size_t k = 0; n; k++) {
        size_t part = k % piece + 1;
        if (part > n)
            part = n;
        hash_add(h, p, part);
        hash_add(h, NULL, 0);
        p += part;
        n -= part;
    }
    hash_end(h, digest);
}

/* The same, where every stretch is hashed by one that has only the state of the one before. */
static void
handed_on(uint8_t *digest, const uint8_t *p, size_t n, size_t stretch)
{
    uint8_t state[HASH_STATE];
    struct hash *h = hash_begin(HASH_XXH3);
    NEED(h);
    while (n) {
        size_t part = n < stretch ? n : stretch;
        hash_add(h, p, part);
        hash_put_state(h, state);
        hash_end(h, NULL);
        NEED((h = hash_begin(HASH_XXH3)));
        hash_add(h, "what is forgotten", 17);
        CHECK(hash_take_state(h, state));
        p += part;
        n -= part;
    }
    hash_end(h, digest);
}

/* What is no state is refused, and changes nothing. */
static void
check_no_state(void)
{
    uint8_t state[HASH_STATE], digest[HASH_MAX], want[HASH_MAX];
    struct hash *h = hash_begin(HASH_XXH3);
    NEED(h);
    hash_add(h, pattern, 1000);
    memset(state, 0xff, sizeof state);
    CHECK(!hash_take_state(h, state));
    memset(state, 0, sizeof state);
    CHECK(!hash_take_state(h, state));
    hash_end(h, digest);
    xxh3_128(want, pattern, 1000);
    CHECK(memcmp(digest, want, XXH3_BYTES) == 0);
}

static void
check_xxh3(void)
{
    static const size_t sizes[] = { 1, 3, 63, 255, 257, 4099, 70001, LONGEST };
    uint8_t digest[HASH_MAX];
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        size_t n = sums[i].n;
        xxh3_128(digest, pattern, n);
        CHECK_SAY(strcmp(hex_of(digest, XXH3_BYTES), sums[i].xxh3_128) == 0,
                  "xxh3_128 of %zu bytes: %s", n, hex_of(digest, XXH3_BYTES));
        CHECK_SAY(xxh3_64(pattern, n) == sums[i].xxh3_64, "xxh3_64 of %zu bytes", n);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            if (n > 5000 && sizes[k] < 63)
                continue;
            pieces(digest, HASH_XXH3, pattern, n, sizes[k]);
            CHECK_SAY(strcmp(hex_of(digest, XXH3_BYTES), sums[i].xxh3_128) == 0,
                      "xxh3_128 of %zu bytes in pieces up to %zu", n, sizes[k]);
            handed_on(digest, pattern, n, sizes[k]);
            CHECK_SAY(strcmp(hex_of(digest, XXH3_BYTES), sums[i].xxh3_128) == 0,
                      "xxh3_128 of %zu bytes handed on every %zu", n, sizes[k]);
        }
    }
}

static void
check_sha256_vectors(void)
{
    uint8_t digest[SHA256_BYTES], a[1000];
    for (size_t i = 0; i < sizeof sha / sizeof *sha; i++) {
        struct hash *h = hash_begin(HASH_SHA256);
        NEED(h);
        hash_add(h, sha[i].text, strlen(sha[i].text));
        hash_end(h, digest);
        CHECK_SAY(strcmp(hex_of(digest, SHA256_BYTES), sha[i].want) == 0,
                  "sha256 of \"%s\": %s", sha[i].text, hex_of(digest, SHA256_BYTES));
    }
    struct sha256 s;
    memset(a, 'a', sizeof a);
    sha256_init(&s);
    for (int i = 0; i < 1000; i++)
        sha256_add(&s, a, sizeof a);
    sha256_end(&s, digest);
    CHECK(strcmp(hex_of(digest, SHA256_BYTES),
                 "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0") ==
          0);
}

/* Every length that a tail can have, by both block functions and in pieces. */
static void
check_sha256_lengths(void)
{
    struct sha256 all;
    uint8_t digest[SHA256_BYTES], again[SHA256_BYTES];
    sha256_init(&all);
    for (size_t n = 0; n <= 300; n++) {
        struct sha256 fast, portable;
        sha256_init(&fast);
        sha256_init(&portable);
        portable.blocks = sha256_blocks_portable;
        sha256_add(&fast, pattern, n);
        sha256_add(&portable, pattern, n);
        sha256_end(&fast, digest);
        sha256_end(&portable, again);
        CHECK_SAY(memcmp(digest, again, sizeof digest) == 0,
                  "sha256 of %zu bytes: fast and portable differ", n);
        pieces(again, HASH_SHA256, pattern, n, 7);
        CHECK_SAY(memcmp(digest, again, sizeof digest) == 0,
                  "sha256 of %zu bytes in pieces", n);
        pieces(again, HASH_SHA256, pattern, n, 150);
        CHECK_SAY(memcmp(digest, again, sizeof digest) == 0,
                  "sha256 of %zu bytes in larger pieces", n);
        sha256_add(&all, digest, sizeof digest);
    }
    sha256_end(&all, digest);
    CHECK_SAY(
        strcmp(hex_of(digest, SHA256_BYTES),
               "ef3bdb285d97ef1ae94ea926c22aa947c56f32db59f82f28cba55c6e2ce76c17") == 0,
        "sha256 of the sha256 of 0..300 bytes: %s", hex_of(digest, SHA256_BYTES));
}

static void
check_sha256_blocks(void)
{
    for (size_t n = 0; n <= 9; n++) {
        struct sha256 fast, portable;
        sha256_init(&fast);
        sha256_init(&portable);
        fast.blocks(fast.h, pattern + 1, n);
        sha256_blocks_portable(portable.h, pattern + 1, n);
        CHECK_SAY(memcmp(fast.h, portable.h, sizeof fast.h) == 0, "%zu blocks at once",
                  n);
    }
}

int
main(void)
{
    check_fill(pattern, sizeof pattern);
    CHECK(hash_bytes(HASH_XXH3) == XXH3_BYTES &&
          hash_bytes(HASH_SHA256) == SHA256_BYTES);
    hash_end(NULL, NULL);
    hash_end(hash_begin(HASH_SHA256), NULL);
    hash_end(hash_begin(HASH_XXH3), NULL);
    check_no_state();
    check_xxh3();
    check_sha256_vectors();
    check_sha256_lengths();
    check_sha256_blocks();
    return check_end();
}
