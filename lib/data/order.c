/* SPDX-License-Identifier: MIT */
/* order: shuffles samples, or packs several into one.
 *
 * --shuffle: see lib/base/shuffle.h.  --pack is best fit decreasing: documents from the longest
 * to the shortest (ties in input order), each into the fullest bin that has space (ties: the
 * bin that got this space last).  Documents in a bin, and bins by their first document, are in
 * input order; --shuffle then shuffles bins.
 */
#include "lib/data/order.h"

#include "lib/base/num.h"
#include "lib/base/shuffle.h"
#include "lib/data/emit.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { WRITE_AT = 256 << 10, RECORD_HEAD = 5 };
#define NONE UINT32_MAX // no bin; also more than there can be

/* ---- shuffle ----------------------------------------------------------------------- */

/* order[i].index is the sample or bin at place i. */
static struct ticket *
make_order(const struct data_options *c, size_t n)
{
    struct ticket *order = malloc((n + 1) * sizeof *order);
    for (size_t i = 0; order && i < n; i++)
        order[i].index = i;
    if (order && c->shuffle)
        shuffle(order, n, c->shuffle_seed, 0);
    return order;
}

/* ---- the buffered samples ------------------------------------------------------ */

/* Turn sizes into offsets, and append the end. */
static int
make_offsets(struct sink *s)
{
    size_t at = 0;
    sizes_add(&s->sizes, 0);
    if (s->sizes.failed)
        return err_set(s->err, ERR_MEMORY, "out of memory for the samples' places");
    for (size_t i = 0; i < s->sizes.n; i++) {
        size_t n = s->sizes.v[i];
        s->sizes.v[i] = at;
        at += n;
    }
    return 0;
}

static int
put_shuffled(struct sink *s)
{
    struct tok_counts counts = s->sum.counts, none = { 0 };
    size_t n = s->sizes.n;
    struct ticket *order = make_order(s->c, n);
    if (!order || make_offsets(s) < 0) {
        free(order);
        return err_set(s->err, ERR_MEMORY, "out of memory for the order");
    }
    const size_t *at = s->sizes.v;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        size_t k = (size_t)order[i].index;
        rc =
            sink_write(s, s->kept.data + at[k], at[k + 1] - at[k], i ? &none : &counts);
    }
    free(order);
    return rc;
}

/* ---- bins ------------------------------------------------------------------------------ */

/* The set of spaces (free ids of a bin) 0 .. size-1 that have a bin: a bit each, and levels of
 * words above, whose bits tell which words below are not 0. */
enum { LEVELS = 5 };

struct spaces {
    uint64_t *level[LEVELS];
    uint32_t *head; // (size) the last bin that got this space
};

struct packing {
    uint32_t capacity, n; // of a bin, documents
    const char *records;
    const size_t *at;        // (n + 1) offsets of the records
    uint32_t *doc;           // (n) documents by length
    uint32_t *bin_of;        // (n) by document
    uint32_t *space, *below; // (n) by bin: free ids; the next bin with as many
    uint32_t n_bins;
    uint32_t *first, *members; // (n_bins + 1), (n): documents of each bin
    struct spaces spaces;
};

static uint32_t
doc_ids(const struct packing *p, uint32_t doc)
{
    return load_le32(p->records + p->at[doc] + 1);
}

static void
spaces_add(struct spaces *r, uint32_t v)
{
    for (int l = 0; l < LEVELS; l++, v /= 64)
        r->level[l][v / 64] |= (uint64_t)1 << v % 64;
}

static void
spaces_remove(struct spaces *r, uint32_t v)
{
    for (int l = 0; l < LEVELS; l++, v /= 64) {
        r->level[l][v / 64] &= ~((uint64_t)1 << v % 64);
        if (r->level[l][v / 64])
            return;
    }
}

