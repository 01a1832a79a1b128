/* SPDX-License-Identifier: MIT */
/* csv: any bytes, cut into records however they arrive, and records into fields; fields that are
 * written again are the same fields. */
#include "lib/data/csv.h"

#include "tests/fuzz/fuzz.h"

static bool
inside(struct slice part, struct slice whole)
{
    return part.p >= whole.p && part.p + part.n <= whole.p + whole.n;
}

/* Append a field, whose quotes are doubled, in quotes. */
static void
put_quoted(struct buf *out, struct slice field)
{
    buf_char(out, '"');
    buf_add(out, field.p, field.n);
    buf_char(out, '"');
}

/* The first record's fields, written again with quotes around each, are read as the same. */
static void
check_again(const struct buf *quoted, struct slice record)
{
    struct csv_fields a, b;
    struct slice field, again;
    bool doubled;
    size_t at = 0;
    struct slice text = { quoted->data, quoted->len }, whole;
    HOLDS(csv_next(text, &at, &whole) && at == text.n && whole.n + 1 == text.n,
          "a record with quotes ends at %zu of %zu", at, text.n);
    csv_open(&a, record);
    csv_open(&b, whole);
    while (csv_field(&a, &field, &doubled)) {
        HOLDS(csv_field(&b, &again, &doubled), "%s",
              b.wants ? b.wants : "fewer fields");
        HOLDS(field.n == again.n && memcmp(field.p, again.p, field.n) == 0, "a field");
    }
    HOLDS(!csv_field(&b, &again, &doubled) && !b.wants, "more fields");
}

static void
check_field(struct slice field, bool doubled, struct slice record)
{
    HOLDS(inside(field, record), "a field outside of its record");
    char *text = malloc(field.n + 1);
    HOLDS(text, "memory");
    size_t n = csv_undouble(text, field), quotes = 0, twice = 0;
    for (size_t i = 0; i < field.n; i++)
        quotes += field.p[i] == '"';
    for (size_t i = 0; i < n; i++)
        twice += text[i] == '"';
    HOLDS(doubled == (quotes > 0) && quotes == 2 * twice && n + twice == field.n,
          "%zu quotes become %zu", quotes, twice);
    free(text);
}

static void
check_record(struct slice record)
{
    struct csv_fields f;
    struct slice field;
    struct buf quoted = { 0 };
    bool doubled;
    size_t n = 0;
    csv_open(&f, record);
    for (; csv_field(&f, &field, &doubled); n++) {
        check_field(field, doubled, record);
        if (n)
            buf_char(&quoted, ',');
        put_quoted(&quoted, field);
    }
    HOLDS(f.wants ? f.at <= record.n : n > 0 && f.done, "the end at %zu", f.at);
    if (!f.wants) {
        buf_char(&quoted, '\n');
        check_again(&quoted, record);
    }
    buf_free(&quoted);
}

/* The bytes in pieces, whose sizes are the bytes themselves. */
static void
check_pieces(struct slice text, size_t whole)
{
    enum csv_state state = CSV_BEGIN;
    size_t found = 0, n;
    for (size_t at = 0; at < text.n; at += n) {
        n = 1 + (uint8_t)text.p[at] % 7U;
        n = n < text.n - at ? n : text.n - at;
        size_t end = csv_whole(&state, text.p + at, n);
        HOLDS(end <= n, "%zu of %zu", end, n);
        if (end)
            found = at + end;
    }
    HOLDS(found == whole, "whole records end at %zu, found %zu", whole, found);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct slice text = { (const char *)data, n }, record;
    enum csv_state state = CSV_BEGIN;
    size_t at = 0, before = 0, whole = 0;
    while (csv_next(text, &at, &record)) {
        size_t gone = at - before - record.n; // LF, CRLF, or at the end nothing
        HOLDS(record.p == text.p + before && gone <= 2, "record at %zu", before);
        HOLDS(gone || at == n, "a record without its end");
        if (gone)
            whole = at;
        check_record(record);
        before = at;
    }
    HOLDS(at == n, "%zu of %zu bytes", at, n);
    HOLDS(csv_whole(&state, text.p, n) == whole, "whole at once");
    check_pieces(text, whole);
    return 0;
}
