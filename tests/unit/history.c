/* SPDX-License-Identifier: MIT */
/* history: the provenance of a training, read and written. */
#include "lib/format/history.h"

#include "lib/format/provenance.h"
#include "tests/unit/check.h"

static struct slice
slice_of_buf(const struct buf *b)
{
    return (struct slice){ b->data, b->len };
}

/* Add steps [first, last] with these settings. */
static void
add(struct history *h, uint64_t first, uint64_t last, const char *settings)
{
    struct err err = { 0 };
    const struct history_span s = { first, last, slice_of("{}"), slice_of("\"r\""),
                                    slice_of(settings) };
    CHECK(history_add(h, &s, &err) == 0);
}

static struct buf
written(const struct history *h)
{
    struct buf b = { 0 };
    history_put(&b, h, "1");
    CHECK(!b.failed);
    return b;
}

static void
check_bytes(void)
{
    static const char want[] =
        "{\"inputs\":[{\"kind\":\"ckpt\",\"provenance\":null,\"xxh3\":"
        "\"000102030405060708090a0b0c0d0e0f\"}],\"options\":{\"spans\":["
        "{\"data\":{},\"first\":1,\"last\":5,\"route\":\"r\",\"settings\":1},"
        "{\"data\":{},\"first\":6,\"last\":6,\"route\":\"r\",\"settings\":2}]},"
        "\"tool\":\"trainstep\",\"version\":\"1\"}";
    struct history h = { 0 };
    struct buf input = { 0 };
    uint8_t xxh3[XXH3_BYTES];
    for (unsigned i = 0; i < XXH3_BYTES; i++)
        xxh3[i] = (uint8_t)i;
    provenance_input(&input, slice_of("ckpt"), (struct slice){ 0 }, 1, xxh3);
    h.inputs = slice_of_buf(&input);
    add(&h, 1, 3, "1");
    add(&h, 4, 5, "1"); // goes on
    add(&h, 6, 6, "2");
    CHECK(h.n == 2);
    struct buf b = written(&h);
    CHECK_SAY(strcmp(b.data, want) == 0, "%s", b.data);
    history_free(&h);
    buf_free(&input);

    // Read and written it is the same.
    struct err err = { 0 };
    CHECK(history_read(&h, slice_of_buf(&b), &err) == 1 && h.n == 2);
    CHECK(h.span[0].first == 1 && h.span[0].last == 5 && h.older.count == 0);
    struct buf again = written(&h);
    CHECK(strcmp(again.data, want) == 0);
    history_free(&h);
    buf_free(&again);
    buf_free(&b);
}

/* n spans of one step, written and read every `every` of them. */
static struct buf
long_run(unsigned n, unsigned every)
{
    struct buf b = { 0 }, old = { 0 };
    struct history h = { .inputs = slice_of("{}") };
    struct err err = { 0 };
    for (unsigned i = 1; i <= n; i++) {
        add(&h, i, i, i % 2 ? "1" : "2");
        if (i % every && i < n)
            continue;
        old = b;
        b = written(&h);
        history_free(&h);
        CHECK(history_read(&h, slice_of_buf(&b), &err) == 1 &&
              h.n == (i < HISTORY_SPANS ? i : HISTORY_SPANS));
        buf_free(&old);
    }
    CHECK(h.older.count + h.n == n && h.span[h.n - 1].last == n);
    history_free(&h);
    return b;
}

/* Older spans are a digest that does not depend on when it was written. */
static void
check_older(void)
{
    enum { N = 3 * HISTORY_SPANS + 1 };
    struct buf once = long_run(N, N), often = long_run(N, 1), some = long_run(N, 100);
    CHECK(strcmp(once.data, often.data) == 0 && strcmp(once.data, some.data) == 0);
    CHECK(strstr(once.data, "{\"count\":257,\"digest\":\""));
    buf_free(&once);
    buf_free(&often);
    buf_free(&some);
}

/* Of no training of ours, or damaged: the file is an origin. */
static void
check_refused(void)
{
#define SPAN(first, last)                                                              \
    "{\"data\":{},\"first\":" #first ",\"last\":" #last                                \
    ",\"route\":\"r\",\"settings\":1}"
#define HISTORY(spans)                                                                 \
    "{\"inputs\":[],\"options\":{\"spans\":[" spans "]},\"tool\":\"trainstep\"}"
#define DIGEST(hex) "{\"count\":1,\"digest\":\"" hex "\",\"first\":1,\"last\":2}"
#define ZEROS       "00000000000000000000000000000000"
    static const char *const bad[] = {
        "",
        "[]",
        "{\"inputs\":[],\"options\":{\"spans\":[]},\"tool\":\"trainstep\"}",
        "{\"inputs\":5,\"options\":{\"spans\":[" SPAN(1,
                                                      1) "]},\"tool\":\"trainstep\"}",
        "{\"inputs\":[],\"options\":{\"spans\":[" SPAN(1, 1) "]},\"tool\":\"datpack\"}",
        HISTORY(SPAN(2, 1)),
        HISTORY(SPAN(1, 2) "," SPAN(2, 3)),
        HISTORY("{\"first\":1,\"last\":1}"),
        HISTORY(DIGEST(ZEROS)),
        HISTORY(DIGEST("0g") "," SPAN(3, 3)),
        HISTORY(SPAN(1, 1) "," DIGEST(ZEROS)),
    };
    struct history h;
    struct err err = { 0 };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_SAY(history_read(&h, slice_of(bad[i]), &err) == 0, "%s", bad[i]);
        history_free(&h);
    }
    CHECK(history_read(&h, (struct slice){ 0 }, &err) == 0);
    CHECK(history_read(&h, slice_of(HISTORY(DIGEST(ZEROS) "," SPAN(3, 3))), &err) == 1);
    CHECK(h.older.count == 1 && h.older.last == 2 && h.n == 1);
    history_free(&h);
    CHECK(err.kind == ERR_NONE);
}

int
main(void)
{
    check_bytes();
    check_older();
    check_refused();
    return check_end();
}