/* The smallest member >= v, or NONE. */
static uint32_t
spaces_find(const struct spaces *r, uint32_t v)
{
    uint64_t at = v;
    for (int l = 0; l < LEVELS; l++) {
        uint64_t word =
            at % 64 ? r->level[l][at / 64] >> at % 64 << at % 64 : r->level[l][at / 64];
        if (word) {
            at = at / 64 * 64 + (uint64_t)__builtin_ctzll(word);
            while (l-- > 0)
                at = 64 * at + (uint64_t)__builtin_ctzll(r->level[l][at]);
            return (uint32_t)at;
        }
        at = at / 64 + 1;
    }
    return NONE;
}

/* For members up to size; one more word a level, so that the step to the next word stays
 * inside. */
static bool
spaces_open(struct spaces *r, uint64_t size)
{
    bool ok = true;
    r->head = malloc((size + 1) * sizeof *r->head);
    for (uint64_t i = 0; r->head && i <= size; i++)
        r->head[i] = NONE;
    for (int l = 0; l < LEVELS; l++) {
        size = size / 64 + 1;
        r->level[l] = calloc(size + 1, sizeof **r->level);
        ok = ok && r->level[l];
    }
    return ok && r->head;
}

static void
spaces_close(struct spaces *r)
{
    for (int l = 0; l < LEVELS; l++)
        free(r->level[l]);
    free(r->head);
}

static void
put_bin(struct packing *p, uint32_t bin, uint32_t space)
{
    p->space[bin] = space;
    p->below[bin] = p->spaces.head[space];
    p->spaces.head[space] = bin;
    spaces_add(&p->spaces, space);
}

/* Remove the fullest bin with that much space from the set, or make a new one. */
static uint32_t
take_bin(struct packing *p, uint32_t ids)
{
    uint32_t space = spaces_find(&p->spaces, ids);
    if (space == NONE) {
        p->space[p->n_bins] = p->capacity;
        return p->n_bins++;
    }
    uint32_t bin = p->spaces.head[space];
    p->spaces.head[space] = p->below[bin];
    if (p->spaces.head[space] == NONE)
        spaces_remove(&p->spaces, space);
    return bin;
}

/* Documents from the longest to the shortest: a counting sort. */
static bool
sort_docs(struct packing *p)
{
    uint64_t *place = calloc((size_t)p->capacity + 2, sizeof *place);
    if (!place)
        return false;
    for (uint32_t i = 0; i < p->n; i++)
        place[p->capacity - doc_ids(p, i) + 1]++;
    for (uint32_t k = 0; k <= p->capacity; k++)
        place[k + 1] += place[k];
    for (uint32_t i = 0; i < p->n; i++)
        p->doc[place[p->capacity - doc_ids(p, i)]++] = i;
    free(place);
    return true;
}

/* Number the bins by their first documents and list the members of each. */
static bool
list_members(struct packing *p)
{
    uint32_t *name = p->space; // not needed any more
    uint32_t next = 0;
    for (uint32_t b = 0; b < p->n_bins; b++)
        name[b] = NONE;
    p->first = calloc((size_t)p->n_bins + 2, sizeof *p->first);
    if (!p->first)
        return false;
    for (uint32_t i = 0; i < p->n; i++) {
        if (name[p->bin_of[i]] == NONE)
            name[p->bin_of[i]] = next++;
        p->bin_of[i] = name[p->bin_of[i]];
        p->first[p->bin_of[i] + 2]++;
    }
    for (uint32_t b = 0; b < p->n_bins; b++)
        p->first[b + 2] += p->first[b + 1];
    for (uint32_t i = 0; i < p->n; i++)
        p->members[p->first[p->bin_of[i] + 1]++] = i;
    return true;
}

static int
fill_bins(struct packing *p, struct err *err)
{
    size_t space = ((size_t)p->n + 1) * sizeof(uint32_t);
    p->doc = malloc(space);
    p->bin_of = malloc(space);
    p->space = malloc(space);
    p->below = malloc(space);
    p->members = malloc(space);
    bool ok = p->doc && p->bin_of && p->space && p->below && p->members &&
              spaces_open(&p->spaces, p->capacity) && sort_docs(p);
    for (uint32_t i = 0; ok && i < p->n; i++) {
        uint32_t ids = doc_ids(p, p->doc[i]);
        uint32_t bin = take_bin(p, ids);
        p->bin_of[p->doc[i]] = bin;
        put_bin(p, bin, p->space[bin] - ids);
    }
    ok = ok && list_members(p);
    return ok ? 0 : err_set(err, ERR_MEMORY, "out of memory for %u documents", p->n);
}

