/* SPDX-License-Identifier: MIT */
/* order: all samples in another order, or several in one.
 *
 * --shuffle sorts by a draw of Philox that depends on the seed and the sample's index
 * alone.  --pack is best fit decreasing: documents from the longest to the shortest (of
 * equal ones the first first), each into the fullest bin that has room, of equally full
 * ones into the one that came to be so last.  Inside a bin, and bins among each other by
 * their first document, stand in input order; --shuffle then orders bins.
 */
#include "cmd/tokenize/tokenize.h"

#include "lib/core/num.h"
#include "lib/core/shuffle.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { WRITE_AT = 256 << 10, RECORD_HEAD = 5 };
#define NONE UINT32_MAX // no bin; also more than there can be

/* ---- shuffle ----------------------------------------------------------------------- */

/* order[i].index is the sample or bin at place i. */
static struct ticket *
make_order(const struct config_tokenize *c, size_t n)
{
    struct ticket *order = malloc((n + 1) * sizeof *order);
    for (size_t i = 0; order && i < n; i++)
        order[i].index = i;
    if (order && c->shuffle)
        shuffle(order, n, c->shuffle_seed, 0);
    return order;
}

/* ---- the samples that were kept ------------------------------------------------------ */

/* sizes become offsets, with the end behind them. */
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

/* Which of the numbers 0 .. size-1 have a bin: 64 a word, and words above that say which
 * of the words below are not 0. */
enum { LEVELS = 5 };

struct rooms {
    uint64_t *level[LEVELS];
    uint32_t *head; // (size) last bin that got this room
};

struct packing {
    uint32_t capacity, n; // of a bin, documents
    const char *records;
    const size_t *at;       // (n + 1) offsets of the records
    uint32_t *doc;          // (n) documents by length
    uint32_t *bin_of;       // (n) by document
    uint32_t *room, *below; // (n) by bin: what is left; the next bin with equal room
    uint32_t n_bins;
    uint32_t *first, *members; // (n_bins + 1), (n): documents of each bin
    struct rooms rooms;
};

static uint32_t
doc_ids(const struct packing *p, uint32_t doc)
{
    return load_le32(p->records + p->at[doc] + 1);
}

static void
rooms_set(struct rooms *r, uint32_t v)
{
    for (int l = 0; l < LEVELS; l++, v /= 64)
        r->level[l][v / 64] |= (uint64_t)1 << v % 64;
}

static void
rooms_clear(struct rooms *r, uint32_t v)
{
    for (int l = 0; l < LEVELS; l++, v /= 64) {
        r->level[l][v / 64] &= ~((uint64_t)1 << v % 64);
        if (r->level[l][v / 64])
            return;
    }
}

/* The smallest member >= v, or NONE. */
static uint32_t
rooms_from(const struct rooms *r, uint32_t v)
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

/* Room for numbers up to size, and one word more a level, so that the step to the next
 * word stays inside. */
static bool
rooms_open(struct rooms *r, uint64_t size)
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
rooms_close(struct rooms *r)
{
    for (int l = 0; l < LEVELS; l++)
        free(r->level[l]);
    free(r->head);
}

static void
give_room(struct packing *p, uint32_t bin, uint32_t room)
{
    p->room[bin] = room;
    p->below[bin] = p->rooms.head[room];
    p->rooms.head[room] = bin;
    rooms_set(&p->rooms, room);
}

/* The fullest bin with that much room, taken out of the list, or a new one. */
static uint32_t
take_bin(struct packing *p, uint32_t ids)
{
    uint32_t room = rooms_from(&p->rooms, ids);
    if (room == NONE) {
        p->room[p->n_bins] = p->capacity;
        return p->n_bins++;
    }
    uint32_t bin = p->rooms.head[room];
    p->rooms.head[room] = p->below[bin];
    if (p->rooms.head[room] == NONE)
        rooms_clear(&p->rooms, room);
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
    uint32_t *name = p->room; // not needed any more
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
    size_t room = ((size_t)p->n + 1) * sizeof(uint32_t);
    p->doc = malloc(room);
    p->bin_of = malloc(room);
    p->room = malloc(room);
    p->below = malloc(room);
    p->members = malloc(room);
    bool ok = p->doc && p->bin_of && p->room && p->below && p->members &&
              rooms_open(&p->rooms, p->capacity) && sort_docs(p);
    for (uint32_t i = 0; ok && i < p->n; i++) {
        uint32_t ids = doc_ids(p, p->doc[i]);
        uint32_t bin = take_bin(p, ids);
        p->bin_of[p->doc[i]] = bin;
        give_room(p, bin, p->room[bin] - ids);
    }
    ok = ok && list_members(p);
    return ok ? 0 : err_set(err, ERR_MEMORY, "out of memory for %u documents", p->n);
}

static void
packing_close(struct packing *p)
{
    free(p->doc);
    free(p->bin_of);
    free(p->room);
    free(p->below);
    free(p->first);
    free(p->members);
    rooms_close(&p->rooms);
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

/* Bins in their order, through buf; what they count goes into counts. */
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
