/* SPDX-License-Identifier: MIT */
/* reader: the lines of a stream, one after the other.
 *
 * It reads with read(2): every failed read is an error with its errno, and the end of
 * the input is reported for nothing else.  A line above the limit is refused, so that
 * an input without a line feed cannot fill the memory.
 */
#ifndef NIBBLE_FILE_READER_H
#define NIBBLE_FILE_READER_H

#include "lib/base/err.h"
#include "lib/base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reader {
    int fd;           // borrowed
    const char *name; // for messages, borrowed
    size_t limit;     // bytes of a line, its LF not counted
    char *text;
    size_t cap, from, have; // of text: bytes [from, have) are not handed out yet
    uint64_t number, end;   // of the last line: from 1, and the offset behind its LF
    bool eof, open_end;     // open_end: the last line has no LF
};

/* 1 with the next line, without its LF; line->p is NUL-terminated and good until the
 * next call.  0 at the end, -1 with *err. */
int reader_line(struct reader *r, struct slice *line, struct err *err)
    __attribute__((warn_unused_result));
/* Whether reader_line would not have to wait: takes what has arrived, up to a whole line. */
bool reader_is_ready(struct reader *r);
void reader_free(struct reader *r);

#endif
