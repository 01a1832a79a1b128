/* SPDX-License-Identifier: MIT */
/* io: see io.h. */
#include "lib/io/io.h"

#include <string.h>

void
io_warn(const struct io *io, const char *fmt, ...)
{
    struct buf b = { 0 };
    va_list ap;
    if (!io->warn)
        return;
    va_start(ap, fmt);
    buf_vprintf(&b, fmt, ap);
    va_end(ap);
    if (!b.failed)
        io->warn(io->ctx, b.data);
    buf_free(&b);
}

void
io_warn_lines(const struct io *io, const struct buf *lines)
{
    const char *p = lines->data;
    for (const char *end; p && (end = strchr(p, '\n')); p = end + 1)
        io_warn(io, "%.*s", (int)(end - p), p);
}

struct io_progress
io_progress_begin(const struct io *io, const char *what, uint64_t total)
{
    struct io_progress p = { io, what, 0, total };
    io_progress_add(&p, 0);
    return p;
}

void
io_progress_add(struct io_progress *p, uint64_t bytes)
{
    p->done += bytes;
    if (p->io->progress)
        p->io->progress(p->io->ctx, p->what, p->done, p->total);
}

void
io_progress_end(struct io_progress *p)
{
    io_progress_add(p, p->total - p->done);
}
