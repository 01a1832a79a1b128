/* SPDX-License-Identifier: MIT */
/* io: what this library needs of the process that calls it, which owns the signal
 * handlers, the terminal and the environment.  One struct io serves all calls of a
 * program and outlives what was opened with it. */
#ifndef NIBBLE_IO_IO_H
#define NIBBLE_IO_IO_H

#include "lib/core/buf.h"
#include "lib/core/guard.h"
#include "lib/core/isa.h"

#include <stdbool.h>
#include <stdint.h>

struct io {
    const char *program, *version; // recorded in the files that are written
    const char *tmpdir;            // for large temporary data
    struct guard *guard;           // of mappings and temporary files
    enum isa isa;
    bool verbose;
    // NULL: not wanted.  A line has no newline; done counts from 0 to total.
    void (*warn)(void *ctx, const char *line);
    void (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total);
    void *ctx;
};

void io_warn(const struct io *io, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Each line of a buffer. */
void io_warn_lines(const struct io *io, const struct buf *lines);

struct io_progress {
    const struct io *io;
    const char *what;
    uint64_t done, total; // bytes
};

struct io_progress io_progress_begin(const struct io *io, const char *what,
                                     uint64_t total);
void io_progress_add(struct io_progress *p, uint64_t bytes);
/* Also after a failure. */
void io_progress_end(struct io_progress *p);

#endif
