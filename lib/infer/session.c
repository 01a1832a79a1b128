/* SPDX-License-Identifier: MIT */
/* session: sequences of tokens through a model. */
#include "lib/infer/session.h"

#include "lib/base/num.h"
#include "lib/base/par.h"

#include <stdio.h>
#include <stdlib.h>

enum { CHUNK = 512, CHUNK_GPU = 4096, CAPACITY_STEP = 64 }; // tokens
enum {
    FREE_FOR_PASS = 8
}; // part of a GPU's free memory for prompts that are computed together

void
sequence_free(struct sequence *q)
{
    if (q->has_cache)
        net_cache_close(&q->cache);
    ids_free(&q->ids);
    *q = (struct sequence){ 0 };
}

bool
session_ends(const struct session *s, uint32_t id)
{
    for (size_t i = 0; i < s->n_end; i++)
        if (s->end[i] == id)
            return true;
    return false;
}

/* ---- tokens through the model ----------------------------------------------------------------- */

int
session_copy(struct session *s, struct sequence *q, const struct net_cache *from,
             size_t n)
{
    const struct config *c = &s->model.config;
    size_t row = (size_t)c->kv_heads * c->head_dim,
           bytes = n * row * (dtype_bits(s->k->is.act) / 8);
    for (uint32_t i = 0; i < c->layers; i++) {
        op_copy(s->k, q->cache.key[i], from->key[i], bytes);
        op_copy(s->k, q->cache.value[i], from->value[i], bytes);
    }
    q->cache.used = n;
    net_cache_changed(&q->cache);
    return s->err->kind ? -1 : 0;
}

/* Into a larger cache. */
static int
move_cache(struct session *s, struct sequence *q, struct net_cache *old)
{
    int rc = session_copy(s, q, old, old->used);
    net_cache_close(old);
    return rc;
}

/* Bytes of a token: keys and values in all layers, cosines and sines. */
static uint64_t
token_bytes(const struct session *s)
{
    const struct config *c = &s->model.config;
    uint64_t row = (uint64_t)c->kv_heads * c->head_dim * (dtype_bits(s->k->is.act) / 8);
    return 2 * c->layers * row + c->head_dim * sizeof(float);
}

/* The capacity for n tokens: rounded up and doubled as far as memory allows. */
static int
choose_capacity(struct session *s, const struct sequence *q, size_t n, size_t *capacity)
{
    uint64_t available = device_free(&s->c->where);
    uint64_t fit = available / token_bytes(s);
    size_t old =
        q->has_cache ? q->cache.capacity : 0; // still allocated while it is copied
    *capacity = (size_t)round_up(n, CAPACITY_STEP);
    if (*capacity < 2 * old)
        *capacity = 2 * old;
    if (*capacity > fit)
        *capacity = n;
    if (*capacity > s->limit)
        *capacity = s->limit;
    if (*capacity <= fit)
        return 0;
    char way[64] = "not even those of one token fit";
    if (fit + old > 0)
        snprintf(way, sizeof way, "--context %llu is the largest that fits",
                 (unsigned long long)(fit + old));
    return err_set(s->err, ERR_MEMORY,
                   "keys and values of %zu tokens need %.3f GB, %s has %.3f free: %s",
                   *capacity, (double)*capacity * (double)token_bytes(s) / (1 << 30),
                   s->k->is.host ? "this machine" : "the GPU",
                   (double)available / (1 << 30), way);
}

bool
session_fits(const struct session *s, const struct sequence *q, size_t n)
{
    if (n > s->limit)
        n = s->limit;
    return (q->has_cache && n <= q->cache.capacity) ||
           round_up(n, CAPACITY_STEP) <= device_free(&s->c->where) / token_bytes(s);
}

int
session_reserve(struct session *s, struct sequence *q, size_t n)
{
    struct net_cache old = q->cache;
    if (n > s->limit)
        n = s->limit;
    if (q->has_cache && n <= old.capacity)
        return 0;
    size_t capacity;
    if (choose_capacity(s, q, n, &capacity) < 0 ||
        model_stretch(&s->model, capacity) < 0)
        return -1;
    bool grows = q->has_cache;
    q->has_cache = true;
    if (net_cache_open(&q->cache, &s->model.net, capacity) < 0)
        return -1;
    return grows ? move_cache(s, q, &old) : 0;
}

