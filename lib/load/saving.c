/* SPDX-License-Identifier: MIT */
/* saving: see saving.h. */
#include "lib/load/saving.h"

#include "lib/model/shard.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    SHARED =
        1 << 20, // bytes a rank of an array that all have; a smaller one has one writer
    UNIT = 4096, // of such shares
    BATCHES = 16, // a rank: more of them idle less, at the beginning and at the end
};

struct saving {
    struct train *t;
    struct store *from;
    struct comm *c; // NULL: one rank
    unsigned rank, size, threads;
    const struct outfile *out;
    pthread_mutex_t device;        // a device is asked by one thread at a time
    uint64_t *offset;              // (arrays.n) in the file
    uint8_t (*digest)[XXH3_BYTES]; // (arrays.n)
    struct writer_piece *piece;    // (arrays.n) of a round
    size_t *divided, n_divided;    // arrays of several writers, the largest first
    size_t *batch, n_batches;      // (n_batches + 1) which of these begin a batch
    size_t largest;                // arrays of a batch
    uint8_t *received,
        *sent;       // (largest) states of hashes: of the next round, and of this
    uint8_t *failed; // (size) ranks
    size_t *at;      // (size + 1) bytes of an exchange
};

/* ---- who writes what ---------------------------------------------------------------------- */

/* Where in array i the bytes begin that rank q writes; of `size` where the last ones end. */
static uint64_t
first_of(const struct saving *s, size_t i, unsigned q)
{
    const struct train *t = s->t;
    const struct array *a = &t->arrays.v[i];
    uint64_t at, units = (a->bytes + UNIT - 1) / UNIT;
    if (q == 0)
        return 0;
    if (q == s->size)
        return a->bytes;
    if (t->held[i].device && train_has_parts(t, a)) {
        struct span span = shard_span(&t->net.table, a->row, s->size, q);
        array_bytes(a, &span, &at);
        return at;
    }
    if (a->bytes < (uint64_t)SHARED * s->size)
        return i % s->size < q ? a->bytes : 0;
    return units / s->size * q * UNIT;
}

/* The rank that writes all of it, or else the last one: that has its hash in the end. */
static unsigned
last_of(const struct saving *s, size_t i)
{
    uint64_t bytes = s->t->arrays.v[i].bytes;
    for (unsigned q = 0; q < s->size; q++)
        if (first_of(s, i, q) == 0 && first_of(s, i, q + 1) == bytes)
            return q;
    return s->size - 1;
}

static bool
is_divided(const struct saving *s, size_t i)
{
    unsigned q = last_of(s, i);
    return first_of(s, i, q) > 0;
}

struct sized {
    uint64_t bytes;
    size_t array;
};

static int
largest_first(const void *a, const void *b)
{
    const struct sized *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return (x->array > y->array) - (x->array < y->array);
}

/* Batches of as many bytes, or of one array that has more. */
static void
make_batches(struct saving *s, const struct sized *v)
{
    uint64_t all = 0, each, bytes = 0;
    for (size_t i = 0; i < s->n_divided; i++)
        all += v[i].bytes;
    each = all / BATCHES / s->size;
    each = each > SHARED ? each : SHARED;
    for (size_t i = 0; i < s->n_divided; i++) {
        if (bytes == 0)
            s->batch[s->n_batches++] = i;
        bytes += v[i].bytes;
        bytes = bytes < each ? bytes : 0;
        s->divided[i] = v[i].array;
    }
    s->batch[s->n_batches] = s->n_divided;
    for (size_t b = 0; b < s->n_batches; b++)
        if (s->batch[b + 1] - s->batch[b] > s->largest)
            s->largest = s->batch[b + 1] - s->batch[b];
}

static int
no_memory(const struct saving *s)
{
    return err_set(s->t->err, ERR_MEMORY, "out of memory for a save");
}

static int
divide(struct saving *s)
{
    struct sized *v = calloc(s->t->arrays.n + 1, sizeof *v);
    if (!v)
        return no_memory(s);
    for (size_t i = 0; i < s->t->arrays.n; i++)
        if (is_divided(s, i))
            v[s->n_divided++] = (struct sized){ s->t->arrays.v[i].bytes, i };
    qsort(v, s->n_divided, sizeof *v, largest_first);
    make_batches(s, v);
    free(v);
    return 0;
}

/* ---- rounds --------------------------------------------------------------------------------- */

/* In round k rank q is at batch k - q.  What a rank writes alone it does in a round without a
 * batch, the first one or, as rank 0 has none before, behind its last batch. */
static bool
has_batch(const struct saving *s, size_t round, unsigned q)
{
    return round >= q && round - q < s->n_batches;
}