static void
packing_close(struct packing *p)
{
    free(p->doc);
    free(p->bin_of);
    free(p->space);
    free(p->below);
    free(p->first);
    free(p->members);
    spaces_close(&p->spaces);
}

/* One bin as a sample. */
struct bin {
    uint32_t *ids, *starts; // (capacity)
    uint8_t *mask;
    uint32_t n, n_starts;
};

static void
add_doc(struct bin *b, const char *record)
{
    uint32_t n = load_le32(record + 1);
    const char *ids = record + RECORD_HEAD, *mask = ids + (size_t)4 * n;
    b->starts[b->n_starts++] = b->n;
    for (uint32_t i = 0; i < n; i++) {
        b->ids[b->n + i] = load_le32(ids + (size_t)4 * i);
        b->mask[b->n + i] = (uint8_t)mask[i / 8] >> i % 8 & 1;
    }
    b->n += n;
}

/* Write the bins in that order, through buf. */
static int
put_bins(struct sink *s, const struct packing *p, const struct ticket *order,
         struct bin *b, struct buf *buf, struct tok_counts *sum)
{
    enum emit form = s->c->count ? EMIT_NOTHING : s->c->emit;
    struct tok_counts counts = { 0 };
    for (uint32_t k = 0; k < p->n_bins; k++) {
        uint32_t bin = (uint32_t)order[k].index;
        b->n = b->n_starts = 0;
        for (uint32_t i = p->first[bin]; i < p->first[bin + 1]; i++)
            add_doc(b, p->records + p->at[p->members[i]]);
        struct sample sample = { b->ids, b->mask, b->n, b->starts, b->n_starts };
        if (emit_sample(buf, &counts, form, &sample, NULL, s->err) < 0)
            return -1;
        if (buf->len < WRITE_AT && !buf->failed && k + 1 < p->n_bins)
            continue;
        if (buf_ok(buf, s->err) < 0 || sink_write(s, buf->data, buf->len, &counts) < 0)
            return -1;
        tok_add_counts(sum, &counts);
        counts = (struct tok_counts){ 0 };
        buf->len = 0;
    }
    return 0;
}

static int
put_packing(struct sink *s, const struct packing *p)
{
    struct bin b = { 0 };
    struct buf buf = { 0 };
    struct tok_counts sum = { 0 };
    struct ticket *order = make_order(s->c, p->n_bins);
    b.ids = malloc((size_t)p->capacity * sizeof *b.ids);
    b.starts = malloc((size_t)p->capacity * sizeof *b.starts);
    b.mask = malloc(p->capacity);
    int rc = order && b.ids && b.starts && b.mask
                 ? put_bins(s, p, order, &b, &buf, &sum)
                 : err_set(s->err, ERR_MEMORY, "out of memory for a bin");
    s->sum.counts = sum;
    free(order);
    free(b.ids);
    free(b.starts);
    free(b.mask);
    buf_free(&buf);
    return rc;
}

static int
put_packed(struct sink *s)
{
    size_t n = s->sizes.n;
    struct packing p = { .capacity = s->c->seq_len + 1, .n = (uint32_t)n };
    if (n >= NONE)
        return err_set(s->err, ERR_FORMAT, "%zu samples are too many to pack", n);
    if (make_offsets(s) < 0)
        return -1;
    p.records = s->kept.data;
    p.at = s->sizes.v;
    s->documents = n;
    int rc = fill_bins(&p, s->err);
    if (rc == 0)
        rc = put_packing(s, &p);
    packing_close(&p);
    return rc;
}

int
order_put(struct sink *s)
{
    if (s->sizes.n == 0)
        return 0;
    return s->c->pack ? put_packed(s) : put_shuffled(s);
}
