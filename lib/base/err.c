/* SPDX-License-Identifier: MIT */
/* err: see err.h. */
#include "lib/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void
err_fill(struct err *e, enum err_kind kind, const char *fmt, ...)
{
    int saved = errno;
    if (e->kind != ERR_NONE)
        return;
    size_t len = strlen(fmt);
    bool why = len > 0 && fmt[len - 1] == ':';
    // A call that ran out of memory is no error of its file.
    e->kind = kind == ERR_IO && why && saved == ENOMEM ? ERR_MEMORY : kind;

    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);

    if (why) {
        char text[128];
        const char *words = strerror_r(saved, text, sizeof text);
        size_t used = strlen(e->msg);
        snprintf(e->msg + used, sizeof e->msg - used, " %s", words);
    }
}