static size_t
n_rounds(const struct saving *s)
{
    return s->n_batches ? s->n_batches + s->size - 1 : 1;
}

static int
lost(const struct saving *s)
{
    return err_set(s->t->err, s->c->err->kind, "%s", s->c->err->msg);
}

/* Hear how all have fared: rc or, if that is 0 and another one has failed, 1; -1. */
static int
hear(const struct saving *s, int rc)
{
    for (unsigned q = 0; q <= s->size; q++)
        s->at[q] = q;
    s->failed[s->rank] = rc < 0;
    if (comm_gather(s->c, s->failed, s->at) < 0)
        return lost(s);
    for (unsigned q = 0; q < s->size && rc == 0; q++)
        rc = s->failed[q];
    return rc;
}

/* The states of each rank's batch to the next rank, which has that batch in the next round. */
static int
hand_on(const struct saving *s, size_t round)
{
    s->at[0] = 0;
    for (unsigned q = 0; q < s->size; q++) {
        size_t n = 0, b = round - q;
        if (q + 1 < s->size && has_batch(s, round, q))
            n = (s->batch[b + 1] - s->batch[b]) * HASH_STATE;
        s->at[q + 1] = s->at[q] + n;
    }
    return comm_pass(s->c, s->received, s->sent, s->at) < 0 ? lost(s) : 0;
}

static const void *
read_piece(void *ctx, size_t i, uint64_t at, void *buffer, size_t n, struct err *err)
{
    struct saving *s = ctx;
    const struct train *t = s->t;
    bool locks = t->held[i].device && !t->net.k->is.host;
    if (locks)
        pthread_mutex_lock(&s->device);
    const void *bytes = training_read(t, s->from, i, at, buffer, n, err);
    if (locks)
        pthread_mutex_unlock(&s->device);
    return bytes;
}

/* This rank's bytes of array i; state: that of its hash so far, or NULL. */
static int
add_piece(const struct saving *s, size_t *n, size_t i, const uint8_t *state)
{
    uint64_t at = first_of(s, i, s->rank);
    struct hash *h = hash_begin(HASH_XXH3);
    if (!h)
        return no_memory(s);
    if (state && !hash_take_state(h, state)) {
        hash_end(h, NULL);
        return err_set(s->t->err, ERR_FORMAT,
                       "rank %u has sent what is no state of a hash: expected ranks of "
                       "one program",
                       s->rank - 1);
    }
    s->piece[(*n)++] = (struct writer_piece){ .tag = i,
                                              .at = at,
                                              .n = first_of(s, i, s->rank + 1) - at,
                                              .offset = s->offset[i],
                                              .hash = h };
    return 0;
}

static int
add_batch(const struct saving *s, size_t *n, size_t b)
{
    const uint8_t *state = s->rank ? s->received : NULL;
    for (size_t i = s->batch[b]; i < s->batch[b + 1]; i++) {
        if (add_piece(s, n, s->divided[i], state) < 0)
            return -1;
        state = state ? state + HASH_STATE : NULL;
    }
    return 0;
}

static int
add_alone(const struct saving *s, size_t *n)
{
    for (size_t i = 0; i < s->t->arrays.n; i++)
        if (!is_divided(s, i) && last_of(s, i) == s->rank &&
            add_piece(s, n, i, NULL) < 0)
            return -1;
    return 0;
}

/* The batch, the first pieces, is the next rank's to go on with; of all others the hash is complete. */
static void
end_pieces(const struct saving *s, size_t n, size_t n_batch)
{
    for (size_t i = 0; i < n; i++) {
        const struct writer_piece *p = &s->piece[i];
        bool goes_on = i < n_batch && s->rank + 1 < s->size;
        if (goes_on)
            hash_put_state(p->hash, s->sent + i * HASH_STATE);
        hash_end(p->hash, goes_on ? NULL : s->digest[p->tag]);
    }
}

static int
one_round(struct saving *s, size_t round, int rc)
{
    size_t n = 0, n_batch = 0, alone = s->rank ? 0 : s->n_batches;
    if (rc == 0 && has_batch(s, round, s->rank))
        rc = add_batch(s, &n, round - s->rank);
    n_batch = n;
    if (rc == 0 && round == alone)
        rc = add_alone(s, &n);
    if (rc == 0)
        rc = writer_pieces(s->out, s->piece, n, s->threads, read_piece, s, s->t->err);
    end_pieces(s, n, n_batch);
    if (s->size == 1)
        return rc;
    rc = hear(s, rc);
    return rc == 0 ? hand_on(s, round) : rc;
}

