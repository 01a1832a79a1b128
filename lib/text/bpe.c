/* SPDX-License-Identifier: MIT */
/* bpe: see bpe.h.
 *
 * A piece of a few dozen symbols is merged in small arrays that are searched for the
 * lowest rank; a longer one with a heap of pairs.
 *
 * A very long piece is merged in overlapping windows.  Why that is exact: tokens
 * s1..sk are the merging of their bytes if and only if each neighbouring pair is the
 * merging of its own bytes.  (The first merge across a border between si and si+1 that
 * the whole would make, the pair alone would make as well: until then both do the same
 * merges inside si and si+1, in the same order.)  So two such rows of tokens that have
 * a token in common can be joined there: every pair comes from one of them.
 */
#include "lib/text/bpe.h"

#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHORT = 64,        // symbols, for the search in small arrays
    WINDOW = 16 << 10, // bytes
    OVERLAP = 512,     // bytes, at first
};

static size_t
slot_of(const struct bpe *b, uint32_t left, uint32_t right)
{
    uint64_t key = (uint64_t)left << 32 | right;
    return (size_t)(key * 0x9e3779b97f4a7c15 >> b->merge_shift);
}

static size_t
slot_after(const struct bpe *b, size_t slot)
{
    return (slot + 1) & (((size_t)1 << (64 - b->merge_shift)) - 1);
}

/* The slot of a pair, or the empty one where it would be. */
static const struct bpe_merge *
find_merge(const struct bpe *b, uint32_t left, uint32_t right)
{
    size_t slot = slot_of(b, left, right);
    for (;;) {
        const struct bpe_merge *m = b->merge + slot;
        if ((m->left == left && m->right == right) || m->rank == BPE_NO_RANK)
            return m;
        slot = slot_after(b, slot);
    }
}

static inline uint32_t
rank_of(const struct bpe *b, uint32_t left, uint32_t right)
{
    return find_merge(b, left, right)->rank;
}

bool
bpe_reserve_merges(struct bpe *b, size_t n)
{
    unsigned bits = 4;
    while (((size_t)1 << bits) * 3 < n * 4)
        bits++;
    b->merge = malloc(sizeof *b->merge << bits);
    if (!b->merge)
        return false;
    memset(b->merge, 0xff, sizeof *b->merge << bits); // every rank is BPE_NO_RANK
    b->merge_shift = 64 - bits;
    return true;
}

bool
bpe_add_merge(struct bpe *b, struct bpe_merge m, uint32_t *rank)
{
    struct bpe_merge *slot = b->merge + (find_merge(b, m.left, m.right) - b->merge);
    *rank = slot->rank;
    if (slot->rank != BPE_NO_RANK)
        return false;
    *slot = m;
    b->n_merges++;
    return true;
}

/* ---- characters to start from ----------------------------------------------- */

/* For each token the lowest rank of a merge that could join it to something outside
 * its character (across), and of any merge (any). */
struct reach {
    uint32_t left_across, left_any; // as the right half of a merge
    uint32_t right_across, right_any;
};

