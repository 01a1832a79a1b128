/* SPDX-License-Identifier: MIT */
/* options: how the rows of inputs become samples, and where those go. */
#ifndef NIBBLE_DATA_OPTIONS_H
#define NIBBLE_DATA_OPTIONS_H

#include "lib/base/host.h"
#include "lib/data/rows.h"

enum emit {
    EMIT_TOK,
    EMIT_IDS,
    EMIT_JSONL,
    EMIT_TEXT,       // text of ids
    EMIT_TEXT_JSONL, // the same, as JSONL
    EMIT_NOTHING,    // only counts
};

struct data_options {
    const struct host *host;
    const char *out[2]; // paths, "-": standard output
    unsigned n_out;     // at least 1
    enum input input;
    bool input_given;                // else input is what suffixes tell
    struct shape_names names;        // of a prompt and its answer
    const struct shape_names *named; // NULL: the usual ones
    enum emit emit;
    bool emit_given;
    struct template_options how;
    enum { INVALID_ERROR, INVALID_REPLACE } invalid; // UTF-8
    bool decode, count, pack, shuffle, strict, force;
    uint32_t shuffle_seed;
    uint32_t seq_len, chunk; // 0: none
    bool split;
    double fraction; // of rows that go to the second output
    uint32_t split_seed;
    const char *split_text; // FRACTION:SEED as a .tok has it
    unsigned threads;
};

/* The words of enum input and of .invalid, in a .tok too; NULL ends them. */
extern const char *const data_inputs[], *const data_invalids[];

#endif
