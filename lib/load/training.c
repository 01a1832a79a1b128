/* SPDX-License-Identifier: MIT */
/* training: see training.h. */
#include "lib/load/training.h"

#include "lib/base/par.h"
#include "lib/load/bulk.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

bool
training_layout(struct array_layout *l, const char *master, const char *moments)
{
    for (size_t i = 0; i < OPTIMIZERS; i++)
        if (optimizers[i]->layout(l, master, moments))
            return true;
    return false;
}

/* ---- reading ---------------------------------------------------------------------------- */

static int
find_array(const struct store *from, const struct array *a, const struct tensor **found,
           struct err *err)
{
    const struct tensor *x = *found = store_find(from, slice_of(a->name));
    if (!x || x->dtype != a->dtype || x->nbytes != a->bytes || x->rank != a->rank ||
        (a->rank && x->shape[0] != a->shape[0]) ||
        (a->rank > 1 && x->shape[1] != a->shape[1]))
        return err_set(err, ERR_FORMAT, "%s: \"%s\" %s", from->name, a->name,
                       x ? "has another dtype or shape than the configuration asks for"
                         : "is missing");
    return 0;
}

/* Refuse the first tensor of the file whose index is not marked in `known`. */
static int
refuse_unknown(const struct store *s, const struct arrays *a, const bool *known,
               struct err *err)
{
    char q[TEXT_QUOTE];
    size_t i = 0;
    while (i < s->n_tensors && known[i])
        i++;
    if (i == s->n_tensors)
        return 0;
    return err_set(err, ERR_FORMAT,
                   "%s: \"%s\": is not an array of this training: expected the %zu "
                   "arrays of the checkpoint's configuration and no others",
                   s->name, text_quote(q, s->tensors[i].name, s->tensors[i].name_len),
                   a->n);
}

static int
check_exact(const struct store *s, const struct arrays *a, struct err *err)
{
    bool *known = calloc(s->n_tensors + 1, sizeof *known);
    const struct tensor *x;
    int rc = known ? 0 : err_set(err, ERR_MEMORY, "%s: out of memory", s->name);
    for (size_t i = 0; i < a->n && rc == 0; i++) {
        rc = find_array(s, &a->v[i], &x, err);
        if (rc == 0)
            known[x - s->tensors] = true;
    }
    if (rc == 0)
        rc = refuse_unknown(s, a, known, err);
    free(known);
    return rc;
}

int
training_check(const struct store *s, struct err *err)
{
    const struct training *t = &s->training;
    struct array_layout layout;
    struct arrays arrays = { 0 };
    struct table table;
    struct config c;
    if (!t->master || !s->config.p || !config_is_supported(s->config))
        return 0;
    if (!training_layout(&layout, t->master, t->moments))
        return err_set(err, ERR_FORMAT,
                       "%s: moments \"%s\" do not go with a master \"%s\"", s->name,
                       t->moments, t->master);
    if (config_parse(&c, s->name, s->config, err) < 0)
        return -1;
    int rc = table_open(&table, &c, !c.tied, err);
    if (rc == 0)
        rc = arrays_open(&arrays, &table, &layout, err);
    if (rc == 0)
        rc = check_exact(s, &arrays, err);
    arrays_close(&arrays);
    table_close(&table);
    return rc;
}

/* What is to be read of a checkpoint. */
struct plan {
    struct bulk *held, *part;    // whole arrays, and parts of others
    const struct tensor **check; // what is hashed besides
    size_t n_held, n_part, n_check;
};

/* A part cannot be checked alone, nor what stays in the file: the ranks take turns to read all of
 * such an array. */
static void
plan_array(struct train *t, struct plan *p, size_t i, const struct tensor *x)
{
    const struct train_held *h = &t->held[i];
    const struct array *a = &t->arrays.v[i];
    const struct comm *c = t->layout.comm;
    uint64_t at, n = array_bytes(a, &h->span, &at);
    if (h->device && !train_has_parts(t, a)) {
        p->held[p->n_held++] = (struct bulk){ x, h->device, 0, 0 };
        return;
    }
    if (h->device && n)
        p->part[p->n_part++] = (struct bulk){ x, h->device, at, n };
    if (!c || i % c->size == c->rank)
        p->check[p->n_check++] = x;
}

