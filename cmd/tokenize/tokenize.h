/* SPDX-License-Identifier: MIT */
/* tokenize: what its parts share.  tokenize.c parses options and opens files; input.c
 * reads an operand in groups of lines, which all threads work on; kind.c knows what an
 * operand is, array.[ch] make lines of a JSON array; rows.[ch] parse a line, shapes.[ch]
 * its JSON, csv.[ch] and columns.[ch] records of a CSV;
 * samples.c makes samples of lines; emit.c formats samples; order.c shuffles and packs;
 * sink.c writes the output; detokenize.c makes text of a .tok. */
#ifndef NIBBLE_CMD_TOKENIZE_H
#define NIBBLE_CMD_TOKENIZE_H

#include "cmd/cli/cmd.h"
#include "cmd/tokenize/columns.h"
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
    const char *tokenizer, *out[2];
    unsigned n_out; // at least 1 once all is settled
    enum input input;
    struct shape_names names;        // --prompt-key, --answer-key
    const struct shape_names *named; // NULL: they were not given
    enum emit emit;
    enum targets { TARGETS_ANSWER, TARGETS_ALL } targets;
    struct template_options how;
    enum { INVALID_ERROR, INVALID_REPLACE } invalid; // UTF-8
    bool torchsharp;                                 // --compat
    bool decode, count, pack, shuffle, strict, force;
    uint32_t shuffle_seed;
    uint32_t seq_len, chunk; // 0: none
    bool split;
    double fraction; // of rows that go to the second output
    uint32_t split_seed;
    const char *split_text; // FRACTION:SEED as a .tok has it
    unsigned threads;
};

// Words of --input and --invalid, in a .tok too.
extern const char *const tokenize_inputs[], *const tokenize_invalids[];

/* ---- kind.c ---- */

/* Set c->input by the suffixes of the operands, unless --input was given. */
int kind_settle(struct config_tokenize *c, char **paths, size_t n, struct err *err);
/* What the first line with content looks like; otherwise: there is none, or no text. */
enum input kind_of_text(struct slice text, const struct shape_names *names,
                        enum input otherwise);
/* Append to an error of an input without a sample what the input looks like. */
void kind_hint(const struct config_tokenize *c, enum input likely, struct err *err);

/* Counts of a run, or of a part of it. */
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

/* A sample in memory.  starts: where packed documents begin, else NULL. */
struct sample {
    const uint32_t *ids;
    const uint8_t *mask; // (n) 0 or 1; NULL where only ids are wanted
    uint32_t n;
    const uint32_t *starts;
    uint32_t n_starts;
};

/* Append the sample in that form, and count it.  t decodes text forms; -1: an id that it
 * does not have. */
int emit_sample(struct buf *out, struct tok_counts *counts, enum emit form,
                const struct sample *s, const struct tokenizer *t, struct err *err);

/* ---- sink.c ---- */

/* Where samples go: a .tok, a text, or a buffer until their order is determined.  With
 * --split there are two. */
struct sink {
    const char *path;
    unsigned side; // 1 or 2 of a split, else 0
    const struct config_tokenize *c;
    const struct tokenizer *t; // NULL for --input ids
    struct outfile out;
    struct tok_writer tok;
    bool opened, begun;
    // with --shuffle and --pack: all samples, for --pack as records
    struct buf kept;
    struct sizes sizes;
    struct tally sum;
    uint64_t documents; // that were packed
    struct err *err;
};

/* Whether all samples must be there before the first is written. */
bool sink_buffers(const struct config_tokenize *c);
/* The form in which workers hand samples over. */
enum emit sink_format(const struct config_tokenize *c);
int sink_open(struct sink *s, const struct config_tokenize *c, unsigned which,
              const struct tokenizer *t, struct err *err);
/* Samples of one part, in input order. */
int sink_add(struct sink *s, const struct buf *bytes, const struct sizes *sizes,
             const struct tally *tally);
/* Samples in output order. */
int sink_write(struct sink *s, const void *bytes, size_t n,
               const struct tok_counts *counts);
/* Write what is left of all of them and commit the outputs.  what: the input's name for
 * the error that it had no sample. */
int sink_finish(struct sink *sinks, const char *what, const uint8_t *inputs,
                size_t n_inputs);
void sink_close(struct sink *s);

/* ---- order.c ---- */

/* Write the buffered samples: packed into bins, shuffled, or both. */
int order_put(struct sink *s);

/* ---- samples.c ---- */

/* Scratch of one thread. */
struct worker {
    struct encoder *encoder; // NULL for --input ids
    struct rendered rendered;
    struct row row;
    struct buf repaired, content; // content: what --split hashes
};

/* Samples for one sink. */
struct pile {
    struct buf out;
    struct sizes sizes;
    struct tally tally;
};

/* Whole lines, and the samples made of them. */
struct part {
    size_t begin, end;    // of the group's text
    struct pile piles[2]; // for each output
    struct buf notes;     // with -v: lines that were skipped
    struct err err;
    bool failed;
};

/* Lines of one file, processed in parallel as parts. */
struct group {
    const struct config_tokenize *c;
    const struct tokenizer *t;
    struct worker *workers;
    struct row_form form;
    const char *name;    // of the file, escaped
    const char *unit;    // "line", or "item" of an array
    uint64_t base;       // of text in the file
    uint64_t first_line; // its number, from 1
    struct slice text;
    struct part *parts;
    size_t n_parts;
};

/* par_fn over parts; ctx is the group.  An error stays in the part; its samples before the
 * error are valid. */
int samples_of_part(void *ctx, size_t i, unsigned worker, struct err *err);

/* ---- input.c ---- */

/* Reads operands to their ends into the sinks. */
struct input_reader;
struct input_reader *input_open(const struct config_tokenize *c,
                                const struct tokenizer *t, struct sink *sinks,
                                struct progress *progress, struct err *err);
/* xxh3: of the bytes that were read. */
int input_read(struct input_reader *f, const char *path, uint8_t xxh3[XXH3_BYTES]);
/* What the last input looks like. */
enum input input_likely(const struct input_reader *f);
void input_close(struct input_reader *f);

/* ---- detokenize.c ---- */

/* Samples of a .tok as text into the sink; begun: bytes that were read from fd already. */
int detokenize(struct sink *sink, const struct tokenizer *t, int fd, const char *path,
               struct slice begun, struct progress *progress, struct err *err);

#endif
