/* SPDX-License-Identifier: MIT */
/* host: see host.h. */
#include "lib/base/host.h"

#include <string.h>

void
host_warn(const struct host *host, const char *fmt, ...)
{
    struct buf b = { 0 };
    va_list ap;
    if (!host->warn)
        return;
    va_start(ap, fmt);
    buf_vprintf(&b, fmt, ap);
    va_end(ap);
    if (!b.failed)
        host->warn(host->ctx, b.data);
    buf_free(&b);
}

void
host_warn_lines(const struct host *host, const struct buf *lines)
{
    const char *p = lines->data;
    for (const char *end; p && (end = strchr(p, '\n')); p = end + 1)
        host_warn(host, "%.*s", (int)(end - p), p);
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
