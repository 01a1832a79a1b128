/* SPDX-License-Identifier: MIT */
/* printer: see printer.h. */
#include "lib/inspect/printer.h"

void
printer_put(struct printer *p, struct buf *text, enum host_text kind)
{
    if (!p->err->kind)
        p->host->print(p->host->ctx, text, kind | HOST_LATER, p->err);
    text->len = 0;
}

void
printer_bytes(struct printer *p, const void *bytes, size_t n)
{
    struct buf b = { .data = (char *)(uintptr_t)bytes, .len = n };
    printer_put(p, &b, HOST_BYTES);
}

void
printer_line(struct printer *p, const char *fmt, ...)
{
    struct buf b = { 0 };
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&b, fmt, ap);
    va_end(ap);
    printer_put(p, &b, HOST_BYTES);
    buf_free(&b);
}

int
printer_refuse_terminal(struct printer *p)
{
    if (!p->host->terminal)
        return 0;
    return err_set(
        p->err, ERR_USAGE,
        "binary data is not written to a terminal; redirect standard output");
}

int
printer_end(const struct printer *p)
{
    return p->err->kind ? -1 : 0;
}