static uint32_t
lower(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* A neighbour on the left ends with the end of a character that is not ASCII (see
 * start_symbol), one on the right begins with a beginning: no other merge crosses the
 * border between two characters. */
static void
reach_all(const struct bpe *b, struct reach *r)
{
    for (size_t i = 0; i < b->n_text; i++)
        r[i] = (struct reach){ BPE_NO_RANK, BPE_NO_RANK, BPE_NO_RANK, BPE_NO_RANK };
    for (size_t i = 0; i < (size_t)1 << (64 - b->merge_shift); i++) {
        const struct bpe_merge *m = b->merge + i;
        if (m->rank == BPE_NO_RANK)
            continue;
        struct bpe_text left = b->text[m->left], right = b->text[m->right];
        uint8_t last = (uint8_t)b->bytes.data[left.at + left.n - 1];
        uint8_t first = (uint8_t)b->bytes.data[right.at];
        struct reach *lr = r + m->left, *rr = r + m->right;
        lr->right_any = lower(lr->right_any, m->rank);
        rr->left_any = lower(rr->left_any, m->rank);
        if ((first & 0xc0) != 0x80)
            lr->right_across = lower(lr->right_across, m->rank);
        if ((last & 0xc0) == 0x80)
            rr->left_across = lower(rr->left_across, m->rank);
    }
}

/* Merge the bytes of a character of two or three bytes on its own.  True if it ends as
 * one token, and nothing around it could have made a difference: each merge that would
 * join a part of it to a neighbour, or the whole of it, has a higher rank than all
 * merges that make it. */
static bool
independent(const struct bpe *b, const struct reach *r, const uint8_t *p, size_t n)
{
    uint32_t s[3] = { 0 }, highest = 0, nearest = BPE_NO_RANK;
    for (size_t i = 0; i < n; i++)
        s[i] = b->byte_id[p[i]];
    for (;;) {
        nearest = lower(nearest, r[s[0]].left_across);
        nearest = lower(nearest, r[s[n - 1]].right_across);
        if (n == 1)
            break;
        const struct bpe_merge *m = find_merge(b, s[0], s[1]);
        size_t at = 0;
        if (n == 3 && rank_of(b, s[1], s[2]) < m->rank) {
            m = find_merge(b, s[1], s[2]);
            at = 1;
        }
        if (m->rank == BPE_NO_RANK)
            return false;
        highest = m->rank > highest ? m->rank : highest;
        s[at] = m->id;
        if (n == 3 && at == 0)
            s[1] = s[2];
        n--;
    }
    nearest = lower(nearest, lower(r[s[0]].left_any, r[s[0]].right_any));
    return highest < nearest;
}

/* Merging may start from whole characters where they are independent, which for Chinese
 * text leaves a third of the symbols: char_id is their token, for others TOKEN_NONE. */
bool
bpe_seal(struct bpe *b)
{
    struct reach *r = malloc(b->n_text * sizeof *r);
    b->char_id = malloc(BPE_CHARS * sizeof *b->char_id);
    bool ok = r && b->char_id;
    if (ok) {
        memset(b->char_id, 0xff, BPE_CHARS * sizeof *b->char_id);
        reach_all(b, r);
        for (uint32_t id = 0; id < b->n_text; id++) {
            const char *p = b->bytes.data + b->text[id].at;
            size_t n = b->text[id].n;
            uint32_t cp;
            if ((n == 2 || n == 3) && utf8_char(&cp, p, n) == n &&
                independent(b, r, (const uint8_t *)p, n))
                b->char_id[cp] = id;
        }
    }
    free(r);
    return ok;
}

void
bpe_free(struct bpe *b)
{
    free(b->text);
    buf_free(&b->bytes);
    free(b->merge);
    free(b->char_id);
}

void
bpe_work_free(struct bpe_work *w)
{
    free(w->symbol);
    free(w->rank);
    free(w->prev);
    free(w->next);
    free(w->heap);
    ids_free(&w->window);
    ids_free(&w->tail);
}

/* The symbol to start from at place i of p[0 .. n), and its length.  A character behind
 * an ASCII one starts as bytes: in Qwen's vocabulary the space merges with the first
 * byte of most, before they are whole, and that would leave 800 characters of 16,000.
 * A window may begin or end inside a character, so lengths are checked. */
static inline unsigned
start_symbol(const struct bpe *b, uint32_t *id, const uint8_t *p, size_t i, size_t n)
{
    const uint8_t *c = p + i;
    if (*c >= 0xc2 && *c < 0xf0 && n - i >= (*c < 0xe0 ? 2u : 3u) &&
        (i == 0 || c[-1] >= 0x80)) {
        uint32_t cp;
        unsigned len = unicode_char(&cp, c);
        *id = b->char_id[cp];
        if (*id != TOKEN_NONE)
            return len;
    }
    *id = b->byte_id[*c];
    return 1;
}

/* ---- short pieces ----------------------------------------------------------- */

/* A rank and a place, to be compared as one number. */
static inline uint64_t
rank_at(uint32_t rank, size_t place)
{
    return (uint64_t)rank << 8 | place;
}

/* Merge n symbols in place and return how many are left, at the front.  pair[i] is the
 * rank of the pair that begins at place i, with the place.  Nothing is moved: next and
 * prev link the places that are left, of which the first always is. */
static size_t
merge_short(const struct bpe *b, uint32_t *symbol, uint64_t *pair, size_t n)
{
    uint8_t next[SHORT], prev[SHORT];
    for (size_t i = 0; i < n; i++) {
        next[i] = (uint8_t)(i + 1);
        prev[i] = (uint8_t)(i - 1);
    }
    for (;;) {
        uint64_t lowest = pair[0];
        for (size_t i = 1; i < n; i++)
            lowest = pair[i] < lowest ? pair[i] : lowest;
        if (lowest >> 8 == BPE_NO_RANK)
            break;
        size_t at = lowest & 0xff, gone = next[at], after = next[gone];
        symbol[at] = find_merge(b, symbol[at], symbol[gone])->id;
        next[at] = (uint8_t)after;
        pair[gone] = rank_at(BPE_NO_RANK, gone);
        if (at) {
            size_t k = prev[at];
            pair[k] = rank_at(rank_of(b, symbol[k], symbol[at]), k);
        }
        pair[at] = rank_at(BPE_NO_RANK, at);
        if (after < n) {
            prev[after] = (uint8_t)at;
            pair[at] = rank_at(rank_of(b, symbol[at], symbol[after]), at);
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i = next[i])
        symbol[kept++] = symbol[i];
    return kept;
}

/* True if the piece was short enough and is done. */
static bool
encode_short(const struct bpe *b, struct ids *out, const uint8_t *p, size_t n)
{
    uint32_t symbol[SHORT];
    uint64_t pair[SHORT];
    size_t count = 0;
    for (size_t i = 0; i < n; count++) {
        if (count == SHORT)
            return false;
        i += start_symbol(b, symbol + count, p, i, n);
    }
    if (count == 0)
        return true;
    for (size_t i = 0; i + 1 < count; i++)
        pair[i] = rank_at(rank_of(b, symbol[i], symbol[i + 1]), i);
    pair[count - 1] = rank_at(BPE_NO_RANK, count - 1);
    ids_append(out, symbol, merge_short(b, symbol, pair, count));
    return true;
}

/* ---- long pieces ------------------------------------------------------------ */

/* A binary heap of rank << 32 | place: the lowest rank first, then the leftmost. */
static void
sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t x = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= x)
            break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static void
push(uint64_t *heap, size_t *n, uint64_t x)
{
    size_t i = (*n)++;
    for (; i && heap[(i - 1) / 2] > x; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
}

static uint64_t
pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n)
        sift_down(heap, *n, 0);
    return top;
}

