/* SPDX-License-Identifier: MIT */
/* tsv: any bytes, repaired, cut into lines, and lines into cells. */
#include "lib/data/lines.h"

#include "tests/fuzz/fuzz.h"

static void
trimmed(struct slice s)
{
    struct slice again = line_trim(s);
    HOLDS(s.n > 0 && again.p == s.p && again.n == s.n, "\"%.*s\"", (int)s.n, s.p);
    HOLDS(utf8_check(s.p, s.n) == s.n, "half a character");
}

static bool
inside(struct slice part, struct slice whole)
{
    return part.p >= whole.p && part.p + part.n <= whole.p + whole.n;
}

static void
check_line(struct slice line)
{
    struct slice prompt, target;
    switch (line_tsv(line, &prompt, &target)) {
    case TSV_PAIR:
        trimmed(prompt);
        trimmed(target);
        HOLDS(inside(prompt, line) && inside(target, line), "cells");
        HOLDS(prompt.p + prompt.n < target.p && *prompt.p != '#', "order");
        HOLDS(!memchr(prompt.p, '\t', prompt.n), "a TAB in the prompt");
        break;
    case TSV_NOTHING:
        HOLDS(line_trim(line).n == 0 || *line_trim(line).p == '#', "nothing");
        break;
    case TSV_NO_TAB:
        HOLDS(!memchr(line_trim(line).p, '\t', line_trim(line).n), "a TAB");
        break;
    default: // TSV_EMPTY_SIDE
        HOLDS(memchr(line.p, '\t', line.n), "no TAB");
    }
}

static void
check_lines(struct slice text)
{
    struct slice line;
    size_t at = 0, before = 0;
    while (line_next(text, &at, &line)) {
        size_t gone = at - before - line.n; // LF, CRLF, or at the end nothing
        HOLDS(line.p == text.p + before && gone <= 2, "line at %zu", before);
        HOLDS(gone || at == text.n, "a line without its end");
        HOLDS(line.n == 0 || !memchr(line.p, '\n', line.n), "LF in a line");
        check_line(line);
        before = at;
    }
    HOLDS(at == text.n, "%zu of %zu bytes", at, text.n);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf whole = { 0 }, again = { 0 };
    struct slice text = { (const char *)data, n };
    size_t bad = utf8_repair(&whole, text);
    HOLDS((bad == 0) == (utf8_check(text.p, n) == n), "%zu bad sequences", bad);
    HOLDS(bad > 0 || (whole.len == n && (n == 0 || !memcmp(whole.data, data, n))),
          "good text was changed");
    text = (struct slice){ whole.data ? whole.data : "", whole.len };
    HOLDS(utf8_check(text.p, text.n) == text.n, "not UTF-8");
    HOLDS(utf8_repair(&again, text) == 0 && again.len == whole.len, "repaired again");
    check_lines(text);
    buf_free(&whole);
    buf_free(&again);
    return 0;
}
