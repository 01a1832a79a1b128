/* SPDX-License-Identifier: MIT */
/* bulk: see bulk.h.  Threads read and hash parts of the file; uploads are made by one thread
 * at a time, since operations of a device have an order.  A hash covers a whole payload, so
 * one thread reads all of a payload that is verified. */
#include "lib/load/bulk.h"

#include "lib/base/hash.h"
#include "lib/base/par.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SHARE = 4 << 20 };

/* What a thread reads at a time: bytes from .. end - 1 of a payload. */
struct share {
    const struct bulk *b;
    uint64_t from, end;
};

struct bulk_job {
    struct kernels *k;
    struct store *s;
    struct share *share;
    bool verify;
    pthread_mutex_t device; // and err
    const struct err *err;
};

/* Where the next bytes for `to` are read to: `to` itself if it is host memory. */
static uint8_t *
begin_piece(struct bulk_job *j, uint8_t *to)
{
    if (j->k->is.host)
        return to;
    pthread_mutex_lock(&j->device);
    uint8_t *stage = kernels_stage(j->k);
    pthread_mutex_unlock(&j->device);
    return stage;
}

/* Upload n bytes of a staging buffer; n == 0: reading failed. */
static int
end_piece(struct bulk_job *j, uint8_t *to, uint8_t *stage, size_t n)
{
    if (j->k->is.host)
        return 0;
    pthread_mutex_lock(&j->device);
    kernels_stage_upload(j->k, to, stage, n);
    int rc = j->err->kind ? -1 : 0;
    pthread_mutex_unlock(&j->device);
    return rc;
}

static int
load_share(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct bulk_job *j = ctx;
    const struct share *s = &j->share[i];
    const struct tensor *t = s->b->t;
    uint8_t digest[XXH3_BYTES];
    struct hash *h = j->verify ? hash_begin(HASH_XXH3) : NULL;
    int rc = 0;
    (void)worker;
    if (j->verify && !h)
        rc = err_set(err, ERR_MEMORY, "%s: out of memory", j->s->name);
    for (uint64_t at = s->from; at < s->end && rc == 0; at += STAGE_BYTES) {
        size_t n = s->end - at < STAGE_BYTES ? (size_t)(s->end - at) : STAGE_BYTES;
        uint8_t *to = (uint8_t *)s->b->to + (at - s->b->at),
                *buffer = begin_piece(j, to);
        rc = buffer ? store_read(j->s, t, at, buffer, n, err) : -1;
        if (rc == 0 && h)
            hash_add(h, buffer, n);
        if (buffer && end_piece(j, to, buffer, rc == 0 ? n : 0) < 0)
            rc = -1;
    }
    if (h)
        hash_end(h, rc == 0 ? digest : NULL);
    return rc == 0 && h ? store_check_digest(j->s, t, digest, err) : rc;
}

static uint64_t
share_bytes(const struct bulk *b, bool verify)
{
    return verify ? b->t->nbytes : SHARE;
}

/* The shares of n payloads: how many, and unless it is NULL into `share`. */
static size_t
divide(struct share *share, const struct bulk *b, size_t n, bool verify)
{
    size_t shares = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t last = b[i].bytes ? b[i].at + b[i].bytes : b[i].t->nbytes;
        for (uint64_t at = b[i].at, end; at < last; at = end) {
            uint64_t left = last - at, limit = share_bytes(&b[i], verify);
            end = at + (left < limit ? left : limit);
            if (share)
                share[shares] = (struct share){ &b[i], at, end };
            shares++;
        }
    }
    return shares;
}

int
bulk_load(struct kernels *k, struct store *s, const struct bulk *b, size_t n,
          bool verify, unsigned threads, struct err *err)
{
    size_t shares = divide(NULL, b, n, verify);
    struct err read_err = { 0 }; // err is written by the device
    struct bulk_job j = { .k = k, .s = s, .verify = verify, .err = err };
    pthread_mutex_init(&j.device, NULL);
    j.share = calloc(shares + 1, sizeof *j.share);
    if (!j.share) {
        err_set(&read_err, ERR_MEMORY, "%s: out of memory", s->name);
    } else {
        divide(j.share, b, n, verify);
        par_for(threads < STAGES ? threads : STAGES, shares, load_share, &j, &read_err);
    }
    free(j.share);
    pthread_mutex_destroy(&j.device);
    if (read_err.kind)
        err_set(err, read_err.kind, "%s", read_err.msg);
    return err->kind ? -1 : 0;
}
