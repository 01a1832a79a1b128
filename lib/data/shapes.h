/* SPDX-License-Identifier: MIT */
/* shapes: which keys of an object, or columns of a table, a row of training data has, and what
 * the row is made of then. */
#ifndef NIBBLE_DATA_SHAPES_H
#define NIBBLE_DATA_SHAPES_H

#include "lib/base/json.h"
#include "lib/data/rows.h"

enum shape_key {
    SHAPE_TEXT,
    SHAPE_PROMPT,
    SHAPE_TARGET,
    SHAPE_COMPLETION,
    SHAPE_MESSAGES,
    SHAPE_CONVERSATIONS,
    SHAPE_INSTRUCTION,
    SHAPE_INPUT,
    SHAPE_OUTPUT,
    SHAPE_ERROR, // generate has it in place of an answer
    SHAPE_KEYS
};

struct object {
    struct row *row;
    struct json *j; // of an object; a table's row uses its arena and err only
    bool table;     // values are texts, else raw JSON
    struct slice value[SHAPE_KEYS]; // p == NULL: there is no such key
    struct learn excluded;          // by a key of the row
};

/* The key of that name, or SHAPE_KEYS for an unknown name.  If names is not NULL, only its two
 * names and "error" are known. */
enum shape_key shape_key(struct slice name, const struct shape_names *names);
/* Whether a table with these columns, bits 1 << key, has the shape of a pair or of a text. */
bool shape_fits_table(unsigned has);
/* Append what was expected of the keys or columns. */
void shape_put_wanted(struct buf *b, bool table, const struct shape_names *names);

/* Make the row of the values.  Returns 1 if they have no known shape, -1 with err for a bad
 * value. */
int shape_settle(const struct object *o);

/* Parse an object as a pair, messages or a text. */
int shape_parse(struct row *r, struct json *j, const struct shape_names *names);

#endif
