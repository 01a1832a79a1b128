/* SPDX-License-Identifier: MIT */
/* sink: where samples go: a .tok, a text, or a buffer until their order is determined.  With a
 * split there are two. */
#ifndef NIBBLE_DATA_SINK_H
#define NIBBLE_DATA_SINK_H

#include "lib/data/options.h"
#include "lib/format/tok.h"

/* Counts of a run, or of a part of it. */
struct tally {
    struct tok_counts counts;
    uint64_t rows, skipped, truncated, repaired;
    char first[240]; // that was skipped: where it is, and why
};
void tally_add(struct tally *sum, const struct tally *part);

/* Sizes of the samples in a buffer. */
struct sizes {
    size_t *v;
    size_t n, cap;
    bool failed;
};
void sizes_add(struct sizes *s, size_t n);

struct sink {
    const char *path;
    unsigned side; // 1 or 2 of a split, else 0
    const struct data_options *c;
    const struct tokenizer *t; // NULL: inputs are ids
    struct outfile out;
    struct tok_writer tok;
    bool opened, begun;
    // with c->shuffle and c->pack: all samples, to be packed as records
    struct buf kept;
    struct sizes sizes;
    struct tally sum;
    uint64_t documents; // that were packed
    struct err *err;
};

/* Whether all samples must be there before the first is written. */
bool sink_buffers(const struct data_options *c);
/* The form in which workers hand samples over. */
enum emit sink_format(const struct data_options *c);
int sink_open(struct sink *s, const struct data_options *c, unsigned which,
              const struct tokenizer *t, struct err *err);
/* Samples of one part, in input order. */
int sink_add(struct sink *s, const struct buf *bytes, const struct sizes *sizes,
             const struct tally *tally);
/* Samples in output order. */
int sink_write(struct sink *s, const void *bytes, size_t n,
               const struct tok_counts *counts);
void sink_close(struct sink *s);

#endif
