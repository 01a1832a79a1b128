/* SPDX-License-Identifier: MIT */
/* training: see training.h. */
#include "lib/io/training.h"

#include "lib/io/bulk.h"

#include <stdlib.h>
#include <string.h>

static int
index_of(const char *const *words, const char *word)
{
    int i = 0;
    while (words[i] && strcmp(words[i], word) != 0)
        i++;
    return words[i] ? i : -1;
}

bool
training_layout(struct array_layout *l, const char *master, const char *moments)
{
    static const char *const kinds[] = { "f32", "bf16", "int8", NULL };
    static const char *const packed_kinds[] = { "none", "nvfp4", "int8", NULL };
    bool packed = strcmp(master, "nvfp4") == 0; // TorchSharp's optimizer
    int kind = index_of(packed ? packed_kinds : kinds, moments);
    *l = (struct array_layout){ 0 };
    if (kind >= 0 && packed)
        l->torchsharp = (enum torchsharp_moments)kind;
    else if (kind >= 0)
        *l = (struct array_layout){ strcmp(master, "f32") == 0 ? DT_F32 : DT_BF16,
                                    (enum moments)kind, TORCHSHARP_NONE };
    return kind >= 0;
}

/* ---- reading ---------------------------------------------------------------------------- */

static int
find_array(struct train *t, struct store *from, const struct array *a,
           const struct tensor **found)
{
    const struct tensor *x = *found = store_find(from, slice_of(a->name));
    if (!x || x->dtype != a->dtype || x->nbytes != a->bytes || x->rank != a->rank ||
        (a->rank && x->shape[0] != a->shape[0]) ||
        (a->rank > 1 && x->shape[1] != a->shape[1]))
        return err_set(t->err, ERR_FORMAT, "%s: \"%s\" %s", from->name, a->name,
                       x ? "is not what the configuration says" : "is missing");
    return 0;
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
    int rc = 0;
    if (!p.held || !p.part || !p.check)
        rc = err_set(t->err, ERR_MEMORY, "%s: out of memory", from->name);
    else if (from->n_tensors != t->arrays.n)
        rc = err_set(t->err, ERR_FORMAT,
                     "%s: %zu arrays, the configuration asks for %zu", from->name,
                     from->n_tensors, t->arrays.n);
    for (size_t i = 0; i < t->arrays.n && rc == 0; i++) {
        const struct tensor *x;
        if ((rc = find_array(t, from, &t->arrays.v[i], &x)) == 0)
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

enum { COMPARE_BYTES = 1 << 20 };

/* Bytes [at, at + n) of array i are in own and other: note the first that differ. */
static void
note_difference(struct training_diff *d, const struct array *a, uint64_t at,
                const uint8_t *own, const uint8_t *other, size_t n)
{
    size_t same = 0;
    while (same < n && own[same] == other[same])
        same++;
    d->bytes = dtype_bits(a->dtype) < 8 ? 1 : dtype_bits(a->dtype) / 8;
    d->element = (at + same) / d->bytes;
    size_t first = same / d->bytes * d->bytes;
    memcpy(d->own, own + first, d->bytes);
    memcpy(d->other, other + first, d->bytes);
}

/* 1: array i differs, which is noted if it is the first; 0; -1. */
static int
compare_array(struct train *t, struct store *from, struct store *with, size_t i,
              uint8_t *buffer, struct training_diff *d)
{
    const struct array *a = &t->arrays.v[i];
    const struct tensor *x, *y;
    if (find_array(t, with, a, &x) < 0 || find_array(t, from, a, &y) < 0)
        return -1;
    for (uint64_t at = 0; at < a->bytes; at += COMPARE_BYTES) {
        uint64_t left = a->bytes - at;
        size_t n = left < COMPARE_BYTES ? (size_t)left : COMPARE_BYTES;
        uint8_t *other = buffer + COMPARE_BYTES;
        const void *own = training_read(t, from, i, at, buffer, n, t->err);
        if (!own || store_read(with, x, at, other, n, t->err) < 0)
            return -1;
        if (memcmp(own, other, n) == 0)
            continue;
        if (d->differing == 0) {
            d->array = i;
            note_difference(d, a, at, own, other, n);
        }
        return 1;
    }
    return 0;
}

int
training_compare(struct train *t, struct store *from, struct store *with,
                 struct training_diff *d)
{
    uint8_t *buffer = malloc(2 * (size_t)COMPARE_BYTES);
    int rc = buffer ? 0 : err_set(t->err, ERR_MEMORY, "%s: out of memory", with->name);
    *d = (struct training_diff){ 0 };
    for (size_t i = 0; i < t->arrays.n && rc >= 0; i++) {
        rc = compare_array(t, from, with, i, buffer, d);
        d->differing += rc > 0;
    }
    free(buffer);
    return rc < 0 ? -1 : 0;
}
