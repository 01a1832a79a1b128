/* SPDX-License-Identifier: MIT */
/* tokenize: what its parts share.  tokenize.c parses options and opens files; feed.c
 * cuts an input into groups of lines and has them worked on by all threads; work.c
 * makes samples of lines; emit.c writes samples as bytes; order.c shuffles and packs;
 * sink.c is where the bytes go.  lines.[ch] and rows.[ch] stand alone. */
#ifndef NIBBLE_CMD_TOKENIZE_H
#define NIBBLE_CMD_TOKENIZE_H

#include "cmd/cmd.h"
#include "cmd/tokenize/rows.h"
#include "lib/format/tok.h"

enum emit {
    EMIT_TOK,
    EMIT_IDS,
    EMIT_JSONL,
    EMIT_TEXT,       // --decode
    EMIT_TEXT_JSONL, // --decode --emit jsonl
    EMIT_NOTHING,    // --count
};

struct config_tokenize {
    struct cmd cmd;
    const char *tokenizer, *out;
    enum input input;
    enum emit emit;
    struct template_options how;
    enum { INVALID_ERROR, INVALID_REPLACE } invalid; // UTF-8
    bool torchsharp;                                 // --compat
    bool decode, count, pack, shuffle, strict, force;
    uint32_t shuffle_seed;
    uint32_t seq_len; // 0: none
    unsigned threads;
};

extern const char *const tokenize_invalids[]; // words of --invalid

/* Samples as bytes, one after the other, and what was counted on the way. */
struct tally {
    struct tok_counts counts;
    uint64_t rows, skipped, truncated, repaired;
};
void tally_add(struct tally *sum, const struct tally *part);

/* Sizes of the samples in a buffer. */
struct sizes {
    size_t *v;
    size_t n, cap;
    bool failed;
};
void sizes_add(struct sizes *s, size_t n);

/* ---- emit.c ---- */

/* A sample as it is at hand.  starts: of packed documents, else NULL. */
struct sample {
    const uint32_t *ids;
    const uint8_t *mask; // (n) 0 or 1; NULL where only ids are wanted
    uint32_t n;
    const uint32_t *starts;
    uint32_t n_starts;
};

/* Append the sample in that form, and count it.  t is needed to decode; -1: an id that
 * the tokenizer does not have. */
int emit_sample(struct buf *out, struct tok_counts *counts, enum emit form,
                const struct sample *s, const struct tokenizer *t, struct err *err);

/* ---- sink.c ---- */

/* Where samples go: a .tok, a text, or memory when their order is not yet known. */
struct sink {
    const struct config_tokenize *c;
    const struct tokenizer *t; // NULL for --input ids
    struct outfile out;
    struct tok_writer tok;
    bool opened, begun;
    // with --shuffle and --pack: all samples, as records if they are to be packed
    struct buf kept;
    struct sizes sizes;
    struct tally sum;
    uint64_t documents; // that were packed
    struct err *err;
};

/* Whether samples must be known all before the first is written. */
bool sink_keeps(const struct config_tokenize *c);
/* The form in which workers must hand samples over. */
enum emit sink_form(const struct config_tokenize *c);
int sink_open(struct sink *s, const struct config_tokenize *c,
              const struct tokenizer *t, struct err *err);
/* Samples of one part, in input order. */
int sink_take(struct sink *s, const struct buf *bytes, const struct sizes *sizes,
              const struct tally *tally);
/* Finished samples: what order.c puts out at the end. */
int sink_write(struct sink *s, const void *bytes, size_t n,
               const struct tok_counts *counts);
/* what names the input where it had no sample. */
int sink_finish(struct sink *s, const char *what, const uint8_t *inputs,
                size_t n_inputs);
void sink_close(struct sink *s);

/* ---- order.c ---- */

/* Put the kept samples out: packed into bins, shuffled, or both. */
int order_put(struct sink *s);

/* ---- work.c ---- */

/* What one thread needs for itself. */
struct worker {
    struct encoder *encoder; // NULL for --input ids
    struct rendered rendered;
    struct row row;
    struct buf repaired;
};

/* A run of whole lines and what becomes of it. */
struct part {
    size_t begin, end; // of the group's text
    struct buf out;
    struct sizes sizes;
    struct tally tally;
    struct buf notes; // with -v: lines that were skipped
    struct err err;
    bool failed;
};

/* Lines of one file that are worked on together. */
struct group {
    const struct config_tokenize *c;
    const struct tokenizer *t;
    struct worker *workers;
    const char *name;    // of the file, escaped
    uint64_t base;       // of text in the file
    uint64_t first_line; // its number, from 1
    struct slice text;
    struct part *parts;
    size_t n_parts;
};

/* par_fn over parts; ctx is the group.  An error is kept in the part, whose samples
 * before it are good. */
int work_part(void *ctx, size_t i, unsigned worker, struct err *err);

/* ---- feed.c ---- */

/* Reads operands to their ends into the sink. */
struct feeder;
struct feeder *feeder_open(const struct config_tokenize *c, const struct tokenizer *t,
                           struct sink *sink, struct progress *progress,
                           struct err *err);
/* xxh3: of the bytes that were read. */
int feeder_file(struct feeder *f, const char *path, uint8_t xxh3[XXH3_BYTES]);
void feeder_close(struct feeder *f);

/* ---- decode.c ---- */

/* Samples of a .tok, of which begun was read from fd already, as text into the sink. */
int decode_tok(struct sink *sink, const struct tokenizer *t, int fd, const char *path,
               struct slice begun, struct progress *progress, struct err *err);

#endif
