/* SPDX-License-Identifier: MIT */
/* bpe: the tokens, which pairs of them merge, and the merging of a piece.
 *
 * A struct bpe is filled once by the loader and then only read.  Merging is exact:
 * always the pair of lowest rank, of equal ones the leftmost, until none is left.
 */
#ifndef NIBBLE_TEXT_BPE_H
#define NIBBLE_TEXT_BPE_H

#include "lib/base/buf.h"
#include "lib/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a token's bytes are in bpe.bytes; n == 0: there is no such token. */
struct bpe_text {
    size_t at, n;
};

/* One merge, in an open hash table; an empty slot has rank BPE_NO_RANK. */
struct bpe_merge {
    uint32_t left, right, rank, id;
};
enum { BPE_NO_RANK = UINT32_MAX };

struct bpe {
    struct bpe_text *text; // by id
    size_t n_text;         // 1 + the highest id
    struct buf bytes;

    struct bpe_merge *merge;
    unsigned merge_shift; // 64 - log2 of the slots
    size_t n_merges;

    uint32_t byte_id[256];
    uint32_t *char_id; // see bpe_seal
};

enum { BPE_CHARS = 0x10000 };

/* Allocate n merges, which bpe_add_merge then fills in; false: no memory. */
bool bpe_reserve_merges(struct bpe *b, size_t n);
/* False if the pair has a merge already (*rank: its rank). */
bool bpe_add_merge(struct bpe *b, struct bpe_merge m, uint32_t *rank);
/* After the last merge and with byte_id filled in: find the characters that merging may
 * start from.  False: no memory. */
bool bpe_seal(struct bpe *b);
void bpe_free(struct bpe *b);

/* Scratch memory of one thread; zeros are a good start. */
struct bpe_work {
    uint32_t *symbol, *rank, *prev, *next;
    uint64_t *heap;
    size_t cap;
    struct ids window, tail;
};
void bpe_work_free(struct bpe_work *w);

/* Append the ids of one piece (n > 0 bytes).  Time is O(n log n) for any piece;
 * scratch memory does not grow with it, but for the ids.  -1: no memory. */
int bpe_encode(const struct bpe *b, struct bpe_work *w, struct ids *out,
               const uint8_t *p, size_t n);

#endif
