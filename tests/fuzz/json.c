/* SPDX-License-Identifier: MIT */
/* json: what json_skip takes, the pull calls take too; the text that it returns parses
 * again, and every string survives being written. */
#include "lib/base/json.h"

#include "tests/fuzz/fuzz.h"

static struct arena arena;

static void
check_string(struct slice s)
{
    struct buf b = { 0 };
    struct json j;
    struct err err = { 0 };
    struct slice again = { NULL, 0 };
    HOLDS(utf8_check(s.p, s.n) == s.n, "a string that is not UTF-8");
    json_put(&b, s);
    fuzz_words(b.data, b.len, false);
    json_open(&j, "written", 0, (struct slice){ b.data, b.len }, &arena, &err);
    HOLDS(json_string(&j, &again) == 0 && json_end(&j) == 0 && slice_eq(s, again),
          "%s: %s", err.msg, b.data);
    buf_free(&b);
}

/* Any value by the calls for its type: 0, 1 for a number that a double cannot hold. */
static int
walk(struct json *j) // NOLINT(misc-no-recursion): json_skip saw at most 1000 levels
{
    struct slice s;
    double v;
    bool b;
    int more = 0, rc = 0;
    switch (json_peek(j)) {
    case '{':
        HOLDS(json_object(j) == 0, "%s", j->err->msg);
        while (rc == 0 && (more = json_key(j, &s)) > 0) {
            check_string(s);
            rc = walk(j);
        }
        break;
    case '[':
        HOLDS(json_array(j) == 0, "%s", j->err->msg);
        while (rc == 0 && (more = json_item(j)) > 0)
            rc = walk(j);
        break;
    case '"':
        HOLDS(json_string(j, &s) == 0, "%s", j->err->msg);
        check_string(s);
        break;
    case '0':
        return json_number(j, &v) < 0;
    case 'n':
        HOLDS(json_null(j) == 0, "%s", j->err->msg);
        break;
    default:
        HOLDS(json_bool(j, &b) == 0, "%s", j->err->msg);
    }
    HOLDS(rc || more == 0, "%s", j->err->msg);
    return rc;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct json j;
    struct err err = { 0 };
    struct slice text = { (const char *)data, n }, raw = { NULL, 0 }, again;
    json_open(&j, "input", 0, text, &arena, &err);
    if (json_skip(&j, &raw) < 0 || json_end(&j) < 0) {
        fuzz_refused(&err);
        arena_free(&arena);
        return 0;
    }
    HOLDS(raw.p >= text.p && raw.p + raw.n <= text.p + text.n, "raw");
    json_open(&j, "again", 0, raw, &arena, &err);
    HOLDS(json_skip(&j, &again) == 0 && json_end(&j) == 0 && again.p == raw.p &&
              again.n == raw.n,
          "%s", err.msg);
    json_open(&j, "input", 0, text, &arena, &err);
    if (walk(&j) == 0)
        HOLDS(json_end(&j) == 0, "%s", err.msg);
    else
        fuzz_refused(&err);
    arena_free(&arena);
    return 0;
}