/* One chunk: logits of its last rows, or without a buffer the argmax of the last token. */
static int
extend(struct session *s, struct sequence *q, const uint32_t *ids, size_t n,
       size_t rows, float *logits)
{
    struct net *net = &s->model.net;
    const int32_t *mine = (const int32_t *)ids;
    if (rows && !logits)
        return net_argmax(net, &q->cache, mine, n, &q->argmax, s->hidden,
                          s->hidden_ctx);
    return net_extend(net, &q->cache, mine, n, rows, logits, s->hidden, s->hidden_ctx);
}

static size_t
chunk_tokens(const struct session *s)
{
    return s->c->chunk ? s->c->chunk : s->k->is.host ? CHUNK : CHUNK_GPU;
}

/* Up to how many tokens may be computed together without a change of any bit; so may any number
 * above it on a GPU, unless products are of FP8. */
static size_t
alike(const struct session *s)
{
    return s->model.fp8 ? 1 : s->k->is.alike;
}

static bool
any_number(const struct session *s)
{
    return alike(s) == SIZE_MAX;
}

/* Whether a prompt may begin inside a chunk. */
static bool
may_cut(const struct session *s)
{
    return !s->k->is.host && !s->model.fp8 && !s->c->where.fp4 &&
           chunk_tokens(s) > alike(s);
}

/* Where the last chunk of n tokens begins. */
static size_t
last_chunk(const struct session *s, size_t n)
{
    return n ? (n - 1) / chunk_tokens(s) * chunk_tokens(s) : 0;
}

size_t
session_shareable(const struct session *s, size_t n)
{
    size_t last = last_chunk(s, n);
    if (n < 2 || (may_cut(s) && n - last <= alike(s)))
        return last;
    return n;
}

/* The same of a GPU: of the prompt, and of the chunk that is cut, more than alike(s) tokens are left. */
static size_t
shares_of_chunks(const struct session *s, size_t common, size_t n)
{
    size_t chunk = chunk_tokens(s), few = alike(s) + 1, end = session_shareable(s, n),
           k = end > few ? end - few : 0, begin, in;
    k = common < k ? common : k;
    begin = k / chunk * chunk;
    in = k - begin < chunk - few ? k - begin : chunk - few; // of the chunk that is cut
    return begin + in / s->k->is.cut * s->k->is.cut;
}

/* Otherwise whole chunks of prompts have the bits that they have alone: the same tokens behind the
 * same cache.  One token by itself is computed as those of an answer are, so it is no chunk, and
 * more than one must be left. */
size_t
session_shares(const struct session *s, size_t common, size_t n)
{
    size_t left = any_number(s) ? 1 : 2, unit = any_number(s) ? 1 : chunk_tokens(s);
    if (s->c->no_kv || s->c->dump_layers || n < left)
        return 0;
    if (may_cut(s))
        return shares_of_chunks(s, common, n);
    return (common < n - left ? common : n - left) / unit * unit;
}

size_t
session_shared(const struct session *s, const struct sequence *q)
{
    if (any_number(s))
        return q->cache.used;
    return q->prompt <= q->cache.used ? session_shareable(s, q->prompt) : 0;
}

int
session_extend(struct session *s, struct sequence *q, const uint32_t *ids, size_t n,
               size_t rows, float *logits)
{
    size_t chunk = chunk_tokens(s);
    size_t vocab = s->model.config.vocab;
    for (size_t at = 0; at < n;) {
        size_t left = chunk - q->cache.used % chunk,
               part = n - at < left ? n - at : left, end = at + part;
        if (s->stop && *s->stop)
            return 1;
        size_t mine =
            end + rows > n ? end + rows - n : 0; // rows that are in this chunk
        if (mine > part)
            mine = part;
        if (extend(s, q, ids + at, part, mine, logits) < 0)
            return -1;
        if (logits)
            logits += mine * vocab;
        at = end;
    }
    return 0;
}

/* The result of a pass, in q. */
static int
read_result(const struct session *s, struct sequence *q, struct err *err)
{
    size_t vocab = s->model.config.vocab;
    if (s->greedy ? q->argmax < 0 : !logits_finite(q->logits, vocab))
        return err_set(err, ERR_NONFINITE, "logits after token %zu are not finite",
                       q->ids.n - 1);
    if (s->c->json)
        q->log_sum = logits_log_sum(q->logits, vocab);
    return 0;
}

struct results {
    const struct session *s;
    struct sequence *const *q;
};

static int
read_one(void *ctx, size_t i, unsigned worker, struct err *err)
{
    const struct results *r = ctx;
    (void)worker;
    return read_result(r->s, r->q[i], err);
}

/* Of n sequences.  Exponentials of eight prompts' logits by one thread would take a quarter of
 * the time of their step. */
