/* SPDX-License-Identifier: MIT */
/* tok: streams of training samples, doc/FORMAT.md section 6.
 *
 * Samples are written and read in one pass, so that a pipe does; what was read must not
 * be relied on before tok_next has returned 0: only then the end record was there, its
 * counts and its hash were right, and nothing followed.
 *
 * A stream is read in order into a window that grows with the longest record, and with
 * bytes that arrived, never with announced counts.  A file is not mapped: a write into
 * it would change ids after they were checked.  What is checked, hashed and handed out
 * are the same bytes, a copy; and a sample that is read once more must have the hash
 * that it had the first time.
 */
#ifndef NIBBLE_FORMAT_TOK_H
#define NIBBLE_FORMAT_TOK_H

#include "lib/base/buf.h"
#include "lib/base/hash.h"
#include "lib/base/text.h"
#include "lib/file/outfile.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TOK_MAGIC = 8,
    TOK_PROLOGUE = 16,
    TOK_HEADER_MAX = 1 << 20,
    TOK_END_MAX = 64 << 20,
};

struct tok_header {
    bool packed; // samples are bins of documents
    bool has_seq_len, has_vocab, has_tokenizer;
    uint32_t seq_len; // S: no sample has more than S+1 ids
    uint64_t vocab;   // 1 .. 2^32: ids are below it
    uint8_t tokenizer[SHA256_BYTES];
    struct slice template; // qwen3, seed or none
    struct slice version;  // of the program that wrote it
    struct slice settings; // JSON object; of the reader only
    struct slice input;    // settings' "input", or p == NULL; of the reader only
};

/* Options of the tokenizer that can change ids. */
struct tok_settings {
    bool end, joint, parse_special, shuffled;
    uint32_t shuffle; // the random seed, if shuffled
    uint32_t chunk;   // N of --chunk, or 0
    bool all_targets;
    uint32_t side;     // 1 or 2 of a split, or 0
    const char *split; // FRACTION:SEED of it
    const char *input, *invalid;
    const char *prompt_key, *answer_key; // NULL: the usual ones
};

/* What is counted on the way. */
struct tok_counts {
    uint64_t samples, tokens, targets, longest;
};

/* What the end record adds to that. */
struct tok_end {
    struct tok_counts counts; // of the reader; the writer has its own
    uint64_t skipped, truncated;
    const uint8_t *inputs; // (n_inputs, XXH3_BYTES) in operand order
    size_t n_inputs;
    uint8_t xxh3[XXH3_BYTES]; // names the stream in a provenance; of the reader
};

bool tok_sniff(const void *head, size_t n);
/* Whether path is a .tok by its name or its first bytes. */
bool tok_is_file(const char *path);

/* ---- writing ------------------------------------------------------------------ */

struct tok_writer {
    struct outfile *out; // borrowed
    struct hash *hash;
    struct buf held; // not written yet
    struct tok_counts counts;
    struct err *err;
};

/* Append a sample as a record and count it.  mask has a byte 0 or 1 an id; starts, the
 * index of each document's first id, only in a packed stream (else NULL, 0).
 * The caller checks that the sample may be in a stream: see tok_fits. */
void tok_encode(struct buf *out, struct tok_counts *counts, const uint32_t *ids,
                const uint8_t *mask, uint32_t n, const uint32_t *starts,
                uint32_t n_starts);
/* At least 2 ids, and a target after the first. */
bool tok_fits(const uint8_t *mask, uint64_t n);

/* Prologue and header.  tok_close_writer is right after success and failure alike;
 * committing or abandoning *out is the caller's. */
int tok_begin(struct tok_writer *w, struct outfile *out, const struct tok_header *h,
              const struct tok_settings *s, struct err *err);
/* Records that tok_encode made, and their counts. */
int tok_write(struct tok_writer *w, const void *records, size_t n,
              const struct tok_counts *counts);
/* The end record. */
int tok_end(struct tok_writer *w, const struct tok_end *end);
void tok_close_writer(struct tok_writer *w);

void tok_add_counts(struct tok_counts *sum, const struct tok_counts *part);

/* ---- reading ------------------------------------------------------------------ */

/* Of an id of a sample. */
enum tok_flag {
    TOK_MASK = 1,   // its mask bit
    TOK_TARGET = 2, // it counts in the loss: the bit, and no first id of a document
    TOK_START = 4,  // first id of the sample or of a packed document
};

/* A sample, borrowed from the reader until its next call. */
struct tok_sample {
    const uint32_t *ids;    // (n)
    const uint8_t *flags;   // (n) enum tok_flag
    const uint32_t *starts; // (n_starts) first is 0; without packing only that
    uint32_t n, n_starts;
    uint32_t targets;       // ids that count
    uint64_t index, offset; // from 0, for tok_at; of its record in the stream
    uint64_t bytes;         // of its record
};

enum tok_flags { TOK_KEEP = 1 }; // tok_at is wanted: what a pipe brings stays in memory

/* What is kept of a sample for tok_at. */
struct tok_record {
    uint64_t offset, xxh3; // of its bytes, 64 bits
};

struct tok_reader {
    struct tok_header header;
    struct tok_end end;  // valid after tok_next has returned 0
    char *name;          // escaped, for messages
    uint64_t bytes;      // of the stream, at its end
    uint64_t end_offset; // of the end record
    // private
    bool keep, again, eof; // again: a file, from which tok_at reads
    int fd;
    bool own_fd;
    uint8_t *data; // the window
    size_t cap;
    size_t pos, have; // of data: where reading is, what is there
    uint64_t base;    // of data in the stream
    size_t hashed;    // of data
    struct hash *hash;
    struct tok_counts counts;
    struct tok_record *record; // (counts.samples) with TOK_KEEP
    size_t cap_records;
    uint64_t start;   // of the records
    uint8_t *head;    // copy of the header
    struct buf words; // settings as JSON
    uint8_t *inputs;
    uint32_t *ids, *starts;
    uint8_t *flags;
    size_t cap_ids, cap_starts;
    struct err *err;
};

/* Open and read the header; "-" is standard input.  tok_close is right after success
 * and failure alike. */
int tok_open(struct tok_reader *r, const char *path, unsigned flags, struct err *err);
/* The same of an open descriptor, read in order, which stays the caller's; begun was
 * read from it already. */
int tok_stream(struct tok_reader *r, int fd, const char *path, struct slice begun,
               unsigned flags, struct err *err);
void tok_close(struct tok_reader *r);

/* 1 with the next sample, 0 at the end, which was checked, -1 with the error. */
int tok_next(struct tok_reader *r, struct tok_sample *s);
/* With TOK_KEEP, once the end was reached: a sample by its index, which is below
 * end.counts.samples; -1 too if the file no longer holds what it held then. */
int tok_at(struct tok_reader *r, uint64_t index, struct tok_sample *s);

/* The provenance of a stream that was read to its end (doc/FORMAT.md 5), as JSON. */
void tok_put_provenance(struct buf *b, const struct tok_reader *r);

#endif
