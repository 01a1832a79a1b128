/* SPDX-License-Identifier: MIT */
/* shapes: the JSON objects that rows of training data are written as. */
#ifndef NIBBLE_CMD_TOKENIZE_SHAPES_H
#define NIBBLE_CMD_TOKENIZE_SHAPES_H

#include "cmd/tokenize/rows.h"
#include "lib/core/json.h"

/* Parse an object as a pair, messages or a text. */
int shape_parse(struct row *r, struct json *j);

#endif