static int
load_planned(struct train *t, struct store *from, const struct plan *p,
             unsigned threads)
{
    struct kernels *k = t->net.k;
    if (bulk_load(k, from, p->held, p->n_held, true, threads, t->err) < 0 ||
        bulk_load(k, from, p->part, p->n_part, false, threads, t->err) < 0)
        return -1;
    return store_check_payloads(from, p->check, p->n_check, threads, t->err);
}

int
training_load(struct train *t, struct store *from, unsigned threads)
{
    size_t n = t->arrays.n + 1;
    struct plan p = { calloc(n, sizeof *p.held),
                      calloc(n, sizeof *p.part),
                      calloc(n, sizeof *p.check),
                      0,
                      0,
                      0 };
    int rc = p.held && p.part && p.check
                 ? check_exact(from, &t->arrays, t->err)
                 : err_set(t->err, ERR_MEMORY, "%s: out of memory", from->name);
    for (size_t i = 0; i < t->arrays.n && rc == 0; i++) {
        const struct tensor *x;
        if ((rc = find_array(from, &t->arrays.v[i], &x, t->err)) == 0)
            plan_array(t, &p, i, x);
    }
    if (rc == 0)
        rc = load_planned(t, from, &p, threads);
    free(p.check);
    free(p.part);
    free(p.held);
    return rc;
}

/* ---- writing ------------------------------------------------------------------------------ */

struct wtensor *
training_list(const struct train *t)
{
    struct wtensor *w = calloc(t->arrays.n + 1, sizeof *w);
    for (size_t i = 0; w && i < t->arrays.n; i++) {
        const struct array *a = &t->arrays.v[i];
        w[i] = (struct wtensor){ .name = a->name,
                                 .dtype = a->dtype,
                                 .rank = a->rank,
                                 .shape = a->shape,
                                 .tag = i };
    }
    return w;
}

/* The first byte of array i that this rank holds. */
static uint64_t
held_from(const struct train *t, size_t i)
{
    const struct array *a = &t->arrays.v[i];
    uint64_t at = 0;
    if (train_has_parts(t, a))
        array_bytes(a, &t->held[i].span, &at);
    return at;
}

const void *
training_read(const struct train *t, struct store *from, size_t i, uint64_t at,
              void *buffer, size_t n, struct err *err)
{
    struct kernels *k = t->net.k;
    const uint8_t *device = t->held[i].device;
    if (!device) {
        const struct tensor *x = store_find(from, slice_of(t->arrays.v[i].name));
        return store_read(from, x, at, buffer, n, err) < 0 ? NULL : buffer;
    }
    device += at - held_from(t, i);
    if (k->is.host)
        return device;
    if (kernels_download(k, buffer, device, n) == 0)
        return buffer;
    err_set(err, k->err->kind, "%s", k->err->msg);
    return NULL;
}

/* ---- comparing ---------------------------------------------------------------------------- */

/* Bytes at a time: of a host what fits the cache of a core, of a device several pieces of a
 * download, which overlap. */
static size_t
piece_bytes(const struct train *t)
{
    return t->net.k->is.host ? STAGE_BYTES / 4 : 4 * STAGE_BYTES;
}

struct comparing {
    struct train *t;
    struct store *from, *with;
    pthread_mutex_t device;     // a device is asked by one thread at a time
    struct training_diff *diff; // one an array
    size_t piece;
    uint8_t **buffer; // one a thread: a piece of own, and of other
    unsigned n_buffers;
};

/* Bytes [at, at + n) of array i are in own and other: note the first that differ. */
static void
note_difference(struct training_diff *d, const struct array *a, uint64_t at,
                const uint8_t *own, const uint8_t *other, size_t n)
{
    size_t same = 0;
    while (same < n && own[same] == other[same])
        same++;
    d->differing = 1;
    d->bytes = dtype_bits(a->dtype) < 8 ? 1 : dtype_bits(a->dtype) / 8;
    d->element = (at + same) / d->bytes;
    size_t first = same / d->bytes * d->bytes;
    memcpy(d->own, own + first, d->bytes);
    memcpy(d->other, other + first, d->bytes);
}

