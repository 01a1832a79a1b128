/* SPDX-License-Identifier: MIT */
/* store_sums: what the checksums of a store prove. */
#include "lib/base/par.h"
#include "lib/file/feed.h"
#include "lib/format/container.h"

#include <stdlib.h>
#include <string.h>

static int
hash_files(struct store *s, uint8_t digest[XXH3_BYTES], unsigned threads,
           struct err *err)
{
    struct hash *h = hash_begin(HASH_XXH3);
    if (!h)
        return err_set(err, ERR_MEMORY, "%s: out of memory", s->name);
    int rc = 0;
    for (size_t i = 0; i < s->n_files && rc == 0; i++) {
        struct feed *f = feed_open(&s->files[i], 0, s->files[i].size, threads, err);
        const uint8_t *p;
        size_t n;
        rc = f ? 1 : -1;
        while (rc > 0 && (rc = feed_next(f, &p, &n)) > 0)
            hash_add(h, p, n);
        feed_close(f);
    }
    hash_end(h, rc < 0 ? NULL : digest);
    return rc;
}

int
store_content_hash(struct store *s, uint8_t digest[XXH3_BYTES], unsigned threads,
                   struct err *err)
{
    char hex[2 * XXH3_BYTES + 1], q[TEXT_QUOTE];
    if (s->kind->carried_hash && s->kind->carried_hash(s, digest))
        return 0;
    if (hash_files(s, digest, threads, err) < 0)
        return -1;
    hash_hex(hex, digest, XXH3_BYTES);
    if (!s->side_xxh3.p || slice_is(s->side_xxh3, hex))
        return 0;
    return err_set(err, ERR_FORMAT,
                   "%s: XXH3 of the file is %s, its sidecar expects %s: it is "
                   "damaged, or another program changed it; without %s.json it is "
                   "taken as it is",
                   s->name, hex, text_quote(q, s->side_xxh3.p, s->side_xxh3.n),
                   s->name);
}

int
store_check_digest(const struct store *s, const struct tensor *t,
                   const uint8_t digest[XXH3_BYTES], struct err *err)
{
    char q[TEXT_QUOTE], want[2 * XXH3_BYTES + 1], found[2 * XXH3_BYTES + 1];
    if (!t->xxh3 || memcmp(digest, t->xxh3, XXH3_BYTES) == 0)
        return 0;
    hash_hex(want, t->xxh3, XXH3_BYTES);
    hash_hex(found, digest, XXH3_BYTES);
    return err_set(err, ERR_FORMAT,
                   "%s: byte %llu: array \"%s\" is damaged: XXH3 is %s, the header "
                   "expects %s",
                   s->name, (unsigned long long)t->offset,
                   text_quote(q, t->name, t->name_len), found, want);
}

/* Hashed by the calling thread; a chunk fits the cache of a core. */
static int
hash_payload(struct store *s, const struct tensor *t, uint8_t digest[XXH3_BYTES],
             struct err *err)
{
    enum { CHUNK = 256 << 10 };
    uint8_t *chunk = malloc(CHUNK);
    struct hash *h = hash_begin(HASH_XXH3);
    int rc = chunk && h ? 0 : err_set(err, ERR_MEMORY, "%s: out of memory", s->name);
    for (uint64_t at = 0; at < t->nbytes && rc == 0; at += CHUNK) {
        uint64_t left = t->nbytes - at;
        size_t n = left < CHUNK ? (size_t)left : CHUNK;
        rc = store_read(s, t, at, chunk, n, err);
        if (rc == 0)
            hash_add(h, chunk, n);
    }
    hash_end(h, rc == 0 ? digest : NULL);
    free(chunk);
    return rc;
}

int
store_check_payload(struct store *s, const struct tensor *t, struct err *err)
{
    uint8_t digest[XXH3_BYTES];
    if (!t->xxh3)
        return 0;
    bool *passed = &s->passed[t - s->tensors];
    if (*passed)
        return 0;
    if (hash_payload(s, t, digest, err) < 0 ||
        store_check_digest(s, t, digest, err) < 0)
        return -1;
    *passed = true;
    return 0;
}

int
store_check_gaps(struct store *s, struct err *err)
{
    return s->kind->check_gaps ? s->kind->check_gaps(s, err) : 0;
}

struct payloads {
    struct store *s;
    const struct tensor *const *t;
};

static int
check_one(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct payloads *p = ctx;
    (void)worker;
    return store_check_payload(p->s, p->t[i], err);
}

int
store_check_payloads(struct store *s, const struct tensor *const *t, size_t n,
                     unsigned threads, struct err *err)
{
    uint8_t digest[XXH3_BYTES];
    struct payloads p = { s, t };
    if (s->side_xxh3.p)
        return store_content_hash(s, digest, threads, err);
    if (store_check_gaps(s, err) < 0)
        return -1;
    return par_for(threads, n, check_one, &p, err);
}

bool
store_has_sums(const struct store *s)
{
    return s->kind->verify || s->side_xxh3.p;
}

int
store_verify(struct store *s, bool full, unsigned threads, const char **what)
{
    uint8_t digest[XXH3_BYTES];
    bool sums = store_has_sums(s);
    *what = sums ? "structure; payloads were not read"
                 : "structure; the container has no checksums";
    if (!full || !sums)
        return store_check(s);
    *what = "structure and checksums";
    if (s->kind->verify ? s->kind->verify(s, threads, what) < 0
                        : store_content_hash(s, digest, threads, s->err) < 0)
        return -1;
    return store_check(s);
}