/* Arrays for n symbols.  A merge takes one entry from the heap and adds at most two, and
 * there are fewer than n merges: 2n entries suffice. */
static int
work_reserve(struct bpe_work *w, size_t n)
{
    if (n <= w->cap)
        return 0;
    free(w->symbol);
    free(w->rank);
    free(w->prev);
    free(w->next);
    free(w->heap);
    w->symbol = malloc(n * sizeof *w->symbol);
    w->rank = malloc(n * sizeof *w->rank);
    w->prev = malloc(n * sizeof *w->prev);
    w->next = malloc(n * sizeof *w->next);
    w->heap = malloc(n * 2 * sizeof *w->heap);
    bool ok = w->symbol && w->rank && w->prev && w->next && w->heap;
    w->cap = ok ? n : 0;
    return ok ? 0 : -1;
}

/* The pair that begins at place i has changed. */
static void
update_pair(const struct bpe *b, struct bpe_work *w, size_t *n_heap, uint32_t i,
            uint32_t end)
{
    uint32_t k = w->next[i];
    w->rank[i] = k == end ? BPE_NO_RANK : rank_of(b, w->symbol[i], w->symbol[k]);
    if (w->rank[i] != BPE_NO_RANK)
        push(w->heap, n_heap, (uint64_t)w->rank[i] << 32 | i);
}

/* Merge symbol[0 .. n-1], linked by prev and next.  An entry of the heap is stale when
 * its place has another rank by now: it is passed over. */
