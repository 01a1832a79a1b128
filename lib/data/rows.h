/* SPDX-License-Identifier: MIT */
/* rows: parses one line of an input. */
#ifndef NIBBLE_DATA_ROWS_H
#define NIBBLE_DATA_ROWS_H

#include "lib/base/arena.h"
#include "lib/base/json.h"
#include "lib/data/learn.h"
#include "lib/data/messages.h"
#include "lib/text/template.h"

enum input { INPUT_TSV, INPUT_JSONL, INPUT_LINES, INPUT_IDS, INPUT_CSV };

enum row_kind {
    ROW_NOTHING, // blank, or a comment
    ROW_SKIPPED, // no sample, see why
    ROW_PAIR,
    ROW_MESSAGES,
    ROW_TEXT,
    ROW_IDS,
};

/* One row.  Its texts are borrowed from the line or live in the arena until the next. */
struct row {
    enum row_kind kind;
    const char *why; // ROW_SKIPPED
    char reason[64]; // perhaps what why points to
    char remark[80]; // what a user may not expect of how it was read; or empty
    struct slice text, prompt, target;
    struct messages messages;
    struct rendered given; // ROW_IDS
    struct arena arena;
};

/* Keys, or columns, of a prompt and its answer. */
struct shape_names {
    const char *prompt, *answer;
};

/* How lines of an input are parsed. */
struct row_form {
    enum input kind;
    const struct shape_names *names; // NULL: the usual ones
    const struct columns *columns;   // INPUT_CSV: of the file
};

/* Parse a line, of CSV a record, of UTF-8.  offset is its place in the file: messages begin with
 * ": byte N: ", so that the caller can put file and line before them. */
int row_parse(struct row *r, const struct row_form *form, struct slice line,
              uint64_t offset, struct err *err);
void row_free(struct row *r);

#endif
