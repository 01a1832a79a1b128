/* SPDX-License-Identifier: MIT */
/* lines: text as lines, lines as cells; spec formats 8.1. */
#ifndef NIBBLE_DATA_LINES_H
#define NIBBLE_DATA_LINES_H

#include "lib/base/text.h"

/* The line at *at without LF or CR LF, and advance; false at the end.  The last line may lack
 * its LF; a CR at its end stays. */
bool line_next(struct slice text, size_t *at, struct slice *line);

/* Without the Unicode White_Space at both ends.  pre: UTF-8. */
struct slice line_trim(struct slice s);

enum tsv {
    TSV_PAIR,
    TSV_NOTHING, // empty, or a comment
    TSV_NO_TAB,
    TSV_EMPTY_SIDE,
};

/* A line as prompt and target: trimmed, cut at the first TAB, both sides trimmed. */
enum tsv line_tsv(struct slice line, struct slice *prompt, struct slice *target);

#endif