static int
read_results(struct session *s, struct sequence *const *q, size_t n)
{
    struct results r = { s, q };
    if (s->pool)
        return par_run(s->pool, n, read_one, &r, s->err);
    for (size_t i = 0; i < n; i++)
        if (read_result(s, q[i], s->err) < 0)
            return -1;
    return 0;
}

int
session_follow(struct session *s, struct sequence *q)
{
    if (session_reserve(s, q, q->ids.n) < 0)
        return -1;
    if (s->c->no_kv)
        q->cache.used = 0;
    size_t from = q->cache.used;
    if (q->ids.n - from == 1 && !s->hidden) // as in a batch
        return s->stop && *s->stop ? 1 : session_step(s, &q, 1, s->logits);
    q->logits = s->logits;
    int rc = session_extend(s, q, q->ids.v + from, q->ids.n - from, 1,
                            s->greedy ? NULL : s->logits);
    if (rc != 0)
        return rc;
    return read_results(s, &q, 1) < 0 ? -1 : store_check(&s->model.store);
}

bool
session_reads_stored(const struct session *s, size_t n)
{
    return n <= alike(s);
}

/* Bytes of a pass of n tokens and the logits of some. */
static uint64_t
pass_bytes(const struct session *s, size_t n)
{
    struct err err = { 0 };
    struct net net = { 0 };
    struct cpu_kind cpu = device_cpu(&s->c->where);
    struct kernels *k = kernels_dry(&s->k->is, &cpu, &err);
    uint64_t bytes = UINT64_MAX;
    if (k && net_open(&net, &s->model.config, k, 1, &err) == 0) {
        uint64_t before = k->usage.total;
        if (net_reserve(&net, n, MAX_BATCH, false) == 0)
            bytes = k->usage.total - before;
    }
    if (k) {
        net_close(&net);
        kernels_close(k);
    }
    return bytes;
}

/* A chunk, or half as many tokens again and again until a pass takes no more than a part of the
 * memory that is free. */
static size_t
pass_tokens(const struct session *s)
{
    size_t n = chunk_tokens(s);
    uint64_t most = device_free(&s->c->where) / FREE_FOR_PASS;
    while (n > alike(s) && pass_bytes(s, n) > most)
        n /= 2;
    return n > alike(s) ? n : 0;
}

size_t
session_together(struct session *s, size_t n)
{
    size_t chunk = chunk_tokens(s), few = alike(s);
    if (s->k->is.host || s->model.fp8) // slower there; or numbers depend on others
        s->apart = true;
    if (n > few && !s->apart && !s->asked_together) {
        s->asked_together = true;
        s->together = pass_tokens(s);
    }
    size_t most = n > few ? s->together : chunk < few ? chunk : few;
    return !s->apart && n > 1 && n <= most ? most : 0;
}

int
session_reserve_together(struct session *s, size_t n, size_t sequences)
{
    size_t most = session_together(s, n);
    return most ? net_reserve(&s->model.net, most, sequences, false) : 0;
}

void
session_apart(struct session *s)
{
    s->apart = true;
    net_release(&s->model.net);
}

/* Tokens of n sequences; id: the best of each, if that is all that is wanted. */
static int
extend_each(struct session *s, struct sequence *const *q, size_t n, float *logits,
            int32_t *id)
{
    struct net_run run[MAX_BATCH];
    struct net_cache *cache[MAX_BATCH];
    bool more = q[0]->ids.n + 1 < q[0]->end, steps = true;
    for (size_t i = 0; i < n; i++) {
        size_t from = q[i]->cache.used;
        const int32_t *ids = (const int32_t *)q[i]->ids.v + from;
        cache[i] = &q[i]->cache;
        run[i] = (struct net_run){ cache[i], ids, q[i]->ids.n - from };
        id[i] = ids[0];
        steps = steps && run[i].tokens == 1;
    }
    return steps ? net_step(&s->model.net, cache, id, n, logits, id, more)
                 : net_extend_each(&s->model.net, run, n, logits, id);
}

int
session_step(struct session *s, struct sequence *const *q, size_t n, float *logits)
{
    int32_t id[MAX_BATCH];
    for (size_t i = 0; i < n; i++)
        if (session_reserve(s, q[i], q[i]->ids.n) < 0)
            return -1;
    if (extend_each(s, q, n, s->greedy ? NULL : logits, id) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        q[i]->argmax = id[i];
        q[i]->logits = s->greedy ? NULL : logits + i * s->model.config.vocab;
    }
    return read_results(s, q, n) < 0 ? -1 : store_check(&s->model.store);
}
