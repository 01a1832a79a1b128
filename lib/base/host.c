/* SPDX-License-Identifier: MIT */
/* host: see host.h. */
#include "lib/base/host.h"

#include <string.h>

static void __attribute__((format(printf, 2, 0)))
put_line(const struct host *host, const char *fmt, va_list ap)
{
    struct buf b = { 0 };
    buf_vprintf(&b, fmt, ap);
    if (host->warn && !b.failed)
        host->warn(host->ctx, b.data);
    buf_free(&b);
}

void
host_warn(const struct host *host, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put_line(host, fmt, ap);
    va_end(ap);
}

void
host_note(const struct host *host, const char *fmt, ...)
{
    va_list ap;
    if (host->quiet)
        return;
    va_start(ap, fmt);
    put_line(host, fmt, ap);
    va_end(ap);
}

void
host_note_lines(const struct host *host, const struct buf *lines)
{
    const char *p = lines->data;
    for (const char *end; p && (end = strchr(p, '\n')); p = end + 1)
        host_note(host, "%.*s", (int)(end - p), p);
}

struct host_progress
host_progress_begin(const struct host *host, const char *what, uint64_t total)
{
    struct host_progress p = { host, what, 0, total };
    host_progress_add(&p, 0);
    return p;
}

void
host_progress_add(struct host_progress *p, uint64_t bytes)
{
    p->done += bytes;
    if (p->host->progress)
        p->host->progress(p->host->ctx, p->what, p->done, p->total);
}

void
host_progress_end(struct host_progress *p)
{
    host_progress_add(p, p->total - p->done);
}
