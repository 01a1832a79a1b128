/* SPDX-License-Identifier: MIT */
/* csv: comma-separated text as records, records as fields; RFC 4180.
 *
 * A field that begins with a quote ends at the next quote that is not doubled; commas, line
 * feeds and doubled quotes inside belong to it.  Other fields have no quotes.  A record ends at
 * LF or CR LF, the last one perhaps at the end of the text.
 */
#ifndef NIBBLE_DATA_CSV_H
#define NIBBLE_DATA_CSV_H

#include "lib/base/text.h"

#include <stdbool.h>

/* Where in a record the bytes so far have led. */
enum csv_state {
    CSV_BEGIN, // of a field; of a record, too, where nothing precedes
    CSV_PLAIN,
    CSV_QUOTED,
    CSV_QUOTE, // behind a quote in a quoted field: its end, or half of a doubled one
};

/* Length of the whole records in the next n bytes, which follow bytes that led to *state; 0: no
 * record ends there. */
size_t csv_whole(enum csv_state *state, const char *p, size_t n);

/* The record at *at without LF or CR LF, and advance; false at the end. */
bool csv_next(struct slice text, size_t *at, struct slice *record);

/* The fields of a record, one after the other. */
struct csv_fields {
    struct slice record;
    size_t at;         // of the next field
    bool done;         // no field is left
    const char *wants; // after an error: the expected text at byte .at of the record
};
void csv_open(struct csv_fields *f, struct slice record);
/* The next field without its quotes; *doubled: quotes inside are still doubled.  false: no field
 * is left, or f->wants says what is wrong. */
bool csv_field(struct csv_fields *f, struct slice *field, bool *doubled);
/* Copy a field to out, doubled quotes as one; returns the length, at most field.n. */
size_t csv_undouble(char *out, struct slice field);

#endif