static int
all_rounds(struct saving *s, int rc)
{
    for (size_t round = 0; round < n_rounds(s); round++)
        if ((rc = one_round(s, round, rc)) != 0)
            return rc;
    return 0;
}

/* ---- begin and end ---------------------------------------------------------------------------- */

/* What rank 0 has begun: the file's inode number, 0 if that has failed; the arrays' places follow. */
static int
begin_saving(struct saving *s, struct writer *w, const char *target,
             struct outfile *joined)
{
    struct stat st = { 0 };
    uint64_t inode = 0;
    int rc = w ? writer_by_pieces(w) : 0;
    for (size_t i = 0; w && i < w->n; i++)
        s->offset[w->t[i].tag] = w->t[i].offset;
    if (s->size == 1)
        return rc;
    if (w && rc == 0 && fstat(w->out.fd, &st) == 0)
        inode = st.st_ino;
    if (comm_broadcast(s->c, &inode, sizeof inode) < 0 ||
        comm_broadcast(s->c, s->offset, s->t->arrays.n * sizeof *s->offset) < 0)
        return lost(s);
    return w || !inode ? rc : out_join(joined, target, inode, s->t->err);
}

/* Rank 0 gets all hashes, once all have put what they have written on the disk. */
static int
collect(struct saving *s, struct outfile *joined)
{
    size_t n = s->t->arrays.n, each = n * XXH3_BYTES;
    uint8_t *all = calloc(s->size, each);
    if (!all)
        return no_memory(s);
    memcpy(all + s->rank * each, s->digest, each);
    int rc = hear(s, s->rank ? out_seal(joined) : 0);
    for (unsigned q = 0; q <= s->size; q++)
        s->at[q] = q * each;
    if (rc == 0 && comm_collect(s->c, all, s->at) < 0)
        rc = lost(s);
    for (size_t i = 0; i < n && rc == 0; i++)
        memcpy(s->digest[i], all + last_of(s, i) * each + i * XXH3_BYTES, XXH3_BYTES);
    free(all);
    return rc;
}

/* What was copied must be there still, as its hash tells. */
static int
note_hashes(const struct saving *s, struct writer *w)
{
    for (size_t i = 0; i < w->n; i++) {
        struct wtensor *x = &w->t[i];
        memcpy(x->xxh3, s->digest[x->tag], XXH3_BYTES);
        if (!x->nbytes || s->t->held[x->tag].device)
            continue;
        const struct tensor *was = store_find(s->from, slice_of(x->name));
        if (store_check_digest(s->from, was, x->xxh3, s->t->err) < 0)
            return -1;
    }
    return 0;
}

static int
reserve(struct saving *s)
{
    size_t n = s->t->arrays.n + 1;
    s->offset = calloc(n, sizeof *s->offset);
    s->digest = calloc(n, sizeof *s->digest);
    s->piece = calloc(n, sizeof *s->piece);
    s->divided = calloc(n, sizeof *s->divided);
    s->batch = calloc(n, sizeof *s->batch);
    s->at = calloc((size_t)s->size + 1, sizeof *s->at);
    s->failed = calloc(s->size, 1);
    if (!s->offset || !s->digest || !s->piece || !s->divided || !s->batch || !s->at ||
        !s->failed)
        return no_memory(s);
    if (divide(s) < 0)
        return -1;
    s->received = calloc(s->largest + 1, HASH_STATE);
    s->sent = calloc(s->largest + 1, HASH_STATE);
    return s->received && s->sent ? 0 : no_memory(s);
}

static void
release(struct saving *s)
{
    free(s->offset);
    free(s->digest);
    free(s->piece);
    free(s->divided);
    free(s->batch);
    free(s->at);
    free(s->failed);
    free(s->received);
    free(s->sent);
    pthread_mutex_destroy(&s->device);
}

int
saving_write(struct train *t, struct store *from, struct writer *w, const char *target,
             unsigned threads)
{
    struct comm *c = t->layout.comm;
    struct outfile joined = { .fd = -1, .lock = -1 };
    struct saving s = { .t = t,
                        .from = from,
                        .c = c,
                        .rank = c ? c->rank : 0,
                        .size = c ? c->size : 1,
                        .threads = threads,
                        .out = w ? &w->out : &joined };
    pthread_mutex_init(&s.device, NULL);
    assert((s.rank == 0) == (w != NULL));
    int rc = reserve(&s);
    if (rc == 0)
        rc = all_rounds(&s, begin_saving(&s, w, target, &joined));
    if (rc == 0 && s.size > 1)
        rc = collect(&s, &joined);
    if (rc == 0 && w)
        rc = note_hashes(&s, w);
    out_abandon(&joined);
    release(&s);
    return rc;
}
