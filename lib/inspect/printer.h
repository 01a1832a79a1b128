/* SPDX-License-Identifier: MIT */
/* printer: writes text for the user by the host, and remembers that a heading was written. */
#ifndef NIBBLE_INSPECT_PRINTER_H
#define NIBBLE_INSPECT_PRINTER_H

#include "lib/base/host.h"

struct printer {
    const struct host *host;
    struct err *err; // of the program; after an error nothing is written
    bool headed;     // the heading of lines is written
};

/* Write the buffer and empty it.  What is computed for long asks printer_end between. */
void printer_put(struct printer *p, struct buf *text, enum host_text kind);
/* Write n bytes as they are. */
void printer_bytes(struct printer *p, const void *bytes, size_t n);
/* A line of a few words. */
void printer_line(struct printer *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Refuse to write bytes to a terminal. */
int printer_refuse_terminal(struct printer *p);
/* 0, or -1 after an error. */
int printer_end(const struct printer *p);

#endif
