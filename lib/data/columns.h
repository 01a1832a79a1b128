/* SPDX-License-Identifier: MIT */
/* columns: rows of a CSV by the names in its header. */
#ifndef NIBBLE_DATA_COLUMNS_H
#define NIBBLE_DATA_COLUMNS_H

#include "lib/data/rows.h"

struct columns {
    struct column *v;
    size_t n, cap;
};

/* Read a header of UTF-8; -1 with err for a bad one, and for one without the columns of a pair
 * or a text.  A message begins with ": byte N: " if it is about a place, as in row_parse. */
int columns_read(struct columns *c, struct slice header, uint64_t offset,
                 const struct shape_names *names, struct err *err);
/* Whether the first record of a text is such a header, or looks like another one: several names
 * with as many fields in the next record. */
bool columns_likely(struct slice text, const struct shape_names *names);
/* Parse a record, see row_parse. */
int columns_parse(struct row *r, const struct columns *c, struct slice record,
                  uint64_t offset, struct err *err);
void columns_free(struct columns *c);

#endif
