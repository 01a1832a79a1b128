/* SPDX-License-Identifier: MIT */
/* csv: see csv.h.  Where records end is found by the same steps in csv_whole, while bytes
 * arrive, and in csv_next; a quote that does not belong where it stands never moves that end, so
 * that csv_field finds it in the record that has it. */
#include "lib/data/csv.h"

#include <string.h>

static enum csv_state
step(enum csv_state state, char c)
{
    if (state == CSV_QUOTED)
        return c == '"' ? CSV_QUOTE : CSV_QUOTED;
    if (c == '"' && (state == CSV_QUOTE || state == CSV_BEGIN))
        return CSV_QUOTED;
    return c == ',' || c == '\n' ? CSV_BEGIN : CSV_PLAIN;
}

/* Length of the first record of the text with its LF, from a state at p; n without an LF. */
static size_t
record_end(enum csv_state *state, const char *p, size_t n)
{
    enum csv_state s = *state;
    size_t i = 0;
    while (i < n) {
        char c = p[i++];
        bool ends = c == '\n' && s != CSV_QUOTED;
        s = step(s, c);
        if (ends)
            break;
    }
    *state = s;
    return i;
}

size_t
csv_whole(enum csv_state *state, const char *p, size_t n)
{
    size_t whole = 0, at = 0;
    while (at < n) {
        at += record_end(state, p + at, n - at);
        // Only the LF that ends a record leads to the beginning of a field.
        if (*state == CSV_BEGIN && p[at - 1] == '\n')
            whole = at;
    }
    return whole;
}

bool
csv_next(struct slice text, size_t *at, struct slice *record)
{
    enum csv_state state = CSV_BEGIN;
    if (*at >= text.n)
        return false;
    const char *begin = text.p + *at;
    size_t n = record_end(&state, begin, text.n - *at);
    *at += n;
    if (state == CSV_BEGIN && begin[n - 1] == '\n') {
        n--;
        n -= n && begin[n - 1] == '\r';
    }
    *record = (struct slice){ begin, n };
    return true;
}

/* ---- fields ------------------------------------------------------------------------ */

void
csv_open(struct csv_fields *f, struct slice record)
{
    *f = (struct csv_fields){ .record = record };
}

static bool
fail(struct csv_fields *f, size_t at, const char *wants)
{
    f->at = at;
    f->wants = wants;
    return false;
}

/* Behind a field: a comma, or the end. */
static bool
end_field(struct csv_fields *f, size_t at)
{
    f->done = at == f->record.n;
    if (!f->done && f->record.p[at] != ',')
        return fail(
            f, at,
            "a comma or the end of the line behind the closing quote of a field");
    f->at = at + !f->done;
    return true;
}

/* The place of the quote that closes the field which the quote at begin opens; the record's end
 * without one. */
static size_t
closing_quote(struct slice record, size_t begin, bool *doubled)
{
    size_t at = begin + 1;
    *doubled = false;
    for (const char *q; at < record.n; at += 2) {
        q = memchr(record.p + at, '"', record.n - at);
        if (!q)
            return record.n;
        at = (size_t)(q - record.p);
        if (at + 1 == record.n || record.p[at + 1] != '"')
            return at;
        *doubled = true;
    }
    return record.n;
}

bool
csv_field(struct csv_fields *f, struct slice *field, bool *doubled)
{
    struct slice r = f->record;
    size_t begin = f->at, end = begin;
    *doubled = false;
    if (f->done || f->wants)
        return false;
    if (begin < r.n && r.p[begin] == '"') {
        end = closing_quote(r, begin, doubled);
        if (end == r.n)
            return fail(f, begin, "a field whose opening quote is closed");
        *field = (struct slice){ r.p + begin + 1, end - begin - 1 };
        return end_field(f, end + 1);
    }
    while (end < r.n && r.p[end] != ',' && r.p[end] != '"')
        end++;
    if (end < r.n && r.p[end] == '"')
        return fail(f, end,
                    "no quote inside a field without quotes: such a field begins "
                    "and ends with a quote, and those inside are doubled");
    *field = (struct slice){ r.p + begin, end - begin };
    return end_field(f, end);
}

size_t
csv_undouble(char *out, struct slice field)
{
    size_t n = 0;
    for (size_t i = 0; i < field.n; i++) {
        out[n++] = field.p[i];
        i += field.p[i] == '"';
    }
    return n;
}
