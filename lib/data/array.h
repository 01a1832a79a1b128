/* SPDX-License-Identifier: MIT */
/* array: a JSON array of rows as JSONL, while its bytes arrive.
 *
 * The text is changed in place and keeps its length: the brackets and commas of the array
 * become white space and line feeds, line feeds between values become spaces.  So places
 * of errors stay right, an item is a line, and its number is that of the line.
 */
#ifndef NIBBLE_DATA_ARRAY_H
#define NIBBLE_DATA_ARRAY_H

#include <stdbool.h>
#include <stddef.h>

struct array {
    enum { ARRAY_BEGIN, ARRAY_FIRST, ARRAY_NEXT, ARRAY_ITEM, ARRAY_DONE } state;
    unsigned depth; // of the item
    bool string, escape;
};

/* Change the next n bytes; returns how many there are before the first that does not
 * belong into an array, else n. */
size_t array_lines(struct array *a, char *text, size_t n);
/* What was expected where that byte, or the end, was found. */
const char *array_wants(const struct array *a);

#endif