/* n bytes of array i as the run has it: in buffer, or where it lies. */
static const uint8_t *
read_own(struct comparing *c, size_t i, uint64_t at, uint8_t *buffer, size_t n,
         struct err *err)
{
    bool locks = c->t->held[i].device && !c->t->net.k->is.host;
    if (locks)
        pthread_mutex_lock(&c->device);
    const uint8_t *own = training_read(c->t, c->from, i, at, buffer, n, err);
    if (locks)
        pthread_mutex_unlock(&c->device);
    return own;
}

static int
compare_array(void *ctx, size_t i, unsigned worker, struct err *err)
{
    struct comparing *c = ctx;
    const struct array *a = &c->t->arrays.v[i];
    const struct tensor *x = store_find(c->with, slice_of(a->name));
    uint8_t *buffer = c->buffer[worker], *other = buffer + c->piece;
    for (uint64_t at = 0; at < a->bytes && !c->diff[i].differing; at += c->piece) {
        uint64_t left = a->bytes - at;
        size_t n = left < c->piece ? (size_t)left : c->piece;
        const uint8_t *own = read_own(c, i, at, buffer, n, err);
        if (!own || store_read(c->with, x, at, other, n, err) < 0)
            return -1;
        if (memcmp(own, other, n) != 0)
            note_difference(&c->diff[i], a, at, own, other, n);
    }
    return 0;
}

/* Both files have all arrays, and the one that is compared with has no others. */
static int
check_arrays(struct comparing *c)
{
    struct train *t = c->t;
    const struct tensor *x;
    for (size_t i = 0; i < t->arrays.n; i++)
        if (find_array(c->from, &t->arrays.v[i], &x, t->err) < 0)
            return -1;
    return check_exact(c->with, &t->arrays, t->err);
}

/* Scratch memory for threads, of which there are no more than arrays; how many have theirs. */
static unsigned
alloc_buffers(struct comparing *c, unsigned threads)
{
    size_t n = c->t->arrays.n;
    unsigned have = 0, most = threads < n ? threads : (unsigned)n;
    c->diff = calloc(n + 1, sizeof *c->diff);
    c->buffer = calloc((size_t)most + 1, sizeof *c->buffer);
    while (c->diff && c->buffer && have < most &&
           (c->buffer[have] = malloc(2 * c->piece)))
        have++;
    c->n_buffers = have;
    return have;
}

static void
free_buffers(struct comparing *c)
{
    for (unsigned i = 0; i < c->n_buffers; i++)
        free(c->buffer[i]);
    free(c->buffer);
    free(c->diff);
}

/* Of all arrays: how many differ, and the first one. */
static void
sum_up(const struct comparing *c, struct training_diff *d)
{
    size_t n = 0;
    for (size_t i = c->t->arrays.n; i-- > 0;)
        if (c->diff[i].differing) {
            *d = c->diff[i];
            d->array = i;
            n++;
        }
    d->differing = n;
}

int
training_compare(struct train *t, struct store *from, struct store *with,
                 unsigned threads, struct training_diff *d)
{
    struct comparing c = {
        .t = t, .from = from, .with = with, .piece = piece_bytes(t)
    };
    struct err err = { 0 }; // t->err is written by the device
    *d = (struct training_diff){ 0 };
    if (check_arrays(&c) < 0)
        return -1;
    unsigned n = alloc_buffers(&c, threads);
    pthread_mutex_init(&c.device, NULL);
    int rc = n ? par_for(n, t->arrays.n, compare_array, &c, &err)
               : err_set(&err, ERR_MEMORY, "%s: out of memory", with->name);
    pthread_mutex_destroy(&c.device);
    if (rc == 0)
        sum_up(&c, d);
    else
        err_set(t->err, err.kind, "%s", err.msg);
    free_buffers(&c);
    return rc;
}
