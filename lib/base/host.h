/* SPDX-License-Identifier: MIT */
/* host: the process that calls the libraries owns the signal handlers, the terminal and the
 * environment; a struct host lends them to the libraries.  One serves all calls of a program
 * and outlives what was opened with it. */
#ifndef NIBBLE_BASE_HOST_H
#define NIBBLE_BASE_HOST_H

#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "lib/base/isa.h"

#include <stdbool.h>
#include <stdint.h>

struct guard;

/* How text goes to standard output: on a terminal control characters are escaped. */
enum host_text {
    HOST_TEXT,
    HOST_JSON,     // escaped by JSON's own escapes
    HOST_HARMLESS, // was escaped before; it may hold colours
    HOST_BYTES,    // is written as it is
    HOST_LATER = 8 // with one of the others: it need not appear at once
};

struct host {
    const char *program, *version; // recorded in the files that are written
    const char *commit;            // of the build; empty: unknown
    const char *tmpdir;            // for large temporary data
    struct guard *guard;           // of mappings and temporary files
    enum isa isa;
    bool verbose, quiet; // what a user asked for
    bool terminal;       // standard output is one
    bool colours;        // and shows them
    // NULL: nobody listens.  A line has no newline; done counts from 0 to total.
    void (*warn)(void *ctx, const char *line);
    void (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total);
    // Show a line in place of the one before; NULL: no line follows.
    void (*status)(void *ctx, const char *line);
    // Write text for the user, and empty it.  -1 with *err.
    int (*print)(void *ctx, struct buf *text, enum host_text kind, struct err *err);
    void *ctx;
};

/* A line about what may be wrong. */
void host_warn(const struct host *host, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* A line that a quiet host does not show. */
void host_note(const struct host *host, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Each line of a buffer as a note. */
void host_note_lines(const struct host *host, const struct buf *lines);

struct host_progress {
    const struct host *host;
    const char *what;
    uint64_t done, total; // bytes
};

struct host_progress host_progress_begin(const struct host *host, const char *what,
                                         uint64_t total);
void host_progress_add(struct host_progress *p, uint64_t bytes);
/* Also after a failure. */
void host_progress_end(struct host_progress *p);

#endif
