/* SPDX-License-Identifier: MIT */
/* err: see err.h. */
#include "lib/core/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void
err_fill(struct err *e, enum err_kind kind, const char *fmt, ...)
{
    int saved = errno;
    if (e->kind != ERR_NONE)
        return;
    e->kind = kind;

    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);

    size_t len = strlen(fmt);
    if (len > 0 && fmt[len - 1] == ':') {
        char text[128];
        const char *why = strerror_r(saved, text, sizeof text);
        size_t used = strlen(e->msg);
        snprintf(e->msg + used, sizeof e->msg - used, " %s", why);
    }
}