static void
merge_heap(const struct bpe *b, struct bpe_work *w, uint32_t n)
{
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        w->prev[i] = i - 1;
        w->next[i] = i + 1;
        w->rank[i] =
            i + 1 < n ? rank_of(b, w->symbol[i], w->symbol[i + 1]) : BPE_NO_RANK;
        if (w->rank[i] != BPE_NO_RANK)
            w->heap[n_heap++] = (uint64_t)w->rank[i] << 32 | i;
    }
    for (size_t i = n_heap / 2; i--;)
        sift_down(w->heap, n_heap, i);
    while (n_heap) {
        uint64_t top = pop(w->heap, &n_heap);
        uint32_t i = (uint32_t)top;
        if (w->rank[i] != top >> 32)
            continue;
        uint32_t k = w->next[i];
        w->symbol[i] = find_merge(b, w->symbol[i], w->symbol[k])->id;
        w->rank[k] = BPE_NO_RANK;
        w->next[i] = w->next[k];
        if (w->next[i] != n)
            w->prev[w->next[i]] = i;
        update_pair(b, w, &n_heap, i, n);
        if (i)
            update_pair(b, w, &n_heap, w->prev[i], n);
    }
}

/* Append the merging of these bytes on their own. */
static int
encode_window(const struct bpe *b, struct bpe_work *w, struct ids *out,
              const uint8_t *p, size_t n)
{
    if (n <= SHORT && encode_short(b, out, p, n))
        return 0;
    if (work_reserve(w, n) < 0)
        return -1;
    uint32_t count = 0;
    for (size_t i = 0; i < n; count++)
        i += start_symbol(b, w->symbol + count, p, i, n);
    merge_heap(b, w, count);
    for (uint32_t i = 0; i != count; i = w->next[i])
        ids_add(out, w->symbol[i]);
    return 0;
}

/* Two rows of tokens that begin at the same byte: the place behind their first common
 * token, in *a and *k; false if they have none. */
static bool
common_token(const struct bpe *b, const struct ids *left, const struct ids *right,
             size_t *a, size_t *k)
{
    size_t i = 0, j = 0, at_i = 0, at_j = 0;
    while (i < left->n && j < right->n) {
        bool same = at_i == at_j && left->v[i] == right->v[j];
        if (at_i <= at_j)
            at_i += b->text[left->v[i++]].n;
        else
            at_j += b->text[right->v[j++]].n;
        if (same) {
            *a = i;
            *k = j + 1;
            return true;
        }
    }
    return false;
}

/* Move tokens from the end of out (which has those of this piece from first on) until
 * they cover overlap bytes; they are w->tail then, in order.  Returns their bytes. */
static size_t
drop_tail(const struct bpe *b, struct bpe_work *w, struct ids *out, size_t first,
          size_t overlap)
{
    size_t n = out->n, bytes = 0;
    while (n > first && bytes < overlap)
        bytes += b->text[out->v[--n]].n;
    w->tail.n = 0;
    ids_append(&w->tail, out->v + n, out->n - n);
    out->n = n;
    return bytes;
}

/* Invariant: the ids from first on are the merging of p[0 .. done).  A window that has
 * no token in common with the tail is tried again with more of both, which stays so;
 * in the end it begins at p, where nothing needs to be joined. */
static int
encode_long(const struct bpe *b, struct bpe_work *w, struct ids *out, const uint8_t *p,
            size_t n)
{
    size_t first = out->n, done = 0, window = WINDOW, overlap = OVERLAP;
    while (done < n) {
        size_t bytes = drop_tail(b, w, out, first, overlap), start = done - bytes;
        size_t end = n - done > window ? done + window : n, keep = 0, skip = 0;
        w->window.n = 0;
        if (encode_window(b, w, &w->window, p + start, end - start) < 0 ||
            w->tail.failed || w->window.failed || out->failed)
            return -1;
        if (start == 0 || common_token(b, &w->tail, &w->window, &keep, &skip)) {
            ids_append(out, w->tail.v, keep);
            ids_append(out, w->window.v + skip, w->window.n - skip);
            done = end;
        } else {
            ids_append(out, w->tail.v, w->tail.n);
            window *= 2;
            overlap *= 2;
        }
    }
    return 0;
}

int
bpe_encode(const struct bpe *b, struct bpe_work *w, struct ids *out, const uint8_t *p,
           size_t n)
{
    if (n <= SHORT * 3 && encode_short(b, out, p, n))
        return 0;
    return n <= WINDOW ? encode_window(b, w, out, p, n) : encode_long(b, w, out, p, n);
}
