/* SPDX-License-Identifier: MIT */
/* reader: see reader.h. */
#include "lib/file/reader.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_BYTES = 64 << 10 };

/* Space for READ_BYTES more and a NUL behind them. */
static int
make_space(struct reader *r, struct err *err)
{
    if (r->text && r->from) {
        memmove(r->text, r->text + r->from, r->have - r->from);
        r->have -= r->from;
        r->from = 0;
    }
    if (r->cap - r->have > READ_BYTES)
        return 0;
    size_t cap = r->cap ? 2 * r->cap : 2 * READ_BYTES;
    char *text = realloc(r->text, cap);
    if (!text)
        return err_set(err, ERR_MEMORY, "%s: line %llu: out of memory for %zu bytes",
                       r->name, (unsigned long long)r->number + 1, cap);
    r->text = text;
    r->cap = cap;
    return 0;
}

static int
fill(struct reader *r, struct err *err)
{
    ssize_t got;
    if (make_space(r, err) < 0)
        return -1;
    do
        got = read(r->fd, r->text + r->have, READ_BYTES);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return err_set(err, ERR_IO, "%s: line %llu: read:", r->name,
                       (unsigned long long)r->number + 1);
    r->have += (size_t)got;
    r->eof = got == 0;
    return 0;
}

static int
hand_out(struct reader *r, struct slice *line, size_t n, bool has_lf)
{
    assert(r->text);
    *line = (struct slice){ r->text + r->from, n };
    r->text[r->from + n] = '\0';
    r->from += n + has_lf;
    r->end += n + has_lf;
    r->open_end = !has_lf;
    r->number++;
    return 1;
}

int
reader_line(struct reader *r, struct slice *line, struct err *err)
{
    size_t seen = 0; // bytes of the line without a LF among them
    for (;;) {
        size_t there = r->have - r->from;
        const char *begin = r->text ? r->text + r->from : NULL;
        const char *lf =
            begin && there > seen ? memchr(begin + seen, '\n', there - seen) : NULL;
        size_t n = lf ? (size_t)(lf - begin) : there;
        if (n > r->limit)
            return err_set(err, ERR_FORMAT,
                           "%s: line %llu: longer than %zu bytes, which is the limit",
                           r->name, (unsigned long long)r->number + 1, r->limit);
        if (lf || (r->eof && n))
            return hand_out(r, line, n, lf != NULL);
        if (r->eof)
            return 0;
        seen = there;
        if (fill(r, err) < 0)
            return -1;
    }
}

bool
reader_is_ready(struct reader *r)
{
    struct pollfd p = { .fd = r->fd, .events = POLLIN };
    struct err unused = { 0 }; // reader_line meets it again
    while (!r->eof && r->have - r->from <= r->limit &&
           !(r->text && memchr(r->text + r->from, '\n', r->have - r->from))) {
        if (poll(&p, 1, 0) == 0)
            return false;
        if (fill(r, &unused) < 0)
            break;
    }
    return true;
}

void
reader_free(struct reader *r)
{
    free(r->text);
    r->text = NULL;
    r->cap = r->from = r->have = 0;
}
